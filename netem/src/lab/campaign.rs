//! One run from its first process to its record.

use std::fs;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

use super::limits::Limits;
use super::lines::Lines;
use super::mesh::{self, Submission};
use super::namespace::Namespace;
use super::node::Node;
use super::processes::Processes;
use super::schedule::{Schedule, meets};
use super::switch::Switch;
use super::{Lab, LabError, address, machine};
use crate::link::{Fabric, NodeIndex};
use crate::record::{Mark, PairTraffic, Progress, Record, Traffic};
use crate::scenario::Scenario;

/// Between two looks at what programs do.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Between two looks at what nodes use and links carry, and the metrics of nodes.
const MEASURE_EVERY: Duration = Duration::from_secs(1);
/// Between two looks at the metrics of nodes.
const WATCH_EVERY: Duration = Duration::from_millis(100);

/// Runs a scenario.
pub(super) fn run(
    lab: &Lab,
    scenario: &Scenario,
    progress: Progress<'_>,
) -> Result<Record, LabError> {
    machine::check_shares(scenario.nodes.iter().filter_map(|node| node.cpu))?;
    if scenario.nodes.len() > address::MAX_NODES {
        return Err(LabError::TooManyNodes {
            nodes: scenario.nodes.len(),
            most: address::MAX_NODES,
        });
    }
    fs::create_dir_all(&lab.out).map_err(LabError::file(&lab.out))?;
    let out = lab.out.canonicalize().map_err(LabError::file(&lab.out))?;
    let lab = Lab {
        exe: lab.exe.clone(),
        out,
    };
    let mut campaign = Campaign::prepare(&lab, scenario)?;
    campaign.start_first(progress)?;
    while !campaign.is_over() {
        campaign.round(progress)?;
        campaign.rest();
    }
    campaign.note_deadline(progress);
    Ok(campaign.close())
}

/// A run that goes on.
pub(super) struct Campaign<'a> {
    lab: &'a Lab,
    scenario: &'a Scenario,
    // In the order in which they must go: processes, then their network and cgroups.
    submission: Option<Submission>,
    pub(super) nodes: Vec<Node>,
    pub(super) switch: Switch,
    pub(super) limits: Limits,
    pub(super) lines: Lines,
    schedule: Schedule,
    /// When each node starts, as long as it has not.
    starts: Vec<Option<Duration>>,
    pub(super) shares: Vec<Option<f64>>,
    start: Instant,
    /// Milliseconds since 1970 at the start.
    start_ms: f64,
    cpu_at_start: f64,
    next_measure: Duration,
    next_watch: Duration,
    job_taken: bool,
    /// The end's condition held.
    end_reached: bool,
    marks: Vec<Mark>,
    traffic: Vec<Traffic>,
}

