//! Measures what a bulk transfer does to the heartbeats on its link: `hold` serves, `pull` fetches and counts round trips.
//!
//! `tests/lab/heartbeat.rs` and `netem/scenarios/heartbeats.toml` run it. The copy is the one by which a joiner gets its replica;
//! updates are frames of the update lane. Prints one JSON object: round trips of messages of a beat's size in milliseconds, first
//! alone, then beside the load, and the load's rate.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand, ValueEnum};
use serde_json::json;
use skein_gossip::ids::{Digest, JobId, PeerId};
use skein_gossip::message::{StateRequest, StateResponse};
use skein_gossip::transfer::Manifest;
use skein_gossip::wire::codec;
use skein_node::net::{self, Config, Event, Identity, Lane, MeshKey, Net, Started};
use skein_node::run::fetch::{self, Haste};
use tokio::sync::{mpsc, oneshot};

/// Of both ends; nothing else is in this mesh.
const KEY: MeshKey = MeshKey([9; 32]);
/// A beat with a sketch and a fit.
const BEAT_BYTES: usize = 300;
/// Between two beats that are measured: more often than real ones, for more of them.
const BEAT_EVERY: Duration = Duration::from_millis(20);
/// Beats before the load.
const IDLE_BEATS: usize = 150;
/// A packet of a large model.
const UPDATE_BYTES: usize = 200_000;
/// How long anything may take that should happen.
const PATIENCE: Duration = Duration::from_secs(120);
/// What asks for updates; a beat has another length.
const UPDATES: &[u8] = b"updates";

