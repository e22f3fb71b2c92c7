//! Real nodes in one process, over loopback. Each test waits for events, with a deadline that is only met on failure.

use std::io;
use std::time::Duration;

use futures::StreamExt;
use futures::io::AsyncWriteExt;
use libp2p::Swarm;
use libp2p::swarm::dial_opts::DialOpts;
use libp2p::swarm::{ConnectionId, Stream, StreamProtocol, SwarmEvent};
use tokio::sync::oneshot;

use super::greeting::Greeting;
use super::streams::{Accepted, CONTROL, GREETING};
use super::swarm::{Behaviour, BehaviourEvent};
use super::*;

const DEADLINE: Duration = Duration::from_secs(30);
const KEY: MeshKey = MeshKey([7; 32]);

struct Node {
    net: Net,
    events: mpsc::Receiver<Event>,
    updates: mpsc::Receiver<Inbound>,
}

impl Node {
    async fn with(config: Config) -> Self {
        let Started {
            net,
            events,
            updates,
        } = start(config).await.unwrap();
        Self {
            net,
            events,
            updates,
        }
    }

    async fn new(peers: &[&Node]) -> Self {
        let mut config = config(Identity::generate());
        for peer in peers {
            config.peers.push(peer.address().await);
        }
        Self::with(config).await
    }

    fn id(&self) -> PeerId {
        self.net.local()
    }

    async fn address(&self) -> String {
        self.net.listen_addresses().await.first().unwrap().clone()
    }

    /// The first event that `pick` takes; others are passed over.
    async fn until<T>(&mut self, pick: impl FnMut(Event) -> Option<T>) -> T {
        next(&mut self.events, pick).await
    }

    async fn connected(&mut self, to: PeerId) {
        self.until(|event| matches!(event, Event::Connected { peer } if peer == to).then_some(()))
            .await;
    }

    async fn disconnected(&mut self, from: PeerId) {
        self.until(|event| {
            matches!(event, Event::Disconnected { peer } if peer == from).then_some(())
        })
        .await;
    }

    async fn duplicate(&mut self) -> String {
        self.until(|event| {
            if let Event::DuplicateIdentity { address } = event {
                Some(address)
            } else {
                None
            }
        })
        .await
    }

    async fn message(&mut self) -> Vec<u8> {
        self.until(|event| {
            if let Event::Message { body, .. } = event {
                Some(body)
            } else {
                None
            }
        })
        .await
    }

    async fn info(&self, of: PeerId) -> Option<PeerInfo> {
        self.net
            .peers()
            .await
            .into_iter()
            .find(|info| info.peer == Some(of))
    }
}

fn config(identity: Identity) -> Config {
    Config {
        identity,
        mesh_key: KEY,
        listen: vec!["127.0.0.1:0".parse().unwrap()],
        last_port: None,
        peers: Vec::new(),
        remembered: Vec::new(),
        interfaces: Vec::new(),
        mdns: false,
    }
}

async fn next<T>(
    events: &mut mpsc::Receiver<Event>,
    mut pick: impl FnMut(Event) -> Option<T>,
) -> T {
    let wait = async {
        loop {
            if let Some(found) = pick(events.recv().await.unwrap()) {
                return found;
            }
        }
    };
    timeout(DEADLINE, wait).await.unwrap()
}

