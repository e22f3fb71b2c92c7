//! Update packets on their way from the network to the coder of their job.

use std::collections::BTreeMap;

use skein_gossip::exchange;
use skein_gossip::ids::JobId;
use tokio::sync::{mpsc, watch};

use crate::net;
use crate::run::coder;

/// Hands update packets to the coders of their jobs. A coder that is behind holds up the update lanes, and only them.
pub(super) async fn route(
    mut updates: mpsc::Receiver<net::Inbound>,
    routes: watch::Receiver<BTreeMap<JobId, mpsc::Sender<coder::Input>>>,
) {
    while let Some(packet) = updates.recv().await {
        let net::Inbound {
            from,
            arrived,
            body,
        } = packet;
        let job = match exchange::split(&body) {
            Ok((header, _)) => header.job,
            Err(reason) => {
                tracing::warn!(peer = %from.short(), reason, "update packet refused");
                continue;
            }
        };
        let route = routes.borrow().get(&job).cloned();
        if let Some(route) = route {
            // A closed route is a job that has ended here.
            let packet = coder::Input::Packet {
                from,
                arrived,
                bytes: body,
            };
            let _ = route.send(packet).await;
        }
    }
}
