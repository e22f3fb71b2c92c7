//! Host names given with `--peer`: resolved by the system, again and again, since addresses change.

use std::time::Duration;

use tokio::sync::mpsc;

use super::Notice;
use super::address::{Host, Place};
use super::dialer::MAX_PER_PEER;

/// How long a name counts as resolved.
const RESOLVED: Duration = Duration::from_secs(60);
/// The pause after it could not be.
const UNRESOLVED: Duration = Duration::from_secs(5);

/// Resolves `place` for as long as somebody takes the notices.
pub(super) async fn resolve(place: Place, notices: mpsc::Sender<Notice>) {
    let Host::Name(name, port) = &place.host else {
        return;
    };
    let mut last_error = String::new();
    loop {
        let pause = match tokio::net::lookup_host((name.as_str(), *port)).await {
            Ok(found) => {
                let addresses = found.take(MAX_PER_PEER).collect();
                last_error.clear();
                if notices
                    .send(Notice::Resolved {
                        place: place.clone(),
                        addresses,
                    })
                    .await
                    .is_err()
                {
                    return;
                }
                RESOLVED
            }
            Err(error) => {
                let error = error.to_string();
                if error != last_error {
                    tracing::warn!(
                        name,
                        error,
                        "--peer name cannot be resolved; trying again every 5 s"
                    );
                    last_error = error;
                }
                UNRESOLVED
            }
        };
        tokio::time::sleep(pause).await;
    }
}
