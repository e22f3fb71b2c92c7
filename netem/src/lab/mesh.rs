//! What a `skein` node runs: `skein up` with the token of one mesh, and who hands in the job.
//!
//! The token is made here: all nodes start at once, know the key and no address, and find each other by multicast alone.

use std::fs::{self, File};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use data_encoding::BASE32_NOPAD;

use super::{Lab, LabError};

/// Where a peer keeps all it has, in its node's folder.
const HOME: &str = "home";
/// Where a peer listens for commands, in its home.
const SOCKET: &str = "control.sock";
/// Most bytes of a socket's path.
const MAX_SOCKET_PATH: usize = 107;

/// A peer's home, in its node's folder.
pub(super) fn home(folder: &Path) -> PathBuf {
    folder.join(HOME)
}

/// The binary: `SKEIN`, or the one beside the testbed's.
pub(super) fn binary(lab: &Lab) -> Result<PathBuf, LabError> {
    let looked = match std::env::var_os("SKEIN") {
        Some(path) => PathBuf::from(path),
        None => lab.exe.with_file_name("skein"),
    };
    match looked.canonicalize() {
        Ok(path) => Ok(path),
        Err(_) => Err(LabError::NoSkein { looked }),
    }
}

/// The token of the run's mesh, as `skein up` prints it: its key follows from the seed, and no address is in it.
pub(super) fn token(seed: u64) -> String {
    let key = blake3::derive_key("skein-netem mesh key", &seed.to_le_bytes());
    let mut body = key.to_vec();
    // Number of addresses.
    body.push(0);
    let sum = blake3::hash(&body);
    body.extend_from_slice(&sum.as_bytes()[..4]);
    let text = BASE32_NOPAD.encode(&body).to_ascii_lowercase();
    format!("skein1{text}")
}

/// The words of a peer's command line.
pub(super) fn command(
    skein: &Path,
    folder: &Path,
    seed: u64,
    threads: u32,
    more: &[String],
) -> Vec<String> {
    let mut words: Vec<String> = [
        &skein.display().to_string(),
        "up",
        "--home",
        &home(folder).display().to_string(),
        "--join",
        &token(seed),
        "--threads",
        &threads.to_string(),
    ]
    .map(str::to_owned)
    .into();
    words.extend_from_slice(more);
    words
}

/// Whether the peer of this folder answers.
pub(super) fn is_up(folder: &Path) -> bool {
    UnixStream::connect(home(folder).join(SOCKET)).is_ok()
}

/// # Errors
/// No peer could listen for commands in this folder.
pub(super) fn check_path(folder: &Path) -> Result<(), LabError> {
    let path = home(folder).join(SOCKET);
    match path.as_os_str().len() > MAX_SOCKET_PATH {
        true => Err(LabError::PathTooLong {
            path,
            most: MAX_SOCKET_PATH,
        }),
        false => Ok(()),
    }
}

/// A job on its way to a peer.
#[derive(Debug)]
pub(super) struct Submission {
    child: Child,
    said: PathBuf,
    node: String,
}

impl Submission {
    /// Hands `job` to the peer of `folder`. A seed that the job does not set is `seed`.
    pub(super) fn start(
        lab: &Lab,
        skein: &Path,
        node: &str,
        folder: &Path,
        job: &str,
        seed: u64,
    ) -> Result<Self, LabError> {
        let file = lab.out.join("job.toml");
        fs::write(&file, with_seed(job, seed)).map_err(LabError::file(&file))?;
        let said = lab.out.join("job.log");
        let log = File::create(&said).map_err(LabError::file(&said))?;
        let log2 = log.try_clone().map_err(LabError::file(&said))?;
        let child = Command::new(skein)
            .arg("train")
            .arg(&file)
            .arg("--detach")
            .arg("--home")
            .arg(home(folder))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(log2)
            .spawn()
            .map_err(LabError::failed(format!("starting {}", skein.display())))?;
        let node = node.to_owned();
        Ok(Self { child, said, node })
    }

    /// Whether the peer took it; false while it thinks.
    pub(super) fn is_taken(&mut self) -> Result<bool, LabError> {
        let status = self.child.try_wait();
        match status.map_err(LabError::failed("waiting for skein train"))? {
            None => Ok(false),
            Some(status) if status.success() => Ok(true),
            Some(_) => Err(LabError::JobRefused {
                node: self.node.clone(),
                said: fs::read_to_string(&self.said).unwrap_or_default(),
            }),
        }
    }
}

impl Drop for Submission {
    fn drop(&mut self) {
        // It has ended already, but where the run is broken off.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The job's text with a seed. A text that is no TOML stays: the peer says what is wrong with it.
fn with_seed(job: &str, seed: u64) -> String {
    match job.parse::<toml::Table>() {
        // A job's seed is a signed number.
        Ok(table) if !table.contains_key("seed") => {
            format!("seed = {}\n{job}", seed & i64::MAX as u64)
        }
        _ => job.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_of_the_length_of_a_key_without_addresses_and_its_own_per_seed() {
        assert_eq!(token(1).len(), "skein1".len() + (37 * 8_usize).div_ceil(5));
        assert_eq!(token(1), token(1));
        assert_ne!(token(1), token(2));
    }

    #[test]
    fn a_seed_is_added_where_the_job_has_none() {
        assert_eq!(with_seed("name = 1\n", 7), "seed = 7\nname = 1\n");
        assert_eq!(with_seed("seed = 3\n", 7), "seed = 3\n");
        let nested = with_seed("[train]\nseed = 3\n", 7);
        assert!(nested.starts_with("seed = 7\n"));
    }
}
