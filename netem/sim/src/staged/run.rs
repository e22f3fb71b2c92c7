//! One run: views, steps, lines of copies, and what the scenario does to the nodes.

use std::collections::BTreeMap;
use std::time::Instant;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use skein_gossip::pipeline::agreement::MEMBERSHIP;
use skein_netem::link::{Nanos, NodeIndex, sub_seed};
use skein_netem::record::{Progress, Record};
use skein_netem::scenario::{Action, Scenario, When};
use skein_node::job::JobFile;
use skein_node::run::journal::Entry;

use super::copies::Copies;
use super::journal::Journal;
use super::posed::{Cut, Posed, cores};
use super::recovering::{Recovery, recovery};
use super::refused::can_be;
use crate::queue::Queue;
use crate::world::{SECOND, peer_id};

/// Samples of traffic and usage that a record keeps.
const MOST_SAMPLES: u64 = 600;
/// Least steps between two lines, as nodes that are told nothing else.
const LEAST_STEPS: u64 = 10;
/// Most lines on steps of a run.
const MOST_LINES: f64 = 2e6;

#[derive(Clone, Copy, Debug)]
enum Event {
    /// All know of the newest view, if it is this one.
    Told(u64),
    /// All hosts of this view hold what they need.
    Placed(u64),
    /// Its first stage draws samples.
    Fed(u64),
    /// Its hosts have made one more step.
    Step(u64),
    /// The copies of this view's last line are there.
    Safe(u64),
    /// One of the scenario's events.
    Fault(usize),
    Sample,
}

/// A loss that is not made good yet.
#[derive(Debug)]
struct Loss {
    at: Nanos,
    /// Steps made before it.
    reached: u64,
    recovery: Recovery,
}

/// See the module's header.
#[derive(Debug)]
struct Run<'a> {
    scenario: &'a Scenario,
    file: JobFile,
    posed: Posed,
    cores: Vec<f64>,
    journal: Journal,
    queue: Queue<Event>,
    now: Nanos,
    rng: ChaCha8Rng,
    alive: Vec<bool>,
    view: u64,
    from_step: u64,
    cut: Cut,
    /// Bytes of a step from node to node.
    sent: BTreeMap<(NodeIndex, NodeIndex), u64>,
    step: u64,
    /// Steps between two lines.
    line_every: u64,
    /// What can be gone on from, and the line under way.
    copies: Copies,
    line: Option<Copies>,
    loss: Option<Loss>,
    pending: Vec<usize>,
    is_closed: bool,
    is_over: bool,
}

/// Runs a job with stages.
///
/// # Errors
/// In words: what cannot be simulated; why there is no plan.
pub(crate) fn run(
    scenario: &Scenario,
    file: JobFile,
    progress: Progress<'_>,
) -> Result<Record, String> {
    can_be(scenario, &file)?;
    let began = Instant::now();
    let n = scenario.nodes.len();
    let ids = (0..n).map(|rank| peer_id(scenario.seed, rank)).collect();
    let posed = Posed::new(scenario, &file, ids)?;
    let nodes: Vec<NodeIndex> = (0..n).collect();
    let cut = posed.planned(&nodes)?;
    let mut run = Run {
        journal: Journal::new(n),
        queue: Queue::new(),
        now: 0,
        rng: ChaCha8Rng::seed_from_u64(sub_seed(scenario.seed, 0, 11)),
        alive: vec![true; n],
        view: 1,
        from_step: 0,
        sent: posed.sent(&cut.plan),
        step: 0,
        line_every: LEAST_STEPS,
        copies: Copies::drawn(posed.layouts.len(), &nodes),
        line: None,
        loss: None,
        pending: Vec::new(),
        is_closed: false,
        is_over: false,
        cores: scenario.nodes.iter().map(cores).collect(),
        cut,
        posed,
        file,
        scenario,
    };
    run.plan()?;
    let end = scenario.end.after.as_nanos() as Nanos;
    while let Some((at, event)) = run.queue.pop() {
        if at > end || run.is_over {
            break;
        }
        run.now = at;
        run.happen(event)?;
        run.look();
    }
    let end = match run.is_over {
        true => run.now,
        false => end,
    };
    if !run.is_over && scenario.end.job {
        run.journal.mark(end, &[], "deadline");
    }
    progress(end as f64 / 1e9, &format!("step {}", run.step));
    let speed = end as f64 / 1e9 / began.elapsed().as_secs_f64().max(1e-9);
    Ok(run.journal.record(scenario, &run.posed, (end, speed)))
}

fn nanos(seconds: f64) -> Nanos {
    (seconds * 1e9).round() as Nanos
}

