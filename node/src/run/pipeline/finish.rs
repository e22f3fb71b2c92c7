//! The end of a pipeline job on this peer: the model is written block by block, and given to who asks.

use std::sync::Arc;

use skein_gossip::ids::Digest;
use skein_gossip::message::StateResponse;
use skein_gossip::wire::codec;
use skein_model::checkpoint;
use skein_model::stage::BlockLayout;
use tokio::sync::oneshot;

use super::driver::{Done, Driver};
use crate::control::ErrorCode;
use crate::run::folder::JobResult;
use crate::run::journal::Entry;
use crate::run::serve::{self, Question};

/// Makes the model of the blocks at the last step, and writes it.
pub(super) fn make(driver: &mut Driver, step: u64) {
    let Some(running) = &driver.running else {
        return;
    };
    let reason = running
        .agreement
        .stop()
        .map_or_else(|| format!("stop.steps = {step} reached"), str::to_owned);
    driver.journal.write(&Entry::Ending { reason: &reason });
    let (facts, copies) = (Arc::clone(&running.facts), running.copies.line(step));
    let (path, done) = (driver.context.folder.model(), driver.done());
    tokio::task::spawn_blocking(move || {
        // One block at a time: some of them may lie on disk since memory does not take them all.
        let encoded = |layout: &BlockLayout| {
            let held = copies
                .iter()
                .find(|(block, _)| usize::from(*block) == layout.index);
            let (_, kept) = held.ok_or("it is not held here")?;
            kept.load(layout)
        };
        let normalisation = facts.normalisation();
        let made =
            checkpoint::export_blocks(&path, &facts.layout, &facts.blocks, &normalisation, encoded);
        let made = made.map(Digest).map_err(|error| error.to_string());
        let _ = done.blocking_send(Done::Finished(made));
    });
}

/// Writes the result; memory is given back.
pub(super) fn close(driver: &mut Driver) {
    let me = driver.context.net.local();
    let Some(running) = driver.running.as_ref().filter(|_| !driver.is_closed()) else {
        return;
    };
    let result = driver.figures.close(running, me);
    close_with(driver, &result);
}

/// Writes how the job ended.
pub(super) fn close_with(driver: &mut Driver, result: &JobResult) {
    if let Err(error) = driver.context.folder.save_result(result) {
        tracing::error!(%error, "result not written");
        driver.figures.failure = Some(error.to_string());
    }
    driver.journal.write(&Entry::Closed {
        reason: &result.reason,
        digest: result.best.as_ref().map(|best| best.hash.to_string()),
        winner: result.best.as_ref().map(|best| best.peer.0.short()),
        val_accuracy: result
            .best
            .as_ref()
            .and_then(|best| best.accuracy)
            .map(|accuracy| accuracy as f32),
    });
    driver.journal.flush();
    driver.end_work();
}

/// Gives the finished model's file to a peer that came late.
pub(super) fn give_model(driver: &Driver, digest: Digest, reply: oneshot::Sender<Vec<u8>>) {
    let (blobs, path) = (driver.context.blobs.clone(), driver.context.folder.model());
    let is_held = driver.figures.holds_model(digest);
    tokio::task::spawn_blocking(move || {
        let answer = match std::fs::read(&path) {
            Ok(bytes) if is_held => StateResponse::Manifest(blobs.offer(bytes, 0, 0)),
            Ok(_) => StateResponse::Unavailable("this model is not held here".into()),
            Err(error) => StateResponse::Unavailable(format!("the model is not read: {error}")),
        };
        let _ = reply.send(codec::encode(&answer));
    });
}

/// Answers a user of this node: of a job that runs, from the copies held; of one that is over, from the model's file.
pub(super) fn question(driver: &Driver, question: Question) {
    if driver
        .context
        .folder
        .result()
        .is_some_and(|result| result.best.is_some())
    {
        return serve::of_finished(&driver.context, question);
    }
    let refuse = |why: &str| {
        serve::failure(
            ErrorCode::Refused,
            format!(
                "job {} has no whole model here: {why}",
                driver.context.id.short()
            ),
        )
    };
    let reason = match &driver.running {
        Some(running) if running.agreement.view().is_some() => {
            "it is cut into stages on several peers; every peer gets it when the job ends (`skein stop` ends it)"
        }
        _ => "nothing is trained yet",
    };
    let (Question::Export(_, reply) | Question::Evaluate(reply)) = question;
    let _ = reply.send(refuse(reason));
}
