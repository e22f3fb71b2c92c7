//! The socket file: where it is, who may open it, and whether somebody is still behind it.
//!
//! Between `bind` and `chmod` a socket has the modes of the umask. So it is made in a folder that only the owner may
//! enter, given its mode there, and moved to its place; the move also replaces what a dead process left behind.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};

/// Name of the socket in the home folder.
pub const SOCKET_NAME: &str = "control.sock";

/// Folder in which the socket is made. With the socket's name `s` its path is shorter than the final one.
const NURSERY: &str = ".ctl";

/// Longest path of a unix socket: `sun_path` less its closing zero.
const MAX_PATH_BYTES: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

/// How long a node may take to accept before it counts as alive but busy.
const CONNECT_DEADLINE: Duration = Duration::from_secs(2);

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Unix sockets have short paths.
    #[error(
        "{} has {bytes} bytes, but the path of a unix socket has at most {MAX_PATH_BYTES}: \
         choose a shorter home folder with --home or SKEIN_HOME",
        path.display()
    )]
    PathTooLong {
        /// The path of the socket.
        path: PathBuf,
        /// Its length.
        bytes: usize,
    },
    /// Another process answers on it.
    #[error(
        "another skein is already running for {}: stop it first, or start this one with another --home",
        home.display()
    )]
    InUse {
        /// The home folder.
        home: PathBuf,
    },
    /// The file system refuses.
    #[error("cannot make the control socket {}: {source}", path.display())]
    Io {
        /// The path at fault.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// Path of the socket below `home`.
///
/// # Errors
/// [`SocketError::PathTooLong`].
pub(super) fn path_in(home: &Path) -> Result<PathBuf, SocketError> {
    let path = home.join(SOCKET_NAME);
    let bytes = path.as_os_str().as_bytes().len();
    if bytes > MAX_PATH_BYTES {
        Err(SocketError::PathTooLong { path, bytes })
    } else {
        Ok(path)
    }
}

/// Binds the socket of `home`, which must exist.
///
/// # Errors
/// See [`SocketError`].
///
/// # Cancel safety
/// A cancelled call may leave the empty nursery folder behind; the next call removes it.
pub(super) async fn bind(home: &Path) -> Result<(UnixListener, PathBuf), SocketError> {
    let path = path_in(home)?;
    if is_alive(&path).await {
        return Err(SocketError::InUse {
            home: home.to_owned(),
        });
    }
    let nursery = home.join(NURSERY);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| SocketError::Io { path, source }
    };
    match fs::remove_dir_all(&nursery) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed(&nursery)(error));
        }
        _ => {}
    }
    DirBuilder::new()
        .mode(0o700)
        .create(&nursery)
        .map_err(failed(&nursery))?;
    let born = nursery.join("s");
    let listener = UnixListener::bind(&born).map_err(failed(&born))?;
    fs::set_permissions(&born, Permissions::from_mode(0o600)).map_err(failed(&born))?;
    fs::rename(&born, &path).map_err(failed(&path))?;
    fs::remove_dir(&nursery).map_err(failed(&nursery))?;
    Ok((listener, path))
}

/// Connects to the node of `home`; none if there is no socket or nobody behind it.
pub(super) async fn connect(path: &Path) -> io::Result<Option<UnixStream>> {
    match tokio::time::timeout(CONNECT_DEADLINE, UnixStream::connect(path)).await {
        Ok(Ok(stream)) => Ok(Some(stream)),
        Ok(Err(error)) => match error.kind() {
            io::ErrorKind::NotFound
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::NotADirectory => Ok(None),
            _ => Err(error),
        },
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Whether a process listens on `path`. What cannot be asked counts as alive, except files that are no sockets.
async fn is_alive(path: &Path) -> bool {
    !matches!(connect(path).await, Ok(None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_socket_is_for_its_owner_only_and_leaves_no_nursery() {
        let home = tempfile::tempdir().unwrap();
        let (_listener, path) = bind(home.path()).await.unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
        assert!(connect(&path).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_live_socket_is_refused_by_the_name_of_its_home_and_a_dead_one_is_replaced() {
        let home = tempfile::tempdir().unwrap();
        let (listener, path) = bind(home.path()).await.unwrap();
        let error = bind(home.path()).await.unwrap_err();
        assert!(
            error.to_string().contains(&*home.path().to_string_lossy()),
            "{error}"
        );
        drop(listener);
        assert!(path.exists(), "what a killed process leaves behind");
        fs::create_dir(home.path().join(NURSERY)).unwrap();
        let (_listener, path) = bind(home.path()).await.unwrap();
        assert!(connect(&path).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn a_home_too_deep_for_a_socket_is_an_error_with_the_way_out() {
        let home = tempfile::tempdir().unwrap();
        let deep = home.path().join("d".repeat(100));
        fs::create_dir(&deep).unwrap();
        let error = bind(&deep).await.unwrap_err();
        assert!(matches!(error, SocketError::PathTooLong { .. }), "{error}");
        assert!(error.to_string().contains("SKEIN_HOME"), "{error}");
    }

    #[tokio::test]
    async fn a_missing_home_is_named() {
        let home = tempfile::tempdir().unwrap();
        let error = bind(&home.path().join("absent")).await.unwrap_err();
        assert!(error.to_string().contains("absent"), "{error}");
    }
}
