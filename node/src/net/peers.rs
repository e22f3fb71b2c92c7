//! What is shown of each peer, and the counters behind it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use skein_gossip::ids::PeerId;

use super::dialer::Via;

/// One of the two long-lived streams to a peer, each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Small messages that must not wait behind gradients.
    Control,
    /// Gradient packets.
    Update,
}

/// Who dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The other side.
    Inbound,
    /// This side.
    Outbound,
}

/// How things stand with a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// Messages can be exchanged.
    Connected {
        /// The other end, ip:port; for inbound connections not where the peer listens.
        address: String,
        /// Who dialled.
        direction: Direction,
        /// The last measured round trip.
        rtt: Option<Duration>,
    },
    /// Being dialled, or between two tries.
    Dialing {
        /// For how long.
        since: Duration,
        /// Tries that failed.
        attempts: u32,
        /// Until the next try; zero while one is running.
        next_try: Duration,
        /// Why the last try failed.
        reason: Option<String>,
    },
    /// It is heard in the local network, but dialling it fails.
    OneWay {
        /// Where it was heard and why dialling fails.
        reason: String,
    },
    /// Connected, but nothing can be exchanged: another wire version.
    Unusable {
        /// Why.
        reason: String,
    },
    /// Gone, and no address of it is known.
    Lost,
}

/// A peer, or an address whose owner is not known yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Who it is; `None` for an address that was never reached.
    pub peer: Option<PeerId>,
    /// Where it may be dialled, ip:port.
    pub addresses: Vec<String>,
    /// How these became known.
    pub via: Vec<Via>,
    /// How things stand.
    pub state: PeerState,
    /// The release it runs, once greeted.
    pub software: Option<String>,
    /// What went over its streams in this run.
    pub traffic: TrafficInfo,
}

/// Bytes of frames, with their headers, and faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficInfo {
    /// Received on the control lane.
    pub control_in: u64,
    /// Sent on the control lane.
    pub control_out: u64,
    /// Received on the update lane.
    pub update_in: u64,
    /// Sent on the update lane.
    pub update_out: u64,
    /// Received in requests and responses.
    pub request_in: u64,
    /// Sent in requests and responses.
    pub request_out: u64,
    /// Frames refused: too long, damaged or of the wrong kind.
    pub refused: u64,
}

/// The counters of one peer, shared by its streams' tasks.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    control_in: AtomicU64,
    control_out: AtomicU64,
    update_in: AtomicU64,
    update_out: AtomicU64,
    request_in: AtomicU64,
    request_out: AtomicU64,
    refused: AtomicU64,
}

/// Which way bytes went.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    In,
    Out,
}

impl Traffic {
    /// Counts a frame whose body has `bytes` bytes; `lane` is `None` for requests and responses.
    pub(super) fn count(&self, lane: Option<Lane>, way: Way, bytes: usize) {
        let counter = match (lane, way) {
            (Some(Lane::Control), Way::In) => &self.control_in,
            (Some(Lane::Control), Way::Out) => &self.control_out,
            (Some(Lane::Update), Way::In) => &self.update_in,
            (Some(Lane::Update), Way::Out) => &self.update_out,
            (None, Way::In) => &self.request_in,
            (None, Way::Out) => &self.request_out,
        };
        let frame = bytes + skein_gossip::wire::frame::HEADER_BYTES;
        counter.fetch_add(frame as u64, Ordering::Relaxed);
    }

    pub(super) fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn info(&self) -> TrafficInfo {
        TrafficInfo {
            control_in: self.control_in.load(Ordering::Relaxed),
            control_out: self.control_out.load(Ordering::Relaxed),
            update_in: self.update_in.load(Ordering::Relaxed),
            update_out: self.update_out.load(Ordering::Relaxed),
            request_in: self.request_in.load(Ordering::Relaxed),
            request_out: self.request_out.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}
