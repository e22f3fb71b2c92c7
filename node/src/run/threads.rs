//! The two threads of a job, and the slow work around them: preparing, restoring, evaluating, checkpoints, the result.

use std::sync::Arc;
use std::time::{Duration, Instant};

use skein_gossip::exchange::Exchange;
use skein_gossip::gradient::layout::Layout as GradientLayout;
use skein_gossip::ids::PeerId;
use skein_gossip::message::Standing;
use skein_gossip::transfer::Manifest;
use skein_model::checkpoint::{self, Progress, Store};
use skein_model::data::{Normalisation, Splits};
use skein_model::model::Layout;
use skein_model::snapshot::Snapshot;
use tokio::sync::{mpsc, oneshot, watch};

use super::coder::{self, CoderThread};
use super::driver::{Done, Driver, JobContext};
use super::folder::JobResult;
use super::prepare::{self, Prepared};
use super::trainer::{self, Command, Lesson, Replica, Settings, Teacher, TrainingThread};

/// How long leaving waits for a last checkpoint.
const LAST_SAVE: Duration = Duration::from_millis(1200);

/// A job's threads, and what is known of the model they work on.
#[derive(Debug)]
pub(super) struct Threads {
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) events: mpsc::Receiver<trainer::Event>,
    pub(super) report: watch::Receiver<coder::Report>,
    pub(super) synchronous: bool,
    pub(super) replica_bytes: u64,
    pub(super) weights_bytes: u64,
    pub(super) layout: Arc<Layout>,
    pub(super) normalisation: Normalisation,
    pub(super) data: Arc<Splits>,
    store: Arc<Store>,
}

impl Threads {
    /// Ends both threads, after the step they are at.
    pub(super) fn end(&self, coder: &mpsc::Sender<coder::Input>) {
        for sent in [
            self.commands.try_send(Command::End).is_ok(),
            coder.try_send(coder::Input::End).is_ok(),
        ] {
            if !sent {
                tracing::debug!("a thread is busy; it ends with the process");
            }
        }
    }

    /// Reads weights as [`encode_weights`] writes them.
    pub(super) fn decode_weights(&self, bytes: &[u8]) -> Result<Snapshot, String> {
        Snapshot::decode(bytes, &weights_only(&self.layout)).map_err(|error| error.to_string())
    }
}

fn weights_only(layout: &Layout) -> Layout {
    Layout {
        optimiser: Vec::new(),
        ..layout.clone()
    }
}

/// The bytes of a snapshot's weights without the optimiser's state.
pub(super) fn encode_weights(snapshot: &Snapshot) -> Vec<u8> {
    Snapshot {
        optimiser: Vec::new(),
        ..snapshot.clone()
    }
    .encode()
}

/// Loads data, model and checkpoint on a thread of its own.
pub(super) fn prepare(context: &JobContext, done: mpsc::Sender<Done>) {
    let (id, file) = (context.id, context.file.clone());
    let (folder, private) = (context.folder.clone(), context.private.clone());
    let draws = context.draws;
    tokio::task::spawn_blocking(move || {
        let prepared = match draws {
            true => prepare::prepare(id, &file, &folder, &private),
            false => Err("it was started with --no-data, and a replica draws samples".into()),
        };
        let _ = done.blocking_send(Done::Prepared(prepared.map(Box::new)));
    });
}

