//! The whole file, its variants, sweeps and overrides; each variant becomes one [`Scenario`].

use std::path::{Path, PathBuf};

use super::bounded_text;
use super::conditions::{end, expectations};
use super::error::{ScenarioError, Wrong};
use super::events::{Stage, events};
use super::nodes::{nodes, pairs};
use super::plan::{Problem, Program, Recovery, Scenario, Sim};
use super::section::Section;
use super::traces::Traces;
use super::tree::{self, Item, Place, Source, Table, Value, leaves, put};

/// Longest scenario file, bytes.
pub const MAX_FILE_BYTES: u64 = 1 << 20;
/// Most variants, sweeps multiplied out.
pub const MAX_VARIANTS: usize = 256;
/// Longest name that a sweep makes, which is that of a folder.
const MAX_NAME_BYTES: usize = 100;

/// A file with its variants, each to be run `repeat` times.
#[derive(Clone, Debug, PartialEq)]
pub struct Campaign {
    /// The file's name for it.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// One scenario for each variant; one without a name if the file has none.
    pub variants: Vec<Scenario>,
}

/// Reads a scenario file. `overrides` are dotted paths into it with their values, as TOML or as bare texts, and hold
/// in every variant, as `seed` does.
///
/// # Errors
/// The first fault, with key, line and fix.
pub fn load(
    path: &Path,
    overrides: &[(String, String)],
    seed: Option<u64>,
) -> Result<Campaign, ScenarioError> {
    let text = bounded_text(path, MAX_FILE_BYTES)?;
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let mut sources = vec![Source {
        name: path.display().to_string(),
        text,
    }];
    let mut campaign = parse(&mut sources, &folder, overrides)?;
    campaign.path = path.to_owned();
    for scenario in &mut campaign.variants {
        scenario.seed = seed.unwrap_or(scenario.seed);
    }
    Ok(campaign)
}

/// Reads the first of `sources`; texts that come up on the way are added to them.
fn parse(
    sources: &mut Vec<Source>,
    folder: &Path,
    overrides: &[(String, String)],
) -> Result<Campaign, ScenarioError> {
    let mut root = {
        let text = sources.first().map_or("", |source| source.text.as_str());
        tree::parse(0, text).map_err(|wrong| wrong.located(sources, ""))?
    };
    let mut set = vec![];
    for (path, value) in overrides {
        let item = overriding(sources, path, value);
        set.push((path.clone(), item));
    }
    let variants = variants(&mut root).map_err(|wrong| wrong.located(sources, ""))?;
    let only_one = variants.len() == 1;
    let traces = Traces::of(folder);
    let mut scenarios = vec![];
    for (name, values) in variants {
        let mut changed = root.clone();
        let scenario = (values.iter().chain(&set))
            .try_for_each(|(path, item)| put(&mut changed, path, item))
            .and_then(|()| scenario(&changed, folder, &traces, &name, sources));
        // A fault in what all variants share needs no variant's name, but only a single one is sure to share it.
        let shown = if only_one { "" } else { &name };
        scenarios.push(scenario.map_err(|wrong| wrong.located(sources, shown))?);
    }
    Ok(Campaign {
        name: scenarios
            .first()
            .map_or_else(String::new, |of| of.name.clone()),
        path: PathBuf::new(),
        variants: scenarios,
    })
}

/// The value of a `--set`: TOML, or else a text without quotes.
fn overriding(sources: &mut Vec<Source>, path: &str, value: &str) -> Item {
    let source = sources.len();
    let written = format!("{path}={value}");
    // Blanks for the path, so that places inside of the value are those in what was written.
    let before = " ".repeat(path.len().saturating_sub(1));
    let read = tree::parse(source, &format!("{before}x={value}"));
    let place = Place {
        source,
        span: 0..written.len(),
    };
    let found = read.ok().and_then(|item| match item.value {
        Value::Table(mut table) if table.len() == 1 => table.remove("x").map(|item| item.value),
        _ => None,
    });
    sources.push(Source {
        name: "--set".into(),
        text: written,
    });
    Item {
        key: place.clone(),
        place,
        value: found.unwrap_or_else(|| Value::Text(value.to_owned())),
    }
}

/// What a variant sets: paths with values.
type Setting = (String, Item);

