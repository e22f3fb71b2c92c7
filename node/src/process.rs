//! What only the C library can do for the process: the allocator's settings, and an end without destructors.

#![expect(
    unsafe_code,
    reason = "mallopt and _exit have no safe form; each call says why it is sound"
)]

use std::io::Write;

/// Free memory at the top of the heap that is kept instead of given back: more than a step's tensors.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEEP_BYTES: i32 = 256 << 20;
/// Allocations from this size on get pages of their own; glibc's upper limit on 64 bits.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAP_BYTES: i32 = 32 << 20;

/// Lets training keep its memory from step to step. By default glibc gives a training thread's tensors back to the system after
/// every step and faults them in again: a third of the time of a small model's step.
pub fn tune_allocator() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (parameter, value) in [
        (libc::M_ARENA_MAX, 1),
        (libc::M_TRIM_THRESHOLD, KEEP_BYTES),
        (libc::M_TOP_PAD, 1 << 20),
        (libc::M_MMAP_THRESHOLD, MAP_BYTES),
    ] {
        // SAFETY: called before other threads are started; mallopt checks its arguments and only changes settings.
        if unsafe { libc::mallopt(parameter, value) } != 1 {
            tracing::debug!(parameter, "this C library has no such setting");
        }
    }
}

/// Ends the process now. Everything that must last is on disk by then; libtorch's destructors are left out, because
/// they would pull the ground from under a training thread that is still in a step.
pub fn end(code: u8) -> ! {
    // Whoever reads a closed pipe is gone.
    let _ = std::io::stdout().flush();
    let _ = std::io::stderr().flush();
    // SAFETY: _exit takes any number and does not return; no Rust value is used afterwards.
    unsafe { libc::_exit(i32::from(code)) }
}