/// Starts both threads, paused.
pub(super) fn start(
    context: &JobContext,
    prepared: Prepared,
    coder: mpsc::Sender<coder::Input>,
    inputs: mpsc::Receiver<coder::Input>,
    started: Instant,
) -> Result<Threads, String> {
    let file = &context.file;
    let strategy = file.strategy.exchange;
    let synchronous = strategy.is_synchronous();
    let lengths: Vec<usize> = prepared
        .layout
        .parameters
        .iter()
        .map(|segment| segment.len)
        .collect();
    let layout = GradientLayout::new(&lengths).map_err(|error| error.to_string())?;
    let exchange = Exchange::new(context.id, context.net.local(), strategy.config(), &layout)
        .map_err(|error| error.to_string())?;
    let (commands, command_queue) = mpsc::channel(trainer::COMMANDS);
    let (event_queue, events) = mpsc::channel(trainer::EVENTS);
    let (report, reports) = watch::channel(coder::Report::default());
    let model_layout = Arc::new(prepared.layout);
    let normalisation = prepared.data.train.normalisation().clone();
    let training = TrainingThread {
        trainer: prepared.trainer,
        data: prepared.data.clone(),
        split: file.data.split.clone(),
        settings: Settings {
            batch: file.train.batch,
            exchange: strategy,
            last_step: file.stop.steps,
            evaluate_every: file.evaluate.every,
            evaluate_samples: file.evaluate.samples as usize,
            averages: file.evaluate.average,
            target_accuracy: file.stop.accuracy,
            target_loss: file.stop.loss,
            seed: file.seed,
        },
        step: prepared.holding.step,
        position: prepared.progress.sampler_position,
        shard: prepared.progress.shard,
        commands: command_queue,
        coder,
        events: event_queue,
        started,
    };
    let coding = CoderThread {
        job: context.id,
        exchange,
        synchronous,
        inputs,
        trainer: commands.clone(),
        net: context.net.clone(),
        report,
        started,
        limit: None,
    };
    let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
        let spawned = std::thread::Builder::new().name(name.into()).spawn(run);
        spawned
            .map(|_| ())
            .map_err(|error| format!("no thread for {name}: {error}"))
    };
    spawn("trainer", Box::new(move || training.run()))?;
    spawn("coder", Box::new(move || coding.run()))?;
    Ok(Threads {
        commands,
        events,
        report: reports,
        synchronous,
        replica_bytes: Snapshot::encoded_len(&model_layout) as u64,
        weights_bytes: Snapshot::encoded_len(&weights_only(&model_layout)) as u64,
        layout: model_layout,
        normalisation,
        data: prepared.data,
        store: Arc::new(prepared.store),
    })
}

