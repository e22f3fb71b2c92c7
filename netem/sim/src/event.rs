//! What may happen in a simulated run, and the devices that it happens to.

use skein_gossip::ids::PeerId;
use skein_netem::link::{NodeIndex, Profile, Trace};
use skein_netem::record::Metric;
use skein_netem::scenario::Scenario;

use crate::peer::{Disk, Message, Peer, Work};
use crate::transport::NetEvent;

/// An event of a run.
#[derive(Debug)]
pub(super) enum Event {
    Net(NetEvent),
    /// A peer's own work, of this life.
    Work(NodeIndex, u32, Work),
    /// Two nodes, in these lives, have a connection.
    Connected([(NodeIndex, u32); 2]),
    /// A node learns that its connection to another is gone.
    Lost((NodeIndex, u32), PeerId),
    Start(NodeIndex),
    /// A peer that left ends, in this life.
    Gone(NodeIndex, u32),
    /// One of the scenario's events.
    Fault(usize),
    /// The next point of a line's trace.
    Trace(usize, usize),
    Sample,
}

/// A device.
#[derive(Debug, Default)]
pub(super) struct Device {
    pub(super) peer: Option<Peer>,
    /// Which start this is: events of earlier ones are void.
    pub(super) life: u32,
    pub(super) is_stopped: bool,
    /// What happens to it once it is continued.
    pub(super) held: Vec<Event>,
    /// What arrived meanwhile: the kernel takes it.
    pub(super) inbox: Vec<(NodeIndex, Message)>,
    pub(super) disk: Option<Disk>,
    pub(super) share: Option<f64>,
    pub(super) lives: Vec<[f64; 2]>,
    pub(super) metrics: Vec<Metric>,
    pub(super) used: u64,
}

/// One direction of a line or a pair.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    Up(NodeIndex),
    Down(NodeIndex),
    Pair(NodeIndex, NodeIndex),
}

/// Every line that changes over time.
pub(super) fn traces(scenario: &Scenario) -> Vec<(Place, &Profile, &Trace)> {
    let nodes = scenario.nodes.iter().enumerate();
    let lines = nodes
        .flat_map(|(rank, node)| [(Place::Up(rank), &node.up), (Place::Down(rank), &node.down)]);
    let pairs = scenario.pairs.iter();
    let pairs = pairs.map(|pair| (Place::Pair(pair.from, pair.to), &pair.line));
    lines
        .chain(pairs)
        .filter_map(|(place, line)| Some((place, &line.profile, line.trace.as_deref()?)))
        .collect()
}
