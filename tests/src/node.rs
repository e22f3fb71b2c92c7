//! One `skein up` process with its home folder.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::binary::{self, Finished};

/// How long a control socket may take for one answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// A peer: its home, and its process while one runs. Dropping it kills the process.
#[derive(Debug)]
pub struct Node {
    name: String,
    home: PathBuf,
    args: Vec<String>,
    child: RefCell<Option<Child>>,
    starts: RefCell<u32>,
}

impl Node {
    /// A node that has not been started. `args` go to each `skein up` of it.
    pub(crate) fn new(name: String, home: PathBuf, args: Vec<String>) -> Self {
        Self {
            name,
            home,
            args,
            child: RefCell::new(None),
            starts: RefCell::new(0),
        }
    }

    /// Its home folder.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// What failures call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Starts its process; `join` is a token.
    pub(crate) fn start(&self, join: Option<&str>) {
        assert!(!self.runs(), "{} runs already", self.name);
        *self.starts.borrow_mut() += 1;
        let log = |path| File::create(path).expect("a file for its output");
        let mut command = binary::command();
        command
            .arg("--home")
            .arg(&self.home)
            .args([
                "-v",
                "up",
                "--listen",
                "127.0.0.1:0",
                "--no-mdns",
                "--threads",
                "1",
            ])
            .args(join.iter().flat_map(|token| ["--join", token]))
            .args(&self.args)
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(log(self.log("out")))
            .stderr(log(self.log("err")));
        *self.child.borrow_mut() = Some(command.spawn().expect("skein starts"));
    }

    fn log(&self, what: &str) -> PathBuf {
        let start = self.starts.borrow();
        self.home.with_extension(format!("{start}.{what}"))
    }

    /// What the process of the last start said.
    pub fn stderr(&self) -> String {
        fs::read_to_string(self.log("err")).unwrap_or_default()
    }

    /// The token that its process printed, once it has.
    pub(crate) fn token(&self) -> Option<String> {
        let out = fs::read_to_string(self.log("out")).ok()?;
        let line = out
            .lines()
            .find_map(|line| line.strip_prefix("skein up --join "));
        let whole = out.ends_with('\n');
        line.filter(|_| whole).map(str::to_owned)
    }

    /// Whether its process runs.
    pub fn runs(&self) -> bool {
        let mut child = self.child.borrow_mut();
        child
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Its process id.
    ///
    /// # Panics
    /// It was not started.
    pub fn pid(&self) -> u32 {
        self.child.borrow().as_ref().expect("it was started").id()
    }

    /// How its process ended, once it has.
    pub fn ended(&self) -> Option<std::process::ExitStatus> {
        let mut child = self.child.borrow_mut();
        child.as_mut().and_then(|child| child.try_wait().ok()?)
    }

    /// Ends its process with SIGKILL.
    pub fn kill(&self) {
        if let Some(mut child) = self.child.borrow_mut().take() {
            // It may have ended already; then there is nothing to kill.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Sends its process a signal, such as `STOP`.
    pub fn signal(&self, name: &str) {
        assert!(self.runs(), "{} does not run", self.name);
        let kill = format!("kill -{name} {}", self.pid());
        let sent = Command::new("sh").args(["-c", &kill]).status();
        assert!(sent.is_ok_and(|status| status.success()), "{kill}");
    }

    /// Asks its control socket, as the command line does; none while nobody answers.
    pub fn ask(&self, request: &Value) -> Option<Value> {
        let mut stream = UnixStream::connect(self.home.join("control.sock")).ok()?;
        stream.set_read_timeout(Some(ANSWER_DEADLINE)).ok()?;
        stream.write_all(format!("{request}\n").as_bytes()).ok()?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }

    fn asked(&self, command: &str) -> Option<Value> {
        self.ask(&serde_json::json!({ "v": 1, "command": command }))
    }

    /// `skein status`.
    pub fn status(&self) -> Option<Value> {
        self.asked("status")
    }

    /// Its peer id, while it runs.
    pub fn peer(&self) -> Option<String> {
        Some(self.status()?["peer"].as_str()?.to_owned())
    }

    /// Peers that it is connected to.
    pub fn n_connected(&self) -> usize {
        let peers = self.asked("peers");
        let connected = |peer: &&Value| peer["state"] == "connected";
        peers
            .and_then(|answer| Some(answer["peers"].as_array()?.iter().filter(connected).count()))
            .unwrap_or(0)
    }

    /// How the job stands here; none if it is not known here (yet), or the node does not run.
    pub fn job(&self, job: &str) -> Option<Value> {
        let answer = self.asked("jobs")?;
        let jobs = answer["jobs"].as_array()?;
        jobs.iter().find(|known| known["id"] == job).cloned()
    }

    /// The job's phase here.
    pub fn phase(&self, job: &str) -> Option<String> {
        Some(self.job(job)?["phase"].as_str()?.to_owned())
    }

    /// Members of the job's view here.
    pub fn n_members(&self, job: &str) -> usize {
        let status = self.job(job);
        status
            .and_then(|status| Some(status["peers"].as_array()?.len()))
            .unwrap_or(0)
    }

    /// The job's step here, 0 where it is not known.
    pub fn step(&self, job: &str) -> u64 {
        self.job(job)
            .and_then(|status| status["step"].as_u64())
            .unwrap_or(0)
    }

    /// The folder of the job.
    pub fn job_folder(&self, job: &str) -> PathBuf {
        self.home.join("jobs").join(job)
    }

    /// The events of the job's journal, as far as its lines are whole.
    pub fn journal(&self, job: &str) -> Vec<Value> {
        let text = fs::read(self.job_folder(job).join("metrics.jsonl")).unwrap_or_default();
        text.split_inclusive(|byte| *byte == b'\n')
            .filter(|line| line.ends_with(b"\n"))
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect()
    }

    /// The journal's events of one kind.
    pub fn events(&self, job: &str, kind: &str) -> Vec<Value> {
        let mut events = self.journal(job);
        events.retain(|event| event["event"] == kind);
        events
    }

    /// The job's `result.json`, once it is there.
    pub fn result(&self, job: &str) -> Option<Value> {
        let text = fs::read(self.job_folder(job).join("result.json")).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Steps of the checkpoints on its disk, ascending.
    pub fn checkpoints(&self, job: &str) -> Vec<(u64, PathBuf)> {
        let entries = fs::read_dir(self.job_folder(job).join("checkpoints"));
        let mut found: Vec<_> = entries
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                Some((name.strip_prefix("step-")?.parse().ok()?, entry.path()))
            })
            .collect();
        found.sort();
        found
    }

    /// Runs `skein ARGS` with its home.
    pub fn skein(&self, args: &[&str]) -> Finished {
        let home = self.home.to_string_lossy();
        binary::skein(["--home", &*home].iter().chain(args))
    }

    /// Runs `skein --json ARGS` with its home and reads the last line.
    ///
    /// # Panics
    /// It printed no JSON.
    pub fn json(&self, args: &[&str]) -> Value {
        let mut with_json = vec!["--json"];
        with_json.extend(args);
        let finished = self.skein(&with_json);
        let line = finished.out.lines().last().unwrap_or_default();
        serde_json::from_str(line)
            .unwrap_or_else(|error| panic!("skein {args:?}: {error}: {finished:?}"))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}
