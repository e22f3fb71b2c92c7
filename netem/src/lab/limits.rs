//! CPU shares and memory caps: one cgroup per node, v1 or v2.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use cgroups_rs::fs::cpu::CpuController;
use cgroups_rs::fs::cpuacct::CpuAcctController;
use cgroups_rs::fs::hierarchies;
use cgroups_rs::fs::memory::MemController;
use cgroups_rs::fs::{Cgroup, Controller};

use nix::errno::Errno;

use super::janitor::{self, Janitor};
use super::{Lab, LabError};
use crate::link::NodeIndex;
use crate::scenario::Node;

/// Period of a CPU quota. The usual 100 ms would freeze a node of a small share for so long that others take it for dead.
const PERIOD_US: u64 = 20_000;
/// The period for shares whose quota the kernel would refuse otherwise.
const LONG_PERIOD_US: u64 = 100_000;
/// Smallest quota that the kernel takes.
const MIN_QUOTA_US: f64 = 1000.0;

/// Weight of all nodes with shares together, as v1 counts it; 1024 is one process of the system. What else runs waits, and
/// quotas, not the load of others, say what a node gets.
const WEIGHT_V1: u64 = 65_536;
/// The same as v2 counts it; 100 is one process of the system.
const WEIGHT_V2: u64 = 6400;
/// v2 has nodes without shares in the same place: they must leave something to the testbed.
const USUAL_WEIGHT_V2: u64 = 100;

/// Testbeds of one process, such as tests, have cgroups of their own.
static RUNS: AtomicU32 = AtomicU32::new(0);

/// The cgroups of a run. Dropping it kills what is left in them and removes them.
#[derive(Debug)]
pub(super) struct Limits {
    groups: Vec<Option<Cgroup>>,
    /// Nodes with a CPU share. With v1 the others stay out of the cpu hierarchy.
    shared: Vec<bool>,
    /// What could not be applied.
    pub(super) not_applied: Vec<String>,
    folders: Vec<PathBuf>,
    /// After the removal in `drop`: it finds nothing to do then.
    _janitor: Option<Janitor>,
}

impl Limits {
    /// A cgroup with its limits for each node, as far as the system lets us.
    pub(super) fn apply(lab: &Lab, nodes: &[Node]) -> Result<Self, LabError> {
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let name = format!("skein-netem-{}-{run}", std::process::id());
        let folders = folders(&name);
        let mut limits = Self {
            groups: Vec::new(),
            shared: nodes.iter().map(|node| node.cpu.is_some()).collect(),
            not_applied: Vec::new(),
            _janitor: match folders.is_empty() {
                true => None,
                false => Some(Janitor::start(&lab.exe, &folders)?),
            },
            folders,
        };
        for (rank, node) in nodes.iter().enumerate() {
            let group = limits.group(&name, rank, node);
            limits.groups.push(group);
        }
        set_weight(&load(&name), nodes);
        limits.not_applied.sort();
        limits.not_applied.dedup();
        Ok(limits)
    }

    fn group(&mut self, name: &str, rank: NodeIndex, node: &Node) -> Option<Cgroup> {
        let path = format!("{name}/{rank}");
        let made =
            Cgroup::new_with_specified_controllers(hierarchies::auto(), path, Some(controllers()));
        let group = match made {
            Ok(group) => group,
            Err(error) => {
                if node.cpu.is_some() || node.memory.is_some() {
                    self.not_applied
                        .push(format!("CPU shares and memory caps: {error}"));
                }
                return None;
            }
        };
        if let Some(share) = node.cpu
            && let Err(reason) = set_share(&group, share)
        {
            self.not_applied.push(format!("CPU shares: {reason}"));
        }
        if let Some(bytes) = node.memory
            && let Err(reason) = set_memory(&group, bytes)
        {
            self.not_applied.push(format!("memory caps: {reason}"));
        }
        Some(group)
    }

    /// Another CPU share, in cores.
    pub(super) fn set_cpu(&mut self, rank: NodeIndex, share: f64) {
        let set = match &self.groups[rank] {
            Some(group) => set_share(group, share).and_then(|()| self.take_in(rank)),
            None => Err("there are no cgroups".into()),
        };
        if let Err(reason) = set {
            let missing = format!("CPU shares: {reason}");
            if !self.not_applied.contains(&missing) {
                self.not_applied.push(missing);
            }
        }
    }

    /// A node that had no share gets one: what runs there is moved.
    fn take_in(&mut self, rank: NodeIndex) -> Result<(), String> {
        let before = self.procs(rank);
        self.shared[rank] = true;
        let after = self.procs(rank);
        let running = before.first().map(fs::read_to_string);
        let running = running.and_then(Result::ok).unwrap_or_default();
        for file in after.iter().filter(|file| !before.contains(file)) {
            for pid in running.lines() {
                match fs::write(file, pid) {
                    // It has ended.
                    Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => {}
                    written => written.map_err(|error| format!("{file}: {error}"))?,
                }
            }
        }
        Ok(())
    }

