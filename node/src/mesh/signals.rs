//! Ctrl-C and SIGTERM. Listened to from the start on and by one listener each: a listener made anew for every wait would
//! miss what comes between two waits.

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end a node.
#[derive(Debug)]
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// From now on the signals are kept for `next` instead of ending the process.
    ///
    /// # Errors
    /// When the system does not let them be handled.
    pub(super) fn listen() -> Result<Self> {
        let listen = |kind, name| signal(kind).with_context(|| format!("cannot listen for {name}"));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt(), "Ctrl-C")?,
            terminate: listen(SignalKind::terminate(), "SIGTERM")?,
        })
    }

    /// Waits for either.
    ///
    /// # Cancel safety
    /// Cancel safe: what came meanwhile is there at the next call.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_signal_that_came_between_two_waits_is_not_lost() {
        let mut signals = Signals::listen().unwrap();
        let pid = std::process::id().to_string();
        let kill = || {
            std::process::Command::new("kill")
                .args(["-INT", &pid])
                .status()
        };
        for _ in 0..3 {
            assert!(kill().unwrap().success());
            signals.next().await;
        }
    }
}
