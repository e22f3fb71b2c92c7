//! Trace files: each is read once, however many lines and variants follow it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::Wrong;
use super::section::Section;
use crate::link::Trace;

/// Longest trace file, bytes.
const MAX_TRACE_BYTES: u64 = 8 << 20;

/// The traces that were read, by their files.
#[derive(Debug)]
pub(super) struct Traces<'a> {
    folder: &'a Path,
    read: RefCell<BTreeMap<PathBuf, Arc<Trace>>>,
}

impl<'a> Traces<'a> {
    /// None yet; their paths are taken from `folder`.
    pub(super) fn of(folder: &'a Path) -> Self {
        Self {
            folder,
            read: RefCell::default(),
        }
    }

    /// The trace that `trace` of a line names, if it names one.
    pub(super) fn named_in(&self, line: &Section<'_>) -> Result<Option<Arc<Trace>>, Wrong> {
        let Some(file) = line.text("trace")? else {
            return Ok(None);
        };
        let path = self.folder.join(file);
        // One file has many paths.
        let path = path.canonicalize().unwrap_or(path);
        if let Some(trace) = self.read.borrow().get(&path) {
            return Ok(Some(trace.clone()));
        }
        let text = super::bounded_text(&path, MAX_TRACE_BYTES).map_err(|error| {
            let fix = "give the path of a CSV file, from this file's folder";
            line.wrong("trace", error.to_string(), fix)
        })?;
        let trace = Trace::parse(&text).map_err(|fault| {
            let fix = "write lines time,rate[,delay]: seconds, bits per second, seconds";
            line.wrong("trace", format!("{file}: {fault}"), fix)
        })?;
        let trace = Arc::new(trace);
        self.read.borrow_mut().insert(path, trace.clone());
        Ok(Some(trace))
    }
}
