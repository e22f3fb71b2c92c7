//! What a node writes into its journal, as a record keeps it.

use serde_json::Value;
use skein_netem::link::Nanos;
use skein_netem::record::Metric;
use skein_node::run::journal::Entry;

/// The line of `entry` at `now`; none of one that is no object.
pub(super) fn line(now: Nanos, entry: &Entry<'_>) -> Option<Metric> {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(entry) else {
        return None;
    };
    let event = match fields.remove("event") {
        Some(Value::String(event)) => event,
        _ => String::new(),
    };
    Some(Metric {
        t: now as f64 / 1e9,
        event,
        fields,
    })
}
