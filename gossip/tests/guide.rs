//! Guides over agreements that hear beats by hand: whose search is followed, and what liars can do.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use skein_gossip::agreement::{self, Agreement, Input};
use skein_gossip::guide::{Config, Guide, Output};
use skein_gossip::ids::{Digest, PeerId};
use skein_gossip::knowledge::pull;
use skein_gossip::message::{Beat, Pace, Standing};
use skein_gossip::pacing::search::{self, state::SearchState};
use skein_gossip::time::Tick;
use skein_gossip::view::{Holding, Joiner, View};

const SECOND: u64 = 1_000_000;
const HOLDS: Holding = Holding {
    samples: 0,
    step: 0,
    digest: Digest([3; 32]),
};

fn id(n: u8) -> PeerId {
    PeerId([n; 32])
}

struct Peer {
    agreement: Agreement,
    guide: Guide,
    pace: Pace,
    loss: f32,
    /// Held-out loss, as so many times the training loss.
    held_out: f32,
    samples: u64,
    last: Vec<Output>,
}

/// Peers that hear each other every half second.
struct Mesh {
    now: u64,
    peers: BTreeMap<u8, Peer>,
    /// What some say instead.
    lies: BTreeMap<u8, fn(&mut Beat)>,
}

impl Mesh {
    fn new(n: u8, config: Config) -> Self {
        let joiners: Vec<Joiner> = (1..=n)
            .map(|n| Joiner {
                peer: id(n),
                instance: 1,
                batch: 32,
                holds: HOLDS,
            })
            .collect();
        let view = Arc::new(View::first(id(1), &joiners).unwrap());
        let mut peers = BTreeMap::new();
        for me in 1..=n {
            let config_of = agreement::Config::new(n.into(), 32);
            let mut agreement = Agreement::new(config_of, id(me), 1, Tick(0));
            for other in (1..=n).filter(|other| *other != me) {
                agreement.handle(Tick(0), Input::Connected(id(other)));
            }
            agreement.handle(Tick(0), Input::Prepared(HOLDS));
            agreement.handle(Tick(0), Input::View(id(1), view.clone()));
            assert_eq!(agreement.own_beat().standing, Standing::Training);
            let peer = Peer {
                agreement,
                guide: Guide::new(config, id(me), 7, Tick(0)),
                pace: Pace::default(),
                loss: 2.0 + f32::from(me) / 100.0,
                held_out: 1.0,
                samples: 0,
                last: Vec::new(),
            };
            peers.insert(me, peer);
        }
        Self {
            now: 0,
            peers,
            lies: BTreeMap::new(),
        }
    }

    /// Half a second: all make steps, say so, and look.
    fn turn(&mut self) {
        self.now += SECOND / 2;
        let now = Tick(self.now);
        let mut beats = Vec::new();
        for (n, peer) in &mut self.peers {
            peer.samples += 32 * 5;
            peer.loss *= 0.999;
            let contribution = skein_gossip::view::Contribution {
                samples: peer.samples,
                ..Default::default()
            };
            let progress = Input::Progress {
                step: peer.samples / 32,
                train_loss: peer.loss,
                contribution,
            };
            peer.agreement.handle(now, progress);
            peer.pace.held_out = Some(peer.held_out * peer.loss);
            peer.pace.search = peer.guide.search_state();
            let pace = Input::Pace(Box::new(peer.pace.clone()));
            peer.agreement.handle(now, pace);
            let mut beat = peer.agreement.own_beat();
            if let Some(lie) = self.lies.get(n) {
                lie(&mut beat);
            }
            beats.push((*n, Arc::new(beat)));
        }
        for (n, peer) in &mut self.peers {
            for (from, beat) in beats.iter().filter(|(from, _)| from != n) {
                peer.agreement
                    .handle(now, Input::Beat(id(*from), beat.clone()));
            }
            while peer.agreement.poll().is_some() {}
            peer.last = peer.guide.look(now, &peer.agreement, &peer.pace);
        }
    }

    fn turns(&mut self, seconds: u64) {
        (0..2 * seconds).for_each(|_| self.turn());
    }

    fn state(&self, n: u8) -> SearchState {
        self.peers[&n].guide.search_state().unwrap()
    }

    fn kill(&mut self, n: u8) {
        self.peers.remove(&n);
        for peer in self.peers.values_mut() {
            let gone = Input::Disconnected(id(n));
            peer.agreement.handle(Tick(self.now), gone);
        }
    }
}

fn searching() -> Config {
    Config {
        search: Some(search::Settings {
            period: Duration::from_secs(5),
            hold: Duration::from_secs(20),
            ..search::Settings::default()
        }),
        ..Config::default()
    }
}

#[test]
fn the_next_steward_goes_on_with_the_search_where_it_was() {
    let mut mesh = Mesh::new(4, searching());
    mesh.turns(40);
    let before = mesh.state(1);
    assert!(before.turn > 2, "{before:?}");
    for n in 2..=4 {
        let heard = mesh.state(n);
        assert!(heard.turn + 1 >= before.turn && heard.turn <= before.turn);
    }
    mesh.kill(1);
    mesh.turns(3);
    let after = mesh.state(2);
    assert!(after.turn >= before.turn && after.turn <= before.turn + 1);
    assert!(after.elapsed_us > 0 || after.turn > before.turn);
    assert!(mesh.state(4).turn + 1 >= after.turn);
    mesh.turns(40);
    assert!(mesh.state(2).turn > after.turn, "it goes on");
}

