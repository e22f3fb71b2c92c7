//! What a user may type. Definitions only; what the commands do is in their own files.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::FalseyValueParser;
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

use skein_gossip::pipeline::message::Tier;

use super::exit::{self, CliError};
use crate::home;

/// Trains one model on many machines that find each other.
#[derive(Debug, Parser)]
#[command(name = "skein", version, after_help = exit::HELP, max_term_width = 120)]
pub struct Cli {
    /// What holds for every command.
    #[command(flatten)]
    pub globals: Globals,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What holds for every command.
#[derive(Debug, Clone, Args)]
pub struct Globals {
    /// Folder of the identity, the mesh key and the jobs. Default: skein in $XDG_DATA_HOME or ~/.local/share
    #[arg(long, global = true, env = "SKEIN_HOME", value_name = "DIR")]
    pub home: Option<PathBuf>,
    /// Print JSON, one object per line
    #[arg(long, global = true, env = "SKEIN_JSON", value_parser = FalseyValueParser::new())]
    pub json: bool,
    /// Log more: -v what happens, -vv each message
    #[arg(short, long, global = true, env = "SKEIN_VERBOSE", action = ArgAction::Count)]
    pub verbose: u8,
}

impl Globals {
    /// The home folder: as given, else the default of the system.
    ///
    /// # Errors
    /// When neither is there to go by.
    pub fn home(&self) -> Result<PathBuf, CliError> {
        match &self.home {
            Some(home) => std::path::absolute(home).map_err(|error| {
                CliError::usage(format!(
                    "cannot use the home folder {}: {error}",
                    home.display()
                ))
            }),
            None => home::default_path().ok_or_else(|| {
                CliError::usage(
                    "there is no HOME to keep the identity in: give --home DIR or set SKEIN_HOME",
                )
            }),
        }
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a peer: make a mesh, or join one with --join. Ctrl-C leaves
    Up(UpArgs),
    /// Start a job on the whole mesh and watch it
    Train(TrainArgs),
    /// Show how the peers that are here, or the devices of a file, would train a job's model, without training it
    Plan(PlanArgs),
    /// Watch a job that runs
    Watch(JobArg),
    /// Show this peer, its mesh and its jobs
    Status,
    /// Show the other peers and how they are reached
    Peers,
    /// List the jobs
    Jobs,
    /// End a job on all peers
    Stop(JobArg),
    /// Write the model of a job as safetensors
    Export(ExportArgs),
    /// Judge a job's model, or an exported file, on a whole validation set
    Eval(EvalArgs),
    /// Check network, clock, disk, memory and libtorch, and say how to mend what is wrong
    Doctor,
    /// Write a job file with every key explained
    Init(InitArgs),
    /// Tell the running peer to leave the mesh and end
    Leave,
}

/// `skein plan`.
#[derive(Debug, Clone, Args)]
pub struct PlanArgs {
    /// The job file
    #[arg(value_name = "JOB.TOML")]
    pub file: PathBuf,
    /// Plan with the devices of this file instead of those that are here; .toml or .json, as --save writes it. Needs no node
    #[arg(long, env = "SKEIN_PROFILE", value_name = "FILE")]
    pub profile: Option<PathBuf>,
    /// What if this device were not there: its name, or the beginning of its id; may be repeated
    #[arg(
        long,
        env = "SKEIN_WITHOUT",
        value_name = "PEER",
        value_delimiter = ','
    )]
    pub without: Vec<String>,
    /// What if the device in this file were there too; .toml or .json; may be repeated
    #[arg(long, env = "SKEIN_ADD", value_name = "FILE", value_delimiter = ',')]
    pub add: Vec<PathBuf>,
    /// Write what the devices have measured, to edit and plan with; .toml or .json
    #[arg(long, env = "SKEIN_SAVE", value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Draw one step as SVG
    #[arg(long, env = "SKEIN_SVG", value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Say why the other families lost, and what would be left without each device
    #[arg(long, env = "SKEIN_EXPLAIN", value_parser = FalseyValueParser::new())]
    pub explain: bool,
}

