//! What people and programs get to see: scenarios drawn, metrics and verdicts, reports, tables.

mod numbers;
mod topology;
mod recovery;
mod cuts;
mod takeover;
mod throughput;
mod prediction;
mod smoothed;
mod metrics;
mod summary;
mod svg;
mod chart;
mod curves;
mod matrix;
mod timeline;
mod stages;
mod stage_tables;
mod csv;
mod html;
mod compare;
mod folder;
#[cfg(test)]
mod sample;

pub use compare::{Compared, compare, comparison_table};
pub use folder::{
    FolderError, report_again, write_json, write_record, write_report, write_summary,
};
pub use metrics::value;
pub use numbers::counted;
pub use summary::{FORMAT, RunSummary, Summary, Verdict, judge, judge_again, target};
pub use topology::topology;
