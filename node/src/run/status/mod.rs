//! The figures of a job on this peer: what `skein status` shows, what the report lists (`work`), and when a stop condition holds.

mod work;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use skein_gossip::agreement::Agreement;
use skein_gossip::exchange::LinkStats;
use skein_gossip::guide::Guide;
use skein_gossip::ids::{Digest, PeerId};
use skein_gossip::message::{Decision, Standing};
use skein_gossip::view::Contribution as Work;
use skein_model::train::Evaluation;

use super::coder::Report;
use super::driver::JobContext;
use super::folder::JobResult;
use super::journal::now_ms;
use super::prepare::Prepared;
use crate::control::{Best, Hex, JobStatus, Lessons, Phase};
use crate::job::{JobFile, Stop};

/// Name of the contributions in a checkpoint's extra fields.
const CONTRIBUTIONS: &str = "contributions";
/// Points of the samples-per-second window, one per half second.
const RATE_POINTS: usize = 10;
/// Weight of a step's loss in the running mean.
const LOSS_WEIGHT: f32 = 0.05;

/// The figures.
#[derive(Debug)]
pub(super) struct Figures {
    pub(super) step: u64,
    pub(super) train_loss: Option<f32>,
    pub(super) contribution: Work,
    pub(super) failure: Option<String>,
    pub(super) refused_own: u64,
    stop: Stop,
    train_len: u64,
    began: Option<Instant>,
    started_ms: u64,
    bytes_in: u64,
    refused: u64,
    links: BTreeMap<PeerId, LinkStats>,
    commits: u64,
    drift_frac: Option<f64>,
    lessons: Vec<Lessons>,
    seen_refused: u64,
    evaluation: Option<Evaluation>,
    rates: VecDeque<(Instant, u64)>,
    rate: Option<f64>,
    digest: Option<Digest>,
    best: Option<Decision>,
    /// What an earlier run of this job contributed, from the checkpoint.
    past: BTreeMap<PeerId, Work>,
    /// Samples of the mesh behind that checkpoint.
    past_samples: u64,
    closed: bool,
    closed_result: Option<JobResult>,
}

impl Figures {
    pub(super) fn new(file: &JobFile) -> Self {
        Self {
            step: 0,
            train_loss: None,
            contribution: Work::default(),
            failure: None,
            refused_own: 0,
            stop: file.stop,
            train_len: 0,
            began: None,
            started_ms: now_ms(),
            bytes_in: 0,
            refused: 0,
            links: BTreeMap::new(),
            commits: 0,
            drift_frac: None,
            lessons: Vec::new(),
            seen_refused: 0,
            evaluation: None,
            rates: VecDeque::new(),
            rate: None,
            digest: None,
            best: None,
            past: BTreeMap::new(),
            past_samples: 0,
            closed: false,
            closed_result: None,
        }
    }

    pub(super) fn prepared(&mut self, prepared: &Prepared) {
        self.step = prepared.holding.step;
        self.train_len = prepared.data.train.len() as u64;
        self.digest = Some(prepared.holding.digest);
        self.past_samples = prepared.progress.samples;
        let past = prepared.progress.extra.get(CONTRIBUTIONS).cloned();
        let past: BTreeMap<String, Work> = past
            .and_then(|past| serde_json::from_value(past).ok())
            .unwrap_or_default();
        self.past = past
            .into_iter()
            .filter_map(|(peer, work)| Some((peer.parse().ok()?, work)))
            .collect();
    }

    /// The first view: the clock of `stop.seconds` starts.
    pub(super) fn adopted(&mut self) {
        self.began.get_or_insert_with(Instant::now);
    }

    pub(super) fn stepped(
        &mut self,
        step: u64,
        loss: f32,
        samples: u64,
        computing: Duration,
        waiting: Duration,
        communicating: Duration,
    ) {
        self.step = step;
        self.digest = None;
        let mean = self
            .train_loss
            .map_or(loss, |mean| mean + LOSS_WEIGHT * (loss - mean));
        self.train_loss = mean.is_finite().then_some(mean);
        let work = &mut self.contribution;
        work.steps += 1;
        work.samples += samples;
        work.computing_us += computing.as_micros() as u64;
        work.waiting_us += waiting.as_micros() as u64;
        work.communicating_us += communicating.as_micros() as u64;
    }

    pub(super) fn evaluated(&mut self, step: u64, evaluation: &Evaluation) {
        tracing::debug!(
            step,
            accuracy = evaluation.accuracy,
            "looked at the validation set"
        );
        self.evaluation = Some(*evaluation);
    }

    /// Accuracy and loss of the latest look at the validation set.
    pub(super) fn latest(&self) -> (Option<f64>, Option<f64>) {
        let loss = self
            .evaluation
            .map(|evaluation| evaluation.loss)
            .filter(|loss| loss.is_finite());
        (self.evaluation.map(|evaluation| evaluation.accuracy), loss)
    }

