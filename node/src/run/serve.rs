//! What a job gives to others: state to peers, the model as a file or judged to users of this node.

use std::path::{Path, PathBuf};

use skein_gossip::ids::{Digest, JobId};
use skein_gossip::message::{StateRequest, StateResponse};
use skein_gossip::wire::codec;
use skein_model::checkpoint;
use skein_model::config::{ModelConfig, OptimiserConfig};
use skein_model::data;
use skein_model::model::{Layout, Model};
use skein_model::snapshot::Snapshot;
use skein_model::train::{self, Evaluation, Trainer};
use tokio::sync::oneshot;

use super::driver::{Driver, JobContext};
use super::threads::encode_weights;
use super::trainer::{Command, EVALUATION_BATCH, Replica};
use crate::control::protocol::{Evaluated, Exported};
use crate::control::{Best, ErrorCode, Failure, Hex, Response};

/// What a user of this node asks of a job.
#[derive(Debug)]
pub enum Question {
    /// Write the model to a file.
    Export(PathBuf, oneshot::Sender<Response>),
    /// Judge the model on the whole validation set.
    Evaluate(oneshot::Sender<Response>),
}

/// Answers a peer that asks for state.
pub(super) fn state(driver: &mut Driver, request: StateRequest, reply: oneshot::Sender<Vec<u8>>) {
    let unavailable = |reason: &str| codec::encode(&StateResponse::Unavailable(reason.into()));
    match request {
        StateRequest::Replica { from_step, .. } => {
            let Some(threads) = &driver.threads else {
                let _ = reply.send(unavailable("this peer does not train"));
                return;
            };
            let (copied, copy) = oneshot::channel();
            driver.tell_trainer(Command::Copy {
                from_step,
                reply: copied,
            });
            let (blobs, samples) = (
                driver.context.blobs.clone(),
                driver.agreement.mesh_samples(),
            );
            let commands = threads.commands.clone();
            tokio::spawn(async move {
                let answer = match copy.await {
                    Ok(replica) => {
                        let Replica { step, snapshot, .. } = replica;
                        let offer = move || blobs.offer(snapshot.encode(), step, samples);
                        tokio::task::spawn_blocking(offer)
                            .await
                            .map(StateResponse::Manifest)
                    }
                    Err(_) => Ok(StateResponse::Unavailable("training has ended here".into())),
                };
                drop(commands);
                if let Ok(answer) = answer {
                    let _ = reply.send(codec::encode(&answer));
                }
            });
        }
        StateRequest::Weights { digest, .. } => {
            let kept = driver.weights(digest).cloned();
            let (blobs, path, file) = (
                driver.context.blobs.clone(),
                driver.context.folder.model(),
                driver.context.file.clone(),
            );
            let step = driver.figures.step;
            tokio::task::spawn_blocking(move || {
                let found = kept.map_or_else(|| agreed_weights(&path, &file.model, digest), Ok);
                let answer = match found {
                    Ok(snapshot) => {
                        StateResponse::Manifest(blobs.offer(encode_weights(&snapshot), step, 0))
                    }
                    Err(reason) => StateResponse::Unavailable(reason),
                };
                let _ = reply.send(codec::encode(&answer));
            });
        }
        StateRequest::Blocks { .. } => {
            let _ = reply.send(unavailable("every peer of this job holds the whole model"));
        }
        StateRequest::Chunk { .. } => {
            let _ = reply.send(unavailable("chunks are served by the mesh"));
        }
    }
}

/// The weights of the finished model on disk, if they are the ones asked for.
fn agreed_weights(path: &Path, config: &ModelConfig, digest: Digest) -> Result<Snapshot, String> {
    let import = checkpoint::import(path).map_err(|error| error.to_string())?;
    if import.model.layout().config != *config || Digest(import.model.weights_hash()) != digest {
        return Err("other weights are held here".into());
    }
    let layout = import.model.layout().clone();
    checkpoint::import_weights(path, &layout).map_err(|error| error.to_string())
}

/// Answers a user of this node about a job that has its model.
pub(super) fn of_finished(context: &JobContext, question: Question) {
    let (job, folder) = (context.id, context.folder.clone());
    let (file, private) = (context.file.clone(), context.private.clone());
    tokio::task::spawn_blocking(move || match question {
        Question::Export(path, reply) => {
            let _ = reply.send(export_finished(job, &folder, &path));
        }
        Question::Evaluate(reply) => {
            let judged = checkpoint::import(&folder.model()).map_err(|error| error.to_string());
            let judged = judged.and_then(|import| {
                let data = data::load(&file.data, &private).map_err(|error| error.to_string())?;
                judge_model(import.model, &data.validation)
            });
            let _ = reply.send(judged.unwrap_or_else(|error| failure(ErrorCode::Internal, error)));
        }
    });
}

