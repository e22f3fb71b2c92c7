//! What a pipeline's frames reach beside a bare libp2p stream: two processes on loopback, the same bytes in the same frame sizes,
//! through the same transport (TCP, the mesh key's cipher, Noise, Yamux).
//!
//! *skein* is the way of activations: the update lane with its queue, checksums, pieces, confirmations and recycled buffers. *bare* is
//! `write_all` on one stream of the library. Both stop the clock when the receiver says that it has everything. Rounds alternate, so
//! that what else the machine does meets both; the ratio is the median of the rounds' own. `cargo bench -p skein-node --bench wire`.

mod bare;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use skein_gossip::ids::PeerId;
use skein_node::net::{self, Config, Event, Identity, Lane, MeshKey, Net, Started};
use tokio::sync::mpsc;

/// Of both ends; nothing else is in this mesh.
const KEY: MeshKey = MeshKey([9; 32]);
/// Tells the second process what it is.
const ROLE: &str = "SKEIN_WIRE_ROLE";
/// Per round.
const BYTES: usize = 64 << 20;
/// Before the first round: windows open and buffers are filled.
const WARM_UP: usize = 64 << 20;
const ROUNDS: usize = 25;
/// Activations of 16 samples at 32x32 have 0.1 to 1.5 MB, a look's four times that.
const FRAMES: [usize; 3] = [64 << 10, 512 << 10, 4 << 20];
/// How long anything may take that should happen.
const PATIENCE: Duration = Duration::from_secs(120);

#[tokio::main]
async fn main() -> Result<()> {
    match std::env::var(ROLE).as_deref() {
        Ok("skein") => hold().await,
        Ok("bare") => bare::hold(Some(KEY.0)).await,
        Ok("keyless") => bare::hold(None).await,
        _ => compare().await,
    }
}

async fn compare() -> Result<()> {
    // Kept until the end: dropping them ends the processes.
    let (_holder, address) = start("skein")?;
    let mut skein = Skein::to(address).await?;
    let (_bare, address) = start("bare")?;
    let mut bare = bare::Sender::to(&address, Some(KEY.0)).await?;
    let (_keyless, address) = start("keyless")?;
    let mut keyless = bare::Sender::to(&address, None).await?;
    skein.send(WARM_UP, FRAMES[1]).await?;
    bare.send(WARM_UP, FRAMES[1]).await?;
    keyless.send(WARM_UP, FRAMES[1]).await?;
    println!("MB/s, medians of {ROUNDS} rounds of {} MiB", BYTES >> 20);
    println!("frames        skein    bare   ratio   (bare without the mesh key's cipher)");
    for frame in FRAMES {
        let mut rates = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            rates[0].push(skein.send(BYTES, frame).await?);
            rates[1].push(bare.send(BYTES, frame).await?);
            rates[2].push(keyless.send(BYTES, frame).await?);
        }
        let rounds = rates[0].iter().zip(&rates[1]);
        let ratio = median(rounds.map(|(skein, bare)| skein / bare).collect());
        let [skein, bare, keyless] = rates.map(median);
        let kib = frame >> 10;
        println!("{kib:>5} KiB  {skein:>8.0}{bare:>8.0}{ratio:>8.2}   {keyless:>8.0}");
    }
    Ok(())
}

/// Bytes per second, in MB, and what it took.
fn rate(bytes: usize, began: Instant) -> f64 {
    bytes as f64 / 1e6 / began.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Another process; it ends with this.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the other process; the first line that it writes is where it listens.
fn start(role: &str) -> Result<(Other, String)> {
    let mut child = Command::new(std::env::current_exe()?)
        .env(ROLE, role)
        .stdout(Stdio::piped())
        .spawn()?;
    let stdout = child.stdout.take();
    let other = Other(child);
    let mut address = String::new();
    BufReader::new(stdout.context("no pipe from the other process")?).read_line(&mut address)?;
    Ok((other, address.trim().to_owned()))
}

async fn started(listen: Vec<SocketAddr>, peers: Vec<String>) -> Result<Started> {
    let config = Config {
        identity: Identity::generate(),
        mesh_key: KEY,
        listen,
        last_port: None,
        peers,
        remembered: Vec::new(),
        interfaces: Vec::new(),
        mdns: false,
    };
    Ok(net::start(config).await?)
}

/// The receiver: takes frames as a stage does, and says so when as many bytes have come as were announced.
async fn hold() -> Result<()> {
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let Started {
        net,
        mut events,
        mut updates,
    } = started(vec![loopback], Vec::new()).await?;
    let addresses = net.listen_addresses().await;
    println!("{}", addresses.first().context("no address to listen at")?);
    let mut left = 0u64;
    loop {
        tokio::select! {
            event = events.recv() => match event {
                Some(Event::Message { body, .. }) => {
                    left = u64::from_le_bytes(*body.first_chunk().context("no announcement")?);
                }
                Some(_) => {}
                None => return Ok(()),
            },
            frame = updates.recv(), if left > 0 => {
                let Some(frame) = frame else { return Ok(()) };
                left = left.saturating_sub(frame.body.len() as u64);
                net.buffers().give(frame.body);
                if left == 0 {
                    net.send(frame.from, Lane::Control, Vec::new())?;
                }
            }
        }
    }
}

/// The sending end of the lane of activations.
struct Skein {
    net: Net,
    to: PeerId,
    done: mpsc::Receiver<()>,
    _updates: mpsc::Receiver<net::Inbound>,
}

impl Skein {
    async fn to(address: String) -> Result<Self> {
        let Started {
            net,
            mut events,
            updates,
        } = started(Vec::new(), vec![address]).await?;
        let (heard, done) = mpsc::channel(1);
        let connected = async {
            loop {
                match events.recv().await {
                    Some(Event::Connected { peer }) => return Ok(peer),
                    Some(_) => {}
                    None => bail!("the network has ended"),
                }
            }
        };
        let to = tokio::time::timeout(PATIENCE, connected).await??;
        tokio::spawn(async move {
            while let Some(event) = events.recv().await {
                if matches!(event, Event::Message { .. }) && heard.send(()).await.is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            net,
            to,
            done,
            _updates: updates,
        })
    }

    /// Sends so many bytes in frames; MB/s until all had arrived.
    async fn send(&mut self, bytes: usize, frame: usize) -> Result<f64> {
        let announcement = (bytes as u64).to_le_bytes().to_vec();
        self.net.send(self.to, Lane::Control, announcement)?;
        let began = Instant::now();
        for _ in 0..bytes / frame {
            let mut body = self.net.buffers().take(frame);
            body.resize(frame, 7);
            self.net.send_patiently(self.to, Lane::Update, body).await?;
        }
        let done = tokio::time::timeout(PATIENCE, self.done.recv()).await?;
        done.context("the receiver has ended")?;
        Ok(rate(bytes, began))
    }
}
