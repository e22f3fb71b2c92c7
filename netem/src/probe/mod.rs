//! Small programs that measure a network and a CPU share from inside of a node: hidden sub-commands `skein-netem-node probe ...`.
//!
//! Each writes one line of metrics into the file `METRICS`, or to standard output where that is not set. Those that are asked
//! wait for who asks, and end by themselves, so that a scenario can end with `exit`.

mod datagrams;
mod goodput;
mod spin;

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Parser, Subcommand};
use serde_json::{Value, json};

pub(crate) use spin::{spin_args, spin_speed};

/// The sub-command.
pub(crate) const NAME: &str = "probe";
/// The variable with the path of the metrics file.
pub(crate) const METRICS: &str = "METRICS";
/// How long a probe waits for the other one: nodes start one after the other.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two tries to reach the other one.
const TRY_EVERY: Duration = Duration::from_millis(50);

#[derive(Debug, Parser)]
#[command(
    name = "skein-netem-node probe",
    about = "Measures a network and a CPU share from inside"
)]
struct Args {
    #[command(subcommand)]
    probe: Probe,
}

#[derive(Debug, Subcommand)]
enum Probe {
    /// Receive one TCP flow and say how fast it was: event `goodput`
    Receive {
        #[arg(long, default_value_t = 5201)]
        port: u16,
        /// Measure for this long
        #[arg(long, default_value_t = 8.0)]
        seconds: f64,
        /// Not counted at first: the time in which TCP finds the rate
        #[arg(long, default_value_t = 1.0)]
        skip: f64,
        /// The line's rate in bits per second, to compare with
        #[arg(long)]
        rate: Option<f64>,
    },
    /// Send a TCP flow until the receiver has seen enough
    Send {
        #[arg(long)]
        to: Ipv4Addr,
        #[arg(long, default_value_t = 5201)]
        port: u16,
    },
    /// Send back every datagram, until told to end
    Echo {
        #[arg(long, default_value_t = 5202)]
        port: u16,
    },
    /// Measure round trips to an echo: event `round-trips`
    RoundTrips {
        #[arg(long)]
        to: Ipv4Addr,
        #[arg(long, default_value_t = 5202)]
        port: u16,
        #[arg(long, default_value_t = 500)]
        count: u32,
        /// Milliseconds between two
        #[arg(long, default_value_t = 10.0)]
        interval_ms: f64,
        /// What the round trip should be, to compare with
        #[arg(long)]
        expect_ms: Option<f64>,
    },
    /// Count the datagrams that arrive: event `loss`
    Count {
        #[arg(long, default_value_t = 5203)]
        port: u16,
        /// The share that should be lost, to compare with
        #[arg(long)]
        expect: Option<f64>,
    },
    /// Send numbered datagrams to a count
    Datagrams {
        #[arg(long)]
        to: Ipv4Addr,
        #[arg(long, default_value_t = 5203)]
        port: u16,
        #[arg(long, default_value_t = 20_000)]
        count: u32,
        /// Datagrams per second
        #[arg(long, default_value_t = 4000.0)]
        per_second: f64,
    },
    /// Compute, and say how much: event `spin`
    Spin {
        #[arg(long, default_value_t = 5.0)]
        seconds: f64,
        #[arg(long, default_value_t = 1)]
        threads: u32,
        /// The CPU share that it should get, in cores, to compare with
        #[arg(long)]
        expect: Option<f64>,
    },
}

/// Runs a probe; `args` without the sub-command.
pub(crate) fn main(args: &[String]) -> ExitCode {
    let words = std::iter::once(NAME.to_owned()).chain(args.iter().cloned());
    let parsed = match Args::try_parse_from(words) {
        Ok(args) => args,
        Err(error) => {
            // Help goes to standard output, errors to standard error; there is nobody to tell if that fails.
            let _ = error.print();
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    match run(parsed.probe) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("skein-netem-node probe: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(probe: Probe) -> io::Result<()> {
    match probe {
        Probe::Receive {
            port,
            seconds,
            skip,
            rate,
        } => report(
            "goodput",
            goodput::receive(port, time(skip)?, time(seconds)?, rate)?,
        ),
        Probe::Send { to, port } => goodput::send(to, port),
        Probe::Echo { port } => datagrams::echo(port),
        Probe::RoundTrips {
            to,
            port,
            count,
            interval_ms,
            expect_ms,
        } => report(
            "round-trips",
            datagrams::round_trips((to, port), count, time(interval_ms / 1000.0)?, expect_ms)?,
        ),
        Probe::Count { port, expect } => report("loss", datagrams::count(port, expect)?),
        Probe::Datagrams {
            to,
            port,
            count,
            per_second,
        } => datagrams::send((to, port), count, time(1.0 / per_second)?),
        Probe::Spin {
            seconds,
            threads,
            expect,
        } => report("spin", spin::spin(time(seconds)?, threads, expect)?),
    }
}

fn time(seconds: f64) -> io::Result<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|error| io::Error::other(format!("{seconds} s: {error}")))
}

/// Writes a line of metrics.
fn report(event: &str, mut fields: Value) -> io::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    fields["t_ms"] = json!(now.map_or(0, |now| now.as_millis() as u64));
    fields["event"] = json!(event);
    let line = format!("{fields}\n");
    match std::env::var_os(METRICS) {
        Some(path) => OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)?
            .write_all(line.as_bytes()),
        None => io::stdout().write_all(line.as_bytes()),
    }
}
