//! `[[node]]`, `[[link]]` and the lines in them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::error::{Wrong, did_you_mean};
use super::names::Names;
use super::plan::{Line, Node, Pair, Program};
use super::section::{Section, texts};
use super::traces::Traces;
use super::tree::Value;
use crate::link::{NodeIndex, PRESETS, Profile, preset};

/// Most nodes of a scenario.
pub const MAX_NODES: usize = 2048;
/// Most directed pairs with numbers of their own.
const MAX_PAIRS: usize = 1 << 18;
/// Most bytes of `env`, `program` and `args` of a node.
const MAX_TEXT_BYTES: usize = 64 << 10;
/// Most bytes of these of all nodes, each of a count having its own.
const MAX_TEXT_BYTES_IN_ALL: usize = 4 << 20;
/// Names that mean something else where nodes are named.
const RESERVED: [&str; 2] = ["any", "all"];

/// All nodes, counts spelled out.
pub(super) fn nodes(root: &Section<'_>, traces: &Traces<'_>) -> Result<(Vec<Node>, Names), Wrong> {
    let mut nodes: Vec<Node> = vec![];
    let mut names = Names::default();
    let mut text_bytes = 0;
    for section in root.sections("node")? {
        let name = section.required("name", section.text("name")?, "\"fast\"")?;
        if !is_name(name) {
            let fix = "write 1 to 32 letters, digits, `-` or `_`, beginning with a letter; not `any` or `all`";
            return Err(section.wrong("name", format!("{name:?} is no name for a node"), fix));
        }
        let count = section.whole("count", 1..=MAX_NODES as u64)?;
        let first = nodes.len();
        let each: Vec<String> = match count {
            Some(count) => (0..count).map(|n| format!("{name}-{n}")).collect(),
            None => vec![name.to_owned()],
        };
        if first + each.len() > MAX_NODES {
            let fix = format!("keep to {MAX_NODES} nodes in all");
            return Err(section.wrong("count", "makes too many nodes", fix));
        }
        let model = node(&section, name, traces)?;
        text_bytes += own_text_bytes(&section, &model)? * each.len();
        if text_bytes > MAX_TEXT_BYTES_IN_ALL {
            let key = longest_text(&section);
            let fix = "put what is long into a file that the program reads";
            let problem = format!("makes more than {MAX_TEXT_BYTES_IN_ALL} bytes for all nodes");
            return Err(section.wrong(key, problem, fix));
        }
        let taken = |name: &str| {
            let problem = format!("{name:?} is the name of other nodes already");
            section.wrong("name", problem, "give each [[node]] a name of its own")
        };
        for (rank, of) in (first..).zip(&each) {
            if !names.add(of, vec![rank]) {
                return Err(taken(of));
            }
            nodes.push(Node {
                name: of.clone(),
                ..model.clone()
            });
        }
        if count.is_some() && !names.add(name, (first..nodes.len()).collect()) {
            return Err(taken(name));
        }
        section.finish()?;
    }
    if nodes.is_empty() {
        let fix = "add a section [[node]] with a name, such as name = \"peer\"";
        return Err(root.wrong("node", "is missing: nothing would run", fix));
    }
    Ok((nodes, names))
}

/// Bytes of the texts that each node has for itself.
fn own_text_bytes(section: &Section<'_>, node: &Node) -> Result<usize, Wrong> {
    let env = node.env.iter().map(|(key, value)| key.len() + value.len());
    let (Program::Skein { args: words } | Program::Command(words)) = &node.program;
    let bytes = env.chain(words.iter().map(String::len)).sum();
    if bytes > MAX_TEXT_BYTES {
        let key = longest_text(section);
        let problem = format!("has {bytes} bytes with all texts of the node");
        let fix = format!(
            "keep to {MAX_TEXT_BYTES} bytes; put what is long into a file that the program reads"
        );
        return Err(section.wrong(key, problem, fix));
    }
    Ok(bytes)
}

