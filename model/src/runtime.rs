//! What libtorch does on this machine: its version and its threads. Lets other crates set and show them without tch.

use std::cell::Cell;
use std::sync::atomic::{AtomicI32, Ordering};

/// What `skein doctor` shows about libtorch.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Info {
    /// The libtorch version this build is for, such as `2.13.0`.
    pub version: &'static str,
    /// Threads one operation may use.
    pub threads: usize,
    /// Whether the fast convolution kernels (oneDNN) are compiled in; without them a convolution is several times slower.
    pub onednn: bool,
    /// Whether the fast matrix kernels (MKL) are compiled in.
    pub mkl: bool,
}

/// What [`set_threads`] asked for; 0 while nobody has.
static WANTED: AtomicI32 = AtomicI32::new(0);

thread_local! {
    static IN_FORCE: Cell<i32> = const { Cell::new(0) };
}

/// Lets one libtorch operation use `threads` threads (at least one), in the whole process.
///
/// libtorch keeps the number per calling thread (it is OpenMP's), so every thread that computes takes it over when it next
/// runs a model.
pub fn set_threads(threads: usize) {
    WANTED.store(threads.clamp(1, 1024) as i32, Ordering::Relaxed);
    take_over_threads();
}

/// Puts what [`set_threads`] asked for in force on this thread.
pub(crate) fn take_over_threads() {
    let wanted = WANTED.load(Ordering::Relaxed);
    if wanted != 0 && IN_FORCE.replace(wanted) != wanted {
        tch::set_num_threads(wanted);
    }
}

/// The threads one libtorch operation may use.
pub fn threads() -> usize {
    take_over_threads();
    tch::get_num_threads().max(1) as usize
}

/// The libtorch version this build is for.
pub fn libtorch_version() -> &'static str {
    env!("SKEIN_LIBTORCH_VERSION")
}

/// Version, threads and kernels of libtorch.
pub fn info() -> Info {
    Info {
        version: libtorch_version(),
        threads: threads(),
        onednn: tch::utils::has_mkldnn(),
        mkl: tch::utils::has_mkl(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_headers() {
        assert!(
            libtorch_version().starts_with("2."),
            "{}",
            libtorch_version()
        );
    }

    #[test]
    fn the_number_of_threads_holds_on_every_thread() {
        set_threads(0);
        assert_eq!(threads(), 1);
        let elsewhere = std::thread::spawn(|| {
            take_over_threads();
            tch::get_num_threads()
        });
        assert_eq!(elsewhere.join().unwrap(), 1);
    }
}
