//! Until a peer takes part: data, the shape of the data, profile, then the agreement and the stage's thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use skein_gossip::ids::PeerId;
use skein_gossip::pipeline::agreement::{Agreement, Config, Input};
use tokio::sync::{Semaphore, mpsc};

use super::super::disk::Lines;
use super::super::planner::CutPlanner;
use super::super::prepare::{self, Prepared};
use super::super::worker::{self, Worker};
use super::{Done, Driver, Running};
use crate::run::journal::Entry;
use crate::run::start;

impl Driver {
    pub(super) fn load(&mut self) {
        let (file, private, done) = (
            self.context.file.clone(),
            self.context.private.clone(),
            self.done.clone(),
        );
        tokio::task::spawn_blocking(move || {
            let _ = done.blocking_send(Done::Loaded(prepare::load(&file, &private)));
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
        let (folder, memory) = (self.context.folder.clone(), self.context.memory);
        tokio::task::spawn_blocking(move || {
            let prepared = prepare::prepare(&file, &shape, data, &folder, memory);
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

    /// This peer takes part from now on.
    pub(super) fn begin(&mut self, prepared: Prepared) {
        let Prepared {
            facts,
            data,
            profile,
            measured,
            copies,
            skipped,
        } = prepared;
        let Some(frames) = self.frames.take() else {
            return;
        };
        let file = &self.context.file;
        let pipeline = &file.strategy.pipeline;
        let config = Config {
            is_seeded: !file.start.is_given(),
            ..pipeline.agreement(facts.n_blocks(), file.start.peers, file.stop.steps)
        };
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
            times: profile.blocks.clone(),
            look_every: file.evaluate.every,
            net: self.context.net.clone(),
            runtime: tokio::runtime::Handle::current(),
            commands: command_queue,
            frames,
            events: event_queue,
            postponed: VecDeque::new(),
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
            resting: false,
            room: None,
            saved: (Instant::now(), newest),
            on_disk: newest,
            saving: false,
            ended: false,
        });
        for peer in self.connected.clone() {
            self.input(Input::Connected(peer));
        }
        self.input(Input::Prepared {
            has_data: self.data.is_some(),
            profile,
            held,
        });
    }
}
