//! The command line of `skein-netem`.

mod args;
mod campaign;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;

use args::{Cli, Command, FileArgs};
use skein_netem::report;
use skein_netem::scenario::{Scenario, load};

/// Runs the command that `args` give, program name first, and returns what the process ends with.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are no faults. A closed pipe is nobody's loss.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let done = match cli.command {
        Command::Check(file) => check(&file),
        Command::Show(file) => show(&file),
        Command::Run(args) => campaign::run(&args),
        Command::Compare(args) => campaign::compare(&args),
        Command::Profile { file, out } => profile(&file, out.as_deref()),
        Command::Report { dir } => again(&dir),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "skein-netem: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// The scenarios that a file, `FILE#VARIANT` or `--variant` names.
fn scenarios(file: &FileArgs, seed: Option<u64>) -> anyhow::Result<Vec<Scenario>> {
    let (path, wanted) = match file.file.rsplit_once('#') {
        Some((path, variant)) if !Path::new(&file.file).exists() => {
            if let Some(other) = file.variant.as_deref().filter(|other| *other != variant) {
                bail!(
                    "{} names one variant and --variant {other} another; give one",
                    file.file
                );
            }
            (path, Some(variant))
        }
        _ => (file.file.as_str(), file.variant.as_deref()),
    };
    let mut variants = load(Path::new(path), &file.set, seed)?.variants;
    if let Some(wanted) = wanted {
        choose(&mut variants, path, wanted)?;
    }
    for scenario in &variants {
        skein_netem_sim::check_job(scenario)
            .with_context(|| format!("{path}: {} cannot be run", title(scenario)))?;
    }
    Ok(variants)
}

/// Leaves the variant of this name alone.
fn choose(variants: &mut Vec<Scenario>, path: &str, wanted: &str) -> anyhow::Result<()> {
    let names: Vec<String> = variants.iter().map(|of| of.variant.clone()).collect();
    variants.retain(|of| of.variant == wanted);
    if variants.is_empty() {
        match names.as_slice() {
            [none] if none.is_empty() => bail!("{path} has no variants; leave {wanted:?} out"),
            names => bail!(
                "{path} has no variant {wanted:?}; it has {}",
                names.join(", ")
            ),
        }
    }
    Ok(())
}

/// Prints to standard output; a closed pipe is no fault.
fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write to standard output")
        }
        _ => Ok(()),
    }
}

fn check(file: &FileArgs) -> anyhow::Result<bool> {
    for scenario in scenarios(file, None)? {
        let name = title(&scenario);
        let nodes = report::counted(scenario.nodes.len(), "node");
        let events = report::counted(scenario.events.len(), "event");
        let expect = report::counted(scenario.expect.len(), "expectation");
        let runs = report::counted(scenario.repeat as usize, "run");
        print(&format!("{name}: {nodes}, {events}, {expect}, {runs}\n"))?;
    }
    Ok(true)
}

fn show(file: &FileArgs) -> anyhow::Result<bool> {
    let scenarios = scenarios(file, None)?;
    let drawings = scenarios.iter().map(report::topology);
    print(&drawings.collect::<Vec<_>>().join("\n\n"))?;
    Ok(true)
}

fn profile(file: &FileArgs, out: Option<&Path>) -> anyhow::Result<bool> {
    let scenarios = scenarios(file, None)?;
    let scenario = scenarios.first().context("the file has no variants")?;
    let text = skein_netem_sim::profile(scenario)?;
    match out {
        Some(out) => std::fs::write(out, text)
            .with_context(|| format!("cannot write the profile to {}", out.display()))?,
        None => print(&text)?,
    }
    Ok(true)
}

fn again(dir: &Path) -> anyhow::Result<bool> {
    let summary = report::report_again(dir).with_context(|| {
        let dir = dir.display();
        format!("cannot make the reports of {dir} again; give a folder that run or compare wrote")
    })?;
    let runs = report::counted(summary.runs.len(), "report");
    print(&format!(
        "{runs}, listed in {}\n",
        dir.join("index.html").display()
    ))?;
    Ok(summary.passed)
}

/// `name`, or `name#variant`.
fn title(scenario: &Scenario) -> String {
    match scenario.variant.as_str() {
        "" => scenario.name.clone(),
        variant => format!("{}#{variant}", scenario.name),
    }
}