#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Serves until it is ended.
    Hold {
        /// Where: ip:port.
        #[arg(long)]
        listen: String,
        /// Size of what is served.
        #[arg(long)]
        bytes: usize,
    },
    /// Fetches, measures, and prints.
    Pull {
        /// From where: ip:port.
        #[arg(long)]
        peer: String,
        /// Size of what is served there.
        #[arg(long)]
        bytes: usize,
        /// What is fetched.
        #[arg(long)]
        load: Load,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Load {
    Copy,
    Updates,
}

#[tokio::main]
async fn main() -> Result<()> {
    match Args::parse().role {
        Role::Hold { listen, bytes } => hold(&listen, bytes).await,
        Role::Pull { peer, bytes, load } => pull(peer, bytes, load).await,
    }
}

async fn started(listen: Option<&str>, peers: Vec<String>) -> Result<Started> {
    let listen = listen.map(|address| address.parse().context("address to listen at"));
    let config = Config {
        identity: Identity::generate(),
        mesh_key: KEY,
        listen: listen.transpose()?.into_iter().collect(),
        last_port: None,
        peers,
        remembered: Vec::new(),
        interfaces: Vec::new(),
        mdns: false,
    };
    Ok(net::start(config).await?)
}

async fn hold(listen: &str, bytes: usize) -> Result<()> {
    let Started {
        net,
        mut events,
        updates: _updates,
    } = started(Some(listen), Vec::new()).await?;
    // No two chunks alike, and nothing for a compressor to find.
    let mut reader = blake3::Hasher::new().finalize_xof();
    let mut blob = vec![0; bytes];
    reader.fill(&mut blob);
    let manifest = Manifest::of(&blob, 0, 0);
    while let Some(event) = events.recv().await {
        match event {
            Event::Message { from, body } if body == UPDATES => {
                tokio::spawn(send_updates(net.clone(), from, bytes));
            }
            Event::Message { from, body } => {
                // A beat that is not answered is a beat that is not counted.
                let _ = net.send(from, Lane::Control, body);
            }
            Event::Request { body, reply, .. } => serve(&manifest, &blob, &body, reply)?,
            _ => {}
        }
    }
    Ok(())
}

fn serve(
    manifest: &Manifest,
    blob: &[u8],
    request: &[u8],
    reply: oneshot::Sender<Vec<u8>>,
) -> Result<()> {
    let response = match codec::decode(request)? {
        StateRequest::Replica { .. } => StateResponse::Manifest(manifest.clone()),
        StateRequest::Chunk { index, .. } => match manifest.range(index) {
            Some(range) => StateResponse::Chunk(blob[range].to_vec()),
            None => StateResponse::Unavailable("no such chunk".into()),
        },
        StateRequest::Weights { .. } | StateRequest::Blocks { .. } => {
            StateResponse::Unavailable("none of that here".into())
        }
    };
    // The other end may be gone.
    let _ = reply.send(codec::encode(&response));
    Ok(())
}

async fn send_updates(net: Net, to: PeerId, bytes: usize) {
    for _ in 0..bytes.div_ceil(UPDATE_BYTES) {
        // The lane's queue is short: that is what holds a sender up.
        while net.send(to, Lane::Update, vec![7; UPDATE_BYTES]).is_err() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

async fn pull(peer: String, bytes: usize, load: Load) -> Result<()> {
    let Started {
        net,
        mut events,
        mut updates,
    } = started(None, vec![peer]).await?;
    let holder = tokio::time::timeout(PATIENCE, async {
        loop {
            match events.recv().await {
                Some(Event::Connected { peer }) => return Ok(peer),
                Some(_) => {}
                None => bail!("the network has ended"),
            }
        }
    });
    let holder = holder.await.context("nobody holds there")??;
    let (answers, mut answered) = mpsc::channel(256);
    tokio::spawn(async move {
        while let Some(event) = events.recv().await {
            if let Event::Message { body, .. } = event
                && answers.send((body, Instant::now())).await.is_err()
            {
                return;
            }
        }
    });

    let mut beats = Beats::new(net.clone(), holder);
    for _ in 0..IDLE_BEATS {
        beats.beat(&mut answered).await;
    }
    let idle = std::mem::take(&mut beats.round_trips);

    let began = Instant::now();
    let fetching = tokio::spawn(async move {
        match load {
            Load::Copy => {
                let what = StateRequest::Replica {
                    job: JobId(Digest::of(b"wire").0),
                    from_step: 0,
                };
                let (holders, cap) = (vec![holder], bytes as u64);
                let outcome = fetch::fetch(net, holders, what, cap, None, Haste::Needed).await;
                let whole = outcome.done.map(|(_, blob)| blob.len());
                whole.with_context(|| outcome.failures.join("; "))
            }
            Load::Updates => {
                net.send(holder, Lane::Control, UPDATES.to_vec())?;
                let mut got = 0;
                while got < bytes {
                    let frame = updates.recv().await.context("the network has ended")?;
                    got += frame.body.len();
                }
                Ok(got)
            }
        }
    });
    while !fetching.is_finished() {
        if began.elapsed() > PATIENCE {
            bail!("the load takes over {PATIENCE:?}");
        }
        beats.beat(&mut answered).await;
    }
    let got = fetching.await??;
    let rate = got as f64 * 8e-6 / began.elapsed().as_secs_f64();
    let is_copy = load == Load::Copy;
    let [copy, updates] = if is_copy { [rate, 0.0] } else { [0.0, rate] };
    println!(
        "{}",
        json!({
            "idle_p50_ms": quantile(&idle, 0.5),
            "idle_p99_ms": quantile(&idle, 0.99),
            "loaded_p50_ms": quantile(&beats.round_trips, 0.5),
            "loaded_p99_ms": quantile(&beats.round_trips, 0.99),
            "loaded_beats": beats.round_trips.len(),
            "copy_mbit_s": copy,
            "updates_mbit_s": updates,
        })
    );
    Ok(())
}

/// Messages of a beat's size, each with its number.
struct Beats {
    net: Net,
    to: PeerId,
    sent: Vec<Instant>,
    round_trips: Vec<f64>,
}

impl Beats {
    fn new(net: Net, to: PeerId) -> Self {
        Self {
            net,
            to,
            sent: Vec::new(),
            round_trips: Vec::new(),
        }
    }

    /// Sends one, and takes the answers that come until the next is due.
    async fn beat(&mut self, answered: &mut mpsc::Receiver<(Vec<u8>, Instant)>) {
        let mut body = vec![0; BEAT_BYTES];
        body[..8].copy_from_slice(&(self.sent.len() as u64).to_le_bytes());
        self.sent.push(Instant::now());
        // A full lane is an answer that never comes, and is seen as one fewer.
        let _ = self.net.send(self.to, Lane::Control, body);
        let next = tokio::time::Instant::now() + BEAT_EVERY;
        while let Ok(Some((body, at))) = tokio::time::timeout_at(next, answered.recv()).await {
            let number = body.first_chunk().map(|number| u64::from_le_bytes(*number));
            if let Some(sent) = number.and_then(|number| self.sent.get(number as usize)) {
                self.round_trips.push((at - *sent).as_secs_f64() * 1e3);
            }
        }
    }
}

fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (share * (sorted.len().saturating_sub(1)) as f64).round() as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}
