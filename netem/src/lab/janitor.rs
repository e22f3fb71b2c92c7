//! Removes the cgroups of a testbed that was killed: a process of its own that waits until the testbed is no more.
//!
//! It reads a pipe whose other end only the testbed holds, so the end of the testbed, however it comes, is the end of the pipe.

use std::fs;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, setsid};

use super::LabError;

/// Sub-command. Arguments: folders of cgroups that hold one folder per node.
pub(super) const NAME: &str = "janitor";
/// A killed process leaves its cgroup once the kernel has freed its memory.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A janitor that waits. Dropping it lets it do its work and waits for that.
#[derive(Debug)]
pub(super) struct Janitor(Child);

impl Janitor {
    /// Starts the process; `folders` need not be there yet.
    pub(super) fn start(exe: &Path, folders: &[PathBuf]) -> Result<Self, LabError> {
        let child = Command::new(exe)
            .arg(NAME)
            .args(folders)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // From its first moment out of the group that a terminal sends Ctrl-C to.
            .process_group(0)
            .spawn()
            .map_err(LabError::failed(format!(
                "starting {} {NAME}",
                exe.display()
            )))?;
        Ok(Self(child))
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

pub(super) fn main(args: &[String]) -> ExitCode {
    // It leads its own process group already, so this may fail; Ctrl-C does not come here in either case.
    let _ = setsid();
    // Nothing is ever written: this returns when the testbed has ended.
    let _ = io::stdin().read_to_end(&mut Vec::new());
    let folders: Vec<PathBuf> = args.iter().map(PathBuf::from).collect();
    match remove(&folders) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Kills what runs in the cgroups below `folders` and removes them. Whether all are gone.
pub(super) fn remove(folders: &[PathBuf]) -> bool {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left: Vec<&PathBuf> = folders.iter().filter(|folder| !gone(folder)).collect();
        if left.is_empty() || Instant::now() > deadline {
            return left.is_empty();
        }
        thread::sleep(LOOK_EVERY);
    }
}

fn gone(folder: &Path) -> bool {
    let Ok(entries) = fs::read_dir(folder) else {
        return !folder.exists();
    };
    for group in entries.flatten().map(|entry| entry.path()) {
        if group.is_dir() {
            kill_all(&group);
            // Refused as long as a process is left.
            let _ = fs::remove_dir(&group);
        }
    }
    fs::remove_dir(folder).is_ok() || !folder.exists()
}

fn kill_all(group: &Path) {
    let procs = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    for pid in procs.lines().filter_map(|line| line.parse().ok()) {
        // 0 is a process of another namespace, which a kill would take for our own group.
        if pid > 0 {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}
