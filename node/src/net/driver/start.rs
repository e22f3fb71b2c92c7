//! From a configuration to a running driver.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use futures::StreamExt;
use skein_gossip::time::Tick;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{ASK, Closing, Driver, INTERFACES, NOTICES};
use crate::net::contacts::{Contacts, Lanes};
use crate::net::dialer::Dialer;
use crate::net::doubles::Doubles;
use crate::net::interfaces::Interfaces;
use crate::net::mdns::Beacon;
use crate::net::session::Outlets;
use crate::net::{Command, Config, NetError, address, identity, listen, report, swarm};

/// How long `start` waits for the first listen address.
const LISTENING: Duration = Duration::from_secs(1);

/// Builds everything, waits until something listens, and lets the driver run.
pub(in crate::net) async fn start(
    config: Config,
    lanes: Lanes,
    outlets: Outlets,
    commands: mpsc::Receiver<Command>,
) -> Result<(), NetError> {
    let mut interfaces = Interfaces::new(config.interfaces.clone());
    interfaces.refresh().map_err(NetError::Interfaces)?;
    let listen = listen::choose(&config.listen, config.last_port, &interfaces)?;
    let places = config
        .peers
        .iter()
        .map(|text| address::parse(text))
        .collect::<Result<Vec<_>, _>>()?;
    let mut swarm = swarm::build(&config.identity, &config.mesh_key)?;
    for &address in &listen {
        swarm
            .listen_on(address::to_multiaddr(address))
            .map_err(|error| NetError::Listen {
                address,
                reason: report::root(&error),
            })?;
    }

    let (heard, heard_out) = mpsc::channel(NOTICES);
    let mut mdns_error = None;
    let beacon = config.mdns.then(|| {
        let chosen = interfaces.clone();
        Beacon::start(&config.mesh_key, move |name| chosen.allows(name), heard)
    });
    let beacon = beacon.and_then(|beacon| {
        beacon
            .inspect_err(|error| {
                tracing::warn!(%error, "cannot look for peers in the local network; use --peer");
                mdns_error = Some(error.to_string());
            })
            .ok()
    });

    let (notices, notices_out) = mpsc::channel(NOTICES);
    let events = outlets.events.clone();
    let mut driver = Driver {
        local: config.identity.peer(),
        instance: identity::random(),
        swarm,
        listens_on_loopback: listen.iter().all(|a| a.ip().is_loopback()),
        loopback_only: false,
        interfaces,
        dialer: Dialer::new(u64::from_le_bytes(identity::random())),
        contacts: Contacts::new(lanes, outlets, notices.clone()),
        doubles: Doubles::default(),
        dials: HashMap::new(),
        listening: BTreeSet::new(),
        offered: Vec::new(),
        beacon,
        mdns_error,
        ours: BTreeSet::new(),
        foreign: BTreeSet::new(),
        unpublished: VecDeque::new(),
        outbox: VecDeque::new(),
        notices,
        started: Instant::now(),
        announce_at: None,
        ask_at: Tick(0) + ASK,
        interfaces_at: Tick(0) + INTERFACES,
        closing: Closing::No,
        resolvers: JoinSet::new(),
    };
    driver.remember(&config.remembered);
    driver.wait_for_address().await;
    for place in places {
        driver.place(place);
    }
    tokio::spawn(driver.run(events, commands, notices_out, heard_out));
    Ok(())
}

impl Driver {
    /// So that the first thing anybody does can be to ask for an address.
    async fn wait_for_address(&mut self) {
        let first = async {
            while self.listening.is_empty() {
                let event = self.swarm.select_next_some().await;
                self.on_swarm(event);
            }
        };
        if tokio::time::timeout(LISTENING, first).await.is_err() {
            tracing::warn!("no network interface has an address yet; waiting for one");
        }
    }
}
