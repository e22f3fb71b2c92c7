//! The home folder of a peer: its identity, the key of its mesh, the addresses it remembers, and the lock that keeps a
//! second process out. Every file is replaced whole (temporary file, fsync, rename) or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use fs4::{FileExt, TryLockError};
use serde::{Deserialize, Serialize};

pub use crate::net::{Identity, MeshKey};

/// Remembered addresses.
const MAX_REMEMBERED: usize = 256;
/// The longest file read, in bytes; 256 addresses of 200 characters fit.
const MAX_FILE: u64 = 128 << 10;
const IDENTITY: &str = "skein identity 1; secret: whoever has this file is this peer, so never copy it to another device";
const MESH: &str = "skein mesh key 1; secret: whoever has this file can join the mesh";

/// A home folder, held by this process alone until it is dropped.
#[derive(Debug)]
pub struct Home {
    path: PathBuf,
    /// Holds the lock.
    _lock: File,
}

/// The home folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// No place for it is known.
    #[error("neither XDG_DATA_HOME nor HOME is set; say where to keep files with --home")]
    NoPlace,
    /// Another process runs with this home.
    #[error("{} is in use by the process {pid}: stop it, or give this one its own folder with --home", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
        /// The process that holds it, if it said so.
        pid: String,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// With which file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A key file is damaged.
    #[error("{} is damaged ({reason}): {fix}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
        /// What to do.
        fix: &'static str,
    },
}

/// What one run leaves to the next; only hints.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// Where other peers are, at most 256.
    pub addresses: Vec<String>,
    /// The port listened on: others remember it in their turn.
    #[serde(default)]
    pub port: Option<u16>,
}

/// As it stands in the file.
#[derive(Serialize, Deserialize)]
struct RememberedFile {
    version: u32,
    #[serde(flatten)]
    remembered: Remembered,
}