/// The key to blame for too much text.
fn longest_text(section: &Section<'_>) -> &'static str {
    let there = section.those_of(&["env", "args", "program"]);
    there.first().copied().unwrap_or("name")
}

fn is_name(name: &str) -> bool {
    name.len() <= 32
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && !RESERVED.contains(&name)
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
}

fn node(section: &Section<'_>, group: &str, traces: &Traces<'_>) -> Result<Node, Wrong> {
    let (mut up, mut down) = (Profile::default(), Profile::default());
    if let Some(name) = section.text("link")? {
        let Some(preset) = preset(name) else {
            let fix = did_you_mean(name, PRESETS.iter().map(|preset| preset.name));
            return Err(section.wrong("link", format!("{name:?} is not a preset"), fix));
        };
        (up, down) = (preset.up, preset.down);
    }
    let start = match section.text("start")? {
        None => Some(Duration::ZERO),
        Some("never") => None,
        Some(_) => section.duration("start")?,
    };
    let memory = section.size("memory")?;
    if memory.is_some_and(|bytes| bytes < 1 << 20) {
        let fix = "give 1 MiB or more, such as \"512M\"";
        return Err(section.wrong("memory", "is too little for any program", fix));
    }
    Ok(Node {
        name: group.to_owned(),
        group: group.to_owned(),
        cpu: section.number("cpu", 0.001..=1024.0)?,
        memory,
        threads: section.whole("threads", 1..=1024)?.unwrap_or(1) as u32,
        program: program(section)?,
        start,
        env: environment(section)?,
        up: own_line(section, "up", up, traces)?,
        down: own_line(section, "down", down, traces)?,
    })
}

fn program(section: &Section<'_>) -> Result<Program, Wrong> {
    let args = match section.raw("args") {
        Some(item) => texts(item, &section.path("args"))?,
        None => vec![],
    };
    let words = match section.raw("program") {
        Some(item) => texts(item, &section.path("program"))?,
        None => vec!["skein".to_owned()],
    };
    match words.as_slice() {
        [skein] if skein == "skein" => Ok(Program::Skein { args }),
        _ if !args.is_empty() => Err(section.wrong(
            "args",
            "belongs to \"skein\" alone",
            "write the arguments into `program`: [\"python3\", \"script.py\", …]",
        )),
        [] => Err(section.wrong("program", "is empty", "write \"skein\" or [\"command\", …]")),
        _ => Ok(Program::Command(words)),
    }
}

fn environment(section: &Section<'_>) -> Result<BTreeMap<String, String>, Wrong> {
    let mut env = BTreeMap::new();
    let Some(item) = section.raw("env") else {
        return Ok(env);
    };
    let path = section.path("env");
    Section::of(item, path.as_str())?;
    if let Value::Table(table) = &item.value {
        for (key, item) in table {
            let path = format!("{path}.{key}");
            let Value::Text(value) = &item.value else {
                let problem = format!("is {}", item.value.kind());
                let fix = "write a text in double quotes";
                return Err(Wrong::new(&item.place, path, problem, fix));
            };
            if key.is_empty() || key.contains(['=', '\0']) || value.contains('\0') {
                let fix = "write a name without `=`";
                return Err(Wrong::new(
                    &item.key,
                    path,
                    "cannot be in an environment",
                    fix,
                ));
            }
            env.insert(key.clone(), value.clone());
        }
    }
    Ok(env)
}

fn own_line(
    section: &Section<'_>,
    key: &'static str,
    base: Profile,
    traces: &Traces<'_>,
) -> Result<Line, Wrong> {
    let Some(inner) = section.section(key)? else {
        return Ok(Line {
            profile: base,
            trace: None,
        });
    };
    let line = line(&inner, base, traces)?;
    inner.finish()?;
    Ok(line)
}

/// The numbers of a line, and its trace.
fn line(section: &Section<'_>, base: Profile, traces: &Traces<'_>) -> Result<Line, Wrong> {
    let profile = profile(section, base)?;
    let trace = traces.named_in(section)?;
    Ok(Line { profile, trace })
}

/// The numbers of a line; those that are not given are those of `base`.
pub(super) fn profile(section: &Section<'_>, base: Profile) -> Result<Profile, Wrong> {
    let profile = Profile {
        rate: section.rate("rate")?.unwrap_or(base.rate),
        delay: section.duration("delay")?.unwrap_or(base.delay),
        jitter: section.duration("jitter")?.unwrap_or(base.jitter),
        loss: section.number("loss", 0.0..=1.0)?.unwrap_or(base.loss),
        burst: section
            .number_or_none("burst", 1.0..=10_000.0)?
            .unwrap_or(base.burst),
        reorder: section
            .number("reorder", 0.0..=1.0)?
            .unwrap_or(base.reorder),
        queue: section.size("queue")?.or(base.queue),
    };
    let checked = profile.check();
    checked.map_err(|fault| section.wrong(fault.key, format!("is {}", fault.value), fault.fix))?;
    Ok(profile)
}

/// `[[link]]`: pairs with numbers of their own. A later one replaces an earlier one.
pub(super) fn pairs(
    root: &Section<'_>,
    names: &Names,
    traces: &Traces<'_>,
) -> Result<Vec<Pair>, Wrong> {
    let mut pairs: BTreeMap<(NodeIndex, NodeIndex), Line> = BTreeMap::new();
    for section in root.sections("link")? {
        let directions = directions(&section, names)?;
        let line = line(&section, Profile::default(), traces)?;
        section.finish()?;
        pairs.extend(directions.into_iter().map(|ends| (ends, line.clone())));
        if pairs.len() > MAX_PAIRS {
            let fix = "give the nodes' own lines (up, down) these numbers instead";
            return Err(root.wrong("link", format!("more than {MAX_PAIRS} pairs"), fix));
        }
    }
    let pairs = pairs.into_iter();
    Ok(pairs
        .map(|((from, to), line)| Pair { from, to, line })
        .collect())
}

/// The directed pairs that `from`, `to` and `both` name.
pub(super) fn directions(
    section: &Section<'_>,
    names: &Names,
) -> Result<Vec<(NodeIndex, NodeIndex)>, Wrong> {
    let end = |key: &'static str| {
        let item = section.required(key, section.raw(key), "\"fast\"")?;
        names.several(item, &section.path(key))
    };
    let (from, to) = (end("from")?, end("to")?);
    let both = section.flag("both")?.unwrap_or(false);
    let mut pairs = vec![];
    for &a in &from {
        for &b in to.iter().filter(|&&b| b != a) {
            pairs.push((a, b));
            if both {
                pairs.push((b, a));
            }
        }
        if pairs.len() > MAX_PAIRS {
            let fix = "give the nodes' own lines (up, down) these numbers instead";
            return Err(section.wrong("to", format!("makes more than {MAX_PAIRS} pairs"), fix));
        }
    }
    if pairs.is_empty() {
        let fix = "name two different nodes";
        return Err(section.wrong("to", "is where it comes from", fix));
    }
    Ok(pairs)
}