/// `skein up`.
#[derive(Debug, Clone, Default, Args)]
pub struct UpArgs {
    /// Join the mesh of this token, as printed by another peer. Without it: the mesh of last time, else a new one
    #[arg(long, env = "SKEIN_JOIN", value_name = "TOKEN")]
    pub join: Option<String>,
    /// Also dial this peer, as multiaddr or host:port; may be repeated or a list with commas
    #[arg(long, env = "SKEIN_PEER", value_name = "ADDR", value_delimiter = ',')]
    pub peer: Vec<String>,
    /// Listen here; port 0 takes a free one; may be repeated. Default: every interface, the port of last time
    #[arg(
        long,
        env = "SKEIN_LISTEN",
        value_name = "IP:PORT",
        value_delimiter = ','
    )]
    pub listen: Vec<SocketAddr>,
    /// Private data for jobs that ask for NAME; never leaves this machine; may be repeated (in the variable: separated by ;)
    #[arg(
        long,
        env = "SKEIN_DATA",
        value_name = "NAME=PATH",
        value_delimiter = ';'
    )]
    pub data: Vec<NamedData>,
    /// Threads for training. Default: all cores
    #[arg(long, env = "SKEIN_THREADS", value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Memory that a pipeline may use here, such as 512M or 2G. Default: no limit
    #[arg(long, env = "SKEIN_MEMORY", value_name = "SIZE")]
    pub memory: Option<Memory>,
    /// Where this peer stands, for jobs that are planned over tiers. Default: inferred from data and speed
    #[arg(long, env = "SKEIN_TIER", value_name = "TIER")]
    pub tier: Option<TierArg>,
    /// Draw no samples here, even where the data could be read: pipelines get them from others, replicas are not trained here
    #[arg(long, env = "SKEIN_NO_DATA", value_parser = FalseyValueParser::new())]
    pub no_data: bool,
    /// Do not look for peers by multicast
    #[arg(long, env = "SKEIN_NO_MDNS", value_parser = FalseyValueParser::new())]
    pub no_mdns: bool,
    /// Use only interfaces whose name matches, such as eth0 or wl*; may be repeated
    #[arg(
        long,
        env = "SKEIN_INTERFACE",
        value_name = "PATTERN",
        value_delimiter = ','
    )]
    pub interface: Vec<String>,
}

/// Private data and the name that job files know it by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedData {
    /// The name.
    pub name: String,
    /// File or folder.
    pub path: PathBuf,
}

/// Where a peer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TierArg {
    /// Where data is born
    Device,
    /// Near the devices
    Edge,
    /// Far from them, and fast
    Cloud,
}

impl From<TierArg> for Tier {
    fn from(tier: TierArg) -> Self {
        match tier {
            TierArg::Device => Self::Device,
            TierArg::Edge => Self::Edge,
            TierArg::Cloud => Self::Cloud,
        }
    }
}

/// An amount of memory in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory(pub u64);

impl FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no size: write a number with k, M or G, such as 512M");
        let (number, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
            Some(at) => text.split_at(at),
            None => (text, ""),
        };
        let unit = match unit {
            "" => 1,
            "k" | "K" => 1 << 10,
            "m" | "M" => 1 << 20,
            "g" | "G" => 1 << 30,
            _ => return Err(wrong()),
        };
        let bytes = number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(unit));
        bytes.filter(|bytes| *bytes > 0).map(Self).ok_or_else(wrong)
    }
}

impl FromStr for NamedData {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok(Self {
                name: name.into(),
                path: path.into(),
            }),
            _ => Err("write NAME=PATH, such as readings=/home/me/readings.npz".into()),
        }
    }
}

/// `skein train`.
#[derive(Debug, Args)]
pub struct TrainArgs {
    /// The job file; `skein init` writes one
    #[arg(value_name = "JOB.toml")]
    pub file: PathBuf,
    /// Do not watch: print the job's id and end
    #[arg(long, env = "SKEIN_DETACH", value_parser = FalseyValueParser::new())]
    pub detach: bool,
}

/// A job that is there.
#[derive(Debug, Args)]
pub struct JobArg {
    /// The job: the beginning of its id, or its name (the newest of that name)
    #[arg(value_name = "JOB")]
    pub job: String,
}

/// `skein export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The job: the beginning of its id, or its name (the newest of that name)
    #[arg(value_name = "JOB")]
    pub job: String,
    /// The file to write
    #[arg(short, long, env = "SKEIN_OUTPUT", value_name = "model.safetensors")]
    pub output: PathBuf,
}

/// `skein eval`.
#[derive(Debug, Args)]
pub struct EvalArgs {
    /// A job (beginning of its id, or its name), or a file written by `skein export`
    #[arg(value_name = "JOB|FILE")]
    pub target: String,
    /// Data to judge a file on: SOURCE or SOURCE=PATH as in a job file (digits, npy=/data/v.npz), or a job file
    #[arg(long, env = "SKEIN_EVAL_DATA", value_name = "DATA")]
    pub data: Option<String>,
    /// Exit with 1 if the accuracy is below this share, 0 to 1
    #[arg(long, env = "SKEIN_AT_LEAST", value_name = "ACCURACY", value_parser = share)]
    pub at_least: Option<f64>,
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("write a share from 0 to 1, such as 0.97".into()),
    }
}

