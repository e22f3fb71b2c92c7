//! `run` and `compare`: runs in turn, each judged and reported as soon as it is over.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};

use super::args::{CompareArgs, FileArgs, HowArgs, RunArgs};
use super::{print, scenarios, title};
use skein_netem::lab::Speed;
use skein_netem::record::Record;
use skein_netem::report::{self, RunSummary, Summary};
use skein_netem::scenario::Scenario;

/// What a campaign leaves in its folder.
const SUMMARY: &str = "summary.json";
/// Where runs go when nobody says.
const FOLDER: &str = "netem-runs";

/// `skein-netem run`: each variant as often as the file says. Whether all expectations hold.
pub(super) fn run(args: &RunArgs) -> anyhow::Result<bool> {
    let variants = scenarios(&args.file, args.how.seed)?;
    let rounds = variants.iter().map(|of| of.repeat).max().unwrap_or(1);
    let name = variants
        .first()
        .map_or_else(String::new, |of| of.name.clone());
    let done = run_all(
        &schedule(&variants, rounds, true),
        &name,
        &args.how,
        |_| vec![],
    )?;
    Ok(done.passed)
}

/// `skein-netem compare`: the contestants in turn.
pub(super) fn compare(args: &CompareArgs) -> anyhow::Result<bool> {
    let mut contestants: Vec<Scenario> = vec![];
    for file in &args.files {
        let file = FileArgs {
            file: file.clone(),
            set: args.set.clone(),
            variant: None,
        };
        contestants.extend(scenarios(&file, args.how.seed)?);
    }
    let titles: BTreeSet<String> = contestants.iter().map(title).collect();
    if titles.len() < contestants.len() {
        bail!("two of the contestants are the same; give each scenario or variant once");
    }
    let rounds = contestants.iter().map(|of| of.repeat).max().unwrap_or(1);
    let rounds = args.rounds.unwrap_or(rounds);
    let targets = contestants.iter().filter_map(report::target);
    let target = targets.reduce(f64::min);
    let runs = schedule(&contestants, rounds, false);
    let done = run_all(&runs, "compare", &args.how, |runs| {
        report::compare(runs, target)
    })?;
    out(
        &args.how,
        &format!("\n{}", report::comparison_table(&done.comparison)),
    )?;
    Ok(done.passed)
}

/// All of the first round, all of the second, and so on, so that slow changes of the machine meet all alike.
fn schedule(scenarios: &[Scenario], rounds: u32, own_repeat: bool) -> Vec<Scenario> {
    let mut all = vec![];
    for round in 0..rounds {
        for scenario in scenarios {
            if own_repeat && round >= scenario.repeat {
                continue;
            }
            all.push(Scenario {
                seed: scenario.seed.wrapping_add(u64::from(round)),
                ..scenario.clone()
            });
        }
    }
    all
}

fn run_all(
    runs: &[Scenario],
    name: &str,
    how: &HowArgs,
    compare: impl Fn(&[(Record, RunSummary)]) -> Vec<report::Compared>,
) -> anyhow::Result<Summary> {
    let folder = match &how.out {
        Some(out) => out.clone(),
        None => new_folder(name)?,
    };
    if folder.join(SUMMARY).exists() {
        let folder = folder.display();
        bail!(
            "{folder} holds the runs of an earlier command; remove it, or give another folder with --out"
        );
    }
    if let Some(path) = how.json.as_deref().filter(|path| *path != Path::new("-")) {
        // Before the runs, not after hours of them.
        let file = std::fs::File::create(path);
        file.with_context(|| format!("cannot write the summary to {}", path.display()))?;
    }
    let mut taken = BTreeSet::new();
    let mut done: Vec<(Record, RunSummary)> = vec![];
    let mut summary = Summary::new(name, vec![]);
    measure_speeds(runs, how)?;
    for (number, scenario) in runs.iter().enumerate() {
        let own = run_folder(scenario, &mut taken);
        let inside = folder.join(&own);
        make_empty(&inside)?;
        let label = match runs.len() {
            1 => format!("{} seed {}", title(scenario), scenario.seed),
            n => format!(
                "{} seed {} ({} of {n})",
                title(scenario),
                scenario.seed,
                number + 1
            ),
        };
        let record = with_progress(scenario, &label, &inside, how)?;
        report::write_record(&inside, &record)?;
        let run = report::judge(&record, scenario, &own);
        report::write_report(&inside, &record, &run)?;
        out(how, &verdict(&label, &run))?;
        done.push((record, run));
        summary = Summary::new(name, done.iter().map(|(_, run)| run.clone()).collect());
        summary.comparison = compare(&done);
        // After each run: a campaign that is cut short leaves what it has.
        report::write_summary(&folder, &summary)?;
    }
    match &how.json {
        Some(path) if path == Path::new("-") => {
            print(&format!("{}\n", serde_json::to_string_pretty(&summary)?))?;
        }
        Some(path) => report::write_json(path, &summary)?,
        None => {}
    }
    out(
        how,
        &format!("report: {}\n", folder.join("index.html").display()),
    )?;
    Ok(summary)
}

