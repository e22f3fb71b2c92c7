//! Frames on their way to the peers of neighbouring stages: one queue and one task per peer, so that a slow link holds up
//! nobody else, and sending overlaps computing.

use std::collections::BTreeMap;

use skein_gossip::ids::PeerId;
use tokio::sync::mpsc;

use crate::net::{Lane, Net};

/// Frames that wait per peer; when it is full, the stage waits.
const QUEUE: usize = 4;

/// The queues of one view. Dropping it drops what was not sent.
#[derive(Debug)]
pub(super) struct Outbox {
    net: Net,
    /// Told when frames were lost on the way.
    lost: mpsc::Sender<()>,
    queues: BTreeMap<PeerId, mpsc::Sender<Vec<u8>>>,
    tasks: tokio::task::JoinSet<()>,
    runtime: tokio::runtime::Handle,
}

impl Outbox {
    pub(super) fn new(net: Net, runtime: tokio::runtime::Handle, lost: mpsc::Sender<()>) -> Self {
        Self {
            net,
            lost,
            queues: BTreeMap::new(),
            tasks: tokio::task::JoinSet::new(),
            runtime,
        }
    }

    /// The queue to `peer`.
    pub(super) fn queue(&mut self, peer: PeerId) -> mpsc::Sender<Vec<u8>> {
        if let Some(queue) = self.queues.get(&peer) {
            return queue.clone();
        }
        let (queue, mut frames) = mpsc::channel::<Vec<u8>>(QUEUE);
        let (net, lost) = (self.net.clone(), self.lost.clone());
        let send = async move {
            while let Some(frame) = frames.recv().await {
                if let Err(error) = net.send_patiently(peer, Lane::Update, frame).await {
                    tracing::debug!(peer = %peer.short(), %error, "frame lost");
                    // One notice is enough; a full channel has one.
                    let _ = lost.try_send(());
                    return;
                }
            }
        };
        self.tasks.spawn_on(send, &self.runtime);
        self.queues.insert(peer, queue.clone());
        queue
    }
}
