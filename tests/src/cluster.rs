//! Several nodes in one mesh, and waiting for what they do.

use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::binary::LOOK_EVERY;
use crate::node::Node;

/// How long something awaited may take; only a fault reaches it, also on a machine with much else to do.
const PATIENCE: Duration = Duration::from_secs(90);
/// Lines of each node's stderr in a failure.
const TAIL: usize = 25;

/// Clusters are heavy: one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Nodes that share a mesh. Dropping it kills them and removes their homes, also when a test fails.
#[derive(Debug)]
pub struct Cluster {
    // Before the folder: processes end before their homes go.
    nodes: Vec<Node>,
    folder: tempfile::TempDir,
    token: Option<String>,
    _turn: MutexGuard<'static, ()>,
}

impl Cluster {
    /// `n` nodes, started and all connected to each other.
    pub fn start(n: usize) -> Self {
        let mut cluster = Self::empty();
        for _ in 0..n {
            cluster.add();
        }
        cluster.connected();
        cluster
    }

    /// No node yet.
    pub fn empty() -> Self {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        Self {
            nodes: Vec::new(),
            folder: tempfile::tempdir().expect("a folder for the homes"),
            token: None,
            _turn: turn,
        }
    }

    /// A folder of this test's own.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts one more node of the mesh and returns its number.
    pub fn add(&mut self) -> usize {
        self.add_with(&[])
    }

    /// As [`add`](Self::add), with more words for its `skein up`.
    pub fn add_with(&mut self, args: &[&str]) -> usize {
        let home = self.folder.path().join(format!("n{}", self.nodes.len()));
        self.add_at(&home, args)
    }

    /// As [`add_with`](Self::add_with), with a home of its own choice.
    pub fn add_at(&mut self, home: &Path, args: &[&str]) -> usize {
        let n = self.nodes.len();
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        self.nodes
            .push(Node::new(format!("node {n}"), home.to_owned(), args));
        self.begin(n);
        n
    }

    /// Starts a node again that has ended, with the same home.
    pub fn restart(&mut self, n: usize) {
        self.begin(n);
    }

    /// Starts node `n` with the token of one that runs, since that one's address is good, and waits for its line.
    fn begin(&mut self, n: usize) {
        let running = self.running().first().and_then(|node| node.token());
        let join = running.or_else(|| self.token.clone());
        self.nodes[n].start(join.as_deref());
        self.token = Some(self.wait("the join line", || self.nodes[n].token()));
    }

    /// The token that the last node printed.
    ///
    /// # Panics
    /// No node was started.
    pub fn token(&self) -> &str {
        self.token.as_deref().expect("a node was started")
    }

    /// Node `n`.
    pub fn node(&self, n: usize) -> &Node {
        &self.nodes[n]
    }

    /// The nodes that run.
    pub fn running(&self) -> Vec<&Node> {
        self.nodes.iter().filter(|node| node.runs()).collect()
    }

    /// Waits until all that run are connected to each other.
    pub fn connected(&self) {
        let running = self.running();
        self.wait("full connection", || {
            let all = running.len() - 1;
            running
                .iter()
                .all(|node| node.n_connected() >= all)
                .then_some(())
        });
    }

    /// Hands a job file to node `n` and returns the job's id.
    pub fn submit(&self, n: usize, toml: &str) -> String {
        let file = self.folder.path().join("job.toml");
        fs::write(&file, toml).expect("the job file can be written");
        let answer = self.nodes[n].json(&["train", &file.to_string_lossy(), "--detach"]);
        let job = answer["job"].as_str();
        job.unwrap_or_else(|| panic!("the job is refused: {answer}"))
            .to_owned()
    }

    /// Ends a job from node `n`.
    pub fn stop(&self, n: usize, job: &str) {
        let answer =
            self.nodes[n].ask(&serde_json::json!({ "v": 1, "command": "stop", "job": job }));
        assert!(
            answer
                .as_ref()
                .is_some_and(|answer| answer["kind"] == "stopped"),
            "{answer:?}"
        );
    }

