//! The command line: what a user types, and what is printed. Every command but `up` asks the running node over its
//! control socket, or needs none; `up` itself is handed in by `main`, because it joins everything below and above.
//!
//! Modules in reading order, lowest first.

pub mod exit;
pub mod args;
mod environment;
mod logging;
mod output;
mod show;
mod find;
mod progress;
mod job_text;
mod plan;
mod auto;
mod train;
mod ask;
mod eval;
mod doctor;
mod init;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches};

pub use args::{Cli, Command, Globals, Memory, NamedData, UpArgs};
pub use exit::{CliError, Exit};
use output::Output;

/// Reads the command line in `args` and the variables in `env`, and does what they say. `up` runs a node until it ends.
pub fn main(
    args: impl IntoIterator<Item = OsString>,
    env: impl IntoIterator<Item = (OsString, OsString)>,
    up: impl FnOnce(&Globals, UpArgs) -> Result<Exit, CliError>,
) -> Exit {
    let parsed = Cli::command()
        .try_get_matches_from(args)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            // Printing help into a closed pipe is nobody's loss.
            let _ = error.print();
            return if error.use_stderr() {
                Exit::Usage
            } else {
                Exit::Ok
            };
        }
    };
    let Cli { globals, command } = cli;
    let output = Output::new(globals.json);
    let result = environment::check(env)
        .and_then(|()| logging::start(globals.verbose))
        .and_then(|()| match command {
            Command::Up(args) => up(&globals, args),
            command => run(&globals, command, &output),
        });
    match result {
        Ok(exit) => exit,
        Err(error) => {
            output.error(&error);
            error.exit
        }
    }
}

/// Runs a command that is not `up`.
fn run(globals: &Globals, command: Command, output: &Output) -> Result<Exit, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::internal(format!("cannot start: {error}")))?;
    let home = globals.home()?;
    runtime.block_on(async {
        match command {
            Command::Up(_) => Ok(Exit::Ok),
            Command::Train(args) => train::train(&home, args, output).await,
            Command::Watch(args) => train::watch(&home, &args.job, output).await,
            Command::Status => ask::status(&home, output).await,
            Command::Peers => ask::peers(&home, output).await,
            Command::Plan(args) => plan::plan(&home, args, output).await,
            Command::Jobs => ask::jobs(&home, output).await,
            Command::Stop(args) => ask::stop(&home, &args.job, output).await,
            Command::Export(args) => ask::export(&home, args, output).await,
            Command::Eval(args) => eval::eval(&home, args, output).await,
            Command::Doctor => doctor::doctor(&home, output).await,
            Command::Init(args) => init::init(&args, output),
            Command::Leave => ask::leave(&home, output).await,
        }
    })
}

#[cfg(test)]
mod tests;
