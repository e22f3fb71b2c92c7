//! What `skein up` prints while it runs: the line to join with, peers that come and go, jobs that begin and end. One line
//! each, for people or (with `--json`) for programs. Nobody may be reading, so a closed output is no reason to end.

use std::io::Write;

use serde::Serialize;
use skein_gossip::ids::PeerId;

use crate::control::protocol::VERSION;
use crate::control::{Hex, JobStatus};

/// One line. In JSON it has `"v":1` and `"kind"` beside its fields.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Notice<'a> {
    /// The node runs.
    Up {
        /// This peer.
        peer: Hex<PeerId>,
        /// The line that others type to join; holds the mesh key.
        join_line: &'a str,
        /// Whether this start made the mesh.
        is_new: bool,
        /// Addresses it listens on.
        listening: &'a [String],
    },
    /// A peer can be talked to.
    Connected {
        /// The peer.
        peer: Hex<PeerId>,
        /// Peers connected now.
        n_connected: usize,
    },
    /// A peer is gone.
    Disconnected {
        /// The peer.
        peer: Hex<PeerId>,
        /// Peers connected now.
        n_connected: usize,
    },
    /// A job of the mesh arrived here, or goes on after a restart.
    JobBegins(&'a JobStatus),
    /// A job ended.
    JobEnds(&'a JobStatus),
}

/// Where notices go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Notices {
    /// Whether programs read them.
    pub(super) json: bool,
}

impl Notices {
    /// Prints a notice.
    pub(super) fn print(self, notice: &Notice<'_>) {
        let line = if self.json {
            json(notice)
        } else {
            text(notice)
        };
        // Whoever read this may have gone; the node stays.
        let _ = writeln!(std::io::stdout(), "{line}");
    }
}

fn json(notice: &Notice<'_>) -> String {
    #[derive(Serialize)]
    struct Versioned<'a> {
        v: u32,
        #[serde(flatten)]
        notice: &'a Notice<'a>,
    }
    serde_json::to_string(&Versioned { v: VERSION, notice }).unwrap_or_default()
}

fn text(notice: &Notice<'_>) -> String {
    let job = |job: &JobStatus| format!("job {} ({})", job.name, job.id.0.short());
    let others = |n: &usize| match n {
        1 => "1 other peer".to_owned(),
        n => format!("{n} other peers"),
    };
    match notice {
        Notice::Up {
            join_line,
            is_new: true,
            ..
        } => format!("a new mesh; others join it with\n{join_line}"),
        Notice::Up { join_line, .. } => (*join_line).to_owned(),
        Notice::Connected { peer, n_connected } => {
            format!("peer {} is here; {}", peer.0.short(), others(n_connected))
        }
        Notice::Disconnected { peer, n_connected } => {
            format!("peer {} is gone; {}", peer.0.short(), others(n_connected))
        }
        Notice::JobBegins(status) => format!("{} is here", job(status)),
        Notice::JobEnds(status) => {
            let reason = status.reason.as_deref().unwrap_or("no reason is known");
            let model = status.model_hash.map(|hash| format!("; model {hash}"));
            format!(
                "{} {}: {reason}{}",
                job(status),
                status.phase,
                model.unwrap_or_default()
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::status::tests::job_status;

    #[test]
    fn the_line_to_join_with_stands_alone_so_that_it_can_be_copied() {
        let up = |is_new| Notice::Up {
            peer: PeerId([1; 32]).into(),
            join_line: "skein up --join T",
            is_new,
            listening: &[],
        };
        assert!(text(&up(true)).ends_with("\nskein up --join T"));
        assert_eq!(text(&up(false)), "skein up --join T");
    }

    #[test]
    fn each_notice_is_one_json_object_with_version_and_kind() {
        let status = job_status();
        let peer = PeerId([1; 32]).into();
        for (notice, kind) in [
            (
                Notice::Connected {
                    peer,
                    n_connected: 2,
                },
                "connected",
            ),
            (Notice::JobEnds(&status), "job_ends"),
        ] {
            let line: serde_json::Value = serde_json::from_str(&json(&notice)).unwrap();
            assert_eq!(
                (line["v"].as_u64(), line["kind"].as_str()),
                (Some(1), Some(kind))
            );
            assert!(!text(&notice).contains('\n'));
        }
    }
}
