//! The machine: clock, disk, memory, open files, libtorch.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use skein_model::runtime;
use sysinfo::{Disks, MemoryRefreshKind, RefreshKind, System};

use super::super::show;
use super::finding::Finding;

/// A clock before this program was written (2026-01-01) was never set.
const WRITTEN_S: u64 = 1_767_225_600;

/// Below this many bytes of disk a job's checkpoints may not fit; below a tenth, the next one will not.
const LOW_DISK: u64 = 2_000_000_000;

/// Below this many bytes of memory a small model still fits, but not much more.
const LOW_MEMORY: u64 = 500_000_000;

/// Each peer takes a handful of sockets, each job some files.
const FEW_FILES: u64 = 512;

/// All findings about the machine; `home` says on which disk.
pub(super) fn findings(home: &Path) -> Vec<Finding> {
    let now_s = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |now| now.as_secs());
    let system = System::new_with_specifics(
        RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram()),
    );
    let (available, total) = system.map_or((0, 0), |system| {
        (system.available_memory(), system.total_memory())
    });
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut findings = vec![
        clock(now_s),
        disk(home, free_at(home)),
        memory(available, total),
    ];
    findings.extend(open_files(
        std::fs::read_to_string("/proc/self/limits").ok().as_deref(),
    ));
    findings.push(libtorch(&runtime::info(), cores));
    findings
}

fn clock(now_s: u64) -> Finding {
    if now_s < WRITTEN_S {
        let fix = "set it, best with NTP: timedatectl set-ntp true";
        return Finding::warning(
            "clock",
            "it shows a time before 2026: jobs and logs will carry wrong times",
            fix,
        );
    }
    Finding::good("clock", "it is set")
}

/// Free bytes on the disk that holds `home`, or will hold it.
fn free_at(home: &Path) -> Option<u64> {
    // A home that is not there yet will be made below its nearest parent.
    let there = home
        .ancestors()
        .find(|path| path.exists())?
        .canonicalize()
        .ok()?;
    let disks = Disks::new_with_refreshed_list().ok()?;
    let holding = disks
        .iter()
        .filter(|disk| there.starts_with(disk.mount_point()));
    holding
        .max_by_key(|disk| disk.mount_point().as_os_str().len())
        .map(|disk| disk.available_space())
}

fn disk(home: &Path, free: Option<u64>) -> Finding {
    let place = home.display();
    let fix = "delete what is not needed, set `keep` in [checkpoint], or move with --home";
    match free {
        None => Finding::note(
            "disk",
            format!("cannot tell how much is free for {place}"),
            "look with: df -h",
        ),
        Some(free) if free < LOW_DISK / 10 => Finding::bad(
            "disk",
            format!(
                "{} free for {place}: checkpoints will fail",
                show::bytes(free)
            ),
            fix,
        ),
        Some(free) if free < LOW_DISK => Finding::warning(
            "disk",
            format!("only {} free for {place}", show::bytes(free)),
            fix,
        ),
        Some(free) => Finding::good("disk", format!("{} free for {place}", show::bytes(free))),
    }
}

fn memory(available: u64, total: u64) -> Finding {
    let message = format!(
        "{} of {} available",
        show::bytes(available),
        show::bytes(total)
    );
    if total == 0 {
        Finding::note(
            "memory",
            "cannot tell how much there is",
            "look with: free -h",
        )
    } else if available < LOW_MEMORY {
        Finding::warning(
            "memory",
            message,
            "end other programs, or train with a smaller batch",
        )
    } else {
        Finding::good("memory", message)
    }
}

/// `limits` is the text of `/proc/self/limits`; none on systems without one.
fn open_files(limits: Option<&str>) -> Option<Finding> {
    let line = limits?
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    let soft = line.split_whitespace().next()?;
    Some(match soft.parse::<u64>() {
        Ok(soft) if soft < FEW_FILES => {
            let message = format!("this shell allows {soft} at once: enough for few peers only");
            Finding::warning(
                "open files",
                message,
                "run `ulimit -n 4096` before `skein up`",
            )
        }
        _ => Finding::good("open files", format!("{soft} at once")),
    })
}

fn libtorch(info: &runtime::Info, cores: usize) -> Finding {
    let kernels = match (info.mkl, info.onednn) {
        (true, true) => "MKL and oneDNN",
        (true, false) => "MKL",
        (false, true) => "oneDNN",
        (false, false) => "plain kernels",
    };
    let message = format!(
        "{} with {kernels}, {} threads on {cores} cores",
        info.version, info.threads
    );
    if info.onednn {
        Finding::good("libtorch", message)
    } else {
        let fix = "convolutions are several times slower without oneDNN: use the libtorch that `./run setup` fetches";
        Finding::warning("libtorch", message, fix)
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Grade;
    use super::*;

    #[test]
    fn this_machine_is_looked_at_without_a_home() {
        let findings = findings(Path::new("/nowhere/at/all"));
        for topic in ["clock", "disk", "memory", "libtorch"] {
            assert!(
                findings.iter().any(|finding| finding.topic == topic),
                "{topic}"
            );
        }
    }

    #[test]
    fn each_shortage_is_graded_and_comes_with_a_fix() {
        let home = Path::new("/h");
        let limits = |soft| {
            format!(
                "Limit  Soft\nMax open files            {soft}                 1048576   files\n"
            )
        };
        for (finding, grade) in [
            (clock(0), Grade::Warning),
            (clock(WRITTEN_S + 1), Grade::Good),
            (disk(home, Some(1_000_000)), Grade::Bad),
            (disk(home, Some(1_000_000_000)), Grade::Warning),
            (disk(home, Some(u64::MAX)), Grade::Good),
            (disk(home, None), Grade::Note),
            (memory(1, 8_000_000_000), Grade::Warning),
            (memory(4_000_000_000, 8_000_000_000), Grade::Good),
            (memory(0, 0), Grade::Note),
            (open_files(Some(&limits("256"))).unwrap(), Grade::Warning),
            (open_files(Some(&limits("1024"))).unwrap(), Grade::Good),
            (open_files(Some(&limits("unlimited"))).unwrap(), Grade::Good),
        ] {
            assert_eq!(finding.grade, grade, "{finding}");
            assert_eq!(finding.fix.is_some(), grade != Grade::Good, "{finding}");
        }
        assert_eq!(open_files(None), None);
        assert_eq!(open_files(Some("Max open files")), None);
    }
}
