//! Until a peer takes part: data, the shape of the data, profile, then the agreement and the stage's thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use skein_gossip::pipeline::agreement::{Agreement, Input};
use tokio::sync::mpsc;

use super::super::planner::CutPlanner;
use super::super::prepare::{self, Prepared};
use super::super::worker::{self, Worker};
use super::{Done, Driver, Running};
use crate::run::journal::Entry;

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
        let (copies, memory) = (self.context.folder.copies(), self.context.memory);
        tokio::task::spawn_blocking(move || {
            let prepared = prepare::prepare(&file, &shape, data, &copies, memory);
            let _ = done.blocking_send(Done::Prepared(prepared.map(Box::new)));
        });
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
        let config =
            file.strategy
                .pipeline
                .agreement(facts.n_blocks(), file.start.peers, file.stop.steps);
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
            saved: (Instant::now(), newest),
            saving: false,
            ended: false,
            undone: 0,
            distrusted: None,
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
