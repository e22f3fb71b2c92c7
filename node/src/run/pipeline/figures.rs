//! What a pipeline job shows to users of this node, and when a stop condition holds.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use skein_gossip::ids::{Digest, PeerId};
use skein_gossip::pipeline::agreement::Agreement;
use skein_gossip::pipeline::chain;
use skein_gossip::pipeline::message::Standing;
use skein_gossip::view::Contribution as Work;

use super::driver::Running;
use super::facts::Facts;
use super::worker::Step;
use crate::control::{
    Best, Contribution, Hex, JobStatus, Measured, NO_CUT, Phase, PlanStatus, Recovery, StageStatus,
};
use crate::job::{JobFile, Stop};
use crate::run::STOPPED_BY;
use crate::run::driver::JobContext;
use crate::run::folder::JobResult;
use crate::run::journal::now_ms;

/// Points of the samples-per-second window, one per half second.
const RATE_POINTS: usize = 10;
/// Weight of a step's loss in the running mean.
const LOSS_WEIGHT: f32 = 0.05;

/// See the module's header.
#[derive(Debug)]
pub(super) struct Figures {
    pub(super) failure: Option<String>,
    /// Why this peer has no data.
    pub(super) no_data: Option<String>,
    pub(super) refused: u64,
    /// What the cut promises.
    pub(super) plan: Result<PlanStatus, String>,
    /// What peers measured, until the job begins.
    pub(super) measured: Option<Box<Measured>>,
    stop: Stop,
    train_loss: Option<f32>,
    work: Work,
    bytes_in: u64,
    train_len: u64,
    began: Option<Instant>,
    started_ms: u64,
    rates: VecDeque<(Instant, u64)>,
    rate: Option<f64>,
    digest: Option<Digest>,
    result: Option<JobResult>,
}

impl Figures {
    pub(super) fn new(file: &JobFile) -> Self {
        Self {
            failure: None,
            no_data: None,
            refused: 0,
            plan: Err(String::new()),
            measured: None,
            stop: file.stop,
            train_loss: None,
            work: Work::default(),
            bytes_in: 0,
            train_len: 0,
            began: None,
            started_ms: now_ms(),
            rates: VecDeque::new(),
            rate: None,
            digest: None,
            result: None,
        }
    }

    pub(super) fn prepared(&mut self, facts: &Facts) {
        self.train_len = facts.data.train;
    }

    /// The first view: the clock of `stop.seconds` starts.
    pub(super) fn adopted(&mut self) {
        self.began.get_or_insert_with(Instant::now);
    }

    /// Adds a step; returns the own work so far.
    pub(super) fn stepped(&mut self, step: &Step) -> Work {
        let work = &mut self.work;
        work.steps += 1;
        work.samples += step.samples;
        work.bytes_out += step.bytes_out;
        work.computing_us += step.computing.as_micros() as u64;
        work.waiting_us += step.waiting.as_micros() as u64;
        self.bytes_in += step.bytes_in;
        if let Some(loss) = step.loss {
            let mean = self
                .train_loss
                .map_or(loss, |mean| mean + LOSS_WEIGHT * (loss - mean));
            self.train_loss = mean.is_finite().then_some(mean);
        }
        *work
    }

    pub(super) fn sample_rate(&mut self, samples: u64) {
        let now = Instant::now();
        if self.rates.back().is_some_and(|(_, last)| samples < *last) {
            self.rates.clear();
        }
        self.rates.push_back((now, samples));
        while self.rates.len() > RATE_POINTS {
            self.rates.pop_front();
        }
        self.rate = self.rates.front().and_then(|(then, before)| {
            let seconds = (now - *then).as_secs_f64();
            (seconds > 0.9).then(|| (samples - before) as f64 / seconds)
        });
    }

    /// Why training is enough, by everything that needs no look at held-out samples. Steps are counted by the agreement.
    pub(super) fn stop_holds(&self, samples: u64) -> Option<String> {
        let began = self.began.filter(|_| self.result.is_none())?;
        self.stop
            .enough(0, samples, self.train_len, began.elapsed().as_secs_f64())
    }

    /// The finished model's hash.
    pub(super) fn finished(&mut self, digest: Digest) {
        self.digest = Some(digest);
    }

    /// How the job ended, once it has.
    pub(super) fn result(&self) -> Option<&JobResult> {
        self.result.as_ref()
    }

    /// Whether the finished model is here.
    pub(super) fn has_model(&self) -> bool {
        self.digest.is_some()
    }

    /// Whether it is the one of this hash, and the job is over.
    pub(super) fn holds_model(&self, digest: Digest) -> bool {
        self.result.is_some() && self.digest == Some(digest)
    }

