//! A scenario: which nodes, on which links, running what, and what happens to them; the same for both engines.
//!
//! `plan` holds a scenario as the engines run it: names resolved, counts spelled out, every number checked. The rest reads
//! one from a file, in this order: `tree` (TOML with the places of its keys), `section` (takes the keys of a table),
//! `names`, `traces`, `nodes`, `conditions`, `events`, and `file`, which puts variants and overrides in and calls the others.
//! `measure` names the metrics that a run is judged by.

mod plan;
mod units;
mod tree;
mod error;
mod section;
mod measure;
mod names;
mod traces;
mod nodes;
mod conditions;
mod events;
mod file;

use std::io::Read;
use std::path::Path;

pub use error::{Fault, ScenarioError};
pub use file::{Campaign, MAX_FILE_BYTES, MAX_VARIANTS, load};
pub use measure::{Against, Measure, MeasureFault, Named, Quantity, Statistic};
pub use nodes::MAX_NODES;
pub use plan::{
    Action, Comparison, Condition, End, Event, Expectation, Line, Node, Pair, Problem, Program,
    Recovery, Scenario, Sim, When,
};
pub use units::rate_text;

/// The text of a file of at most `max_bytes`.
fn bounded_text(path: &Path, max_bytes: u64) -> Result<String, ScenarioError> {
    let unreadable = |source| ScenarioError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut text = String::new();
    let mut bounded = file.take(max_bytes + 1);
    bounded.read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > max_bytes {
        return Err(ScenarioError::TooLong {
            path: path.to_owned(),
            max_bytes,
        });
    }
    Ok(text)
}