/// `skein init`.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// The file to write
    #[arg(value_name = "JOB.toml", default_value = "job.toml")]
    pub file: PathBuf,
    /// Which example to begin with
    #[arg(
        long,
        env = "SKEIN_EXAMPLE",
        value_name = "NAME",
        default_value = "digits"
    )]
    pub example: Example,
    /// Replace a file that is there
    #[arg(long, env = "SKEIN_FORCE", value_parser = FalseyValueParser::new())]
    pub force: bool,
}

/// The job files in the binary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Example {
    /// The UCI digits in the binary.
    Digits,
    /// Fashion-MNIST.
    FashionMnist,
    /// Private data per peer.
    MlpPrivate,
    /// Synchronous, whole gradients: the reference.
    SyncDense,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[track_caller]
    fn parse(line: &str) -> Cli {
        Cli::try_parse_from(line.split(' ')).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    #[test]
    fn the_definitions_are_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_option_has_a_variable_and_says_what_it_does() {
        let mut seen = std::collections::BTreeSet::new();
        let cli = Cli::command();
        let commands = std::iter::once(&cli).chain(cli.get_subcommands());
        for command in commands {
            for arg in command
                .get_arguments()
                .filter(|arg| !matches!(arg.get_id().as_str(), "help" | "version"))
            {
                let name = format!("{} {}", command.get_name(), arg.get_id());
                assert!(arg.get_help().is_some(), "{name}");
                if !arg.is_positional() {
                    let variable = arg
                        .get_env()
                        .unwrap_or_else(|| panic!("{name}"))
                        .to_string_lossy()
                        .into_owned();
                    assert!(variable.starts_with("SKEIN_"), "{name}");
                    assert!(seen.insert(variable), "{name}");
                }
            }
        }
    }

    #[test]
    fn up_takes_everything_a_peer_may_be_told() {
        let cli = parse(
            "skein up --join T --peer 10.0.0.2:4001 --peer /dns4/a/tcp/1 --listen 0.0.0.0:0 --data r=/a=b --data s=x \
             --threads 2 --no-mdns --interface eth* --home /tmp/h -vv --json",
        );
        let Command::Up(up) = cli.command else {
            panic!()
        };
        assert_eq!(up.join.as_deref(), Some("T"));
        assert_eq!(up.peer, ["10.0.0.2:4001", "/dns4/a/tcp/1"]);
        assert_eq!(up.listen, ["0.0.0.0:0".parse().unwrap()]);
        assert_eq!(
            up.data[0],
            NamedData {
                name: "r".into(),
                path: "/a=b".into()
            }
        );
        assert_eq!((up.data.len(), up.threads, up.no_mdns), (2, Some(2), true));
        assert_eq!(up.interface, ["eth*"]);
        assert_eq!((cli.globals.verbose, cli.globals.json), (2, true));
        assert_eq!(cli.globals.home().unwrap(), PathBuf::from("/tmp/h"));
        let Command::Up(up) = parse("skein up").command else {
            panic!()
        };
        assert!(up.join.is_none() && up.listen.is_empty() && !up.no_mdns);
    }

    #[test]
    fn the_other_commands_take_their_job_and_files() {
        let Command::Train(train) = parse("skein train job.toml --detach").command else {
            panic!()
        };
        assert_eq!(
            (train.file, train.detach),
            (PathBuf::from("job.toml"), true)
        );
        let Command::Export(export) = parse("skein export abc -o m.safetensors").command else {
            panic!()
        };
        assert_eq!(
            (export.job.as_str(), export.output),
            ("abc", PathBuf::from("m.safetensors"))
        );
        let Command::Eval(eval) =
            parse("skein eval m.safetensors --data digits --at-least 0.9").command
        else {
            panic!()
        };
        assert_eq!(
            (eval.data.as_deref(), eval.at_least),
            (Some("digits"), Some(0.9))
        );
        let Command::Init(init) = parse("skein init --example mlp-private").command else {
            panic!()
        };
        assert_eq!(
            (init.file, init.example),
            (PathBuf::from("job.toml"), Example::MlpPrivate)
        );
        for line in [
            "status", "peers", "jobs", "stop x", "watch x", "doctor", "leave",
        ] {
            parse(&format!("skein {line}"));
            parse(&format!("skein --json {line}"));
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for line in [
            "skein",
            "skein fly",
            "skein train",
            "skein export abc",
            "skein up --threads 0",
            "skein up --data nameless",
            "skein up --data =x",
            "skein up --listen here",
            "skein eval m --at-least 97",
            "skein init --example resnet",
            "skein status --detach",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