/// Whether the machine gives every node its share whatever the others do; once for each set of shares.
fn measure_speeds(runs: &[Scenario], how: &HowArgs) -> anyhow::Result<()> {
    let mut known: Vec<Vec<Option<f64>>> = vec![];
    for scenario in runs {
        let shares: Vec<Option<f64>> = scenario.nodes.iter().map(|node| node.cpu).collect();
        if known.contains(&shares) || shares.iter().all(Option::is_none) {
            continue;
        }
        let speeds = how
            .engine
            .measure(scenario, &mut |_, _| {})
            .with_context(|| format!("{} is not run", title(scenario)))?;
        let worst = speeds.iter().map(Speed::loss).fold(0.0, f64::max);
        if !speeds.is_empty() {
            let percent = 100.0 * worst;
            out(
                how,
                &format!("speed alone and together: at most {percent:.1} % apart\n"),
            )?;
        }
        known.push(shares);
    }
    Ok(())
}

/// Text for people: on standard output, unless JSON is there.
fn out(how: &HowArgs, text: &str) -> anyhow::Result<()> {
    if how.json.as_deref() == Some(Path::new("-")) {
        return std::io::stderr()
            .write_all(text.as_bytes())
            .context("cannot write to standard error");
    }
    print(text)
}

/// A line for the run and one for each expectation.
fn verdict(label: &str, run: &RunSummary) -> String {
    let holding = run.verdicts.iter().filter(|verdict| verdict.holds).count();
    let judged = match run.verdicts.len() {
        0 => "nothing was expected".to_owned(),
        all => format!("{holding} of {} hold", report::counted(all, "expectation")),
    };
    let mut text = format!("{label}: {:.1} s, {judged}\n", run.duration_s);
    if let (Some(speed), Some(hash)) = (run.speed, &run.trace_hash) {
        let hash = hash.get(..16).unwrap_or(hash);
        text.push_str(&format!(
            "  {speed:.2} virtual seconds per real second, trace {hash}\n"
        ));
    }
    for limit in &run.not_applied {
        text.push_str(&format!("  not applied: {limit}\n"));
    }
    for verdict in &run.verdicts {
        text.push_str(&format!("  {}\n", verdict.line()));
    }
    text
}

/// The first of `netem-runs/NAME-1`, `-2`, … that is free.
fn new_folder(name: &str) -> anyhow::Result<PathBuf> {
    for number in 1..100_000 {
        let folder = Path::new(FOLDER).join(format!("{name}-{number}"));
        if !folder.exists() {
            return Ok(folder);
        }
    }
    bail!("{FOLDER} is full; give a folder with --out")
}

/// `VARIANT-SEED`, or the scenario's name where it has no variant; told apart where two are alike.
fn run_folder(scenario: &Scenario, taken: &mut BTreeSet<String>) -> String {
    let name = match scenario.variant.as_str() {
        "" => &scenario.name,
        variant => variant,
    };
    let plain = format!("{name}-{}", scenario.seed);
    let full = format!("{}-{plain}", scenario.name);
    let free = if taken.contains(&plain) { full } else { plain };
    taken.insert(free.clone());
    free
}

