//! All stages that this peer hosts in one view, as one: what is done next, who gets a frame, and what is told of them together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use skein_gossip::ids::PeerId;
use skein_gossip::pipeline::frame::Head;
use skein_gossip::pipeline::group::Place;
use skein_gossip::pipeline::message::View;
use skein_gossip::pipeline::view_key;
use skein_model::stage::BlockState;

use super::super::disk::{Kept, State};
use super::super::processor::Clocks;
use super::compute::Made;
use super::speed::{Slowdown, Spent};
use super::work::Work;
use super::{Event, Step, Stop, Worker};

/// See the module's header.
pub(super) struct Stages {
    pub(super) view: Arc<View>,
    pub(super) key: u64,
    pub(super) is_broken: bool,
    /// First to last.
    stages: Vec<Work>,
    slowdown: Slowdown,
    /// When no stage had anything to do, since the last step.
    idle: Duration,
    /// Steps, and copies, that not all stages have made yet; how many have, and what it comes to so far.
    steps: BTreeMap<u64, (usize, Step, Spent)>,
    copies: BTreeMap<u64, (usize, Vec<(u16, State)>)>,
}

impl Stages {
    pub(super) fn begin(
        worker: &Worker,
        view: Arc<View>,
        states: Option<Vec<(u16, Kept)>>,
    ) -> Result<Self, String> {
        let places = Place::all(&view.plan, worker.me);
        if places.is_empty() {
            return Err("the view names no stage for this peer".into());
        }
        let facts = &worker.facts;
        let decode = |(block, kept): &(u16, Kept)| {
            let layout = facts
                .blocks
                .get(usize::from(*block))
                .ok_or("a copy of a block that the model does not have")?;
            let bytes = kept.load(layout)?;
            BlockState::decode(&bytes, layout).map_err(|error| error.to_string())
        };
        let begin = |place: Place| {
            let blocks = view.plan.stages.get(place.stage);
            let blocks = blocks.map_or(0..0, |stage| stage.blocks.clone());
            let states = states.iter().flatten();
            let own = states.filter(|(block, _)| blocks.contains(block));
            Work::begin(worker, &view, place, own.map(decode))
        };
        let stages = places.into_iter().map(begin).collect::<Result<_, _>>()?;
        Ok(Self {
            key: view_key(view.stamp),
            is_broken: false,
            stages,
            slowdown: Slowdown::new(worker.processor),
            idle: Duration::ZERO,
            steps: BTreeMap::new(),
            copies: BTreeMap::new(),
            view,
        })
    }

    /// The stage from which this peer decides what is done when, if it does.
    pub(super) fn lead(&mut self) -> Option<&mut Work> {
        self.stages.first_mut().filter(|work| work.leads_all())
    }

    /// Takes a frame of the view.
    ///
    /// # Errors
    /// In words: why it does not belong.
    pub(super) fn arrive(
        &mut self,
        from: PeerId,
        head: &Head,
        body: Vec<u8>,
    ) -> Result<(), String> {
        let mut stages = self.stages.iter_mut();
        let work = stages.find(|work| work.place.stage == usize::from(head.stage));
        let work = work.ok_or("it is for a stage that is not hosted here")?;
        if !work.is_from(from, head) {
            return Err("its sender hosts no stage that sends it".into());
        }
        work.arrive(from, head, body)
    }

    /// No stage had anything to do.
    pub(super) fn waited(&mut self, time: Duration) {
        self.idle += time;
    }

    /// The newest line has its copies.
    pub(super) fn copies_made(&mut self, step: u64, worker: &Worker) {
        for work in &mut self.stages {
            work.copies_made(step, worker);
        }
    }

    /// Does one thing, if there is one: what ends work under way before what begins some, and of a later stage first, since others
    /// wait for it. Whether there was one.
    pub(super) fn proceed(&mut self, worker: &mut Worker) -> Result<bool, Stop> {
        for work in &mut self.stages {
            work.add_up(worker)?;
            work.want_look(worker);
            work.end_rest();
        }
        let all = 0..self.stages.len();
        let back = all.clone().filter(|at| self.stages[*at].flow.can_go_back());
        let order: Vec<usize> = back.rev().chain(all.clone().rev()).collect();
        for at in order {
            let work = &mut self.stages[at];
            let Some(op) = work.flow.next_op() else {
                continue;
            };
            if let Some(made) = work.perform(op, worker)? {
                self.tell(made, worker)?;
            }
            return Ok(true);
        }
        Ok(false)
    }

    /// Tells what all stages have made.
    fn tell(&mut self, made: Made, worker: &Worker) -> Result<(), Stop> {
        match made {
            Made::Step {
                step,
                loss,
                samples,
                spent,
                bytes,
            } => {
                let (n_made, all, all_spent) = self.steps.entry(step).or_insert_with(|| {
                    let step = Step {
                        step,
                        view: self.view.stamp.number,
                        ..Step::default()
                    };
                    (0, step, Spent::default())
                });
                *n_made += 1;
                all.loss = all.loss.or(loss);
                // One that goes through several stages here is one all the same.
                all.samples = all.samples.max(samples);
                all.bytes_in += bytes[0];
                all.bytes_out += bytes[1];
                all_spent.add(&spent);
                if *n_made == self.stages.len()
                    && let Some((_, step, mut spent)) = self.steps.remove(&step)
                {
                    spent.waited(std::mem::take(&mut self.idle));
                    let clocks = (Instant::now(), Clocks::now());
                    let (slowdown, processor) = self.slowdown.stepped(&spent, clocks);
                    worker.tell(Event::Stepped(Step {
                        computing: spent.computing,
                        waiting: spent.waiting,
                        slowdown,
                        processor,
                        ..step
                    }))?;
                }
            }
            Made::Copy { step, states } => {
                let (n_made, all) = self.copies.entry(step).or_default();
                *n_made += 1;
                all.extend(states);
                if *n_made == self.stages.len()
                    && let Some((_, mut states)) = self.copies.remove(&step)
                    && !states.is_empty()
                {
                    states.sort_by_key(|(block, _)| *block);
                    let view = self.view.stamp;
                    worker.tell(Event::Copied { view, step, states })?;
                }
            }
        }
        Ok(())
    }
}
