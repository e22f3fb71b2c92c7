//! The `skein` binary: where it is, and running it to its end.

use std::ffi::OsStr;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a command other than `up` may take; only a fault reaches it.
const COMMAND_DEADLINE: Duration = Duration::from_secs(60);
/// Between two looks at something awaited.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(25);

/// How a command ended.
#[derive(Debug)]
pub struct Finished {
    /// Its exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub out: String,
    /// What it said on stderr.
    pub err: String,
}

/// The binary beside this test: in the folder of the same profile.
///
/// # Panics
/// There is none; the message says how to build it.
pub(crate) fn path() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let skein = test
        .parent()
        .and_then(|deps| deps.parent())
        .map(|profile| profile.join("skein"))
        .filter(|skein| skein.is_file());
    skein.unwrap_or_else(|| {
        let release = if cfg!(debug_assertions) { "" } else { " --release" };
        panic!("these tests start the skein binary: build it first, with `cargo build -p skein-node{release}`")
    })
}

/// A command of the binary, without the settings of whoever runs the tests.
pub(crate) fn command() -> Command {
    let mut command = Command::new(path());
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        if name_text.starts_with("SKEIN_") || name_text == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    command
}

/// Runs `skein ARGS` to its end.
///
/// # Panics
/// It does not end.
pub fn skein(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Finished {
    let folder = tempfile::tempdir().expect("a folder for its output");
    let file = |name| File::create(folder.path().join(name)).expect("a file for its output");
    let mut command = command();
    command.args(args).stdin(Stdio::null());
    let spawned = command.stdout(file("out")).stderr(file("err")).spawn();
    let mut child = spawned.expect("skein starts");
    let deadline = Instant::now() + COMMAND_DEADLINE;
    let status = loop {
        if let Some(status) = child.try_wait().expect("the process can be asked") {
            break status;
        }
        if Instant::now() > deadline {
            // It may have ended this moment; then there is nothing to kill.
            let _ = child.kill();
            let _ = child.wait();
            panic!("{command:?} does not end");
        }
        std::thread::sleep(LOOK_EVERY);
    };
    let read = |name| std::fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    Finished {
        code: status.code(),
        out: read("out"),
        err: read("err"),
    }
}
