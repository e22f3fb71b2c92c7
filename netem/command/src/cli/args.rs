//! What a user may type. Definitions only.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::engine::Engine;

const HELP: &str = "\
Exit codes:
    0  it worked, and every expectation of every run holds
    1  an expectation falls short; each is printed with its value and its bound
    2  the command line or a file is wrong, or a scenario could not be run

The scenario file, its metrics and the form of summary.json are in docs/testbed.md.";

/// Runs programs, or the mesh in virtual time, on networks of limited links and unequal devices.
#[derive(Debug, Parser)]
#[command(name = "skein-netem", version, after_help = HELP, max_term_width = 120)]
pub(super) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(super) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Check a scenario file, all its variants too, and say what is wrong, where, and the fix
    Check(FileArgs),
    /// Draw a scenario: nodes, lines, events
    Show(FileArgs),
    /// Run a scenario, judge it and write reports
    Run(RunArgs),
    /// Run several scenarios or variants in turn, A B A B, and print min, median, max and ratios
    Compare(CompareArgs),
    /// Measure what the blocks of a scenario's model cost on one core of this machine, for `sim.profile`
    Profile {
        /// The scenario, of which the first variant counts
        #[command(flatten)]
        file: FileArgs,
        /// Where to write it. Default: standard output
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Make the reports again from the records of a folder that `run` or `compare` wrote
    Report {
        /// The folder
        dir: PathBuf,
    },
}

/// A file and what is changed in it.
#[derive(Debug, Clone, Args)]
pub(super) struct FileArgs {
    /// The scenario file; FILE#VARIANT for one variant of it
    pub(super) file: String,
    /// Change a value: a dotted path into the file, such as node.fast.cpu=0.2; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    pub(super) set: Vec<(String, String)>,
    /// Only this variant. Default: all
    #[arg(long, value_name = "NAME")]
    pub(super) variant: Option<String>,
}

/// How runs are made and where they go.
#[derive(Debug, Clone, Args)]
pub(super) struct HowArgs {
    /// What runs it: lab (real processes, real time) or sim (virtual time)
    #[arg(long, value_name = "ENGINE", default_value = "lab", value_parser = engine)]
    pub(super) engine: Engine,
    /// Seed of every draw. Default: the file's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    pub(super) seed: Option<u64>,
    /// Folder for records and reports. Default: a new one below netem-runs
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Write every metric and verdict to this file too; - for standard output
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Print nothing while it runs
    #[arg(long)]
    pub(super) quiet: bool,
}

/// `skein-netem run`.
#[derive(Debug, Clone, Args)]
pub(super) struct RunArgs {
    /// The file.
    #[command(flatten)]
    pub(super) file: FileArgs,
    /// How.
    #[command(flatten)]
    pub(super) how: HowArgs,
}

/// `skein-netem compare`.
#[derive(Debug, Clone, Args)]
pub(super) struct CompareArgs {
    /// Scenario files; FILE#VARIANT for one variant, else all of a file
    #[arg(required = true, value_name = "FILE[#VARIANT]")]
    pub(super) files: Vec<String>,
    /// How often each is run, with seeds counting up. Default: the largest `repeat` of the files
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) rounds: Option<u32>,
    /// Change a value in every file; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    pub(super) set: Vec<(String, String)>,
    /// How.
    #[command(flatten)]
    pub(super) how: HowArgs,
}

fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("write KEY=VALUE, such as node.fast.cpu=0.2".to_owned()),
    }
}

fn engine(text: &str) -> Result<Engine, String> {
    match text {
        "lab" => Ok(Engine::Lab),
        "sim" => Ok(Engine::Sim),
        _ => Err("choose lab or sim".to_owned()),
    }
}
