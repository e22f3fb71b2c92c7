//! One node: its namespace, its program and the lives of that, its files.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::namespace::{INTERFACE, Namespace};
use super::processes::Processes;
use super::watch::{Source, Watch};
use super::{Lab, LabError, address, hidden, mesh};
use crate::link::NodeIndex;
use crate::record::{NodeRecord, Usage};
use crate::scenario::{Action, Program, Scenario};

/// Lines of a failing node's log that are shown.
const TAIL_LINES: usize = 15;
/// Bytes that those lines are looked for in.
const TAIL_BYTES: i64 = 16 << 10;
/// The port that PyTorch's rendezvous uses by default.
const MASTER_PORT: u16 = 29500;
/// Variables that libraries read their number of threads from.
const THREADS: [&str; 4] = [
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "RAYON_NUM_THREADS",
];

/// A node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) rank: NodeIndex,
    pub(super) name: String,
    words: Vec<String>,
    env: Vec<(String, String)>,
    working: PathBuf,
    /// Its own folder.
    pub(super) folder: PathBuf,
    log: PathBuf,
    namespace: Namespace,
    child: Option<Child>,
    /// From when to when it ran; the last one goes on while `child` is there.
    lives: Vec<[f64; 2]>,
    usage: Vec<Usage>,
    /// CPU seconds of lives that are over, where no cgroup counts them.
    past_cpu_s: f64,
    pub(super) watch: Watch,
    pub(super) is_skein: bool,
    /// It was asked to leave, so that it ends is no surprise.
    leaving: bool,
    /// By SIGSTOP.
    stopped: bool,
}

impl Node {
    /// Makes its folder; nothing runs yet.
    pub(super) fn new(
        lab: &Lab,
        scenario: &Scenario,
        rank: NodeIndex,
        namespace: Namespace,
    ) -> Result<Self, LabError> {
        let plan = &scenario.nodes[rank];
        let folder = lab.out.join(&plan.name);
        fs::create_dir_all(&folder).map_err(LabError::file(&folder))?;
        let metrics = folder.join("metrics.jsonl");
        let is_skein = matches!(plan.program, Program::Skein { .. });
        let words = match &plan.program {
            Program::Command(words) => {
                let word = |word: &String| replaced(word, lab, rank, scenario.nodes.len());
                words.iter().map(word).collect()
            }
            Program::Skein { args } => {
                mesh::check_path(&folder)?;
                let skein = mesh::binary(lab)?;
                mesh::command(&skein, &folder, scenario.seed, plan.threads, args)
            }
        };
        let source = match is_skein {
            true => Source::Home(mesh::home(&folder)),
            false => Source::File(metrics.clone()),
        };
        Ok(Self {
            rank,
            name: plan.name.clone(),
            words,
            env: environment(scenario, rank, &folder, &metrics),
            working: match scenario.folder.as_os_str().is_empty() {
                true => PathBuf::from("."),
                false => scenario.folder.clone(),
            },
            log: lab.out.join(format!("{}.log", plan.name)),
            folder,
            namespace,
            child: None,
            lives: Vec::new(),
            usage: Vec::new(),
            past_cpu_s: 0.0,
            watch: Watch::new(source),
            is_skein,
            leaving: false,
            stopped: false,
        })
    }

    /// Whether its program runs.
    pub(super) fn runs(&self) -> bool {
        self.child.is_some()
    }

    /// Whether an action does anything to it as it is.
    pub(super) fn may(&self, action: &Action) -> bool {
        match action {
            Action::Kill(_) => self.runs(),
            Action::Stop(_) | Action::Leave(_) => self.runs() && !self.stopped,
            Action::Continue(_) => self.stopped,
            Action::Join(_) => !self.runs(),
            _ => true,
        }
    }

    /// Starts its program in the cgroup of these files.
    pub(super) fn start(&mut self, lab: &Lab, procs: &[String], now: f64) -> Result<(), LabError> {
        if self.runs() {
            return Ok(());
        }
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let log = log.map_err(LabError::file(&self.log))?;
        let log2 = log.try_clone().map_err(LabError::file(&self.log))?;
        let mut command = Command::new(&lab.exe);
        command
            .args(hidden::init_args(procs, &self.words))
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .current_dir(&self.working)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(log2)
            // From its first moment out of the group that a terminal sends Ctrl-C to.
            .process_group(0);
        let child = self.namespace.spawn(command);
        let child = child.map_err(LabError::failed(format!(
            "node {}: starting {} in {}",
            self.name,
            lab.exe.display(),
            self.working.display()
        )))?;
        self.child = Some(child);
        self.leaving = false;
        self.lives.push([now, now]);
        Ok(())
    }

    /// SIGKILL to all of it.
    pub(super) fn kill(&mut self, now: f64) {
        let Some(mut child) = self.child.take() else {
            return;
        };
        // Process 1 first: it is gone only when all others are, and its parent ends with it.
        let one = Processes::now().below(child.id() as i32).first().copied();
        let killed = one.map(|pid| kill(Pid::from_raw(pid), Signal::SIGKILL));
        if !matches!(killed, Some(Ok(()))) {
            let _ = child.kill();
        }
        let _ = child.wait();
        self.end_life(now);
    }

