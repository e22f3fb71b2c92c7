//! The node's end of the control socket: turns each client into a typed request with a handle to answer it.
//!
//! Every client has its own task, its own deadlines and its own short queue, so one that hangs blocks neither the
//! driver nor the others: answering never waits.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::BufReader;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};

use super::lines::{read_line, write_line};
use super::protocol::{ErrorCode, Failure, MAX_REQUEST_BYTES, Request, Response};
use super::socket::{self, SocketError};

/// Clients served at once. More are told to come back; a person has a handful of terminals.
pub const MAX_CLIENTS: usize = 32;

/// How long a client may take to send its request, and the driver to take it over.
const REQUEST_DEADLINE: Duration = Duration::from_secs(10);

/// How long a client may take to read a line before it is cut off.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);

/// Responses queued per client. Progress beyond it is dropped: the next line says it all again.
const QUEUE: usize = 16;

/// A request with the handle that answers it.
#[derive(Debug)]
pub struct Incoming {
    /// What is asked.
    pub request: Request,
    /// Who asked.
    pub reply: Reply,
}

/// What became of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// It is on its way.
    Queued,
    /// The client reads too slowly; it was dropped.
    Dropped,
    /// The client is gone; nothing more needs to be sent.
    Gone,
}

/// Answers one client. Dropping it closes the connection.
#[derive(Debug)]
pub struct Reply {
    lines: mpsc::Sender<Response>,
    last: oneshot::Sender<Response>,
}

impl Reply {
    /// Sends one of many responses; never waits.
    pub fn send(&self, response: Response) -> Delivery {
        match self.lines.try_send(response) {
            Ok(()) => Delivery::Queued,
            Err(mpsc::error::TrySendError::Full(_)) => Delivery::Dropped,
            Err(mpsc::error::TrySendError::Closed(_)) => Delivery::Gone,
        }
    }

    /// Sends the only or last response and closes; it has its own place, so a full queue cannot drop it. Says whether
    /// the client was still there.
    pub fn finish(self, response: Response) -> bool {
        self.last.send(response).is_ok()
    }

    /// Answers that the request cannot be fulfilled.
    pub fn fail(self, code: ErrorCode, message: impl Into<String>, fix: impl Into<String>) -> bool {
        self.finish(Response::Error(Failure {
            code,
            message: message.into(),
            fix: fix.into(),
        }))
    }

    /// Whether the client has gone. A client that reads nothing is noticed at the next line sent to it.
    pub fn is_gone(&self) -> bool {
        self.lines.is_closed()
    }
}

/// The listening socket. Dropping it ends all clients at once and removes the socket file.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    accepting: JoinHandle<()>,
    closing: Arc<Notify>,
}

impl Server {
    /// Listens below `home`, which must exist; requests go to `requests`.
    ///
    /// # Errors
    /// See [`SocketError`].
    ///
    /// # Cancel safety
    /// A cancelled call leaves at most a dead socket file, which the next call replaces.
    pub async fn bind(home: &Path, requests: mpsc::Sender<Incoming>) -> Result<Self, SocketError> {
        let (listener, path) = socket::bind(home).await?;
        let closing = Arc::new(Notify::new());
        let accepting = tokio::spawn(accept(listener, requests, Arc::clone(&closing)));
        Ok(Self {
            path,
            accepting,
            closing,
        })
    }

    /// Takes no more clients and waits, at most for `grace`, until those that are there have read their last answers.
    /// Drop or finish all [`Reply`]s before.
    ///
    /// # Cancel safety
    /// A cancelled call ends all clients at once.
    pub async fn close(mut self, grace: Duration) {
        self.closing.notify_one();
        if tokio::time::timeout(grace, &mut self.accepting)
            .await
            .is_err()
        {
            tracing::debug!("a command did not read its last answer in time");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
        // Already gone is as good; a leftover is replaced at the next start.
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn accept(listener: UnixListener, requests: mpsc::Sender<Incoming>, closing: Arc<Notify>) {
    let seats = Arc::new(Semaphore::new(MAX_CLIENTS));
    // A set, so that ending this task ends the clients too.
    let mut clients = JoinSet::new();
    loop {
        while clients.try_join_next().is_some() {}
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = closing.notified() => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file handles, most likely: a pause keeps the loop from spinning until some are closed.
                tracing::warn!(%error, "the control socket cannot accept");
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        match Arc::clone(&seats).try_acquire_owned() {
            Ok(seat) => {
                let requests = requests.clone();
                clients.spawn(async move {
                    serve(stream, requests).await;
                    drop(seat);
                });
            }
            // Written without a task, and only as far as the socket's buffer takes it.
            Err(_) => {
                let full = Failure {
                    code: ErrorCode::Refused,
                    message: format!("{MAX_CLIENTS} commands are talking to this node already"),
                    fix: "end some of them, such as a forgotten `skein train`".into(),
                };
                let line = Response::Error(full).encode() + "\n";
                if stream.try_write(line.as_bytes()).is_err() {
                    tracing::debug!("a client beyond the limit left at once");
                }
            }
        }
    }
    // From here on commands find nobody, and what they asked is not taken any more.
    drop((listener, requests));
    while clients.join_next().await.is_some() {}
}

/// Serves one client from its request to its last response.
async fn serve(stream: UnixStream, requests: mpsc::Sender<Incoming>) {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let request =
        match tokio::time::timeout(REQUEST_DEADLINE, read_line(&mut read, MAX_REQUEST_BYTES)).await
        {
            Ok(Ok(Some(line))) => Request::decode(&line).map_err(Failure::from),
            Ok(Ok(None)) => return,
            Ok(Err(error)) => Err(bad_request(error.to_string())),
            Err(_) => Err(bad_request("no request came in time".into())),
        };
    let (lines, mut queue) = mpsc::channel(QUEUE);
    let (last, mut ending) = oneshot::channel();
    let reply = Reply { lines, last };
    match request {
        Ok(request) => {
            if requests
                .send_timeout(Incoming { request, reply }, REQUEST_DEADLINE)
                .await
                .is_err()
            {
                tracing::debug!("the node is ending or too busy to take a request");
            }
        }
        Err(failure) => {
            reply.finish(Response::Error(failure));
        }
    }
    let mut answered = false;
    while let Some(response) = queue.recv().await {
        answered = true;
        if write_line(&mut write, response.encode(), WRITE_DEADLINE)
            .await
            .is_err()
        {
            // From here on the driver sees the client as gone.
            return;
        }
    }
    let response = match ending.try_recv() {
        Ok(response) => response,
        Err(_) if answered => return,
        Err(_) => Response::Error(Failure {
            code: ErrorCode::Internal,
            message: "the node ended before it answered".into(),
            fix: "look at what `skein up` printed".into(),
        }),
    };
    if let Err(error) = write_line(&mut write, response.encode(), WRITE_DEADLINE).await {
        tracing::debug!(%error, "a client left before its last answer");
    }
}

fn bad_request(message: String) -> Failure {
    Failure {
        code: ErrorCode::BadRequest,
        message,
        fix: String::new(),
    }
}
