//! A `skein up` on a machine of the lab, asked over its control socket: that is a file, so it is reached from outside.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::netns::Machine;

/// How often is looked again while waiting.
const LOOK: Duration = Duration::from_millis(10);

/// The program under test: `SKEIN_BINARY`, else what cargo builds beside this test.
static SKEIN: LazyLock<PathBuf> =
    LazyLock::new(|| built("SKEIN_BINARY", ["--bin", "skein"], "skein"));

/// The program that the variable names, else `target` of the package `skein-node`, which cargo builds beside this test as `name`.
pub(crate) fn built(variable: &str, target: [&str; 2], name: &str) -> PathBuf {
    if let Some(path) = std::env::var_os(variable) {
        return path.into();
    }
    let here = std::env::current_exe().unwrap();
    let profile = here.parent().and_then(Path::parent).unwrap();
    let mut build = Command::new(env!("CARGO"));
    build
        .args(["build", "--quiet", "--package", "skein-node"])
        .args(target);
    if profile.ends_with("release") {
        build.arg("--release");
    }
    build.arg("--target-dir").arg(profile.parent().unwrap());
    assert!(build.status().unwrap().success(), "{name} was not built");
    profile.join(name)
}

/// `skein` with `words`, without the variables of whoever runs the tests.
pub(crate) fn skein(machine: Option<&Machine>, words: &[&str]) -> Command {
    let mut command = match machine {
        Some(machine) => machine.command(&SKEIN),
        None => Command::new(&*SKEIN),
    };
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SKEIN_") {
            command.env_remove(name);
        }
    }
    command.args(words).stdin(Stdio::null());
    command
}

/// Looks until there is something, and fails after `deadline`.
#[track_caller]
pub(crate) fn until<T>(
    what: &str,
    deadline: Duration,
    mut look: impl FnMut() -> Result<T, String>,
) -> T {
    let began = Instant::now();
    loop {
        match look() {
            Ok(found) => return found,
            Err(so_far) if began.elapsed() > deadline => {
                panic!("not within {deadline:?}: {what}; last: {so_far}")
            }
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

/// A running `skein up`; killed when dropped.
pub(crate) struct Peer {
    pub(crate) home: PathBuf,
    process: Child,
}

impl Peer {
    /// Starts `skein up` with `words` on `machine`. What it prints goes to `up.log` in its home.
    pub(crate) fn start(machine: &Machine, home: &Path, words: &[&str]) -> Self {
        fs::create_dir_all(home).unwrap();
        let log = File::options()
            .create(true)
            .append(true)
            .open(home.join("up.log"))
            .unwrap();
        let mut command = skein(Some(machine), &["up", "--threads", "1", "-v"]);
        command.args(words).arg("--home").arg(home);
        command.stdout(log.try_clone().unwrap()).stderr(log);
        Self {
            home: home.to_owned(),
            process: command.spawn().unwrap(),
        }
    }

    /// What it printed so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.home.join("up.log")).unwrap_or_default()
    }

    /// Its process number.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Its answer to a command of the control socket without further fields.
    pub(crate) fn ask(&self, command: &str) -> io::Result<Value> {
        let mut socket = UnixStream::connect(self.home.join("control.sock"))?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        writeln!(socket, r#"{{"v":1,"command":"{command}"}}"#)?;
        let mut line = String::new();
        BufReader::new(socket).read_line(&mut line)?;
        serde_json::from_str(&line).map_err(io::Error::from)
    }

    /// The answer to `command` once it is up.
    #[track_caller]
    pub(crate) fn told(&self, command: &str) -> Value {
        until(
            &format!("an answer to {command}"),
            Duration::from_secs(30),
            || {
                self.ask(command)
                    .map_err(|error| format!("{error}; {}", self.log()))
            },
        )
    }

    /// Its id.
    #[track_caller]
    pub(crate) fn id(&self) -> String {
        self.told("status")["peer"].as_str().unwrap().to_owned()
    }

    /// The addresses at which it says that it listens, ip:port.
    #[track_caller]
    pub(crate) fn listening(&self) -> Vec<String> {
        strings(&self.told("status")["listening"])
    }

    /// The ids of the peers that it shows as connected.
    pub(crate) fn connected(&self) -> io::Result<BTreeSet<String>> {
        Ok(connected(&self.ask("peers")?))
    }

    /// Ends it as Ctrl-C does.
    pub(crate) fn interrupt(&mut self) -> ExitStatus {
        let pid = self.pid().to_string();
        assert!(
            Command::new("kill")
                .args(["-INT", &pid])
                .status()
                .unwrap()
                .success()
        );
        self.ended(Duration::from_secs(20))
    }

    /// Waits until it has ended by itself.
    #[track_caller]
    pub(crate) fn ended(&mut self, deadline: Duration) -> ExitStatus {
        until("the end of skein", deadline, || {
            self.process
                .try_wait()
                .unwrap()
                .ok_or_else(|| "it runs".to_owned())
        })
    }

    /// Whether it still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("--- {}\n{}", self.home.display(), self.log());
        }
    }
}

/// The ids that an answer to `peers` shows as connected.
pub(crate) fn connected(answer: &Value) -> BTreeSet<String> {
    let peers = answer["peers"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let connected = peers.iter().filter(|peer| peer["state"] == "connected");
    connected
        .filter_map(|peer| Some(peer["id"].as_str()?.to_owned()))
        .collect()
}

/// The row of peer `id` in an answer to `peers`.
pub(crate) fn row(answer: &Value, id: &str) -> Option<Value> {
    let rows = answer["peers"].as_array()?;
    rows.iter().find(|row| row["id"] == id).cloned()
}

/// A list of strings.
pub(crate) fn strings(value: &Value) -> Vec<String> {
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    list.iter()
        .filter_map(|text| Some(text.as_str()?.to_owned()))
        .collect()
}

/// Fails unless each of `peers` shows all others as connected, and nobody else, before `deadline`.
#[track_caller]
pub(crate) fn fully_connected(peers: &[Peer], deadline: Duration) {
    let mut ids: Vec<Option<String>> = vec![None; peers.len()];
    until("full connection", deadline, || {
        let mut seen = Vec::new();
        for (peer, id) in peers.iter().zip(&mut ids) {
            if id.is_none() {
                let status = peer.ask("status").map_err(|error| error.to_string())?;
                *id = status["peer"].as_str().map(str::to_owned);
            }
            seen.push(peer.connected().map_err(|error| error.to_string())?);
        }
        let all: BTreeSet<String> = ids.iter().flatten().cloned().collect();
        let full = seen.iter().zip(&ids).all(|(seen, id)| {
            let mut others = all.clone();
            id.as_ref().is_some_and(|id| others.remove(id)) && *seen == others
        });
        let counts: Vec<usize> = seen.iter().map(BTreeSet::len).collect();
        if full {
            Ok(())
        } else {
            Err(format!("connected to {counts:?} others"))
        }
    });
}