    /// Sends a signal to the program (`all` false) or to every process of the node.
    pub(super) fn signal(&mut self, signal: Signal, all: bool) {
        let Some(child) = &self.child else {
            return;
        };
        // Below the node's two parents; the first is the program.
        let processes = Processes::now().below(child.id() as i32);
        let own = processes.iter().skip(1);
        for pid in own.take(if all { usize::MAX } else { 1 }) {
            let _ = kill(Pid::from_raw(*pid), signal);
        }
        match signal {
            Signal::SIGSTOP => self.stopped = true,
            Signal::SIGCONT => self.stopped = false,
            _ => self.leaving = true,
        }
    }

    /// How its program ended, if it has by itself since the last look.
    pub(super) fn ended(&mut self, now: f64) -> Option<End> {
        let child = self.child.as_mut()?;
        let status = child.try_wait().ok()??;
        self.child = None;
        self.end_life(now);
        Some(End {
            status,
            asked: self.leaving,
        })
    }

    fn end_life(&mut self, now: f64) {
        self.stopped = false;
        if let Some(life) = self.lives.last_mut() {
            life[1] = now;
        }
        self.past_cpu_s = self.usage.last().map_or(0.0, |usage| usage.cpu_s);
    }

    /// Notes CPU and memory. `counted`: CPU seconds as a cgroup counts them.
    pub(super) fn measure(&mut self, processes: &Processes, counted: Option<f64>, now: f64) {
        let pid = self.child.as_ref().map(|child| child.id() as i32);
        let (seconds, rss_bytes) = pid.map_or((0.0, 0), |pid| processes.usage(pid));
        let last = self.usage.last().map_or(0.0, |usage| usage.cpu_s);
        self.usage.push(Usage {
            t: now,
            cpu_s: counted.unwrap_or(self.past_cpu_s + seconds).max(last),
            rss_bytes,
        });
    }

    /// The last lines of its log.
    pub(super) fn tail(&self) -> String {
        tail(&self.log).unwrap_or_default()
    }

    /// What is kept of it.
    pub(super) fn into_record(mut self, scenario: &Scenario) -> NodeRecord {
        let plan = &scenario.nodes[self.rank];
        let metrics = self.watch.take_metrics();
        let peer = metrics.iter().find(|line| line.event == "opened");
        let peer = peer.and_then(|line| line.fields.get("peer")?.as_str());
        NodeRecord {
            name: std::mem::take(&mut self.name),
            group: plan.group.clone(),
            cpu: plan.cpu,
            // As the metrics of others have it.
            peer: peer.map(|id| id.chars().take(8).collect()),
            metrics,
            usage: std::mem::take(&mut self.usage),
            lives: std::mem::take(&mut self.lives),
        }
    }
}

impl Drop for Node {
    /// Its program ends with it, also where a run is broken off.
    fn drop(&mut self) {
        self.kill(0.0);
    }
}

/// How a program ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    status: ExitStatus,
    /// An event had asked it to.
    pub(super) asked: bool,
}

impl End {
    pub(super) fn is_failure(&self) -> bool {
        !self.status.success()
    }

    /// In words.
    pub(super) fn words(&self) -> String {
        match (self.status.code(), self.status.signal()) {
            (Some(code @ 129..=159), _) => format!("killed by signal {}", code - 128),
            (Some(code), _) => format!("status {code}"),
            (None, Some(9)) => "killed by signal 9; where memory is capped, by that".into(),
            (None, signal) => format!("killed by signal {}", signal.unwrap_or(0)),
        }
    }
}

fn replaced(word: &str, lab: &Lab, rank: NodeIndex, nodes: usize) -> String {
    word.replace("{rank}", &rank.to_string())
        .replace("{world_size}", &nodes.to_string())
        .replace("{addr}", &address::ip(rank).to_string())
        .replace("{exe}", &lab.exe.display().to_string())
}

fn environment(
    scenario: &Scenario,
    rank: NodeIndex,
    folder: &Path,
    metrics: &Path,
) -> Vec<(String, String)> {
    let plan = &scenario.nodes[rank];
    let all: Vec<String> = (0..scenario.nodes.len())
        .map(|rank| address::ip(rank).to_string())
        .collect();
    let mut env: Vec<(String, String)> = [
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", all.len().to_string()),
        ("LOCAL_RANK", "0".into()),
        ("NODE_NAME", plan.name.clone()),
        ("NODE_ADDR", all[rank].clone()),
        ("MASTER_ADDR", all[0].clone()),
        ("MASTER_PORT", MASTER_PORT.to_string()),
        ("GLOO_SOCKET_IFNAME", INTERFACE.into()),
        ("NODE_ADDRS", all.join(",")),
        ("NODE_DIR", folder.display().to_string()),
        ("METRICS", metrics.display().to_string()),
        ("SEED", scenario.seed.to_string()),
        ("NO_COLOR", "1".into()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into();
    env.extend(THREADS.map(|key| (key.to_owned(), plan.threads.to_string())));
    env.extend(plan.env.clone());
    env
}

fn tail(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len() as i64;
    file.seek(SeekFrom::End(-length.min(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES as u64).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_of_a_log_is_its_last_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let lines: Vec<String> = (0..10_000).map(|n| format!("line {n}")).collect();
        fs::write(&path, lines.join("\n")).unwrap();
        let shown = tail(&path).unwrap();
        assert_eq!(shown.lines().count(), TAIL_LINES);
        assert!(shown.ends_with("line 9999"));
        fs::write(&path, "alone").unwrap();
        assert_eq!(tail(&path).unwrap(), "alone");
    }
}
