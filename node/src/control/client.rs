//! The command line's end of the control socket.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::BufReader;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::lines::{read_line, write_line};
use super::protocol::{Failure, MAX_RESPONSE_BYTES, Request, RequestError, Response};
use super::socket::{self, SocketError};

/// How long a node may take to read a request.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("no skein is running for {}: start one with `skein up`", home.display())]
    NoNode {
        /// The home folder asked for.
        home: PathBuf,
    },
    /// The home folder cannot hold a socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The connection broke.
    #[error("the connection to the skein of {} broke: {source}", home.display())]
    Io {
        /// The home folder asked for.
        home: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The node ended while it was being asked.
    #[error("the skein of {} ended before it answered", home.display())]
    Ended {
        /// The home folder asked for.
        home: PathBuf,
    },
    /// The question or the answer is not of this protocol.
    #[error(transparent)]
    Protocol(#[from] RequestError),
    /// The node answered that it cannot.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// An answer to another question.
    #[error("the node answered {got} to the question {asked}: use the same skein for both")]
    Unexpected {
        /// The command.
        asked: &'static str,
        /// The response, shortened.
        got: String,
    },
}

/// An open connection with a request on it.
#[derive(Debug)]
pub struct Client {
    home: PathBuf,
    read: BufReader<OwnedReadHalf>,
    /// Kept open: the node may take a half-closed connection for a client that left.
    _write: OwnedWriteHalf,
}

impl Client {
    /// Connects to the node of `home` and sends `request`.
    ///
    /// # Errors
    /// [`ClientError::NoNode`] when nobody listens, else see the variants.
    ///
    /// # Cancel safety
    /// A cancelled call closes the connection; the node may or may not have read the request.
    pub async fn open(home: &Path, request: &Request) -> Result<Self, ClientError> {
        let line = request.encode()?;
        let broke = |source| ClientError::Io {
            home: home.to_owned(),
            source,
        };
        let path = socket::path_in(home)?;
        let stream: UnixStream = socket::connect(&path)
            .await
            .map_err(broke)?
            .ok_or_else(|| ClientError::NoNode {
                home: home.to_owned(),
            })?;
        let (read, mut write) = stream.into_split();
        match write_line(&mut write, line, WRITE_DEADLINE).await {
            // A node that refuses at once closes first; its reason can still be read.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            result => result.map_err(broke)?,
        }
        Ok(Self {
            home: home.to_owned(),
            read: BufReader::new(read),
            _write: write,
        })
    }

    /// The next response; none when the node closed the connection. An error response is an `Err`.
    ///
    /// # Errors
    /// See [`ClientError`].
    ///
    /// # Cancel safety
    /// Not cancel safe: the rest of a half-read line would be read as a line. Drop the client after cancelling.
    pub async fn next(&mut self) -> Result<Option<Response>, ClientError> {
        let line = read_line(&mut self.read, MAX_RESPONSE_BYTES)
            .await
            .map_err(|source| ClientError::Io {
                home: self.home.clone(),
                source,
            })?;
        let Some(line) = line else { return Ok(None) };
        match Response::decode(&line)? {
            Response::Error(failure) => Err(failure.into()),
            response => Ok(Some(response)),
        }
    }

    /// Asks a question that has one answer.
    ///
    /// # Errors
    /// See [`ClientError`].
    ///
    /// # Cancel safety
    /// A cancelled call closes the connection; the node may still do what it was asked.
    pub async fn ask(home: &Path, request: &Request) -> Result<Response, ClientError> {
        let mut client = Self::open(home, request).await?;
        client.next().await?.ok_or_else(|| ClientError::Ended {
            home: home.to_owned(),
        })
    }
}