/// Asks again until the answer is yes.
async fn eventually<F: Future<Output = bool>>(mut ask: impl FnMut() -> F) {
    let wait = async {
        while !ask().await {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, wait).await.unwrap();
}

#[tokio::test]
async fn two_nodes_connect_and_exchange_everything() {
    let mut one = Node::new(&[]).await;
    let mut two = Node::new(&[&one]).await;
    one.connected(two.id()).await;
    two.connected(one.id()).await;

    one.net
        .send(two.id(), Lane::Control, b"hello".to_vec())
        .unwrap();
    assert_eq!(two.message().await, b"hello");
    two.net
        .send(one.id(), Lane::Update, vec![5; 1 << 20])
        .unwrap();
    let update = timeout(DEADLINE, one.updates.recv())
        .await
        .unwrap()
        .unwrap();
    assert_eq!((update.from, update.body), (two.id(), vec![5; 1 << 20]));

    let to = two.id();
    let asked = async { one.net.request(to, b"7".to_vec(), DEADLINE).await.unwrap() };
    let answered = two.until(|event| match event {
        Event::Request { body, reply, .. } => {
            reply.send([body, b"+1".to_vec()].concat()).unwrap();
            Some(())
        }
        _ => None,
    });
    let (response, ()) = tokio::join!(asked, answered);
    assert_eq!(response, b"7+1");

    let info = one.info(two.id()).await.unwrap();
    assert!(
        matches!(
            info.state,
            PeerState::Connected {
                direction: Direction::Inbound,
                ..
            }
        ),
        "{info:?}"
    );
    assert_eq!(info.traffic.update_in, (1 << 20) + 12);
    assert_eq!(info.software.as_deref(), Some(env!("CARGO_PKG_VERSION")));
    assert!(two.net.address_book().await[0].contains("/p2p/"));
}

#[tokio::test]
async fn four_nodes_in_a_chain_learn_of_each_other() {
    let first = Node::new(&[]).await;
    let second = Node::new(&[&first]).await;
    let third = Node::new(&[&second]).await;
    let fourth = Node::new(&[&third]).await;
    let mut nodes = [first, second, third, fourth];
    let ids = nodes.each_ref().map(Node::id);
    for node in &mut nodes {
        let mut missing: Vec<PeerId> = ids.iter().copied().filter(|id| *id != node.id()).collect();
        node.until(|event| {
            if let Event::Connected { peer } = event {
                missing.retain(|other| *other != peer);
            }
            missing.is_empty().then_some(())
        })
        .await;
    }
    nodes[0].net.publish(b"job".to_vec()).unwrap();
    for node in &mut nodes[1..] {
        let published = node.until(|event| match event {
            Event::Published { from, data } => Some((from, data)),
            _ => None,
        });
        assert_eq!(published.await, (ids[0], b"job".to_vec()));
    }
}

#[tokio::test]
async fn remembered_addresses_lead_back() {
    let mut one = Node::new(&[]).await;
    let mut two = Node::new(&[&one]).await;
    two.connected(one.id()).await;
    let remembered = two.net.address_book().await;
    two.net.shutdown().await;
    one.disconnected(two.id()).await;
    let mut two = Node::with(Config {
        remembered,
        ..config(Identity::generate())
    })
    .await;
    two.connected(one.id()).await;
}

#[tokio::test]
async fn another_mesh_key_gets_nothing() {
    let one = Node::new(&[]).await;
    let stranger = Config {
        mesh_key: MeshKey([8; 32]),
        peers: vec![one.address().await],
        ..config(Identity::generate())
    };
    let stranger = Node::with(stranger).await;
    let failures = || async {
        match &stranger.net.peers().await[..] {
            [
                PeerInfo {
                    peer: None,
                    state:
                        PeerState::Dialing {
                            attempts, reason, ..
                        },
                    ..
                },
            ] => {
                assert!(
                    reason
                        .as_ref()
                        .is_none_or(|reason| reason.contains("another mesh key")),
                    "{reason:?}"
                );
                *attempts >= 2
            }
            other => panic!("{other:?}"),
        }
    };
    eventually(failures).await;
    assert_eq!(one.net.peers().await, []);
}

#[tokio::test]
async fn a_client_that_speaks_garbage_does_no_harm() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut one = Node::new(&[]).await;
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 4096], &[0xff; 4096]] {
        let mut client = tokio::net::TcpStream::connect(one.address().await)
            .await
            .unwrap();
        client.write_all(garbage).await.unwrap();
        // Whatever comes back ends; how is up to the system.
        let mut answer = Vec::new();
        let _ = timeout(DEADLINE, client.read_to_end(&mut answer))
            .await
            .unwrap();
    }
    let mut two = Node::new(&[&one]).await;
    one.connected(two.id()).await;
    two.connected(one.id()).await;
}

/// A peer that has the key and does as it likes.
struct Rogue {
    swarm: Swarm<Behaviour>,
    connection: Option<(libp2p::PeerId, ConnectionId)>,
}

