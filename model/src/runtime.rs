//! What libtorch does on this machine: its version and its threads. Lets other crates set and show them without tch.

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

/// Lets one libtorch operation use `threads` threads (at least one), in the whole process.
pub fn set_threads(threads: usize) {
    tch::set_num_threads(threads.clamp(1, 1024) as i32);
}

/// The threads one libtorch operation may use.
pub fn threads() -> usize {
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
        set_threads(0);
        assert_eq!(threads(), 1);
    }
}
