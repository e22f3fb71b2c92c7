//! The processes of nodes as `/proc` shows them: whose child is whose, CPU time, memory.

use std::collections::BTreeMap;
use std::fs;

use nix::unistd::{SysconfVar, sysconf};

/// What `/proc/PID/stat` says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    parent: i32,
    /// User and system time, and that of children waited for, in clock ticks.
    ticks: u64,
    /// Resident pages.
    pages: u64,
}

/// All processes at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Processes {
    stats: BTreeMap<i32, Stat>,
    children: BTreeMap<i32, Vec<i32>>,
}

impl Processes {
    /// Looks.
    pub(super) fn now() -> Self {
        let mut all = Self::default();
        let Ok(entries) = fs::read_dir("/proc") else {
            return all;
        };
        for entry in entries.flatten() {
            let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            // A process may end while we look.
            let text = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            if let Some(stat) = parse(&text) {
                all.children.entry(stat.parent).or_default().push(pid);
                all.stats.insert(pid, stat);
            }
        }
        all
    }

    /// The processes below `pid`, nearest first, without it.
    pub(super) fn below(&self, pid: i32) -> Vec<i32> {
        let mut found = Vec::new();
        let mut next = 0;
        let mut of = pid;
        loop {
            found.extend(self.children.get(&of).into_iter().flatten());
            let Some(pid) = found.get(next) else {
                return found;
            };
            of = *pid;
            next += 1;
        }
    }

    /// CPU seconds and resident bytes of `pid` and all below it.
    pub(super) fn usage(&self, pid: i32) -> (f64, u64) {
        let all = std::iter::once(pid).chain(self.below(pid));
        let stats = all.filter_map(|pid| self.stats.get(&pid));
        let (ticks, pages) = stats.fold((0, 0), |(ticks, pages), stat| {
            (ticks + stat.ticks, pages + stat.pages)
        });
        let seconds = ticks as f64 / setting(SysconfVar::CLK_TCK, 100) as f64;
        (seconds, pages * setting(SysconfVar::PAGE_SIZE, 4096))
    }
}

fn setting(of: SysconfVar, usual: u64) -> u64 {
    let value = sysconf(of).ok().flatten();
    value.map_or(usual, |value| value.max(1) as u64)
}

/// The name may hold anything, so fields are counted from the last parenthesis.
fn parse(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |n: usize| fields.get(n)?.parse::<u64>().ok();
    Some(Stat {
        parent: fields.get(1)?.parse().ok()?,
        ticks: number(11)? + number(12)? + number(13)? + number(14)?,
        pages: number(21)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_process_with_spaces_and_parentheses_in_its_name_is_read() {
        let text = "42 (a) (b) S 7 42 42 0 -1 4194304 1 2 3 4 10 20 30 40 20 0 1 0 5 1000 25 18446744073709551615 1";
        let stat = Stat {
            parent: 7,
            ticks: 100,
            pages: 25,
        };
        assert_eq!(parse(text), Some(stat));
    }

    #[test]
    fn this_process_is_below_its_parent_and_uses_memory() {
        let all = Processes::now();
        let me = std::process::id() as i32;
        let parent = all.stats[&me].parent;
        assert!(all.below(parent).contains(&me));
        assert!(all.usage(me).1 > 0);
    }

    proptest! {
        #[test]
        fn any_text_is_a_process_or_not(text in "\\PC{0,200}") {
            let _ = parse(&text);
        }
    }
}