impl Rogue {
    async fn dial(node: &Node) -> Self {
        let mut swarm = swarm::build(&Identity::generate(), &KEY).unwrap();
        let address = address::to_multiaddr(node.address().await.parse().unwrap());
        swarm
            .dial(
                DialOpts::unknown_peer_id()
                    .address(address)
                    .allocate_new_port()
                    .build(),
            )
            .unwrap();
        let mut rogue = Self {
            swarm,
            connection: None,
        };
        while rogue.connection.is_none() {
            rogue.step().await;
        }
        rogue
    }

    /// Lives on: answers greetings and keeps streams that it is offered.
    async fn step(&mut self) {
        match timeout(DEADLINE, self.swarm.select_next_some())
            .await
            .unwrap()
        {
            SwarmEvent::ConnectionEstablished {
                peer_id,
                connection_id,
                ..
            } => {
                self.connection = Some((peer_id, connection_id));
            }
            SwarmEvent::Behaviour(BehaviourEvent::Streams(Accepted {
                protocol, stream, ..
            })) if protocol == GREETING => {
                tokio::spawn(greeting::answer(stream, Greeting::new([1; 16])));
            }
            _ => {}
        }
    }

    async fn open(&mut self, protocol: StreamProtocol) -> io::Result<Stream> {
        let (reply, mut opened) = oneshot::channel();
        let (peer, connection) = self.connection.unwrap();
        self.swarm
            .behaviour_mut()
            .streams
            .open(peer, connection, protocol, reply);
        loop {
            tokio::select! {
                stream = &mut opened => return stream.unwrap(),
                () = self.step() => {}
            }
        }
    }

    /// Writes `bytes`, while living on, and waits until the other side closes the stream.
    async fn write(&mut self, protocol: StreamProtocol, bytes: &[u8]) {
        let mut stream = self.open(protocol).await.unwrap();
        let talk = async {
            stream.write_all(bytes).await?;
            stream.flush().await?;
            futures::io::AsyncReadExt::read_to_end(&mut stream, &mut Vec::new()).await
        };
        let mut talk = std::pin::pin!(talk);
        loop {
            tokio::select! {
                _ = &mut talk => return,
                () = self.step() => {}
            }
        }
    }
}

#[tokio::test]
async fn frames_that_are_not_allowed_are_counted_and_close_the_stream() {
    use skein_gossip::wire::frame::{Header, encode};
    let mut one = Node::new(&[]).await;
    let mut rogue = Rogue::dial(&one).await;
    let peer = identity::from_libp2p(rogue.swarm.local_peer_id()).unwrap();

    let too_long = Header {
        kind: FrameKind::Control,
        length: u32::MAX,
        checksum: 0,
    }
    .to_bytes();
    let mut damaged = Vec::new();
    encode(FrameKind::Control, b"damaged", &mut damaged).unwrap();
    *damaged.last_mut().unwrap() ^= 1;
    let mut of_another_kind = Vec::new();
    encode(FrameKind::Update, b"x", &mut of_another_kind).unwrap();
    for bytes in [&too_long[..], &damaged, &of_another_kind, &[0xff; 64]] {
        rogue.write(CONTROL, bytes).await;
    }
    let refused = one.info(peer).await.unwrap().traffic.refused;
    assert_eq!(refused, 4);

    // The peer is still connected and may send what is allowed.
    let mut stream = rogue.open(CONTROL).await.unwrap();
    frames::write(&mut stream, FrameKind::Control, b"fine")
        .await
        .unwrap();
    stream.flush().await.unwrap();
    let message = one.message();
    tokio::pin!(message);
    loop {
        tokio::select! {
            body = &mut message => break assert_eq!(body, b"fine"),
            () = rogue.step() => {}
        }
    }
}

#[tokio::test]
async fn junk_in_place_of_a_greeting_does_no_harm() {
    let mut one = Node::new(&[]).await;
    let mut rogue = Rogue::dial(&one).await;
    rogue.write(GREETING, &[0xff; 64]).await;
    drop(rogue);
    let mut two = Node::new(&[&one]).await;
    one.connected(two.id()).await;
    two.connected(one.id()).await;
}

