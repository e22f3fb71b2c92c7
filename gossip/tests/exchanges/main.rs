//! Exchanges over links of a rate and a delay: who is told what, and that nothing is lost or told twice.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod bad_peers;
mod bounded;
mod groups;
mod lockstep;
mod relays;
mod wired;