impl Run<'_> {
    fn plan(&mut self) -> Result<(), String> {
        for (number, event) in self.scenario.events.iter().enumerate() {
            match &event.when {
                When::At(at) | When::Every { from: at, .. } => self
                    .queue
                    .push(at.as_nanos() as Nanos, Event::Fault(number)),
                When::After(..) => self.pending.push(number),
            }
        }
        self.queue.push(0, Event::Sample);
        self.queue.push(0, Event::Told(self.view));
        self.queue.push(0, Event::Placed(self.view));
        self.queue.push(0, Event::Fed(self.view));
        self.begin()
    }

    /// What follows from the newest cut.
    fn begin(&mut self) -> Result<(), String> {
        let seconds = self.cut.prediction.step_seconds;
        let hosts = self.cut.plan.hosts().count() as f64;
        let left = self.scenario.end.after.as_secs_f64() - self.now as f64 / 1e9;
        let steps = self
            .file
            .stop
            .steps
            .map_or(f64::INFINITY, |steps| steps as f64);
        if hosts * (left / seconds).min(steps) > MOST_LINES {
            return Err(format!(
                "a step takes {seconds:.2e} s, so the run has too many: end it earlier (end.after, stop.steps)"
            ));
        }
        self.sent = self.posed.sent(&self.cut.plan);
        let (_, carrying) = Copies::line(&self.posed, &self.cut.plan, &self.nodes(), 0);
        let least = self.posed.pipeline.copy_every.unwrap_or(LEAST_STEPS);
        self.line_every = least.max((carrying.seconds / seconds).ceil() as u64);
        Ok(())
    }

    /// Those that are there.
    fn nodes(&self) -> Vec<NodeIndex> {
        let alive = self.alive.iter().enumerate();
        alive.filter(|(_, is)| **is).map(|(rank, _)| rank).collect()
    }

    fn hosts(&self) -> Vec<NodeIndex> {
        self.posed.hosts(&self.cut.plan)
    }

    fn after(&mut self, seconds: f64, event: Event) {
        self.queue.push(self.now + nanos(seconds), event);
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        let view = self.view;
        match event {
            Event::Told(of) if of == view => self.told(),
            Event::Placed(of) if of == view => self.placed(),
            Event::Fed(of) if of == view => {
                if let Some(first) = self.hosts().first() {
                    self.journal.write(self.now, *first, &Entry::Fed { view });
                }
                self.after(self.cut.prediction.step_seconds, Event::Step(view));
            }
            Event::Step(of) if of == view && !self.is_closed => self.stepped(),
            Event::Safe(of) if of == view => {
                if let Some(line) = self.line.take() {
                    for rank in self.nodes() {
                        let entry = Entry::Recoverable { step: line.step };
                        self.journal.write(self.now, rank, &entry);
                    }
                    self.copies = line;
                }
            }
            Event::Fault(number) => return self.fault(number),
            Event::Sample => {
                self.journal.sample(self.now);
                let end = self.scenario.end.after.as_nanos() as Nanos;
                let every = (end / MOST_SAMPLES).max(SECOND);
                self.queue.push(self.now + every, Event::Sample);
            }
            Event::Told(_) | Event::Placed(_) | Event::Fed(_) | Event::Step(_) | Event::Safe(_) => {
            }
        }
        Ok(())
    }

    fn told(&mut self) {
        let nodes = self.nodes();
        let told = (self.view, self.from_step, &self.cut);
        self.journal.told(self.now, &self.posed, told, &nodes);
        if let Some(loss) = &self.loss {
            let entry = Entry::Setback {
                reached: loss.reached,
                recoverable: self.copies.step,
                from_step: self.from_step,
                lost_blocks: &loss.recovery.lost_blocks,
            };
            for rank in nodes {
                self.journal.write(self.now, rank, &entry);
            }
        }
    }

    fn placed(&mut self) {
        let view = self.view;
        let receivers = self
            .loss
            .iter()
            .flat_map(|loss| loss.recovery.carried.keys());
        let receivers: Vec<NodeIndex> = receivers.map(|(_, to)| *to).collect();
        for stage in self.cut.plan.stages.clone() {
            for rank in stage.hosts().filter_map(|id| self.posed.rank(id)) {
                if receivers.contains(&rank) {
                    let entry = Entry::Fetched {
                        step: self.from_step,
                        first: stage.blocks.start,
                        end: stage.blocks.end,
                        to_disk: false,
                    };
                    self.journal.write(self.now, rank, &entry);
                }
                self.journal.write(self.now, rank, &Entry::InPlace { view });
            }
        }
        if let Some(loss) = &self.loss {
            self.journal.carried(&loss.recovery.carried);
        }
        self.step = self.from_step;
    }

    fn stepped(&mut self) {
        self.step += 1;
        self.journal.stepped(
            self.now,
            (&self.posed, &self.cores),
            (self.view, self.step, &self.cut),
            &self.sent,
        );
        self.journal.take_in(&self.step.to_le_bytes());
        if let Some(loss) = self.loss.take_if(|loss| self.step >= loss.reached) {
            let total_s = (self.now - loss.at) as f64 / 1e9;
            let redone = loss.reached.saturating_sub(self.from_step);
            self.journal
                .recovered(self.now, &loss.recovery, total_s, redone);
        }
        if (self.step - self.from_step).is_multiple_of(self.line_every) && self.line.is_none() {
            let nodes = self.nodes();
            for rank in self.hosts() {
                let entry = Entry::Line { step: self.step };
                self.journal.write(self.now, rank, &entry);
            }
            let (line, carrying) = Copies::line(&self.posed, &self.cut.plan, &nodes, self.step);
            self.journal.carried(&carrying.bytes);
            let seconds = carrying.seconds;
            self.line = Some(line);
            self.after(seconds, Event::Safe(self.view));
        }
        let samples = self.step * u64::from(self.posed.batch);
        let seconds = self.now as f64 / 1e9;
        if let Some(reason) = self.file.stop.enough(self.step, samples, 0, seconds) {
            self.close(&reason);
            return;
        }
        self.after(self.cut.prediction.step_seconds, Event::Step(self.view));
    }

    fn close(&mut self, reason: &str) {
        self.is_closed = true;
        for rank in self.nodes() {
            self.journal
                .write(self.now, rank, &Entry::Ending { reason });
            let closed = Entry::Closed {
                reason,
                digest: None,
                winner: None,
                val_accuracy: None,
            };
            self.journal.write(self.now, rank, &closed);
        }
        self.is_over |= self.scenario.end.job;
    }

    /// Lines that the scenario waits for.
    fn look(&mut self) {
        let scenario = self.scenario;
        let mut due = Vec::new();
        while let Some((rank, metric)) = self.journal.next_fresh() {
            self.pending.retain(|number| {
                let When::After(condition, pause) = &scenario.events[*number].when else {
                    return false;
                };
                let holds = condition.holds(rank, &metric.event, &metric.fields);
                if holds {
                    due.push((pause.as_nanos() as Nanos, *number));
                }
                !holds
            });
            let end = scenario.end.when.as_ref();
            self.is_over |= end.is_some_and(|end| end.holds(rank, &metric.event, &metric.fields));
        }
        for (pause, number) in due {
            self.queue.push(self.now + pause, Event::Fault(number));
        }
    }

    fn fault(&mut self, number: usize) -> Result<(), String> {
        let event = &self.scenario.events[number];
        let (nodes, what) = match &event.action {
            Action::Stop(nodes) => (nodes, "stop"),
            Action::Leave(nodes) => (nodes, "leave"),
            Action::Kill(nodes) => (nodes, "kill"),
            _ => return Ok(()),
        };
        let there = nodes.iter().copied().filter(|rank| self.alive[*rank]);
        let mut there: Vec<NodeIndex> = there.collect();
        if let When::Every { until, period, .. } = event.when {
            let next = self.now + period.as_nanos() as Nanos;
            if next <= until.as_nanos() as Nanos {
                self.queue.push(next, Event::Fault(number));
            }
            if !there.is_empty() {
                let drawn = self.rng.next_u64() % there.len() as u64;
                there = vec![there[drawn as usize]];
            }
        }
        for rank in there {
            self.lose(rank, what)?;
        }
        Ok(())
    }

    fn lose(&mut self, lost: NodeIndex, what: &str) -> Result<(), String> {
        self.journal.mark(self.now, &[lost], what);
        self.alive[lost] = false;
        // The process of one that is stopped is still there.
        if what != "stop" {
            self.journal.ended(self.now, lost);
        }
        let nodes = self.nodes();
        if !self.hosts().contains(&lost) || self.is_closed || nodes.is_empty() {
            self.copies.lose(lost);
            return Ok(());
        }
        // A closed connection is seen at once.
        let silence = match what {
            "stop" => MEMBERSHIP.silence_min.as_secs_f64(),
            _ => 0.0,
        };
        let way = self.scenario.sim.recovery;
        let found = recovery(
            &self.posed,
            way,
            (&self.cut, &mut self.copies),
            &nodes,
            (lost, silence),
        );
        self.line = None;
        self.view += 1;
        let recovery = match found {
            Ok(recovery) => recovery,
            Err(reason) => {
                for rank in nodes {
                    self.journal
                        .write(self.now, rank, &Entry::Paused { lost_samples: 0 });
                    let entry = Entry::Failed { reason: &reason };
                    self.journal.write(self.now, rank, &entry);
                }
                return Ok(());
            }
        };
        // A loss before the last one was made good: both are, when the steps of before the first are made again.
        let (at, reached) = match &self.loss {
            Some(loss) => (loss.at, loss.reached),
            None => (self.now, self.step),
        };
        self.from_step = self.copies.step;
        self.step = self.from_step;
        self.cut = recovery.cut.clone();
        self.journal
            .take_in(&recovery.fetching_s.to_bits().to_le_bytes());
        let view = self.view;
        let told = recovery.detection_s + recovery.planning_s + recovery.agreeing_s;
        let placed = told + recovery.fetching_s;
        self.loss = Some(Loss {
            at,
            reached,
            recovery,
        });
        self.begin()?;
        self.after(told, Event::Told(view));
        self.after(placed, Event::Placed(view));
        self.after(placed, Event::Fed(view));
        Ok(())
    }
}
