//! Update packets on their way from the network to the coder of their job.

use std::collections::BTreeMap;

use skein_gossip::exchange;
use skein_gossip::ids::JobId;
use skein_gossip::pipeline::frame;
use skein_gossip::transfer::probe;
use tokio::sync::{mpsc, watch};

use crate::net;
use crate::run::{Packets, coder};

/// Hands frames to the coders and stages of their jobs. One that is behind holds up the update lanes, and only them.
pub(super) async fn route(
    mut updates: mpsc::Receiver<net::Inbound>,
    routes: watch::Receiver<BTreeMap<JobId, Packets>>,
) {
    while let Some(packet) = updates.recv().await {
        if probe::is_one(&packet.body) {
            // That it came is all that it was for.
            continue;
        }
        let job = match job_of(&packet.body) {
            Ok(job) => job,
            Err(reason) => {
                tracing::warn!(peer = %packet.from.short(), reason, "frame refused");
                continue;
            }
        };
        let route = routes.borrow().get(&job).cloned();
        // A closed route is a job that has ended here.
        match route {
            Some(Packets::Coder(coder)) => {
                let net::Inbound {
                    from,
                    arrived,
                    body,
                } = packet;
                let packet = coder::Input::Packet {
                    from,
                    arrived,
                    bytes: body,
                };
                let _ = coder.send(packet).await;
            }
            Some(Packets::Stage(stage)) => {
                let _ = stage.send(packet).await;
            }
            None => {}
        }
    }
}

fn job_of(body: &[u8]) -> Result<JobId, String> {
    if frame::is_one(body) {
        let head = frame::Head::read(body).map_err(|error| error.to_string())?;
        return Ok(head.job);
    }
    let (header, _) = exchange::split(body)?;
    Ok(header.job)
}
