//! Fetches a blob from peers: asks for a manifest, then for the chunks, a few at a time, and goes on with the next holder
//! where one fails. What has arrived is kept between tries.

use std::time::Duration;

use futures::stream::{self, StreamExt};
use skein_gossip::ids::PeerId;
use skein_gossip::message::{StateRequest, StateResponse};
use skein_gossip::transfer::{Fetch, Manifest};
use skein_gossip::wire::codec;

use crate::net::Net;

/// Chunks asked for at once: hides the round trip without filling the link's queue.
pub const IN_FLIGHT: usize = 4;
/// Chunks asked for at once of what nobody waits for.
pub const BACKGROUND: usize = 1;
/// How long a holder may take for a manifest: it copies its replica at a step boundary first.
const MANIFEST_DEADLINE: Duration = Duration::from_secs(30);
/// How long one chunk may take: 256 KiB at 100 kbit/s.
const CHUNK_DEADLINE: Duration = Duration::from_secs(20);

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

/// One try at all `holders` in order. `cap_bytes` bounds what a manifest may announce; `in_flight` chunks are
/// asked for at once.
pub async fn fetch(
    net: Net,
    holders: Vec<PeerId>,
    what: StateRequest,
    cap_bytes: u64,
    mut partial: Option<Fetch>,
    in_flight: usize,
) -> Try {
    let mut failures = Vec::new();
    for holder in holders {
        let attempt = async {
            let mut fetch = match partial.take() {
                Some(fetch) if resumes(&net, holder, &fetch).await => fetch,
                _ => begin(&net, holder, &what, cap_bytes).await?,
            };
            match complete(&net, holder, &mut fetch, in_flight).await {
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
    in_flight: usize,
) -> Result<(), String> {
    let blob = fetch.manifest().blob;
    let missing = fetch.missing(usize::MAX);
    let ask_chunk = |index| async move {
        let request = StateRequest::Chunk { blob, index };
        (index, ask(net, holder, &request, CHUNK_DEADLINE).await)
    };
    let mut answers = stream::iter(missing)
        .map(ask_chunk)
        .buffer_unordered(in_flight);
    while let Some((index, answer)) = answers.next().await {
        match answer? {
            StateResponse::Chunk(bytes) => fetch
                .chunk(index, &bytes)
                .map_err(|error| error.to_string())?,
            StateResponse::Unavailable(reason) => return Err(reason),
            StateResponse::Manifest(_) => {
                return Err("answered a question that was not asked".into());
            }
        }
    }
    Ok(())
}