/// Loads a fetched replica into the training thread.
pub(super) fn restore(driver: &Driver, manifest: Manifest, bytes: Vec<u8>, took: Duration) {
    let Some(threads) = &driver.threads else {
        return;
    };
    let (commands, layout, done) = (
        threads.commands.clone(),
        threads.layout.clone(),
        driver.done.clone(),
    );
    let donors = driver.agreement.donors(driver.now());
    // Where all wait for all, replicas must stay equal: the winning side's state is taken as it is.
    let unmerged = if threads.synchronous {
        0
    } else {
        driver.unmerged
    };
    let parted_at = driver.agreement.parted_at();
    tokio::spawn(async move {
        let length = bytes.len() as u64;
        let decoded = tokio::task::spawn_blocking(move || Snapshot::decode(&bytes, &layout)).await;
        let outcome = match decoded {
            Ok(Ok(snapshot)) if unmerged > 0 => {
                let teacher = Teacher::Winner {
                    snapshot: Box::new(snapshot),
                    step: manifest.step,
                    samples: manifest.samples.saturating_sub(parted_at),
                    own_samples: unmerged,
                };
                let lesson = ask_to_learn(&commands, teacher).await;
                lesson.map(|lesson| Some(1.0 - lesson.moved))
            }
            Ok(Ok(snapshot)) => {
                let (reply, answer) = oneshot::channel();
                let snapshot = Box::new(snapshot);
                let restore = Command::Restore {
                    snapshot,
                    step: manifest.step,
                    position: None,
                    reply,
                };
                let sent = commands.send(restore).await.is_ok();
                let answer = if sent { answer.await.ok() } else { None };
                let answer = answer.unwrap_or_else(|| Err("the training thread has ended".into()));
                answer.map(|()| None)
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let step = manifest.step;
        let _ = done
            .send(Done::Restored {
                step,
                donors,
                bytes: length,
                took,
                outcome,
            })
            .await;
    });
}

/// Has the training thread learn from a fetched replica.
pub(super) fn learn(driver: &Driver, from: PeerId, bytes: Vec<u8>, weight: f32, gated: bool) {
    let Some(threads) = &driver.threads else {
        return;
    };
    let (commands, layout, done) = (
        threads.commands.clone(),
        threads.layout.clone(),
        driver.done.clone(),
    );
    tokio::spawn(async move {
        let decoded = tokio::task::spawn_blocking(move || Snapshot::decode(&bytes, &layout)).await;
        let lesson = match decoded {
            Ok(Ok(snapshot)) => {
                let teacher = Teacher::Best {
                    snapshot: Box::new(snapshot),
                    weight,
                    gated,
                };
                ask_to_learn(&commands, teacher).await
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let _ = done.send(Done::Learnt(from, lesson)).await;
    });
}

async fn ask_to_learn(commands: &mpsc::Sender<Command>, from: Teacher) -> Result<Lesson, String> {
    let (reply, answer) = oneshot::channel();
    let sent = commands.send(Command::Learn { from, reply }).await.is_ok();
    let answer = if sent { answer.await.ok() } else { None };
    answer.unwrap_or_else(|| Err("the training thread has ended".into()))
}

/// Asks the training thread for this peer's candidate.
pub(super) fn candidate(driver: &Driver) {
    let Some(threads) = &driver.threads else {
        return;
    };
    let (commands, done) = (threads.commands.clone(), driver.done.clone());
    tokio::spawn(async move {
        let (reply, answer) = oneshot::channel();
        let sent = commands.send(Command::Candidate { reply }).await.is_ok();
        let answer = if sent { answer.await.ok() } else { None };
        let candidate = answer.unwrap_or_else(|| Err("the training thread has ended".into()));
        let candidate =
            candidate.map(|(step, evaluation, snapshot)| (step, evaluation, Box::new(snapshot)));
        let _ = done.send(Done::Candidate(candidate)).await;
    });
}

/// Begins to write a checkpoint; false where that is not possible now.
pub(super) fn checkpoint(driver: &Driver) -> bool {
    let Some(saving) = save(driver) else {
        return false;
    };
    let done = driver.done.clone();
    tokio::spawn(async move {
        let _ = done.send(Done::Saved(saving.await)).await;
    });
    true
}

/// Writes a checkpoint before the process ends, if it can be done in time.
pub(super) async fn checkpoint_and_wait(driver: &mut Driver) {
    let Some(saving) = save(driver) else { return };
    match tokio::time::timeout(LAST_SAVE, saving).await {
        Ok(Ok(step)) => tracing::info!(step, "checkpoint written"),
        Ok(Err(error)) => tracing::error!(error, "checkpoint not written"),
        Err(_) => tracing::warn!("no time for a last checkpoint; the one before counts"),
    }
}

fn save(driver: &Driver) -> Option<impl Future<Output = Result<u64, String>> + use<>> {
    let threads = driver.threads.as_ref()?;
    // A replica that is still being fetched is worth nothing, but would claim the samples of the whole mesh.
    if driver.agreement.own_beat().standing != Standing::Training {
        return None;
    }
    let (commands, layout, store) = (
        threads.commands.clone(),
        threads.layout.clone(),
        threads.store.clone(),
    );
    let normalisation = threads.normalisation.clone();
    let samples = driver.agreement.mesh_samples();
    let extra = driver
        .figures
        .contributions_for_checkpoint(&driver.agreement);
    let job = driver.context.id.to_string();
    Some(async move {
        let (reply, answer) = oneshot::channel();
        commands
            .send(Command::Copy {
                from_step: 0,
                reply,
            })
            .await
            .map_err(|_| "training has ended".to_owned())?;
        let replica: Replica = answer.await.map_err(|_| "training has ended".to_owned())?;
        let step = replica.step;
        let progress = Progress {
            job,
            step: replica.step,
            samples,
            sampler_position: replica.position,
            shard: replica.shard,
            extra,
        };
        let written = tokio::task::spawn_blocking(move || {
            store
                .save(&replica.snapshot, &layout, &normalisation, &progress)
                .map_err(|error| error.to_string())
        });
        written.await.map_err(|error| error.to_string())??;
        Ok(step)
    })
}

/// Writes the agreed model, then the result.
pub(super) fn save_result(
    driver: &Driver,
    result: &JobResult,
    snapshot: Option<Snapshot>,
) -> Result<(), String> {
    if let (Some(threads), Some(snapshot), true) =
        (&driver.threads, snapshot, result.best.is_some())
    {
        let path = driver.context.folder.model();
        checkpoint::export(&path, &snapshot, &threads.layout, &threads.normalisation)
            .map_err(|error| error.to_string())?;
    }
    driver
        .context
        .folder
        .save_result(result)
        .map_err(|error| error.to_string())
}