#[tokio::test]
async fn a_peer_of_another_wire_version_is_shown_with_the_reason() {
    let one = Node::new(&[]).await;
    let mut swarm = swarm::build(&Identity::generate(), &KEY).unwrap();
    let address = address::to_multiaddr(one.address().await.parse().unwrap());
    swarm
        .dial(
            DialOpts::unknown_peer_id()
                .address(address)
                .allocate_new_port()
                .build(),
        )
        .unwrap();
    let peer = identity::from_libp2p(swarm.local_peer_id()).unwrap();
    let live = async {
        loop {
            if let SwarmEvent::Behaviour(BehaviourEvent::Streams(Accepted { mut stream, .. })) =
                swarm.select_next_some().await
            {
                let mut greeting = Vec::new();
                let own = Greeting::new([1; 16]).encode();
                skein_gossip::wire::frame::encode(FrameKind::Control, &own, &mut greeting).unwrap();
                greeting[0] += 1;
                tokio::spawn(async move { stream.write_all(&greeting).await });
            }
        }
    };
    let shown = eventually(|| async {
        let state = one.info(peer).await.map(|info| info.state);
        matches!(state, Some(PeerState::Unusable { reason }) if reason.contains("wire version 2"))
    });
    tokio::select! {
        () = live => {}
        () = shown => {}
    }
}

#[tokio::test]
async fn a_slow_taker_of_updates_holds_up_nothing_else() {
    let mut one = Node::new(&[]).await;
    let mut two = Node::new(&[&one]).await;
    two.connected(one.id()).await;
    one.connected(two.id()).await;
    // Nobody takes updates at `one`: after what the system buffers, the lane is full.
    let mut sent = 0;
    let mut idle = 0;
    while idle < 1000 {
        match two.net.send(one.id(), Lane::Update, vec![0; 1 << 20]) {
            Ok(()) => (sent, idle) = (sent + 1, 0),
            Err(SendError::Full { .. }) => {
                idle += 1;
                // A round trip on the control lane gives the update lane every chance to move.
                two.net
                    .send(one.id(), Lane::Control, b"ping".to_vec())
                    .unwrap();
                assert_eq!(one.message().await, b"ping");
            }
            Err(error) => panic!("{error}"),
        }
        assert!(sent < 200, "the lane takes without end");
    }
    for _ in 0..sent {
        timeout(DEADLINE, one.updates.recv())
            .await
            .unwrap()
            .unwrap();
    }
}

#[tokio::test]
async fn large_frames_are_built_and_received_in_memory_that_is_used_again() {
    let mut one = Node::new(&[]).await;
    let mut two = Node::new(&[&one]).await;
    one.connected(two.id()).await;
    two.connected(one.id()).await;
    for round in 0..100 {
        let mut body = two.net.buffers().take(300_000);
        body.clear();
        body.resize(300_000, round);
        let sent = two.net.send_patiently(one.id(), Lane::Update, body);
        sent.await.unwrap();
        let frame = timeout(DEADLINE, one.updates.recv())
            .await
            .unwrap()
            .unwrap();
        assert!(frame.body.len() == 300_000 && frame.body.iter().all(|byte| *byte == round));
        one.net.buffers().give(frame.body);
    }
    // The lane may still hold the last frame when the next one is built.
    let allocated = [&one, &two].map(|node| node.net.buffers().n_allocated());
    assert!(
        allocated.iter().all(|n| (1..=3).contains(n)),
        "{allocated:?}"
    );
}

#[tokio::test]
async fn one_frame_shows_what_a_link_carries() {
    let mut one = Node::new(&[]).await;
    let mut two = Node::new(&[&one]).await;
    one.connected(two.id()).await;
    two.connected(one.id()).await;
    assert_eq!(two.net.capacity(one.id()), None);
    let capacity = two.net.probe(one.id(), DEADLINE).await.unwrap();
    assert!(capacity.bytes_per_s > 0.0 && capacity.round_trip > Duration::ZERO);
    let frame = timeout(DEADLINE, one.updates.recv())
        .await
        .unwrap()
        .unwrap();
    assert!(probe::is_one(&frame.body));
    assert!(two.net.capacity(one.id()).is_some());
    assert_eq!(
        one.net.capacity(two.id()),
        None,
        "the other direction is another link"
    );
    assert_eq!(two.net.capacity(PeerId([3; 32])), None);
}