    /// The files that a process of this node writes itself into.
    pub(super) fn procs(&self, rank: NodeIndex) -> Vec<String> {
        let Some(group) = &self.groups[rank] else {
            return Vec::new();
        };
        // A cgroup that shares the CPU keeps its processes from going first, which the probes do.
        let out = match group.controller_of::<CpuController>() {
            Some(cpu) if !self.shared[rank] && !group.v2() => cpu.path().parent(),
            _ => None,
        };
        let folders = self.folders.iter();
        let file = |folder: &PathBuf| folder.join(rank.to_string()).join("cgroup.procs");
        let files = folders
            .filter(|folder| Some(folder.as_path()) != out)
            .map(file);
        files.map(|file| file.display().to_string()).collect()
    }

    /// CPU seconds of all processes that ever ran on this node, where cgroups count them.
    pub(super) fn cpu_seconds(&self, rank: NodeIndex) -> Option<f64> {
        let group = self.groups[rank].as_ref()?;
        if let Some(accounts) = group.controller_of::<CpuAcctController>() {
            let cpu = group.controller_of::<CpuController>();
            let together = cpu.is_some_and(|cpu| cpu.path() == accounts.path());
            // Where v1 has both in one place, a node without a share is in neither.
            if together && !self.shared[rank] {
                return None;
            }
            return Some(accounts.cpuacct().usage as f64 / 1e9);
        }
        let stat = group.controller_of::<CpuController>()?.cpu().stat;
        let usage = stat
            .lines()
            .find_map(|line| line.strip_prefix("usage_usec "));
        usage?.trim().parse::<f64>().ok().map(|usec| usec / 1e6)
    }
}

impl Drop for Limits {
    fn drop(&mut self) {
        janitor::remove(&self.folders);
    }
}

fn controllers() -> Vec<String> {
    ["cpu", "cpuacct", "memory"].map(str::to_owned).to_vec()
}

fn load(name: &str) -> Cgroup {
    Cgroup::load_with_specified_controllers(hierarchies::auto(), name, controllers())
}

/// Where the cgroups of a run are: one folder, or one per controller.
fn folders(name: &str) -> Vec<PathBuf> {
    let group = load(name);
    let mut folders: Vec<PathBuf> = match group.v2() {
        true => vec![Path::new(hierarchies::UNIFIED_MOUNTPOINT).join(name)],
        false => {
            let subsystems = group.subsystems().iter();
            let path = |of: &cgroups_rs::fs::Subsystem| of.to_controller().path().to_owned();
            subsystems.map(path).collect()
        }
    };
    folders.sort();
    folders.dedup();
    folders
}

/// Quota and period, both microseconds, of a share in cores.
fn quota(share: f64) -> (i64, u64) {
    let period = match share * PERIOD_US as f64 >= MIN_QUOTA_US {
        true => PERIOD_US,
        false => LONG_PERIOD_US,
    };
    let quota = (share * period as f64).max(MIN_QUOTA_US);
    (quota.round() as i64, period)
}

fn set_share(group: &Cgroup, share: f64) -> Result<(), String> {
    let cpu = group
        .controller_of::<CpuController>()
        .ok_or("there is no cpu controller")?;
    let (quota, period) = quota(share);
    // v1 checks the quota against the period in force: the period first, or a small quota would be refused.
    cpu.set_cfs_period(period)
        .map_err(|error| error.to_string())?;
    cpu.set_cfs_quota(quota).map_err(|error| error.to_string())
}

/// Where there is no cpu controller, shares are reported as not applied already.
fn set_weight(group: &Cgroup, nodes: &[Node]) {
    let weight = match group.v2() {
        false => WEIGHT_V1,
        true if nodes.iter().all(|node| node.cpu.is_some()) => WEIGHT_V2,
        true => (USUAL_WEIGHT_V2 * nodes.len() as u64).min(WEIGHT_V2),
    };
    if let Some(cpu) = group.controller_of::<CpuController>() {
        let _ = cpu.set_shares(weight);
    }
}

fn set_memory(group: &Cgroup, bytes: u64) -> Result<(), String> {
    let memory = group
        .controller_of::<MemController>()
        .ok_or("there is no memory controller")?;
    let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    memory.set_limit(bytes).map_err(|error| error.to_string())?;
    // Without swap accounting there is no such file, and where there is no swap it does not matter.
    let _ = memory.set_memswap_limit(if group.v2() { 0 } else { bytes });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_the_share_of_its_period_and_none_that_the_kernel_refuses() {
        for share in [0.011, 0.05, 0.1, 0.24, 0.5, 1.0, 1.7] {
            let (quota, period) = quota(share);
            let got = quota as f64 / period as f64;
            assert!(
                (got / share - 1.0).abs() < 0.01,
                "{share}: {quota}/{period}"
            );
            assert!(quota >= 1000);
        }
        assert_eq!(quota(0.05), (1000, 20_000));
        // 1 % of a core is the least there is.
        assert_eq!(quota(0.001), (1000, 100_000));
    }
}
