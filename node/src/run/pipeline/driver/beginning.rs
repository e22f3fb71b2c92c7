//! Until a peer takes part: data, the shape of the data, profile, then the agreement and the stage's thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use skein_gossip::ids::PeerId;
use skein_gossip::pipeline::agreement::{Agreement, Config, Input};
use skein_gossip::pipeline::links::LinkRate;
use tokio::sync::{Semaphore, mpsc};

use super::super::disk::Lines;
use super::super::planner::CutPlanner;
use super::super::prepare::{self, Loaded, Prepared};
use super::super::store::Copies;
use super::super::worker::{self, Command, Worker};
use super::standby::Standby;
use super::{Done, Driver, Running};
use crate::run::journal::Entry;
use crate::run::start;

/// How long the frame that shows what a link carries may take, and all of them.
const PROBE: Duration = Duration::from_secs(1);
const PROBES: Duration = Duration::from_secs(3);
/// Peers that are sent one; a plan takes no more devices into account.
const MOST_PROBED: usize = 16;

impl Driver {
    pub(super) fn load(&mut self) {
        let (file, private, done) = (
            self.context.file.clone(),
            self.context.private.clone(),
            self.done.clone(),
        );
        let draws = self.context.draws;
        tokio::task::spawn_blocking(move || {
            let loaded = match draws {
                true => prepare::load(&file, &private),
                false => Loaded::without("it was started with --no-data"),
            };
            let _ = done.blocking_send(Done::Loaded(loaded));
        });
    }

    /// Measures the device, once it is known what the data looks like.
    pub(super) fn prepare(&mut self) {
        let Some(shape) = self.shape.clone().filter(|_| self.loaded) else {
            return;
        };
        if std::mem::replace(&mut self.preparing, true) {
            return;
        }
        let (file, data, done) = (
            self.context.file.clone(),
            self.data.clone(),
            self.done.clone(),
        );
        let folder = self.context.folder.clone();
        let (memory, tier) = (self.context.memory, self.context.tier);
        tokio::task::spawn_blocking(move || {
            let prepared = prepare::prepare(&file, &shape, data, &folder, (memory, tier));
            let _ = done.blocking_send(Done::Prepared(prepared.map(Box::new)));
        });
    }

    /// Peers that were given different weights, or cut text into different tokens, do not train together. One that comes to a job under
    /// way is the one that is wrong.
    pub(super) fn compare(&mut self) {
        let Some(running) = self
            .running
            .as_ref()
            .filter(|_| self.figures.failure.is_none())
        else {
            return;
        };
        let view = running.agreement.view();
        let is_late = |peer: PeerId| view.is_some_and(|view| !view.has(peer));
        let tokenizer = self.shape.as_ref().filter(|_| self.data.is_some());
        let tokenizer = tokenizer.map(|shape| shape.tokenizer);
        let candidates = running.agreement.candidates();
        let counts = candidates
            .iter()
            .filter(|candidate| !is_late(candidate.peer));
        let profiles = counts.filter_map(|candidate| candidate.profile.as_ref());
        let differs = profiles.into_iter().find_map(|profile| {
            let weights = running.weights.zip(profile.weights);
            let of_data = profile.data.as_ref().map(|data| data.tokenizer);
            match (weights, tokenizer.zip(of_data)) {
                (Some((here, there)), _) if here != there => Some(start::differ(here, there)),
                (_, Some((here, there))) if here != there => Some(
                    "another peer with this data has another data.tokenizer: all need the same file".to_owned(),
                ),
                _ => None,
            }
        });
        if let Some(reason) = differs {
            self.fail(reason);
        }
    }

    /// Sends something to each peer to which nothing was sent yet, so that the first cut is planned with what the links carry. One
    /// after the other, each peer beginning with another, so that they are not in each other's way.
    pub(super) fn probe(&mut self, prepared: Box<Prepared>) {
        let (net, done) = (self.context.net.clone(), self.done.clone());
        let me = net.local();
        let mut peers = self.connected.clone();
        peers.sort_unstable_by_key(|peer| (*peer < me, *peer));
        tokio::spawn(async move {
            let unknown = |peer: &PeerId| net.capacity(*peer).is_none_or(|known| known.is_bound);
            let probing = async {
                for peer in peers.into_iter().filter(unknown).take(MOST_PROBED) {
                    net.probe(peer, PROBE).await;
                }
            };
            // Plans do without what is not known by then.
            let _ = tokio::time::timeout(PROBES, probing).await;
            let _ = done.send(Done::Probed(prepared)).await;
        });
    }