#[tokio::test]
async fn a_program_that_takes_no_events_makes_its_peers_wait() {
    let mut one = Node::new(&[]).await;
    let mut two = Node::new(&[&one]).await;
    two.connected(one.id()).await;
    let mut sent = 0u32;
    let mut idle = 0;
    while idle < 1000 {
        let mut body = sent.to_le_bytes().to_vec();
        body.resize(4096, 0);
        match two.net.send(one.id(), Lane::Control, body) {
            Ok(()) => (sent, idle) = (sent + 1, 0),
            Err(SendError::Full { .. }) => idle += 1,
            Err(error) => panic!("{error}"),
        }
        tokio::task::yield_now().await;
        assert!(sent < 50_000, "the lane takes without end");
    }
    assert!(sent as usize > EVENTS);
    for n in 0..sent {
        assert_eq!(one.message().await[..4], n.to_le_bytes());
    }
}

#[tokio::test]
async fn a_port_where_nobody_listens_is_named_as_such() {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let node = Node::with(Config {
        peers: vec![port.to_string()],
        ..config(Identity::generate())
    })
    .await;
    eventually(|| async {
        let state = node.net.peers().await.pop().map(|info| info.state);
        matches!(state, Some(PeerState::Dialing { reason: Some(reason), .. }) if reason.contains("nothing listens"))
    })
    .await;
}

#[tokio::test]
async fn last_words_arrive_before_the_end() {
    let mut one = Node::new(&[]).await;
    let mut two = Node::new(&[&one]).await;
    two.connected(one.id()).await;
    for n in 0..200u8 {
        two.net.send(one.id(), Lane::Control, vec![n]).unwrap();
    }
    two.net.shutdown().await;
    let mut heard = Vec::new();
    one.until(|event| match event {
        Event::Message { body, .. } => {
            heard.extend(body);
            None
        }
        Event::Disconnected { .. } => Some(()),
        _ => None,
    })
    .await;
    assert_eq!(heard, (0..200).collect::<Vec<u8>>());
    assert!(matches!(
        one.net.send(two.id(), Lane::Control, Vec::new()),
        Err(SendError::NotConnected { .. })
    ));
    let error = one
        .net
        .request(two.id(), Vec::new(), DEADLINE)
        .await
        .unwrap_err();
    assert!(matches!(error, RequestError::NotConnected { .. }));
    assert_eq!(two.net.publish(Vec::new()), Err(PublishError::Closed));
    assert!(matches!(
        two.net.send(one.id(), Lane::Control, Vec::new()),
        Err(SendError::NotConnected { .. })
    ));
}

#[tokio::test]
async fn a_node_that_just_vanishes_is_noticed_and_redialled_when_it_is_back() {
    let identity = Identity::generate();
    let mut one = Node::with(config(identity.clone())).await;
    let id = one.id();
    let listen = vec![one.address().await.parse().unwrap()];
    let mut two = Node::new(&[&one]).await;
    two.connected(id).await;
    one.connected(two.id()).await;
    let old = std::mem::replace(&mut one, Node::new(&[]).await);
    drop(old);
    two.disconnected(id).await;
    // Its port may be held for a moment.
    let again = Config {
        listen,
        ..config(identity)
    };
    let started = async {
        loop {
            match start(again.clone()).await {
                Ok(Started {
                    net,
                    events,
                    updates,
                }) => {
                    return Node {
                        net,
                        events,
                        updates,
                    };
                }
                Err(NetError::Listen { .. }) => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
            }
        }
    };
    let _one = timeout(DEADLINE, started).await.unwrap();
    // Not a copied identity: the process before is gone.
    two.until(|event| match event {
        Event::Connected { peer } => (peer == id).then_some(()),
        Event::DuplicateIdentity { address } => panic!("{address}"),
        _ => None,
    })
    .await;
}

