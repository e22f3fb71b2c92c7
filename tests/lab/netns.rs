//! Network namespaces: machines on one cable, made of `ip` commands and gone afterwards.
//!
//! The bridge lies in a namespace of its own, so nothing of the test is on the host. Names hold the process id: what a
//! killed test left behind is removed by the next one.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::say;

const PREFIX: &str = "skein-lab-";
/// The network on the cable; machine `i` has the host number `i + 1`.
const NETWORK: &str = "10.77.0";

/// One lab at a time: they measure, and share two hands full of processes each.
static TURN: Mutex<()> = Mutex::new(());
static LABS: AtomicU32 = AtomicU32::new(0);

/// Why there can be no lab here; none if there can.
pub(crate) fn missing() -> Option<String> {
    let name = format!("{PREFIX}{}-probe", std::process::id());
    match try_ip(&["netns", "add", &name]) {
        Ok(()) => {
            let removed = try_ip(&["netns", "del", &name]);
            removed.err()
        }
        Err(reason) => Some(reason),
    }
}

/// A cable and the machines on it.
pub(crate) struct Lab {
    bridge: Machine,
    pub(crate) machines: Vec<Machine>,
    _turn: MutexGuard<'static, ()>,
}

impl Lab {
    /// `machines` machines on one cable. None, with the reason printed, where that is not permitted.
    pub(crate) fn new(machines: usize) -> Option<Self> {
        // A test that failed leaves the lock poisoned, and nothing else.
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reason) = missing() {
            say(&format!("SKIPPED: no network namespaces here: {reason}"));
            return None;
        }
        remove_leftovers();
        let lab = LABS.fetch_add(1, Ordering::Relaxed);
        let name = |what: &str| format!("{PREFIX}{}-{lab}-{what}", std::process::id());
        let bridge = Machine::new(name("br"), String::new());
        ip(&["-n", &bridge.name, "link", "add", "br0", "type", "bridge"]);
        ip(&["-n", &bridge.name, "link", "set", "br0", "up"]);
        let mut lab = Self {
            bridge,
            machines: Vec::new(),
            _turn: turn,
        };
        for i in 0..machines {
            let address = format!("{NETWORK}.{}", i + 1);
            let machine = Machine::new(name(&i.to_string()), address.clone());
            let port = format!("port{i}");
            let bridge = &lab.bridge.name;
            ip(&[
                "-n",
                bridge,
                "link",
                "add",
                &port,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                &machine.name,
            ]);
            ip(&["-n", bridge, "link", "set", &port, "master", "br0", "up"]);
            machine.ip(&["address", "add", &format!("{address}/24"), "dev", "eth0"]);
            machine.ip(&["link", "set", "eth0", "up"]);
            // As every real machine has it: its address must not be told to others.
            machine.ip(&["link", "set", "lo", "up"]);
            lab.machines.push(machine);
        }
        Some(lab)
    }

    /// A machine that no cable leads to.
    pub(crate) fn island(&self) -> &Machine {
        &self.bridge
    }
}

/// A network namespace; removed with all that is in it when dropped.
pub(crate) struct Machine {
    pub(crate) name: String,
    /// Its address on the cable.
    pub(crate) address: String,
}

impl Machine {
    fn new(name: String, address: String) -> Self {
        ip(&["netns", "add", &name]);
        Self { name, address }
    }

    /// `ip` inside.
    pub(crate) fn ip(&self, words: &[&str]) {
        ip(&[&["-n", self.name.as_str()], words].concat());
    }

    /// Drops every attempt to connect to it; what it connects to itself goes on. False, with the reason printed, where
    /// the kernel cannot.
    pub(crate) fn refuse_inbound(&self) -> bool {
        // Where dropped packets go: a bridge without ports. The plain action "drop" is not in every kernel.
        self.ip(&["link", "add", "hole", "type", "bridge"]);
        self.ip(&["link", "set", "hole", "up"]);
        let filter = "tc qdisc add dev eth0 ingress && tc filter add dev eth0 parent ffff: protocol ip u32 \
                      match ip protocol 6 0xff match u8 0x02 0x12 at 33 \
                      action mirred egress redirect dev hole";
        let output = self.command(Path::new("sh")).args(["-c", filter]).output();
        let reason = match output {
            Ok(output) if output.status.success() => return true,
            Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
            Err(error) => error.to_string(),
        };
        say(&format!(
            "SKIPPED: packets cannot be filtered here: {reason}"
        ));
        false
    }

    /// A command that runs inside.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

fn remove(name: &str) {
    if let Ok(output) = Command::new("ip").args(["netns", "pids", name]).output() {
        for pid in String::from_utf8_lossy(&output.stdout).split_whitespace() {
            // It may have ended by itself.
            let _ = Command::new("kill").args(["-KILL", pid]).output();
        }
    }
    if let Err(reason) = try_ip(&["netns", "del", name]) {
        say(&reason);
    }
}

/// Removes the namespaces of processes that are gone.
fn remove_leftovers() {
    let Ok(entries) = fs::read_dir("/run/netns") else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            remove(&name);
        }
    }
}

#[track_caller]
fn ip(words: &[&str]) {
    if let Err(reason) = try_ip(words) {
        panic!("{reason}");
    }
}

fn try_ip(words: &[&str]) -> Result<(), String> {
    let output = Command::new("ip")
        .args(words)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("the command `ip` (package iproute2): {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("`ip {}`: {}", words.join(" "), said.trim()))
}