    /// A peer has come while this one takes part: what the link to it carries is not known yet.
    pub(super) fn probe_newcomer(&self, peer: PeerId) {
        if self.running.is_some() && !self.is_closed() {
            let net = self.context.net.clone();
            tokio::spawn(async move { net.probe(peer, PROBE).await });
        }
    }

    /// What the links to the peers that are connected carry.
    pub(super) fn rates(&self) -> Vec<LinkRate> {
        let net = &self.context.net;
        let rate = |peer: &PeerId| Some(LinkRate::new(*peer, net.capacity(*peer)?));
        self.connected.iter().filter_map(rate).collect()
    }

    /// Prepares anew, as after a start: what was in memory is forgotten.
    pub(super) fn restart(&mut self) {
        self.order(Command::Halt);
        if let Some(running) = &mut self.running {
            running.copies = Copies::default();
        }
        self.journal.write(&Entry::Restarting {});
        self.preparing = false;
        self.prepare();
    }

    fn begin_again(&mut self, prepared: Prepared) {
        let Some(running) = &mut self.running else {
            return;
        };
        let held = prepared.copies.held(running.facts.n_blocks());
        let newest = held.first().map_or(0, |held| held.step);
        running.copies = prepared.copies;
        running.saved = (Instant::now(), newest);
        running.on_disk = newest;
        self.input(Input::Prepared {
            has_data: self.data.is_some(),
            profile: prepared.profile,
            held,
        });
    }

    /// This peer takes part from now on, or again.
    pub(super) fn begin(&mut self, prepared: Prepared) {
        if self.running.is_some() {
            return self.begin_again(prepared);
        }
        let Prepared {
            facts,
            data,
            mut profile,
            measured,
            processor,
            copies,
            skipped,
        } = prepared;
        profile.rates = self.rates();
        let Some(frames) = self.frames.take() else {
            return;
        };
        let file = &self.context.file;
        let pipeline = &file.strategy.pipeline;
        let config = Config {
            is_seeded: !file.start.is_given(),
            ..pipeline.agreement(
                (facts.n_blocks(), facts.rows),
                file.start.peers,
                file.stop.steps,
            )
        };
        let standby = Standby::new(measured.clone(), processor.assumed_slowdown());
        let planner = CutPlanner::new(Arc::clone(&facts), measured);
        let me = self.context.net.local();
        let agreement = Agreement::new(
            config,
            me,
            self.context.instance,
            self.now(),
            Box::new(planner.clone()),
        );
        let (commands, command_queue) = mpsc::channel(worker::COMMANDS);
        let (event_queue, events) = mpsc::channel(worker::EVENTS);
        let thread = Worker {
            job: self.context.id,
            me,
            facts: Arc::clone(&facts),
            data,
            profile: profile.clone(),
            processor,
            look_every: file.evaluate.every,
            net: self.context.net.clone(),
            runtime: tokio::runtime::Handle::current(),
            commands: command_queue,
            frames,
            events: event_queue,
            postponed: VecDeque::new(),
            mail: None,
        };
        let spawned = std::thread::Builder::new()
            .name("stage".into())
            .spawn(move || thread.run());
        if let Err(error) = spawned {
            return self.fail(format!("no thread for the stage: {error}"));
        }
        let held = copies.held(facts.n_blocks());
        let newest = held.first().map_or(0, |held| held.step);
        self.journal.write(&Entry::Opened {
            peer: me.to_string(),
            name: &self.context.file.name,
            step: newest,
            samples: newest * u64::from(facts.batch),
            digest: String::new(),
            skipped_checkpoints: &skipped,
        });
        self.figures.prepared(&facts);
        self.running = Some(Running {
            agreement,
            facts,
            planner,
            copies,
            commands,
            orders: VecDeque::new(),
            events,
            weights: profile.weights,
            lines: Lines(self.context.folder.copies()),
            one_block: Arc::new(Semaphore::new(1)),
            held_longer: Vec::new(),
            to_disk: None,
            resting: false,
            room: None,
            saved: (Instant::now(), newest),
            on_disk: newest,
            saving: false,
            standby,
            ended: false,
            undone: 0,
            distrusted: None,
        });
        for peer in self.connected.clone() {
            self.input(Input::Connected(peer));
        }
        self.input(Input::Slowdown(processor.assumed_slowdown()));
        self.input(Input::Prepared {
            has_data: self.data.is_some(),
            profile,
            held,
        });
    }
}
