//! The greeting: what both sides of every connection say first. It tells which process is there (so that two processes
//! with a copied identity are told apart from one that restarted), and which release of the software.
//!
//! It is also how a peer that sees two processes under one identity tells each of them about the other.

use std::io;
use std::time::Duration;

use futures::io::AsyncWriteExt;
use libp2p::swarm::Stream;
use serde::{Deserialize, Serialize};
use skein_gossip::wire::codec;
use skein_gossip::wire::frame::{FrameError, FrameKind};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::frames::{self, ReadError};

/// The longest greeting, in bytes.
pub(super) const MAX_BYTES: u32 = 1024;
/// The longest software version or address in it, in bytes.
const MAX_TEXT: usize = 200;

/// Who does not greet within this time is not there.
const PATIENCE: Duration = Duration::from_secs(10);

/// A random number per process.
pub(super) type Instance = [u8; 16];

/// See the module's header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Greeting {
    /// Which process speaks.
    pub(super) instance: Instance,
    /// The release of the speaker.
    pub(super) software: String,
    /// Where another process with the receiver's identity was seen.
    pub(super) your_double: Option<String>,
}

impl Greeting {
    /// The greeting of the process `instance`.
    pub(super) fn new(instance: Instance) -> Self {
        Self {
            instance,
            software: env!("CARGO_PKG_VERSION").to_owned(),
            your_double: None,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// Reads a greeting; its texts are cut to printable ASCII, since they go to the user's terminal.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, codec::DecodeError> {
        let mut greeting: Self = codec::decode(bytes)?;
        greeting.software = printable(&greeting.software);
        greeting.your_double = greeting.your_double.as_deref().map(printable);
        Ok(greeting)
    }
}

/// Why there was no greeting.
#[derive(Debug, thiserror::Error)]
pub(super) enum GreetingError {
    #[error("no greeting within {PATIENCE:?}")]
    TimedOut,
    #[error("the connection closed before the greeting")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("bad greeting: {0}")]
    Decode(#[from] codec::DecodeError),
}

impl GreetingError {
    /// The other side's wire version, if that is the trouble.
    pub(super) fn other_version(&self) -> Option<u8> {
        match self {
            Self::Read(ReadError::Frame(FrameError::Version { got })) => Some(*got),
            _ => None,
        }
    }
}

/// Greets on a stream that is being opened, and hears the other side's greeting.
pub(super) async fn ask(
    opened: oneshot::Receiver<io::Result<Stream>>,
    own: Greeting,
) -> Result<Greeting, GreetingError> {
    let talk = async {
        let stream = opened.await.map_err(|_| GreetingError::Closed)??;
        exchange(stream, own).await
    };
    timeout(PATIENCE, talk)
        .await
        .unwrap_or(Err(GreetingError::TimedOut))
}

/// Answers a greeting on a stream that the other side opened.
pub(super) async fn answer(stream: Stream, own: Greeting) -> Result<Greeting, GreetingError> {
    timeout(PATIENCE, exchange(stream, own))
        .await
        .unwrap_or(Err(GreetingError::TimedOut))
}

/// Each side speaks before it listens, so that both learn of a version that they do not share.
async fn exchange(mut stream: Stream, own: Greeting) -> Result<Greeting, GreetingError> {
    frames::write(&mut stream, FrameKind::Control, &own.encode()).await?;
    stream.flush().await?;
    let body = frames::read(&mut stream, FrameKind::Control, MAX_BYTES)
        .await?
        .ok_or(GreetingError::Closed)?;
    stream.close().await?;
    Ok(Greeting::decode(&body)?)
}

fn printable(text: &str) -> String {
    text.chars()
        .filter(char::is_ascii_graphic)
        .take(MAX_TEXT)
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_greeting_comes_back() {
        let mut greeting = Greeting::new([3; 16]);
        assert_eq!(Greeting::decode(&greeting.encode()).unwrap(), greeting);
        greeting.your_double = Some("10.0.0.1:4001".to_owned());
        assert_eq!(Greeting::decode(&greeting.encode()).unwrap(), greeting);
    }

    #[test]
    fn terminal_codes_are_dropped() {
        let greeting = Greeting {
            software: "1.0\u{1b}[31m\n".to_owned(),
            ..Greeting::new([0; 16])
        };
        assert_eq!(
            Greeting::decode(&greeting.encode()).unwrap().software,
            "1.0[31m"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_greeting_or_an_error(bytes: Vec<u8>) {
            if let Ok(greeting) = Greeting::decode(&bytes) {
                prop_assert!(greeting.software.len() <= MAX_TEXT);
            }
        }
    }
}