    /// The job was found closed: on disk, or by others.
    pub(super) fn closed_before(&mut self, result: JobResult) {
        self.digest = result.best.as_ref().map(|best| best.hash.0);
        self.result = Some(result);
    }

    /// How the job ended, for `result.json`.
    pub(super) fn close(&mut self, running: &Running, me: PeerId) -> JobResult {
        let agreement = &running.agreement;
        let judged = agreement.judged();
        let best = self.digest.map(|digest| Best {
            peer: Hex(me),
            accuracy: judged.map(|judged| f64::from(judged.accuracy)),
            loss: judged.map(|judged| f64::from(judged.loss)),
            hash: Hex(digest),
        });
        let batch = u64::from(running.facts.batch);
        let last = agreement.last_step().unwrap_or(0);
        let reason = agreement
            .stop()
            .map_or_else(|| format!("stop.steps = {last} reached"), str::to_owned);
        let result = JobResult {
            reason,
            best,
            samples_mesh: last * batch,
            contributions: self.contributions(agreement, me),
        };
        self.result = Some(result.clone());
        result
    }

    /// Who did what so far, as far as is known here.
    pub(super) fn contributions(&self, agreement: &Agreement, me: PeerId) -> Vec<Contribution> {
        let contribution = |(peer, work): (PeerId, Work)| Contribution {
            peer: Hex(peer),
            steps: work.steps,
            samples: work.samples,
            bytes_out: work.bytes_out,
            compression: None,
            seconds_waiting: work.waiting_us as f64 / 1e6,
            batch: 0,
            commits: 0,
        };
        let others = agreement
            .beats()
            .map(|(peer, beat)| (peer, beat.contribution));
        let all: BTreeMap<PeerId, Work> = others
            .chain([(me, agreement.own_beat().contribution)])
            .collect();
        all.into_iter().map(contribution).collect()
    }

    /// Everything, for users.
    pub(super) fn status(
        &self,
        context: &JobContext,
        running: Option<&Running>,
        n_connected: usize,
    ) -> JobStatus {
        let me = context.net.local();
        let agreement = running.map(|running| &running.agreement);
        let (phase, reason) = self.phase(context, agreement, n_connected);
        let view = agreement.and_then(Agreement::view);
        let step = agreement.map_or(0, Agreement::step);
        let result = self.result.as_ref();
        let samples = result.map_or(step * u64::from(context.file.train.batch), |result| {
            result.samples_mesh
        });
        let judged = agreement.and_then(Agreement::judged);
        let seconds = |us: u64| us as f64 / 1e6;
        let progress = self.progress(step, samples).filter(|_| result.is_none());
        let eta = self
            .began
            .zip(progress)
            .filter(|(_, done)| *done > 0.001)
            .map(|(began, done)| {
                let elapsed = began.elapsed().as_secs_f64();
                elapsed * (1.0 - done) / done
            });
        JobStatus {
            id: Hex(context.id),
            name: context.file.name.clone(),
            phase,
            reason,
            step,
            epoch: if self.train_len > 0 {
                samples as f64 / self.train_len as f64
            } else {
                0.0
            },
            samples_own: self.work.samples,
            samples_mesh: samples,
            train_loss: self.train_loss.map(f64::from),
            val_loss: judged.map(|judged| f64::from(judged.loss)),
            val_accuracy: judged.map(|judged| f64::from(judged.accuracy)),
            samples_per_s_mesh: self.rate.filter(|_| phase == Phase::Running),
            peers: view
                .iter()
                .flat_map(|view| &view.members)
                .map(|member| Hex(*member))
                .collect(),
            view: view.map_or(0, |view| view.stamp.number),
            bytes_in: self.bytes_in,
            bytes_out: self.work.bytes_out,
            seconds_computing: seconds(self.work.computing_us),
            seconds_waiting: seconds(self.work.waiting_us),
            seconds_communicating: 0.0,
            eta_s: eta,
            progress_frac: progress,
            started_ms: self.started_ms,
            best: result.and_then(|result| result.best.clone()),
            model_hash: self.digest.map(Hex),
            contributions: match (result, agreement) {
                (Some(result), _) => result.contributions.clone(),
                (None, Some(agreement)) => self.contributions(agreement, me),
                (None, None) => Vec::new(),
            },
            refused_updates: self.refused,
            links: Vec::new(),
            drift_frac: None,
            lessons: Vec::new(),
            plan: self.plan.clone().ok(),
            measured: self.measured.clone(),
            stages: running
                .map(|running| stages(running, me))
                .unwrap_or_default(),
            recovery: running.map(|running| Recovery {
                whole: running.agreement.whole_line().0,
                whole_peers: running.agreement.whole_line().1 as u32,
                step: running.agreement.safe(),
                redone: step.saturating_sub(running.agreement.safe()),
                fewest_copies: running.agreement.fewest_copies() as u32,
                bytes: running.copies.bytes(),
            }),
        }
    }