impl<'a> Campaign<'a> {
    /// Namespaces, switch and cgroups; no program yet.
    fn prepare(lab: &'a Lab, scenario: &'a Scenario) -> Result<Self, LabError> {
        let limits = Limits::apply(lab, &scenario.nodes)?;
        let (mut nodes, mut taps) = (Vec::new(), Vec::new());
        for rank in 0..scenario.nodes.len() {
            let (namespace, tap) = Namespace::open(rank)?;
            nodes.push(Node::new(lab, scenario, rank, namespace)?);
            taps.push(tap);
        }
        let mut fabric = Fabric::new(nodes.len(), scenario.seed);
        let lines = Lines::start(scenario, &mut fabric);
        let start = Instant::now();
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Self {
            lab,
            scenario,
            submission: None,
            switch: Switch::start(taps, fabric, start)?,
            limits,
            lines,
            schedule: Schedule::new(&scenario.events, scenario.seed),
            starts: scenario.nodes.iter().map(|node| node.start).collect(),
            shares: scenario.nodes.iter().map(|node| node.cpu).collect(),
            nodes,
            start,
            start_ms: since_1970.map_or(0.0, |time| time.as_secs_f64() * 1000.0),
            cpu_at_start: own_cpu_seconds(),
            next_measure: Duration::ZERO,
            next_watch: Duration::ZERO,
            job_taken: false,
            end_reached: false,
            marks: Vec::new(),
            traffic: Vec::new(),
        })
    }

    pub(super) fn now(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    fn start_first(&mut self, progress: Progress<'_>) -> Result<(), LabError> {
        for missing in &self.limits.not_applied {
            progress(0.0, &format!("not applied: {missing}"));
        }
        let nodes = self.nodes.len();
        progress(0.0, &format!("{nodes} nodes on one switch"));
        self.start_due()
    }

    fn start_due(&mut self) -> Result<(), LabError> {
        let now = self.start.elapsed();
        for rank in 0..self.nodes.len() {
            if self.starts[rank].is_some_and(|at| at <= now) {
                self.starts[rank] = None;
                self.begin(rank)?;
            }
        }
        Ok(())
    }

    pub(super) fn begin(&mut self, rank: NodeIndex) -> Result<(), LabError> {
        let now = self.now();
        self.starts[rank] = None;
        let procs = self.limits.procs(rank);
        self.nodes[rank].start(self.lab, &procs, now)
    }

    /// Looks at everything once.
    fn round(&mut self, progress: Progress<'_>) -> Result<(), LabError> {
        self.start_due()?;
        self.see_exits(progress);
        let now = self.start.elapsed();
        if now >= self.next_watch {
            self.next_watch = now + WATCH_EVERY;
            self.read_metrics();
            self.submit(progress)?;
        }
        let clock = self.switch.now();
        if self.lines.next().is_some_and(|next| next <= clock) {
            self.lines.follow(clock, &mut self.switch.fabric());
        }
        let nodes = &self.nodes;
        let due = self
            .schedule
            .due(now, |action, rank| nodes[rank].may(action));
        for action in due {
            self.act(&action, progress)?;
        }
        if now >= self.next_measure {
            self.next_measure = now + MEASURE_EVERY;
            self.measure();
        }
        Ok(())
    }

    /// Sleeps until something may have changed.
    fn rest(&self) {
        let now = self.start.elapsed();
        let trace = self.lines.next().map(Duration::from_nanos);
        let known = [self.schedule.next(), trace, Some(self.scenario.end.after)];
        let next = known.into_iter().flatten().min().unwrap_or(LOOK_EVERY);
        thread::sleep(next.saturating_sub(now).min(LOOK_EVERY));
    }

    fn see_exits(&mut self, progress: Progress<'_>) {
        let now = self.now();
        for rank in 0..self.nodes.len() {
            let node = &mut self.nodes[rank];
            let Some(end) = node.ended(now) else {
                continue;
            };
            let mut detail = end.words();
            progress(now, &format!("{} ended: {detail}", node.name));
            if end.is_failure() && !end.asked {
                let tail = node.tail();
                for line in tail.lines() {
                    progress(now, &format!("  {} | {line}", node.name));
                }
                detail = format!("{detail}\n{tail}");
            }
            self.mark("exit", vec![rank], detail);
        }
    }

    fn read_metrics(&mut self) {
        let now = self.start.elapsed();
        let until = self.scenario.end.when.as_ref();
        for node in &mut self.nodes {
            for line in node.watch.look(self.start_ms) {
                self.schedule.heard(now, node.rank, line);
                self.end_reached |= until.is_some_and(|until| meets(until, node.rank, line));
            }
        }
    }

    /// Hands in the job once every peer that starts at once answers.
    fn submit(&mut self, progress: Progress<'_>) -> Result<(), LabError> {
        let Some(job) = self.scenario.job.as_ref().filter(|_| !self.job_taken) else {
            return Ok(());
        };
        if let Some(submission) = &mut self.submission {
            self.job_taken = submission.is_taken()?;
            if self.job_taken {
                self.submission = None;
                progress(self.now(), "the job is handed in");
                self.mark("job", Vec::new(), String::new());
            }
            return Ok(());
        }
        let at_once = |node: &&Node| {
            node.is_skein && self.scenario.nodes[node.rank].start == Some(Duration::ZERO)
        };
        let first: Vec<&Node> = self.nodes.iter().filter(at_once).collect();
        if first.iter().all(|node| mesh::is_up(&node.folder))
            && let Some(node) = first.first()
        {
            let skein = mesh::binary(self.lab)?;
            let submission = Submission::start(
                self.lab,
                &skein,
                &node.name,
                &node.folder,
                job,
                self.scenario.seed,
            );
            self.submission = Some(submission?);
        }
        Ok(())
    }

    fn mark(&mut self, what: &str, nodes: Vec<NodeIndex>, detail: String) {
        self.mark_at(self.now(), what, nodes, detail);
    }

    pub(super) fn mark_at(&mut self, t: f64, what: &str, nodes: Vec<NodeIndex>, detail: String) {
        let what = what.to_owned();
        self.marks.push(Mark {
            t,
            nodes,
            what,
            detail,
        });
    }

    fn measure(&mut self) {
        let now = self.now();
        let processes = Processes::now();
        for node in &mut self.nodes {
            let counted = self.limits.cpu_seconds(node.rank);
            node.measure(&processes, counted, now);
        }
        let fabric = self.switch.fabric();
        let pairs = fabric.counters().map(|((from, to), of)| PairTraffic {
            from,
            to,
            bytes: of.bytes,
            delivered: of.delivered_bytes,
            dropped: of.dropped_queue + of.dropped_line + of.dropped_cut,
        });
        let pairs = pairs.collect();
        drop(fabric);
        self.traffic.push(Traffic { t: now, pairs });
    }

    fn is_over(&self) -> bool {
        self.start.elapsed() >= self.scenario.end.after || self.is_complete()
    }

    /// Whether what should end the run has happened.
    fn is_complete(&self) -> bool {
        let end = &self.scenario.end;
        if self.end_reached {
            return true;
        }
        let starts_none = self.starts.iter().all(Option::is_none) && !self.schedule.starts_any();
        if end.exit && starts_none && self.nodes.iter().all(|node| !node.runs()) {
            return true;
        }
        end.job && self.job_is_closed()
    }

    /// Whether every peer that runs has closed the job, and there is one.
    fn job_is_closed(&self) -> bool {
        let mut running = self
            .nodes
            .iter()
            .filter(|node| node.is_skein && node.runs());
        let closed = |node: &Node| node.watch.metrics().any(|line| line.event == "closed");
        self.job_taken && running.clone().next().is_some() && running.all(closed)
    }

    /// Says so where the time was over before what should have ended the run.
    fn note_deadline(&mut self, progress: Progress<'_>) {
        let end = &self.scenario.end;
        if self.is_complete() || !(end.job || end.exit || end.when.is_some()) {
            return;
        }
        let handed_in = self.job_taken || self.scenario.job.is_none();
        let detail = match handed_in {
            true => "the time was over before what should have ended the run",
            false => "the time was over before every peer answered, so the job was not handed in",
        };
        progress(self.now(), detail);
        self.mark("deadline", Vec::new(), detail.into());
    }

    /// Ends everything and says what happened.
    fn close(mut self) -> Record {
        let now = self.now();
        self.measure();
        self.nodes.iter_mut().for_each(|node| node.kill(now));
        for node in &mut self.nodes {
            while node.watch.read(self.start_ms) > 0 {}
        }
        let testbed = own_cpu_seconds() - self.cpu_at_start + self.switch.cpu_seconds();
        if !self.switch.is_prompt() {
            let missing =
                "the switch's priority: links are longer while nodes compute on all cores";
            self.limits.not_applied.push(missing.into());
        }
        let scenario = self.scenario;
        Record {
            scenario: scenario.name.clone(),
            variant: scenario.variant.clone(),
            engine: "lab".into(),
            seed: scenario.seed,
            duration_s: now,
            machine: machine::describe(),
            nodes: self
                .nodes
                .into_iter()
                .map(|node| node.into_record(scenario))
                .collect(),
            traffic: self.traffic,
            marks: self.marks,
            not_applied: self.limits.not_applied.clone(),
            switch_cpu_s: Some(testbed),
            trace_hash: None,
            speed: None,
        }
    }
}

/// CPU seconds of this thread.
fn own_cpu_seconds() -> f64 {
    let used = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    used.map_or(0.0, |used| Duration::from(used).as_secs_f64())
}