    /// Looks until `look` finds what is awaited.
    ///
    /// # Panics
    /// It does not come; the message has what every node said last.
    pub fn wait<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look() {
                return found;
            }
            if Instant::now() > deadline {
                panic!("waited in vain for {what}\n{}", self.report());
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Waits until the job has reached `step` on all of `nodes`.
    pub fn wait_for_step(&self, nodes: &[usize], job: &str, step: u64) {
        self.wait(&format!("step {step} on {nodes:?}"), || {
            let there = |n: &usize| self.nodes[*n].step(job) >= step;
            nodes.iter().all(there).then_some(())
        });
    }

    /// Waits until each of `nodes` has made `more` steps beyond where it is now.
    pub fn wait_for_steps(&self, nodes: &[usize], job: &str, more: u64) {
        let now: Vec<u64> = nodes.iter().map(|n| self.nodes[*n].step(job)).collect();
        self.wait(&format!("{more} more steps on {nodes:?}"), || {
            let there = |(n, from): (&usize, &u64)| self.nodes[*n].step(job) >= from + more;
            nodes.iter().zip(&now).all(there).then_some(())
        });
    }

    /// Waits until the views of all of `nodes` have `members` members and all of them train.
    pub fn wait_for_members(&self, nodes: &[usize], job: &str, members: usize) {
        self.wait(&format!("{members} members on {nodes:?}"), || {
            let there = |n: &usize| {
                let node = &self.nodes[*n];
                node.n_members(job) == members && node.phase(job).as_deref() == Some("running")
            };
            nodes.iter().all(there).then_some(())
        });
    }

    /// Waits until the job is over on all of `nodes` and returns the hash of the model, which must be the same on all
    /// of them: in the answer of the node, in `result.json`, and in their journals.
    pub fn wait_for_one_hash(&self, nodes: &[usize], job: &str) -> String {
        let hashes: Vec<String> = nodes
            .iter()
            .map(|n| {
                let node = &self.nodes[*n];
                let status = self.wait(&format!("the end on {}", node.name()), || {
                    let status = node.job(job)?;
                    let phase = status["phase"].as_str()?;
                    matches!(phase, "done" | "stopped" | "failed").then_some(status)
                });
                assert_ne!(
                    status["phase"],
                    "failed",
                    "{}: {status}\n{}",
                    node.name(),
                    self.report()
                );
                let result = node.result(job).expect("a job that is over has a result");
                assert_eq!(
                    status["model_hash"],
                    result["best"]["hash"],
                    "{}",
                    node.name()
                );
                let hash = status["model_hash"].as_str();
                hash.unwrap_or_else(|| panic!("{} has no model: {status}", node.name()))
                    .to_owned()
            })
            .collect();
        assert!(
            hashes.windows(2).all(|pair| pair[0] == pair[1]),
            "{hashes:?}\n{}",
            self.report()
        );
        hashes.first().expect("there are nodes").clone()
    }

    /// What every node said last and how its jobs stand.
    fn report(&self) -> String {
        let mut report = String::new();
        for node in &self.nodes {
            let stderr = node.stderr();
            let lines: Vec<&str> = stderr.lines().collect();
            let tail = lines[lines.len().saturating_sub(TAIL)..].join("\n    ");
            let state = match node.runs() {
                true => format!("runs, {} peers connected", node.n_connected()),
                false => format!("does not run ({:?})", node.ended()),
            };
            report += &format!("{}: {state}, jobs:\n", node.name());
            for job in self.jobs_of(node) {
                report += &format!("    {job}\n");
            }
            report += &format!("  stderr ends:\n    {tail}\n");
        }
        report
    }

    fn jobs_of(&self, node: &Node) -> Vec<String> {
        let status = node.runs().then(|| node.status()).flatten();
        let jobs = status.and_then(|status| status["jobs"].as_array().cloned());
        let line = |job: &Value| {
            let members = job["peers"].as_array().map_or(0, Vec::len);
            format!(
                "{} {}: {} step {} view {} of {members}",
                job["name"], job["phase"], job["reason"], job["step"], job["view"]
            )
        };
        jobs.unwrap_or_default().iter().map(line).collect()
    }
}
