//! Where log lines go: to stderr, warnings only unless asked. Standard output stays for what a command prints.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

use super::exit::CliError;

/// Starts logging at the level of `SKEIN_LOG`, else `RUST_LOG`, else as often as `-v` was given.
///
/// # Errors
/// A filter that cannot be read.
pub(super) fn start(verbose: u8) -> Result<(), CliError> {
    let variable = ["SKEIN_LOG", "RUST_LOG"]
        .into_iter()
        .find_map(|name| Some((name, std::env::var(name).ok()?)));
    let filter = match variable.filter(|(_, filter)| !filter.is_empty()) {
        Some((name, filter)) => EnvFilter::try_new(&filter).map_err(|error| {
            CliError::usage(format!(
                "{name}={filter} is no log filter: {error}; write a level such as debug"
            ))
        })?,
        None => EnvFilter::new(match verbose {
            0 => "warn,libp2p_kad=error",
            1 => "warn,libp2p_kad=error,skein_node=info",
            2 => "warn,libp2p_kad=error,skein_node=debug",
            _ => "debug,skein_node=trace",
        }),
    };
    // Already started is fine: tests run several commands in one process.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        // Colours are for terminals; in a file they are noise.
        .with_ansi(io::stderr().is_terminal())
        .try_init();
    Ok(())
}