/// Takes `[variants]` and `[sweep]` out of the file: the product of both.
fn variants(root: &mut Item) -> Result<Vec<(String, Vec<Setting>)>, Wrong> {
    let Value::Table(table) = &mut root.value else {
        return Ok(vec![]);
    };
    let (named, sweep) = (table.remove("variants"), table.remove("sweep"));
    let mut all: Vec<(String, Vec<Setting>)> = vec![];
    if let Some(item) = &named {
        for (name, item) in ordered(item, "variants")? {
            if !is_variant(name) {
                let fix = "write 1 to 64 letters, digits, `-`, `_` or `.`";
                return Err(Wrong::new(
                    &item.key,
                    format!("variants.{name}"),
                    "is no name",
                    fix,
                ));
            }
            let mut found = vec![];
            Section::of(item, format!("variants.{name}"))?;
            if let Value::Table(values) = &item.value {
                leaves(values, "", &mut found);
            }
            let found = found.into_iter().map(|(path, item)| (path, item.clone()));
            all.push((name.clone(), found.collect()));
        }
    }
    if all.is_empty() {
        all.push((String::new(), vec![]));
    }
    if let Some(item) = &sweep {
        Section::of(item, "sweep")?;
        let mut lists = vec![];
        if let Value::Table(values) = &item.value {
            leaves(values, "", &mut lists);
        }
        for (path, list) in lists {
            all = swept(all, &path, list)?;
        }
    }
    if all.len() > MAX_VARIANTS {
        return Err(too_many(named.as_ref().unwrap_or(root)));
    }
    Ok(all)
}

fn too_many(item: &Item) -> Wrong {
    let fix = format!("keep to {MAX_VARIANTS} variants, lists of a sweep multiplied");
    Wrong::new(&item.key, "", "makes too many variants", fix)
}

/// The entries of the table at `path`, in the order of the text.
fn ordered<'a>(item: &'a Item, path: &str) -> Result<Vec<(&'a String, &'a Item)>, Wrong> {
    Section::of(item, path)?;
    let mut entries: Vec<_> = match &item.value {
        Value::Table(table) => table.iter().collect(),
        _ => vec![],
    };
    entries.sort_by_key(|(_, item)| item.key.span.start);
    Ok(entries)
}

/// Each variant so far with each value of one list.
fn swept(
    variants: Vec<(String, Vec<Setting>)>,
    path: &str,
    list: &Item,
) -> Result<Vec<(String, Vec<Setting>)>, Wrong> {
    let values = match &list.value {
        Value::List(values) if !values.is_empty() => values,
        _ => {
            let fix = "write a list of at least one value, such as [0.1, 0.2]";
            let key = format!("sweep.{path}");
            return Err(Wrong::new(&list.place, key, "is no list of values", fix));
        }
    };
    if variants.len() * values.len() > MAX_VARIANTS {
        return Err(too_many(list));
    }
    let mut all = vec![];
    for (name, settings) in variants {
        let mut texts: Vec<String> = vec![];
        for (number, value) in values.iter().enumerate() {
            let text = match &value.value {
                Value::Text(text) if is_variant(text) => text.clone(),
                Value::Whole(whole) => whole.to_string(),
                Value::Number(of) => of.to_string(),
                Value::Flag(flag) => flag.to_string(),
                _ => format!("#{number}"),
            };
            if texts.contains(&text) {
                let key = format!("sweep.{path}");
                let problem = format!("holds {text} twice");
                let fix = "keep each value once; `repeat` makes more runs of each";
                return Err(Wrong::new(&value.place, key, problem, fix));
            }
            let comma = if name.is_empty() { "" } else { "," };
            let mut settings = settings.clone();
            settings.push((path.to_owned(), value.clone()));
            let path = path.replace('*', "all");
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            let path = path.replace(|c| !plain(c), "-");
            let mut full = format!("{name}{comma}{path}={text}");
            if full.len() > MAX_NAME_BYTES {
                let number = format!("~{}", all.len());
                full.truncate(MAX_NAME_BYTES - number.len());
                full.push_str(&number);
            }
            texts.push(text);
            all.push((full, settings));
        }
    }
    Ok(all)
}