impl Home {
    /// Opens (or makes) the home folder at `path`, by default `$XDG_DATA_HOME/skein` or `~/.local/share/skein`, and locks
    /// it.
    ///
    /// # Errors
    /// [`HomeError`]; [`HomeError::InUse`] names the process that holds it.
    pub fn open(path: Option<PathBuf>) -> Result<Self, HomeError> {
        let path = path.or_else(default_path).ok_or(HomeError::NoPlace)?;
        if !path.is_dir() {
            make_dir(&path).map_err(failed("make", &path))?;
        }
        close_to_others(&path, 0o700)?;
        let lock = lock(&path)?;
        Ok(Self { path, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// This peer's identity; made at the first call.
    ///
    /// # Errors
    /// [`HomeError`].
    pub fn identity(&self) -> Result<Identity, HomeError> {
        const FIX: &str = "restore it from a copy, or delete it to become a new peer";
        let path = self.path.join("identity.key");
        if let Some(secret) = read_key(&path, IDENTITY, FIX)? {
            return Ok(Identity::from_secret(secret));
        }
        let identity = Identity::generate();
        write_key(&path, IDENTITY, identity.secret())?;
        Ok(identity)
    }

    /// The key of the mesh that this peer is in, if it is in one.
    ///
    /// # Errors
    /// [`HomeError`].
    pub fn mesh_key(&self) -> Result<Option<MeshKey>, HomeError> {
        const FIX: &str = "delete it and join again with the token";
        Ok(read_key(&self.path.join("mesh.key"), MESH, FIX)?.map(MeshKey))
    }

    /// From now on this peer is in the mesh of `key`.
    ///
    /// # Errors
    /// [`HomeError::Io`]; then the mesh before is still the one kept.
    pub fn save_mesh_key(&self, key: &MeshKey) -> Result<(), HomeError> {
        write_key(&self.path.join("mesh.key"), MESH, key.0)
    }

    /// What is remembered from last time. These are only hints, so a damaged file is as good as none.
    pub fn remembered(&self) -> Remembered {
        let path = self.path.join("peers.json");
        let text = match read(&path) {
            Ok(Some(text)) => text,
            Ok(None) => return Remembered::default(),
            Err(error) => {
                tracing::warn!(%error, "remembered addresses are ignored");
                return Remembered::default();
            }
        };
        match serde_json::from_str::<RememberedFile>(&text) {
            Ok(RememberedFile {
                version: 1,
                mut remembered,
            }) => {
                remembered.addresses.truncate(MAX_REMEMBERED);
                remembered
            }
            Ok(RememberedFile { version, .. }) => {
                tracing::warn!(path = %path.display(), version, "remembered addresses of another version are ignored");
                Remembered::default()
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "damaged list of remembered addresses is ignored");
                Remembered::default()
            }
        }
    }

    /// Remembers this for next time; of the addresses the first 256.
    ///
    /// # Errors
    /// [`HomeError::Io`].
    pub fn remember(&self, mut remembered: Remembered) -> Result<(), HomeError> {
        remembered.addresses.truncate(MAX_REMEMBERED);
        let path = self.path.join("peers.json");
        let text = serde_json::to_string_pretty(&RememberedFile {
            version: 1,
            remembered,
        })
        .map_err(|error| failed("write", &path)(error.into()))?;
        replace(&path, text.as_bytes())
    }
}

/// Where the home folder is when none is named: `$XDG_DATA_HOME/skein` or `~/.local/share/skein`.
pub fn default_path() -> Option<PathBuf> {
    let set = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    set("XDG_DATA_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".local/share")))
        .map(|data| data.join("skein"))
}

fn lock(home: &Path) -> Result<File, HomeError> {
    let path = home.join("lock");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let mut file = options.open(&path).map_err(failed("open", &path))?;
    match FileExt::try_lock(&file) {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            // Without the number the error is still true.
            let _ = file.take(20).read_to_string(&mut pid);
            let pid = if pid.trim().is_empty() {
                "that locked it".to_owned()
            } else {
                pid.trim().to_owned()
            };
            return Err(HomeError::InUse {
                path: home.to_owned(),
                pid,
            });
        }
        Err(TryLockError::Error(error)) => return Err(failed("lock", &path)(error)),
    }
    let mut write = || {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    };
    write().map_err(failed("write", &path))?;
    Ok(file)
}

/// Reads a key file: a line of text, the key in hex, a checksum of both. `None` if there is no such file.
fn read_key(path: &Path, title: &str, fix: &'static str) -> Result<Option<[u8; 32]>, HomeError> {
    let corrupt = |reason| HomeError::Corrupt {
        path: path.to_owned(),
        reason,
        fix,
    };
    let text = match read(path) {
        Ok(Some(text)) => text,
        Ok(None) => return Ok(None),
        Err(HomeError::Io { source, .. }) if source.kind() == io::ErrorKind::InvalidData => {
            return Err(corrupt("not text"));
        }
        Err(error) => return Err(error),
    };
    close_to_others(path, 0o600)?;
    let mut lines = text.lines();
    if lines.next() != Some(title) {
        return Err(corrupt("its first line is another"));
    }
    let mut hex = || {
        HEXLOWER
            .decode(lines.next().unwrap_or_default().trim().as_bytes())
            .ok()
    };
    let key: [u8; 32] = hex()
        .and_then(|key| key.try_into().ok())
        .ok_or_else(|| corrupt("no key of 64 hex digits"))?;
    if hex().as_deref() != Some(&checksum(title, &key)) {
        return Err(corrupt("its checksum is wrong"));
    }
    Ok(Some(key))
}

fn write_key(path: &Path, title: &str, key: [u8; 32]) -> Result<(), HomeError> {
    let text = format!(
        "{title}\n{}\n{}\n",
        HEXLOWER.encode(&key),
        HEXLOWER.encode(&checksum(title, &key))
    );
    replace(path, text.as_bytes())
}

fn checksum(title: &str, key: &[u8; 32]) -> [u8; 8] {
    let mut sum = [0; 8];
    blake3::Hasher::new()
        .update(title.as_bytes())
        .update(key)
        .finalize_xof()
        .fill(&mut sum);
    sum
}

fn read(path: &Path) -> Result<Option<String>, HomeError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed("read", path)(error)),
    };
    let mut text = String::new();
    file.take(MAX_FILE)
        .read_to_string(&mut text)
        .map_err(failed("read", path))?;
    Ok(Some(text))
}

/// Writes a file whole or not at all, readable by its owner only.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), HomeError> {
    let temporary = path.with_extension("tmp");
    let write = || {
        // A left-over of a crash may have been made by anybody.
        match fs::remove_file(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        // The rename itself lasts only once its folder is on the disk.
        path.parent()
            .map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    };
    write().map_err(failed("write", path))
}

