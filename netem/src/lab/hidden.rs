//! The sub-commands of `skein-netem-node`, which the lab starts: a node's two parents, the janitor, probes.
//!
//! ```text
//! testbed -> node-init (joins the cgroup, makes the namespaces)
//!         -> node-one  (process 1 of its namespace: mounts /proc, reaps orphans)
//!         -> the program
//! ```
//!
//! Each dies with its parent (a parent-death signal; process 1 takes all others of its namespace along).

use std::ffi::OsString;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitCode, ExitStatus, Stdio};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitStatus, wait};
use nix::unistd::{getppid, setsid};

use super::{janitor, namespace};
use crate::probe;

/// Sub-command: see the module's header. Arguments: parent's process id, `cgroup.procs` files, `--`, the program.
const INIT: &str = "node-init";
/// Sub-command: see the module's header. Arguments: the program.
const ONE: &str = "node-one";
/// Sub-command: enters a user namespace and becomes the program of its arguments, which has root's rights there.
const AS_ROOT: &str = "as-root";
/// As a shell says it: the program cannot be started.
const NOT_STARTED: u8 = 127;
/// As a shell says it: killed by a signal, plus its number.
const SIGNALLED: i32 = 128;

/// Runs the sub-command that the arguments, program name first, name; none where they name none.
pub fn hidden_main(args: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut args = args.into_iter().skip(1).map(OsString::into_string);
    let name = args.next()?.ok()?;
    let known = [INIT, ONE, AS_ROOT, janitor::NAME, probe::NAME];
    if !known.contains(&name.as_str()) {
        return None;
    }
    let Ok(rest) = args.collect::<Result<Vec<String>, _>>() else {
        eprintln!("skein-netem-node {name}: an argument is not UTF-8");
        return Some(ExitCode::from(NOT_STARTED));
    };
    run(&name, &rest)
}

fn run(name: &str, rest: &[String]) -> Option<ExitCode> {
    match name {
        INIT => Some(init(rest)),
        ONE => Some(one(rest)),
        AS_ROOT => Some(as_root(rest)),
        janitor::NAME => Some(janitor::main(rest)),
        probe::NAME => Some(probe::main(rest)),
        _ => None,
    }
}

/// The arguments that start `program` in the namespaces and cgroups of a node.
pub(super) fn init_args(procs: &[String], program: &[String]) -> Vec<String> {
    let mut args = vec![INIT.to_owned(), std::process::id().to_string()];
    args.extend_from_slice(procs);
    args.push("--".into());
    args.extend_from_slice(program);
    args
}

fn init(args: &[String]) -> ExitCode {
    match try_init(args) {
        Ok(status) => shell_code(status),
        Err(error) => {
            eprintln!("skein-netem-node {INIT}: {error}");
            ExitCode::from(NOT_STARTED)
        }
    }
}

fn try_init(args: &[String]) -> Result<ExitStatus, String> {
    let (parent, rest) = args.split_first().ok_or("no arguments")?;
    let end = rest.iter().position(|arg| arg == "--").ok_or("no --")?;
    let (procs, program) = (&rest[..end], &rest[end + 1..]);
    set_pdeathsig(Signal::SIGKILL).map_err(|error| format!("parent-death signal: {error}"))?;
    // The parent may have died before the signal was asked for.
    if getppid().to_string() != *parent {
        return Err("the testbed is gone".into());
    }
    // Fails only for the leader of a process group, which is one no terminal sends Ctrl-C to either.
    let _ = setsid();
    for file in procs {
        fs::write(file, "0").map_err(|error| format!("joining a cgroup: {file}: {error}"))?;
    }
    unshare(CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNS)
        .map_err(|error| format!("process and mount namespaces: {error}"))?;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(None::<&str>, "/", None::<&str>, private, None::<&str>)
        .map_err(|error| format!("making mounts private: {error}"))?;
    let exe = std::env::current_exe().map_err(|error| error.to_string())?;
    // Nothing is written: its other end tells process 1 that this one is there.
    let mut child = Command::new(exe)
        .arg(ONE)
        .args(program)
        .stdin(Stdio::piped())
        .spawn()
        .map_err(|error| format!("starting process 1: {error}"))?;
    let lives = child.stdin.take();
    let status = child.wait().map_err(|error| error.to_string());
    drop(lives);
    status
}

fn one(program: &[String]) -> ExitCode {
    match try_one(program) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("skein-netem-node {ONE}: {error}");
            ExitCode::from(NOT_STARTED)
        }
    }
}

fn try_one(program: &[String]) -> Result<ExitCode, String> {
    set_pdeathsig(Signal::SIGKILL).map_err(|error| format!("parent-death signal: {error}"))?;
    if parent_is_gone() {
        return Err("the testbed is gone".into());
    }
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    if let Err(error) = mount(Some("proc"), "/proc", Some("proc"), flags, None::<&str>) {
        eprintln!("skein-netem-node: /proc shows all processes of the machine: {error}");
    }
    let (name, args) = program.split_first().ok_or("no program")?;
    let child = Command::new(name)
        .args(args)
        .stdin(Stdio::null())
        .spawn()
        .map_err(|error| format!("cannot start {name}: {error}"))?;
    let pid = child.id() as i32;
    loop {
        // Orphans of the namespace become children of process 1: all are waited for, so none stays as a zombie.
        match wait() {
            Ok(WaitStatus::Exited(who, code)) if who.as_raw() == pid => {
                return Ok(ExitCode::from(code as u8));
            }
            Ok(WaitStatus::Signaled(who, signal, _)) if who.as_raw() == pid => {
                return Ok(ExitCode::from((SIGNALLED + signal as i32) as u8));
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(format!("waiting: {error}")),
        }
    }
}

/// The parent is in another process namespace and has no id here: its end of our input tells.
fn parent_is_gone() -> bool {
    let stdin = std::io::stdin();
    let mut input = [PollFd::new(stdin.as_fd(), PollFlags::empty())];
    let polled = poll(&mut input, PollTimeout::ZERO);
    let hung_up = |flags: PollFlags| flags.contains(PollFlags::POLLHUP);
    polled.is_ok() && input[0].revents().is_some_and(hung_up)
}

fn as_root(program: &[String]) -> ExitCode {
    let Some((name, args)) = program.split_first() else {
        eprintln!("skein-netem-node {AS_ROOT}: no program");
        return ExitCode::from(NOT_STARTED);
    };
    if let Err(error) = namespace::enter() {
        eprintln!("skein-netem-node {AS_ROOT}: {error}");
        return ExitCode::from(NOT_STARTED);
    }
    let error = Command::new(name).args(args).exec();
    eprintln!("skein-netem-node {AS_ROOT}: cannot start {name}: {error}");
    ExitCode::from(NOT_STARTED)
}

fn shell_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| SIGNALLED + signal));
    ExitCode::from(code.unwrap_or(1) as u8)
}
