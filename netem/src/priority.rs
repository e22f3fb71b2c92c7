//! Lets a thread go before all usual ones: the switch, and the probes that measure it to fractions of a millisecond.

use nix::sys::prctl::set_timerslack;
use thread_priority::ThreadPriority;
use thread_priority::unix::{
    RealtimeThreadSchedulePolicy, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id,
};

/// Wakes this thread at the moment it asked for. Whether the system permits it: for root, outside of a cgroup with a CPU share.
pub(crate) fn go_first() -> bool {
    // Usual threads sleep up to 50 us longer than they asked for, so that the system may wake several at once.
    let punctual = set_timerslack(1).is_ok();
    let policy = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
    let first = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy);
    punctual && first.is_ok()
}