    fn phase(
        &self,
        context: &JobContext,
        agreement: Option<&Agreement>,
        n_connected: usize,
    ) -> (Phase, Option<String>) {
        if let Some(result) = &self.result {
            let phase = match (result.reason.starts_with(STOPPED_BY), result.best.is_some()) {
                (true, _) => Phase::Stopped,
                (false, true) => Phase::Done,
                (false, false) => Phase::Failed,
            };
            return (phase, Some(result.reason.clone()));
        }
        if let Some(failure) = &self.failure {
            return (Phase::Failed, Some(failure.clone()));
        }
        let Some(agreement) = agreement else {
            let reason = match &self.no_data {
                None => "loading data and measuring this device".to_owned(),
                Some(why) => format!(
                    "waiting for a peer that holds the data ({n_connected} connected; here: {why})"
                ),
            };
            return (Phase::Waiting, Some(reason));
        };
        if let Some(reason) = agreement.paused() {
            return (Phase::Waiting, Some(reason.to_owned()));
        }
        if matches!(agreement.own_beat().standing, Standing::Finished(_)) {
            return (Phase::Ending, agreement.stop().map(str::to_owned));
        }
        match agreement.view() {
            None if self.plan.as_ref().is_err_and(|reason| !reason.is_empty()) => {
                let reason = self.plan.as_ref().err().cloned().unwrap_or_default();
                (Phase::Waiting, Some(format!("{NO_CUT}: {reason}")))
            }
            None => {
                let ready = agreement.candidates().len();
                (
                    Phase::Waiting,
                    Some(format!(
                        "{ready} of {} peers ready",
                        context.file.start.peers
                    )),
                )
            }
            Some(_) if agreement.is_running() => (Phase::Running, None),
            Some(_) => (Phase::Syncing, Some("stages are being moved".into())),
        }
    }

    fn progress(&self, step: u64, samples: u64) -> Option<f64> {
        let began = self.began?;
        let steps = self.stop.steps.map(|steps| step as f64 / steps as f64);
        let epochs = self
            .stop
            .epochs
            .map(|epochs| samples as f64 / (epochs * self.train_len.max(1) as f64));
        let seconds = self
            .stop
            .seconds
            .map(|seconds| began.elapsed().as_secs_f64() / seconds);
        let done = [steps, epochs, seconds]
            .into_iter()
            .flatten()
            .reduce(f64::max);
        done.map(|done| done.clamp(0.0, 1.0))
    }
}

/// The stages of the newest view, as far as is known here.
fn stages(running: &Running, me: PeerId) -> Vec<StageStatus> {
    let agreement = &running.agreement;
    let Some(view) = agreement.view() else {
        return Vec::new();
    };
    let own = agreement.own_beat();
    let copies = running.facts.pipeline.copies as usize;
    let stage = |(number, stage): (usize, &skein_gossip::pipeline::plan::Stage)| {
        let beat = |host: PeerId| match host == me {
            true => Some(&own),
            false => {
                let mut beats = agreement.beats();
                beats
                    .find(|(peer, _)| *peer == host)
                    .map(|(_, beat)| beat.as_ref())
            }
        };
        let in_place = |host: PeerId| {
            beat(host).is_some_and(|beat| beat.in_place && beat.view == Some(view.stamp))
        };
        let slowdowns = stage.hosts().filter_map(|host| Some(beat(host)?.slowdown));
        let steps = stage
            .hosts()
            .map(|host| beat(host).map_or(0, |beat| beat.step));
        StageStatus {
            host: Hex(stage.lead().unwrap_or(me)),
            first_block: stage.blocks.start,
            n_blocks: stage.blocks.end - stage.blocks.start,
            in_place: stage.hosts().all(in_place),
            alive: stage.hosts().all(|host| agreement.is_alive(host)),
            step: steps.min().unwrap_or(0),
            slowdown: slowdowns.reduce(f32::max).map(f64::from),
            keepers: chain::keepers(&view.plan, &view.members, number, copies)
                .into_iter()
                .map(Hex)
                .collect(),
            fellows: stage.hosts().skip(1).map(Hex).collect(),
        }
    };
    view.plan.stages.iter().enumerate().map(stage).collect()
}
