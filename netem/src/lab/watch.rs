//! Reads what programs write into their metrics files as the files grow.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::record::Metric;

/// Longest line that is read; a longer one is left out.
const MAX_LINE: usize = 1 << 20;
/// Most bytes read at one look at one file.
const MAX_READ: u64 = 8 << 20;
/// Most lines kept of one node: a line per millisecond for half an hour.
const MAX_LINES: usize = 2_000_000;

/// Where a program's metrics are.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// This file.
    File(PathBuf),
    /// `jobs/ID/metrics.jsonl` below the home of a `skein` peer.
    Home(PathBuf),
}

/// Follows a node's metrics.
#[derive(Debug)]
pub(super) struct Watch {
    source: Source,
    files: Vec<Follow>,
    /// All lines so far.
    lines: Vec<Metric>,
    /// Lines that were no metrics.
    pub(super) malformed: u64,
}

#[derive(Debug)]
struct Follow {
    path: PathBuf,
    offset: u64,
    /// Bytes read so far, of all files that had this name.
    read: u64,
    /// The line that is not whole yet.
    partial: Vec<u8>,
}

impl Watch {
    pub(super) fn new(source: Source) -> Self {
        Self {
            source,
            files: Vec::new(),
            lines: Vec::new(),
            malformed: 0,
        }
    }

    /// Reads on. `start_ms` is when the run started, milliseconds since 1970. The lines that are new.
    pub(super) fn look(&mut self, start_ms: f64) -> &[Metric] {
        self.find();
        let seen = self.lines.len();
        for file in &mut self.files {
            for line in file.look() {
                match parse(&line, start_ms) {
                    Some(metric) if self.lines.len() < MAX_LINES => self.lines.push(metric),
                    Some(_) => {}
                    None => self.malformed += 1,
                }
            }
        }
        &self.lines[seen..]
    }

    /// Takes in what was written meanwhile, up to a bound; how many bytes.
    pub(super) fn read(&mut self, start_ms: f64) -> u64 {
        let before = self.bytes();
        self.look(start_ms);
        self.bytes() - before
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.read).sum()
    }

    /// All lines so far.
    pub(super) fn metrics(&self) -> impl Iterator<Item = &Metric> {
        self.lines.iter()
    }

    /// All lines, in order of their time.
    pub(super) fn take_metrics(&mut self) -> Vec<Metric> {
        let mut lines = std::mem::take(&mut self.lines);
        lines.sort_by(|one, other| one.t.total_cmp(&other.t));
        lines
    }

    fn find(&mut self) {
        let found = match &self.source {
            Source::File(path) => vec![path.clone()],
            Source::Home(home) => journals(home),
        };
        for path in found {
            if !self.files.iter().any(|file| file.path == path) {
                self.files.push(Follow {
                    path,
                    offset: 0,
                    read: 0,
                    partial: Vec::new(),
                });
            }
        }
    }
}

fn journals(home: &Path) -> Vec<PathBuf> {
    let jobs = fs::read_dir(home.join("jobs")).into_iter().flatten();
    jobs.flatten()
        .map(|job| job.path().join("metrics.jsonl"))
        .filter(|path| path.exists())
        .collect()
}

impl Follow {
    /// The lines that became whole.
    fn look(&mut self) -> Vec<Vec<u8>> {
        let Ok(mut file) = File::open(&self.path) else {
            return Vec::new();
        };
        // A program that was started again may have begun the file anew.
        if file.metadata().is_ok_and(|meta| meta.len() < self.offset) {
            self.offset = 0;
            self.partial.clear();
        }
        let mut new = Vec::new();
        let read = file
            .seek(SeekFrom::Start(self.offset))
            .and_then(|_| file.take(MAX_READ).read_to_end(&mut new));
        let read = read.unwrap_or(0) as u64;
        self.offset += read;
        self.read += read;
        let mut lines = Vec::new();
        for part in new.split_inclusive(|byte| *byte == b'\n') {
            // One byte too many marks a line as too long; it is malformed then.
            let room = (MAX_LINE + 1).saturating_sub(self.partial.len());
            self.partial
                .extend_from_slice(&part[..part.len().min(room)]);
            if part.ends_with(b"\n") {
                lines.push(std::mem::take(&mut self.partial));
            }
        }
        lines
    }
}

/// Reads one line of metrics. None: it is not one.
fn parse(line: &[u8], start_ms: f64) -> Option<Metric> {
    if line.len() > MAX_LINE {
        return None;
    }
    let mut fields: Map<String, Value> = serde_json::from_slice(line).ok()?;
    let t_ms = fields.remove("t_ms")?.as_f64()?;
    let Some(Value::String(event)) = fields.remove("event") else {
        return None;
    };
    let t = (t_ms - start_ms) / 1000.0;
    Some(Metric { t, event, fields })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_are_read_as_they_become_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut watch = Watch::new(Source::File(path.clone()));
        assert!(watch.look(1000.0).is_empty());
        let mut file = File::create(&path).unwrap();
        write!(
            file,
            "{{\"t_ms\":1500,\"event\":\"step\",\"step\":1}}\n{{\"t_ms\":"
        )
        .unwrap();
        let new: Vec<f64> = watch.look(1000.0).iter().map(|line| line.t).collect();
        assert_eq!(new, [0.5]);
        writeln!(file, "3000,\"event\":\"step\",\"step\":2}}\nnot a metric").unwrap();
        assert_eq!(watch.look(1000.0).len(), 1);
        assert_eq!(watch.read(1000.0), 0);
        assert_eq!(watch.malformed, 1);
        let steps: Vec<_> = watch.metrics().map(|line| line.number("step")).collect();
        assert_eq!(steps, [Some(1.0), Some(2.0)]);
        // Begun anew, and shorter than it was.
        fs::write(&path, "{\"t_ms\":4000,\"event\":\"again\"}\n").unwrap();
        assert_eq!(watch.look(1000.0).len(), 1);
    }

    #[test]
    fn what_cannot_be_read_is_over_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut watch = Watch::new(Source::File(folder.path().into()));
        assert_eq!(watch.read(0.0), 0);
    }

    #[test]
    fn the_journal_of_a_job_is_found_once_it_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let mut watch = Watch::new(Source::Home(folder.path().into()));
        assert!(watch.look(0.0).is_empty());
        let job = folder.path().join("jobs/abc");
        fs::create_dir_all(&job).unwrap();
        fs::write(
            job.join("metrics.jsonl"),
            "{\"t_ms\":1,\"event\":\"opened\"}\n",
        )
        .unwrap();
        assert_eq!(watch.look(0.0).len(), 1);
        assert!(watch.look(0.0).is_empty());
    }

    proptest! {
        #[test]
        fn any_line_is_a_metric_or_not(line in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&line, 0.0);
        }
    }
}