/// Answers a user of this node.
pub(super) fn question(driver: &mut Driver, question: Question) {
    let job = driver.context.id;
    let folder = &driver.context.folder;
    if folder.result().is_some_and(|result| result.best.is_some()) {
        return of_finished(&driver.context, question);
    }
    let Some(threads) = &driver.threads else {
        let reason = driver
            .figures
            .failure
            .clone()
            .unwrap_or_else(|| "nothing is trained yet".into());
        let (Question::Export(_, reply) | Question::Evaluate(reply)) = question;
        let _ = reply.send(failure(
            ErrorCode::Refused,
            format!("job {} has no model: {reason}", job.short()),
        ));
        return;
    };
    let (copied, copy) = oneshot::channel();
    driver.tell_trainer(Command::Copy {
        from_step: 0,
        reply: copied,
    });
    let (layout, normalisation) = (threads.layout.clone(), threads.normalisation.clone());
    let (data, me) = (threads.data.clone(), driver.context.net.local());
    let evaluation = driver.figures.latest();
    let optimiser = driver.context.file.train.optimiser.clone();
    tokio::spawn(async move {
        let (Question::Export(_, reply) | Question::Evaluate(reply)) = &question;
        if reply.is_closed() {
            return;
        }
        let Ok(replica) = copy.await else {
            let (Question::Export(_, reply) | Question::Evaluate(reply)) = question;
            let _ = reply.send(failure(
                ErrorCode::Refused,
                "training has just ended; ask again".into(),
            ));
            return;
        };
        let _ = tokio::task::spawn_blocking(move || match question {
            Question::Export(path, reply) => {
                let hash = Hex(Digest(replica.snapshot.weights_hash()));
                let written = checkpoint::export(&path, &replica.snapshot, &layout, &normalisation);
                let (accuracy, loss) = evaluation;
                let best = Best {
                    peer: Hex(me),
                    accuracy,
                    loss,
                    hash,
                };
                let _ = reply.send(match written {
                    Ok(()) => exported(job, path, best),
                    Err(error) => failure(ErrorCode::Internal, error.to_string()),
                });
            }
            Question::Evaluate(reply) => {
                let judged =
                    judge_replica(&layout, &optimiser, &replica.snapshot, &data.validation);
                let _ =
                    reply.send(judged.unwrap_or_else(|error| failure(ErrorCode::Internal, error)));
            }
        })
        .await;
    });
}

fn export_finished(job: JobId, folder: &super::folder::JobFolder, path: &Path) -> Response {
    let Some(best) = folder.result().and_then(|result| result.best) else {
        return failure(
            ErrorCode::NotFound,
            format!("job {} has no model", job.short()),
        );
    };
    let read = checkpoint::import(&folder.model()).map_err(|error| error.to_string());
    let written = read.and_then(|import| {
        let layout = import.model.layout().clone();
        let snapshot = checkpoint::import_weights(&folder.model(), &layout)
            .map_err(|error| error.to_string())?;
        checkpoint::export(path, &snapshot, &layout, &import.normalisation)
            .map_err(|error| error.to_string())
    });
    match written {
        Ok(()) => exported(job, path.to_owned(), best),
        Err(error) => failure(ErrorCode::Internal, error),
    }
}

fn exported(job: JobId, path: PathBuf, best: Best) -> Response {
    let bytes = std::fs::metadata(&path).map_or(0, |meta| meta.len());
    Response::Exported(Exported {
        job: Hex(job),
        path,
        bytes,
        best,
    })
}

/// Judges a copied replica in a model of its own, so that training goes on.
fn judge_replica(
    layout: &Layout,
    optimiser: &OptimiserConfig,
    snapshot: &Snapshot,
    data: &data::Dataset,
) -> Result<Response, String> {
    let model = Model::new(&layout.config, layout.input_shape, layout.n_classes, 0);
    let trainer = model.map_err(|error| error.to_string()).and_then(|model| {
        Trainer::new(model, optimiser.clone()).map_err(|error| error.to_string())
    });
    let mut trainer = trainer?;
    trainer
        .restore(snapshot)
        .map_err(|error| error.to_string())?;
    let evaluation = trainer
        .evaluate(data, 0..data.len(), EVALUATION_BATCH)
        .map_err(|error| error.to_string())?;
    Ok(judged(&evaluation, snapshot.weights_hash()))
}

fn judge_model(mut model: Model, data: &data::Dataset) -> Result<Response, String> {
    let rows = 0..data.len();
    let evaluation = train::evaluate(&mut model, data, rows, EVALUATION_BATCH)
        .map_err(|error| error.to_string())?;
    Ok(judged(&evaluation, model.weights_hash()))
}

fn judged(evaluation: &Evaluation, hash: [u8; 32]) -> Response {
    Response::Evaluated(Evaluated {
        accuracy: evaluation.accuracy,
        loss: evaluation.loss.is_finite().then_some(evaluation.loss),
        samples: evaluation.samples as u64,
        model_hash: Hex(Digest(hash)),
    })
}

pub(super) fn failure(code: ErrorCode, message: String) -> Response {
    Response::Error(Failure {
        code,
        message,
        fix: String::new(),
    })
}