    pub(super) fn links(&mut self, report: &Report) {
        self.contribution.bytes_out = report.links.values().map(|link| link.bytes_out).sum();
        self.contribution.dense_bytes_out =
            report.links.values().map(|link| link.dense_bytes_out).sum();
        self.bytes_in = report.links.values().map(|link| link.bytes_in).sum();
        self.refused = report.links.values().map(|link| link.refused).sum();
        self.links.clone_from(&report.links);
    }

    /// What this peer learnt so far, and how far replicas are apart.
    pub(super) fn learnt(&mut self, guide: &Guide, commits: u64) {
        self.commits = commits;
        let survey = guide.survey();
        let drift = f64::from(survey.typical / survey.norm);
        self.drift_frac = Some(drift).filter(|drift| drift.is_finite());
        let lessons = guide.dealings().map(|(peer, dealings)| Lessons {
            peer: Hex(peer),
            merged: dealings.merged,
            rejected: dealings.rejected,
            failed: dealings.failed,
        });
        self.lessons = lessons.collect();
    }

    /// A refusal that has not been written down yet.
    pub(super) fn new_refusal(&mut self, report: &Report) -> Option<(PeerId, String)> {
        self.links(report);
        let is_new = self.refused > self.seen_refused;
        self.seen_refused = self.refused;
        report.last_refusal.clone().filter(|_| is_new)
    }

    pub(super) fn sample_rate(&mut self, samples_mesh: u64) {
        let now = Instant::now();
        if self
            .rates
            .back()
            .is_some_and(|(_, last)| samples_mesh < *last)
        {
            self.rates.clear();
        }
        self.rates.push_back((now, samples_mesh));
        while self.rates.len() > RATE_POINTS {
            self.rates.pop_front();
        }
        self.rate = self.rates.front().and_then(|(then, samples)| {
            let seconds = (now - *then).as_secs_f64();
            (seconds > 0.9).then(|| (samples_mesh - samples) as f64 / seconds)
        });
    }

    /// Why training is enough, by everything that needs no evaluation.
    pub(super) fn stop_holds(&self, samples_mesh: u64) -> Option<String> {
        let began = self.began?;
        if self.closed {
            return None;
        }
        let seconds = began.elapsed().as_secs_f64();
        self.stop
            .enough(self.step, samples_mesh, self.train_len, seconds)
    }

    /// Why training is enough, by an evaluation of the whole validation set.
    pub(super) fn target_met(&self, evaluation: &Evaluation) -> Option<String> {
        self.stop.target_met(evaluation.accuracy, evaluation.loss)
    }

    pub(super) fn closed(&mut self, decision: Option<Decision>) {
        self.closed = true;
        self.best = decision;
        self.digest = decision.map(|decision| decision.candidate.digest);
    }

    /// The job was found closed on disk.
    pub(super) fn closed_before(&mut self, result: JobResult) {
        self.closed = true;
        self.digest = result.best.as_ref().map(|best| best.hash.0);
        self.closed_result = Some(result);
    }

    /// What goes into `result.json` and the report.
    pub(super) fn result(
        &self,
        agreement: &Agreement,
        decision: Option<Decision>,
        reason: &str,
    ) -> JobResult {
        JobResult {
            reason: reason.to_owned(),
            best: decision.map(best),
            samples_mesh: agreement.mesh_samples(),
            contributions: self.contributions(agreement),
        }
    }

    pub(super) fn contributions_for_checkpoint(
        &self,
        agreement: &Agreement,
    ) -> BTreeMap<String, serde_json::Value> {
        let all = self.all_work(agreement);
        let named: BTreeMap<String, Work> = all
            .into_iter()
            .map(|(peer, work)| (peer.to_string(), work))
            .collect();
        let value = serde_json::to_value(named).unwrap_or_default();
        BTreeMap::from([(CONTRIBUTIONS.to_owned(), value)])
    }