fn make_dir(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Takes the permissions of others away, with a warning if they had any.
#[cfg(unix)]
fn close_to_others(path: &Path, mode: u32) -> Result<(), HomeError> {
    use std::os::unix::fs::PermissionsExt;
    let found = fs::metadata(path)
        .map_err(failed("read", path))?
        .permissions()
        .mode()
        & 0o777;
    if found & 0o077 != 0 {
        tracing::warn!(path = %path.display(), "others could open it (mode {found:03o}); closed to {mode:03o}");
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
            .map_err(failed("set the permissions of", path))?;
    }
    Ok(())
}

#[cfg(not(unix))]
fn close_to_others(_: &Path, _: u32) -> Result<(), HomeError> {
    Ok(())
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> HomeError {
    let path = path.to_owned();
    move |source| HomeError::Io {
        action,
        path,
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home() -> (tempfile::TempDir, Home) {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::open(Some(folder.path().join("a/b"))).unwrap();
        (folder, home)
    }

    #[test]
    fn an_identity_is_made_once_and_kept() {
        let (_folder, home) = home();
        let peer = home.identity().unwrap().peer();
        assert_eq!(home.identity().unwrap().peer(), peer);
        let path = home.path().to_owned();
        drop(home);
        assert_eq!(
            Home::open(Some(path)).unwrap().identity().unwrap().peer(),
            peer
        );
    }

    #[test]
    fn a_second_process_is_told_who_holds_the_home() {
        let (_folder, home) = home();
        let error = Home::open(Some(home.path().to_owned())).unwrap_err();
        assert!(
            error.to_string().contains(&std::process::id().to_string()),
            "{error}"
        );
    }

    #[test]
    fn a_damaged_key_names_the_file_and_the_fix() {
        let (_folder, home) = home();
        home.identity().unwrap();
        let path = home.path().join("identity.key");
        let good = fs::read_to_string(&path).unwrap();
        for bad in [
            "",
            "\n",
            &good[..good.len() - 3],
            &good.replace("skein", "skain"),
            &good.replacen(" 1;", " 2;", 1),
        ] {
            fs::write(&path, bad).unwrap();
            let error = home.identity().unwrap_err().to_string();
            assert!(
                error.contains("identity.key is damaged") && error.contains("restore it"),
                "{error}"
            );
        }
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(matches!(
            home.identity(),
            Err(HomeError::Corrupt {
                reason: "not text",
                ..
            })
        ));
        let digit = good.lines().nth(1).unwrap();
        let other = digit.replace(&digit[..1], if digit.starts_with('0') { "1" } else { "0" });
        fs::write(&path, good.replace(digit, &other)).unwrap();
        assert!(matches!(
            home.identity(),
            Err(HomeError::Corrupt {
                reason: "its checksum is wrong",
                ..
            })
        ));
    }

    #[test]
    fn the_mesh_key_is_kept() {
        let (_folder, home) = home();
        assert_eq!(home.mesh_key().unwrap(), None);
        home.save_mesh_key(&MeshKey([3; 32])).unwrap();
        home.save_mesh_key(&MeshKey([4; 32])).unwrap();
        assert_eq!(home.mesh_key().unwrap(), Some(MeshKey([4; 32])));
    }

    #[test]
    fn remembered_addresses_are_bounded_and_may_be_damaged() {
        let (_folder, home) = home();
        assert_eq!(home.remembered(), Remembered::default());
        home.remember(Remembered {
            addresses: (0..400).map(|n| format!("/ip4/10.0.0.1/tcp/{n}")).collect(),
            port: Some(4001),
        })
        .unwrap();
        assert_eq!(home.remembered().addresses.len(), MAX_REMEMBERED);
        assert_eq!(home.remembered().port, Some(4001));
        for bad in ["", "{", "[]", r#"{"version": 2, "addresses": []}"#] {
            fs::write(home.path().join("peers.json"), bad).unwrap();
            assert_eq!(home.remembered(), Remembered::default());
        }
        fs::write(home.path().join("peers.json"), [0xff]).unwrap();
        assert_eq!(home.remembered(), Remembered::default());
    }

    #[cfg(unix)]
    #[test]
    fn secrets_are_closed_to_others() {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let (_folder, home) = home();
        home.identity().unwrap();
        let key = home.path().join("identity.key");
        assert_eq!((mode(home.path()), mode(&key)), (0o700, 0o600));
        fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
        home.identity().unwrap();
        assert_eq!(mode(&key), 0o600);
    }
}