#[tokio::test]
async fn a_copied_identity_that_dials_its_double_is_noticed_by_both() {
    let identity = Identity::generate();
    let mut one = Node::with(config(identity.clone())).await;
    let address = one.address().await;
    let mut two = Node::with(Config {
        peers: vec![address.clone()],
        ..config(identity)
    })
    .await;
    assert_eq!(two.duplicate().await, address);
    assert!(one.duplicate().await.starts_with("127.0.0.1:"));
}

#[tokio::test]
async fn a_third_peer_tells_two_with_one_identity_of_each_other() {
    let identity = Identity::generate();
    let mut third = Node::new(&[]).await;
    let peers = vec![third.address().await];
    let mut one = Node::with(Config {
        peers: peers.clone(),
        ..config(identity.clone())
    })
    .await;
    one.connected(third.id()).await;
    let mut two = Node::with(Config {
        peers,
        ..config(identity)
    })
    .await;
    assert!(one.duplicate().await.starts_with("127.0.0.1:"));
    assert!(two.duplicate().await.starts_with("127.0.0.1:"));
    third.connected(one.id()).await;
}

#[tokio::test]
async fn requests_are_refused_or_run_out_of_time() {
    let mut one = Node::new(&[]).await;
    let mut two = Node::new(&[&one]).await;
    two.connected(one.id()).await;
    let to = one.id();
    let refused = async {
        two.net
            .request(to, b"?".to_vec(), DEADLINE)
            .await
            .unwrap_err()
    };
    let refuse = one.until(|event| matches!(event, Event::Request { .. }).then_some(()));
    let (error, ()) = tokio::join!(refused, refuse);
    assert!(matches!(error, RequestError::Refused { .. }), "{error}");

    let late = two
        .net
        .request(one.id(), b"?".to_vec(), Duration::from_millis(50))
        .await
        .unwrap_err();
    assert!(matches!(late, RequestError::TimedOut { .. }), "{late}");
}

#[tokio::test]
async fn bounds_are_kept_at_the_sender() {
    let mut one = Node::new(&[]).await;
    let two = Node::new(&[&one]).await;
    one.connected(two.id()).await;
    let long = vec![0; FrameKind::Control.bound() as usize + 1];
    assert!(matches!(
        one.net.send(two.id(), Lane::Control, long),
        Err(SendError::TooLong { .. })
    ));
    assert!(matches!(
        one.net.publish(vec![0; MAX_PUBLISHED + 1]),
        Err(PublishError::TooLong { .. })
    ));
    one.net.publish(vec![0; MAX_PUBLISHED]).unwrap();
    let stranger = Identity::generate().peer();
    assert!(matches!(
        one.net.send(stranger, Lane::Control, Vec::new()),
        Err(SendError::NotConnected { .. })
    ));
}

#[tokio::test]
async fn loopback_is_not_offered_by_a_node_that_has_more() {
    let node = Node::with(Config {
        listen: Vec::new(),
        ..config(Identity::generate())
    })
    .await;
    let discovery = node.net.discovery().await.unwrap();
    let has_more = discovery
        .interfaces
        .iter()
        .any(|i| i.kind != InterfaceKind::Loopback && address::dialable(i.ip));
    // Addresses come one by one.
    eventually(|| async { !node.net.listen_addresses().await.is_empty() }).await;
    for offered in node.net.listen_addresses().await {
        let offered: SocketAddr = offered.parse().unwrap();
        assert_eq!(offered.ip().is_loopback(), !has_more);
    }
}

#[tokio::test]
async fn what_cannot_work_is_refused_at_the_start() {
    let start = |peers: &str| {
        start(Config {
            peers: vec![peers.to_owned()],
            ..config(Identity::generate())
        })
    };
    assert!(matches!(start("nonsense").await, Err(NetError::Peer(_))));
    assert!(start("127.0.0.1:1").await.is_ok());
}

#[tokio::test]
async fn names_are_resolved() {
    let mut one = Node::new(&[]).await;
    let port = one.address().await.rsplit_once(':').unwrap().1.to_owned();
    let peers = vec![
        format!("localhost:{port}"),
        "no-such-host.invalid:1".to_owned(),
    ];
    let mut two = Node::with(Config {
        peers,
        ..config(Identity::generate())
    })
    .await;
    two.connected(one.id()).await;
    one.connected(two.id()).await;
}