/// Programs of an earlier run left their state in its folder, and would go on from there.
fn make_empty(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::read_dir(folder))
        .map(|mut entries| entries.next().is_none())
        .with_context(|| format!("cannot make the folder {}", folder.display()))?
        .then_some(())
        .with_context(|| {
            let folder = folder.display();
            format!("{folder} holds an earlier run; remove it, or give another folder with --out")
        })
}

/// Runs one scenario and tells how far it is: on a terminal a bar, else plain lines.
fn with_progress(
    scenario: &Scenario,
    label: &str,
    folder: &Path,
    how: &HowArgs,
) -> anyhow::Result<Record> {
    let bar = (!how.quiet && std::io::stderr().is_terminal()).then(|| bar(scenario, label));
    if !how.quiet && bar.is_none() {
        let _ = writeln!(std::io::stderr(), "{label}");
    }
    let mut progress = |t: f64, line: &str| match &bar {
        Some(bar) => {
            bar.set_position((t * 10.0) as u64);
            if !line.is_empty() {
                bar.println(format!("[{t:7.1} s] {line}"));
            }
        }
        None if how.quiet || line.is_empty() => {}
        None => {
            // Nobody may be reading any more; the run matters more.
            let _ = writeln!(std::io::stderr(), "[{t:7.1} s] {line}");
        }
    };
    let record = how.engine.run(scenario, folder, &mut progress);
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    record.with_context(|| format!("{label} could not be run"))
}

fn bar(scenario: &Scenario, label: &str) -> ProgressBar {
    let tenths = scenario.end.after.as_millis() as u64 / 100;
    let bar = ProgressBar::new(tenths).with_message(label.to_owned());
    let style = ProgressStyle::with_template("{spinner} {msg} [{bar:30}] {prefix} {elapsed}");
    if let Ok(style) = style {
        bar.set_style(style.progress_chars("=> "));
    }
    bar.set_prefix(format!("of at most {} s", scenario.end.after.as_secs()));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contestants() -> Vec<Scenario> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios/dlion-cpu.toml");
        let mut variants = skein_netem::scenario::load(&path, &[], Some(7))
            .unwrap()
            .variants;
        variants.truncate(2);
        variants[1].repeat = 2;
        variants
    }

    #[test]
    fn contestants_take_turns_with_seeds_counting_up() {
        let order = |rounds, own_repeat| -> Vec<(String, u64)> {
            let runs = schedule(&contestants(), rounds, own_repeat).into_iter();
            runs.map(|of| (of.variant, of.seed)).collect()
        };
        let turn = |seed| [("hetero".to_owned(), seed), ("homo".to_owned(), seed)];
        assert_eq!(order(2, false), [turn(7), turn(8)].concat());
        // `run` repeats each variant as often as it says itself.
        let own = [turn(7).to_vec(), vec![("homo".to_owned(), 8)]].concat();
        assert_eq!(order(2, true), own);
    }

    #[test]
    fn folders_of_runs_are_named_by_variant_and_seed_and_never_shared() {
        let runs = contestants();
        let mut other = runs[0].clone();
        other.name = "other".into();
        let mut taken = BTreeSet::new();
        assert_eq!(run_folder(&runs[0], &mut taken), "hetero-7");
        assert_eq!(run_folder(&other, &mut taken), "other-hetero-7");
        other.variant.clear();
        assert_eq!(run_folder(&other, &mut taken), "other-7");
    }

    #[test]
    fn a_run_does_not_go_on_from_the_state_of_an_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("run-1");
        make_empty(&inside).unwrap();
        make_empty(&inside).unwrap();
        std::fs::write(inside.join("state"), "").unwrap();
        let error = make_empty(&inside).unwrap_err().to_string();
        assert!(error.contains("another folder with --out"), "{error}");
    }
}