/// Whether it can be the name of a folder.
fn is_variant(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && !name.starts_with('.')
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// One variant, all values in place.
fn scenario(
    root: &Item,
    folder: &Path,
    traces: &Traces<'_>,
    variant: &str,
    sources: &mut Vec<Source>,
) -> Result<Scenario, Wrong> {
    let section = Section::of(root, "")?;
    let name = section.required("name", section.text("name")?, "\"my-scenario\"")?;
    if !is_variant(name) {
        let fix = "write 1 to 64 letters, digits, `-`, `_` or `.`";
        return Err(section.wrong("name", "is no name", fix));
    }
    let about = section.text("about")?;
    let about = section.required("about", about, "\"what it shows, after which paper\"")?;
    let (nodes, names) = nodes(&section, traces)?;
    let pairs = pairs(&section, &names, traces)?;
    let end = end(&section, &names)?;
    let stage = Stage {
        nodes: &nodes,
        pairs: &pairs,
        names: &names,
    };
    let events = events(&section, &stage, end.after)?;
    let expect = expectations(&section, &names)?;
    let sim = sim(&section)?;
    let job = job(&section, folder, sources)?;
    let skein = nodes
        .iter()
        .any(|node| matches!(node.program, Program::Skein { .. }));
    if skein && job.is_none() && sim.problem == Problem::Job {
        let fix = "add a section [job] with a job's keys, or file = \"job.toml\"";
        return Err(section.missing("job", fix));
    }
    if end.job && !skein {
        let place = section.section("end")?;
        let place = place.as_ref().unwrap_or(&section);
        let fix = "write exit = true to end with the programs";
        return Err(place.wrong("job", "is true, but no node runs skein", fix));
    }
    let scenario = Scenario {
        name: name.to_owned(),
        variant: variant.to_owned(),
        about: about.trim().to_owned(),
        seed: section.whole("seed", 0..=i64::MAX as u64)?.unwrap_or(1),
        repeat: section.whole("repeat", 1..=1000)?.unwrap_or(1) as u32,
        nodes,
        pairs,
        events,
        end,
        expect,
        job,
        sim,
        folder: folder.to_owned(),
    };
    section.finish()?;
    Ok(scenario)
}

/// `[job]`, put onto the file that it names, as TOML.
fn job(
    root: &Section<'_>,
    folder: &Path,
    sources: &mut Vec<Source>,
) -> Result<Option<String>, Wrong> {
    let Some(section) = root.section("job")? else {
        return Ok(None);
    };
    let file = section.text("file")?;
    let Some(Item {
        value: Value::Table(written),
        ..
    }) = root.raw("job")
    else {
        return Ok(None);
    };
    let mut table: Table = written.clone();
    table.remove("file");
    if let Some(file) = file {
        let path = folder.join(file);
        let text = bounded_text(&path, MAX_FILE_BYTES).map_err(|error| {
            let fix = "give the path of a job file, from this file's folder";
            section.wrong("file", error.to_string(), fix)
        })?;
        sources.push(Source {
            name: path.display().to_string(),
            text: text.clone(),
        });
        let under = tree::parse(sources.len() - 1, &text)?;
        if let Value::Table(under) = under.value {
            table = tree::merged(under, table);
        }
    }
    place_data(&mut table, folder);
    let text = toml::to_string(&tree::plain(&table))
        .map_err(|error| root.wrong("job", error.to_string(), "write it as a job file"))?;
    Ok(Some(text))
}

/// Paths of the data are from the scenario's folder, as all its paths; peers have other folders.
fn place_data(job: &mut Table, folder: &Path) {
    let Some(Value::Table(data)) = job.get_mut("data").map(|data| &mut data.value) else {
        return;
    };
    for key in ["path", "validation_path"] {
        if let Some(Value::Text(path)) = data.get_mut(key).map(|path| &mut path.value)
            && let Ok(whole) = std::path::absolute(folder.join(&*path))
        {
            *path = whole.display().to_string();
        }
    }
}

fn sim(root: &Section<'_>) -> Result<Sim, Wrong> {
    let mut sim = Sim::default();
    let Some(section) = root.section("sim")? else {
        return Ok(sim);
    };
    let cost = |key, default| -> Result<f64, Wrong> {
        Ok(section.number(key, 0.0..=1e9)?.unwrap_or(default))
    };
    sim.us_per_sample = cost("us_per_sample", sim.us_per_sample)?;
    sim.us_per_step = cost("us_per_step", sim.us_per_step)?;
    // Below that a step takes no time on a fast node, and a run is steps without end.
    if sim.us_per_sample + sim.us_per_step < 1.0 {
        let key = section.those_of(&["us_per_sample", "us_per_step"]);
        let key = key.first().copied().unwrap_or("us_per_sample");
        let fix = "give us_per_sample or us_per_step 1 or more";
        return Err(section.wrong(key, "makes steps that take no time", fix));
    }
    sim.us_per_look = cost("us_per_look", sim.us_per_look)?;
    sim.us_per_packet = cost("us_per_packet", sim.us_per_packet)?;
    sim.us_per_sent = cost("us_per_sent", sim.us_per_sent)?;
    sim.us_per_applied = cost("us_per_applied", sim.us_per_applied)?;
    sim.profile = section.text("profile")?.map(PathBuf::from);
    sim.recovery = match section.text("recovery")? {
        None | Some("replay") => Recovery::Replay,
        Some("redistribute") => Recovery::Redistribute,
        Some(_) => {
            let fix = "write \"replay\" or \"redistribute\"";
            return Err(section.wrong("recovery", "is not a choice", fix));
        }
    };
    if let Some(item) = section.raw("problem") {
        sim.problem = match &item.value {
            Value::Text(text) if text == "job" => Problem::Job,
            Value::Table(_) => {
                let inner = Section::of(item, section.path("problem"))?;
                let dimensions = inner.whole("toy", 1..=1_000_000)?;
                let dimensions = inner.required("toy", dimensions, "16")? as usize;
                inner.finish()?;
                Problem::Toy { dimensions }
            }
            _ => {
                let fix = "write \"job\" or { toy = 16 }";
                return Err(section.wrong("problem", "is not a choice", fix));
            }
        };
    }
    section.finish()?;
    Ok(sim)
}

#[cfg(test)]
mod tests;
