//! Fetches a blob from peers: asks for a manifest, then for the chunks, a few at a time, and goes on with the next holder
//! where one fails. What has arrived is kept between tries.
//!
//! How fast the chunks come is up to the holder, whose gradients and heartbeats go first: see
//! [`skein_gossip::transfer::window`].

use std::time::{Duration, Instant};

use futures::stream::{FuturesUnordered, StreamExt};
use skein_gossip::ids::PeerId;
use skein_gossip::message::{StateRequest, StateResponse};
use skein_gossip::transfer::depth::Depth;
use skein_gossip::transfer::{Fetch, Manifest};
use skein_gossip::wire::codec;

use crate::net::Net;

/// How long a holder may take for a manifest: it copies its replica at a step boundary first.
const MANIFEST_DEADLINE: Duration = Duration::from_secs(30);
/// How long one chunk may take: 128 KiB at 100 kbit/s, and those asked for before it.
const CHUNK_DEADLINE: Duration = Duration::from_secs(45);

/// Whether somebody waits for a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Haste {
    /// Somebody does: as fast as the link to the holder goes.
    Needed,
    /// Nobody does: one chunk, then a pause of as long as that took.
    Background,
}

/// What a try came to.
#[derive(Debug)]
pub struct Try {
    /// The blob, if it is whole.
    pub done: Option<(Manifest, Vec<u8>)>,
    /// What has arrived so far, for the next try.
    pub partial: Option<Fetch>,
    /// Why it is not whole.
    pub failures: Vec<String>,
}

/// One try at all `holders` in order. `cap_bytes` bounds what a manifest may announce.
pub async fn fetch(
    net: Net,
    holders: Vec<PeerId>,
    what: StateRequest,
    cap_bytes: u64,
    mut partial: Option<Fetch>,
    haste: Haste,
) -> Try {
    let mut failures = Vec::new();
    for holder in holders {
        let attempt = async {
            let mut fetch = match partial.take() {
                Some(fetch) if resumes(&net, holder, &fetch).await => fetch,
                _ => begin(&net, holder, &what, cap_bytes).await?,
            };
            match complete(&net, holder, &mut fetch, haste).await {
                Ok(()) => Ok(fetch),
                Err(error) => {
                    partial = Some(fetch);
                    Err(error)
                }
            }
        };
        match attempt.await {
            Ok(fetch) => {
                let manifest = fetch.manifest().clone();
                let done = fetch.into_bytes().map(|bytes| (manifest, bytes));
                return Try {
                    done,
                    partial: None,
                    failures,
                };
            }
            Err(error) => failures.push(format!("{}: {error}", holder.short())),
        }
    }
    Try {
        done: None,
        partial,
        failures,
    }
}

async fn ask(
    net: &Net,
    holder: PeerId,
    request: &StateRequest,
    deadline: Duration,
) -> Result<StateResponse, String> {
    let answer = net
        .request(holder, codec::encode(request), deadline)
        .await
        .map_err(|error| error.to_string())?;
    codec::decode(&answer).map_err(|error| error.to_string())
}

/// Whether the holder has the very blob that was begun.
async fn resumes(net: &Net, holder: PeerId, fetch: &Fetch) -> bool {
    let Some(index) = fetch.missing(1).first().copied() else {
        return true;
    };
    let request = StateRequest::Chunk {
        blob: fetch.manifest().blob,
        index,
    };
    matches!(
        ask(net, holder, &request, CHUNK_DEADLINE).await,
        Ok(StateResponse::Chunk(_))
    )
}

async fn begin(
    net: &Net,
    holder: PeerId,
    what: &StateRequest,
    cap_bytes: u64,
) -> Result<Fetch, String> {
    match ask(net, holder, what, MANIFEST_DEADLINE).await? {
        StateResponse::Manifest(manifest) => {
            Fetch::new(manifest, cap_bytes).map_err(|error| error.to_string())
        }
        StateResponse::Unavailable(reason) => Err(reason),
        StateResponse::Chunk(_) => Err("answered a question that was not asked".into()),
    }
}

async fn complete(
    net: &Net,
    holder: PeerId,
    fetch: &mut Fetch,
    haste: Haste,
) -> Result<(), String> {
    let blob = fetch.manifest().blob;
    let mut missing = fetch.missing(usize::MAX).into_iter();
    let mut depth = Depth::default();
    let ask_chunk = |index| async move {
        let request = StateRequest::Chunk { blob, index };
        let began = Instant::now();
        let answer = ask(net, holder, &request, CHUNK_DEADLINE).await;
        (index, answer, began.elapsed())
    };
    let mut answers = FuturesUnordered::new();
    loop {
        let n_wanted = match haste {
            Haste::Needed => depth.chunks(),
            Haste::Background => 1,
        };
        let n_more = n_wanted.saturating_sub(answers.len());
        answers.extend(missing.by_ref().take(n_more).map(ask_chunk));
        let Some((index, answer, took)) = answers.next().await else {
            return Ok(());
        };
        match answer? {
            StateResponse::Chunk(bytes) => fetch
                .chunk(index, &bytes)
                .map_err(|error| error.to_string())?,
            StateResponse::Unavailable(reason) => return Err(reason),
            StateResponse::Manifest(_) => {
                return Err("answered a question that was not asked".into());
            }
        }
        depth.answered(took);
        if haste == Haste::Background {
            tokio::time::sleep(took).await;
        }
    }
}