    /// Everything, for users.
    pub(super) fn status(
        &self,
        context: &JobContext,
        agreement: &Agreement,
        reason: &str,
    ) -> JobStatus {
        let beat = agreement.own_beat();
        let (phase, reason) = self.phase(context, agreement, &beat.standing, reason);
        let samples_mesh = agreement.mesh_samples();
        let view = agreement.view();
        let seconds = |us: u64| us as f64 / 1e6;
        let finite = |value: f64| value.is_finite().then_some(value);
        let closed = self.closed_result.as_ref();
        let samples_mesh = closed.map_or(samples_mesh, |result| result.samples_mesh);
        let (progress_frac, eta_s) = self.foresee(samples_mesh);
        JobStatus {
            id: Hex(context.id),
            name: context.file.name.clone(),
            phase,
            reason,
            step: self.step,
            epoch: if self.train_len > 0 {
                samples_mesh as f64 / self.train_len as f64
            } else {
                0.0
            },
            samples_own: self.contribution.samples,
            samples_mesh,
            train_loss: self.train_loss.map(f64::from),
            val_loss: self
                .evaluation
                .and_then(|evaluation| finite(evaluation.loss)),
            val_accuracy: self.evaluation.map(|evaluation| evaluation.accuracy),
            samples_per_s_mesh: self.rate.filter(|_| phase == Phase::Running),
            peers: view
                .iter()
                .flat_map(|view| &view.members)
                .map(|member| Hex(member.peer))
                .collect(),
            view: view.map_or(0, |view| view.stamp.number),
            bytes_in: self.bytes_in,
            bytes_out: self.contribution.bytes_out,
            seconds_computing: seconds(self.contribution.computing_us),
            seconds_waiting: seconds(self.contribution.waiting_us),
            seconds_communicating: seconds(self.contribution.communicating_us),
            eta_s,
            progress_frac,
            started_ms: self.started_ms,
            best: closed.map_or_else(|| self.best.map(best), |result| result.best.clone()),
            model_hash: self.digest.map(Hex),
            contributions: closed.map_or_else(
                || self.contributions(agreement),
                |result| result.contributions.clone(),
            ),
            refused_updates: self.refused + self.refused_own,
            links: self.link_statuses(agreement),
            drift_frac: self.drift_frac,
            lessons: self.lessons.clone(),
            stages: Vec::new(),
            recovery: None,
            plan: None,
            measured: None,
        }
    }

    fn phase(
        &self,
        context: &JobContext,
        agreement: &Agreement,
        standing: &Standing,
        reason: &str,
    ) -> (Phase, Option<String>) {
        if let Some(result) = &self.closed_result {
            return (
                finished(&result.reason, result.best.is_some()),
                Some(result.reason.clone()),
            );
        }
        if self.closed && self.failure.is_none() {
            return (
                finished(reason, self.best.is_some()),
                Some(reason.to_owned()),
            );
        }
        if let Some(failure) = &self.failure {
            return (Phase::Failed, Some(failure.clone()));
        }
        match standing {
            Standing::Preparing => (
                Phase::Waiting,
                Some("loading data and building the model".into()),
            ),
            Standing::Ready(_) | Standing::Again(_) => {
                let beats = agreement.heard().values();
                let ready = beats.filter(|beat| beat.standing.holding().is_some());
                let n_ready = 1 + ready.count();
                let reason = if agreement.heard().values().any(|beat| beat.view.is_some()) {
                    "waiting to be admitted by the peers that train".to_owned()
                } else {
                    format!("{n_ready} of {} peers ready", context.file.start.peers)
                };
                (Phase::Waiting, Some(reason))
            }
            Standing::Syncing => (Phase::Syncing, None),
            Standing::Training => (Phase::Running, None),
            Standing::Ending => (Phase::Ending, Some(reason.to_owned())),
            Standing::Unable(reason) => (Phase::Failed, Some(reason.clone())),
        }
    }

    /// How far the nearest condition that can be foreseen is, and how long it takes.
    fn foresee(&self, samples_mesh: u64) -> (Option<f64>, Option<f64>) {
        let Some(began) = self.began.filter(|_| !self.closed) else {
            return (None, None);
        };
        let elapsed = began.elapsed().as_secs_f64();
        let steps = self.stop.steps.map(|steps| self.step as f64 / steps as f64);
        let len = self.train_len.max(1) as f64;
        let epochs = self
            .stop
            .epochs
            .map(|epochs| samples_mesh as f64 / (epochs * len));
        let seconds = self.stop.seconds.map(|seconds| elapsed / seconds);
        let done = [steps, epochs, seconds]
            .into_iter()
            .flatten()
            .fold(None, |most: Option<f64>, next| {
                Some(most.map_or(next, |most| most.max(next)))
            });
        let done = done.map(|done| done.clamp(0.0, 1.0));
        let eta = done
            .filter(|done| *done > 0.001)
            .map(|done| elapsed * (1.0 - done) / done);
        (done, eta)
    }
}

/// A job that a user stopped says so; one without a model failed unless it was stopped.
fn finished(reason: &str, has_model: bool) -> Phase {
    match (reason.starts_with(super::STOPPED_BY), has_model) {
        (true, _) => Phase::Stopped,
        (false, true) => Phase::Done,
        (false, false) => Phase::Failed,
    }
}

fn best(decision: Decision) -> Best {
    let finite = |value: f32| value.is_finite().then_some(f64::from(value));
    Best {
        peer: Hex(decision.winner),
        accuracy: finite(decision.candidate.accuracy),
        loss: finite(decision.candidate.loss),
        hash: Hex(decision.candidate.digest),
    }
}
