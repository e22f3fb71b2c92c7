//! Nothing stays behind of a lab: no process, namespace, interface or cgroup, however the testbed ends.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use skein_netem::lab::{self, Lab};
use skein_netem::scenario::{End, Line, Node, Program, Scenario, Sim};

/// Set, to the folder of its run, in a process of this test that is a testbed, and in all that this one starts.
const TESTBED: &str = "SKEIN_NETEM_TEST_CLEANUP";
/// More than anything here takes, also on a machine with much else to do.
const PATIENCE: Duration = Duration::from_secs(30);
const NODES: usize = 2;

fn scenario(after: Duration) -> Scenario {
    let node = |n: usize| Node {
        name: format!("n{n}"),
        group: "n".into(),
        cpu: Some(0.1),
        memory: Some(256 << 20),
        threads: 1,
        // One in the foreground, and one that is left alone.
        program: Program::Command(
            ["sh", "-c", "(sleep 1001 &) ; sleep 1000 & wait"]
                .map(str::to_owned)
                .into(),
        ),
        start: Some(Duration::ZERO),
        env: BTreeMap::new(),
        up: Line::default(),
        down: Line::default(),
    };
    Scenario {
        name: "cleanup".into(),
        variant: String::new(),
        about: String::new(),
        seed: 1,
        repeat: 1,
        nodes: (0..NODES).map(node).collect(),
        pairs: Vec::new(),
        events: Vec::new(),
        end: End {
            after,
            job: false,
            exit: false,
            when: None,
        },
        expect: Vec::new(),
        job: None,
        sim: Sim::default(),
        folder: PathBuf::new(),
    }
}

/// What there is of one testbed.
#[derive(Debug, Default, PartialEq)]
struct Traces {
    processes: usize,
    sleepers: usize,
    /// Network, process and mount namespaces other than ours.
    namespaces: BTreeSet<String>,
    /// Network namespaces with an `eth0`.
    interfaces: BTreeSet<String>,
    cgroups: BTreeSet<PathBuf>,
}

impl Traces {
    /// Those of the testbed with this process id that runs in `folder`.
    fn look(folder: &str, testbed: u32) -> Self {
        let mut traces = Self::default();
        let mark = format!("{TESTBED}={folder}");
        let ours = |kind: &str| fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
        for process in fs::read_dir("/proc").unwrap().flatten() {
            let path = process.path();
            // A process may end while we look.
            let environment = fs::read(path.join("environ")).unwrap_or_default();
            if !environment
                .split(|byte| *byte == 0)
                .any(|of| of == mark.as_bytes())
            {
                continue;
            }
            traces.processes += 1;
            let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
            traces.sleepers += usize::from(name.trim() == "sleep");
            for kind in ["net", "pid", "mnt"] {
                let Ok(namespace) = fs::read_link(path.join("ns").join(kind)) else {
                    continue;
                };
                if namespace == ours(kind) {
                    continue;
                }
                let namespace = namespace.display().to_string();
                let devices = fs::read_to_string(path.join("net/dev")).unwrap_or_default();
                if kind == "net" && devices.contains("eth0:") {
                    traces.interfaces.insert(namespace.clone());
                }
                traces.namespaces.insert(namespace);
            }
        }
        let mut roots: Vec<PathBuf> = vec!["/sys/fs/cgroup".into()];
        let below = fs::read_dir("/sys/fs/cgroup").into_iter().flatten();
        roots.extend(below.flatten().map(|entry| entry.path()));
        for entry in roots
            .iter()
            .filter_map(|root| fs::read_dir(root).ok())
            .flatten()
        {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if name.starts_with(&format!("skein-netem-{testbed}-")) {
                traces.cgroups.insert(path);
            }
        }
        traces
    }

    fn is_up(&self) -> bool {
        self.sleepers == 2 * NODES
            && self.interfaces.len() == NODES
            && self.namespaces.len() >= 3 * NODES
    }
}

/// Whether any process is in one of these namespaces.
fn inhabited(namespaces: &BTreeSet<String>) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut links = processes.flat_map(|process| {
        ["net", "pid", "mnt"].map(|kind| fs::read_link(process.path().join("ns").join(kind)))
    });
    links.any(|link| link.is_ok_and(|link| namespaces.contains(&link.display().to_string())))
}

fn own_interfaces() -> BTreeSet<String> {
    let devices = fs::read_to_string("/proc/net/dev").unwrap();
    let names = devices.lines().filter_map(|line| line.split_once(':'));
    names.map(|(name, _)| name.trim().to_owned()).collect()
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waiting for {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Runs a testbed in a process of its own, ends it by this signal (none: by itself), and looks before and after.
fn nothing_stays_behind(test: &str, signal: Option<Signal>) {
    if let Some(folder) = std::env::var_os(TESTBED) {
        let testbed = Lab {
            exe: env!("CARGO_BIN_EXE_skein-netem-node").into(),
            out: folder.into(),
        };
        let after = match signal {
            Some(_) => PATIENCE * 4,
            None => Duration::from_secs(2),
        };
        testbed.run(&scenario(after), &mut |_, _| {}).unwrap();
        return;
    }
    if let Err(error) = lab::permitted() {
        eprintln!("skipped: {error}");
        return;
    }
    let before = own_interfaces();
    let out = tempfile::tempdir().unwrap();
    let folder = out.path().to_str().unwrap();
    let mut testbed = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact"])
        .env(TESTBED, folder)
        .stdout(Stdio::null())
        // As a terminal has it: Ctrl-C goes to the whole group.
        .process_group(0)
        .spawn()
        .unwrap();
    let pid = testbed.id();
    let mut seen = Traces::default();
    wait_for("the nodes", || {
        seen = Traces::look(folder, pid);
        assert!(
            testbed.try_wait().unwrap().is_none(),
            "it ended too early: {seen:?}"
        );
        seen.is_up()
    });
    if let Some(signal) = signal {
        killpg(Pid::from_raw(pid as i32), signal).unwrap();
    }
    let status = testbed.wait().unwrap();
    assert_eq!(status.success(), signal.is_none(), "{status}");
    wait_for(&format!("the end of {seen:?}"), || {
        Traces::look(folder, pid) == Traces::default() && !inhabited(&seen.namespaces)
    });
    assert_eq!(own_interfaces(), before);
}

#[test]
fn a_run_that_ends_leaves_nothing() {
    nothing_stays_behind("a_run_that_ends_leaves_nothing", None);
}

#[test]
fn a_testbed_that_is_killed_leaves_nothing() {
    nothing_stays_behind(
        "a_testbed_that_is_killed_leaves_nothing",
        Some(Signal::SIGKILL),
    );
}

#[test]
fn a_testbed_that_is_interrupted_leaves_nothing() {
    nothing_stays_behind(
        "a_testbed_that_is_interrupted_leaves_nothing",
        Some(Signal::SIGINT),
    );
}
