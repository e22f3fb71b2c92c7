//! What people and programs get to see: scenarios drawn, metrics and verdicts, reports, tables.

mod topology;

pub(crate) use topology::counted;
pub use topology::topology;