#[test]
fn only_the_stewards_search_is_followed_and_one_liar_is_not_resumed_from() {
    let mut mesh = Mesh::new(5, searching());
    mesh.lies.insert(4, |beat| {
        let mut state = SearchState::new(4096);
        state.turn = u64::MAX - 1;
        beat.pace.search = Some(state);
        beat.pace.commits = u64::MAX;
    });
    mesh.turns(20);
    let steward = mesh.state(1);
    assert!(steward.turn < 100, "{steward:?}");
    for n in [2, 3, 5] {
        assert!(mesh.state(n).turn <= steward.turn, "peer {n}");
    }
    mesh.kill(1);
    mesh.turns(5);
    let next = mesh.state(2);
    assert!(next.turn < 100 && next.commits() < 100, "{next:?}");
    assert_eq!(mesh.state(3).commits(), next.commits());
}

#[test]
fn rates_are_for_all_the_same_and_nobodys_claim_sends_the_others_off() {
    let mut mesh = Mesh::new(4, searching());
    mesh.lies.insert(3, |beat| beat.pace.commits = u64::MAX);
    let mut wished = Vec::new();
    for _ in 0..60 {
        mesh.turn();
        for (n, peer) in &mut mesh.peers {
            for output in &peer.last {
                if let Output::Rate { commits, .. } = output {
                    wished.push((*n, *commits));
                    peer.pace.commits = peer.pace.commits.max((*commits).min(10_000));
                }
            }
        }
    }
    assert!(wished.len() >= 4 * 3, "{wished:?}");
    let most = wished.iter().map(|(_, commits)| *commits).max().unwrap();
    assert!(most < 2_000, "{most}");
}

/// Its copies are of no use: each costs its receivers ever longer until the next is asked for.
#[test]
fn whoever_always_claims_to_be_best_is_asked_ever_more_rarely() {
    let config = Config {
        pulls: Some(pull::Settings::default()),
        ..Config::default()
    };
    let mut mesh = Mesh::new(4, config);
    mesh.lies.insert(3, |beat| {
        beat.pace.held_out = Some(1e-6);
        beat.batch = u32::MAX;
    });
    let (mut early, mut late) = (0, 0);
    for turn in 0..2 * 1200u64 {
        mesh.turn();
        let now = Tick(mesh.now);
        for peer in mesh.peers.values_mut() {
            for output in std::mem::take(&mut peer.last) {
                let Output::Learn { from } = output else {
                    continue;
                };
                if let Some((_, gated)) = peer.guide.fetched(now, from, true) {
                    assert!(gated);
                    let merged = if from == id(3) { 9.0 } else { 1.0 };
                    peer.guide.judged(now, 2.0, merged);
                }
                if from == id(3) {
                    early += u32::from(turn < 600);
                    late += u32::from(turn >= 1800);
                }
            }
        }
    }
    assert!(early > 0 && late < early, "{early} then {late}");
    let of_liar = |n: u8| {
        let mut dealings = mesh.peers[&n].guide.dealings();
        dealings
            .find(|(peer, _)| *peer == id(3))
            .map(|(_, known)| *known)
    };
    let known = of_liar(1).unwrap();
    assert!(known.merged == 0 && known.rejected > 0, "{known:?}");
}

/// The training loss is lowest where the data is easiest, say of two classes; that peer knows nothing of the others.
#[test]
fn peers_learn_from_whoever_does_best_on_held_out_samples() {
    let config = Config {
        pulls: Some(pull::Settings::default()),
        ..Config::default()
    };
    let mut mesh = Mesh::new(4, config);
    for (n, peer) in &mut mesh.peers {
        peer.loss = if *n == 1 { 0.01 } else { 2.0 };
        peer.held_out = match *n {
            1 => 300.0,
            3 => 0.25,
            _ => 1.5,
        };
    }
    let mut asked = BTreeMap::new();
    for _ in 0..2 * 60 {
        mesh.turn();
        let now = Tick(mesh.now);
        for (n, peer) in &mut mesh.peers {
            for output in std::mem::take(&mut peer.last) {
                if let Output::Learn { from } = output {
                    *asked.entry((*n, from)).or_insert(0) += 1;
                    peer.guide.fetched(now, from, true);
                    peer.guide.judged(now, 3.0, 0.5);
                }
            }
        }
    }
    let pairs: Vec<(u8, PeerId)> = asked.into_keys().collect();
    assert_eq!(pairs, [(1, id(3)), (2, id(3)), (4, id(3))]);
}

/// Between two looks the own loss is one of the past, and would make whoever looks rarely seem far behind.
#[test]
fn a_peer_that_has_not_looked_since_asks_for_no_copy() {
    let config = Config {
        pulls: Some(pull::Settings::default()),
        ..Config::default()
    };
    let asked = [false, true].map(|looks| {
        let mut mesh = Mesh::new(3, config);
        let mut asked = 0;
        for turn in 0..2 * 60u16 {
            let peer = mesh.peers.get_mut(&3).unwrap();
            peer.loss = 8.0 + if looks { f32::from(turn) / 100.0 } else { 0.0 };
            mesh.turn();
            asked += mesh.peers[&3].last.len();
        }
        asked
    });
    assert!(asked[0] == 0 && asked[1] > 0, "{asked:?}");
}
