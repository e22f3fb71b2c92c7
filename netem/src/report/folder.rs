//! The files of a run and of a campaign.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Component, Path, PathBuf};

use super::compare::compare;
use super::summary::{RunSummary, Summary, judge_again};
use super::{csv, curves, html, matrix, stages, timeline};
use crate::record::Record;

/// A file of a report that could not be written or read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct FolderError {
    /// Which.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// Writes `record.json` into the folder of a run.
///
/// # Errors
/// When it cannot be written.
pub fn write_record(folder: &Path, record: &Record) -> Result<(), FolderError> {
    with_file(&folder.join("record.json"), |to| {
        serde_json::to_writer(to, record).map_err(io::Error::from)
    })
}

/// Writes `report.html`, the figures and the tables into the folder of a run.
///
/// # Errors
/// When a file cannot be written.
pub fn write_report(folder: &Path, record: &Record, run: &RunSummary) -> Result<(), FolderError> {
    let mut figures = curves::curves(record, target(run));
    figures.extend(timeline::timeline(record).map(|svg| ("timeline.svg", svg)));
    figures.extend(stages::stages(record).map(|svg| ("stages.svg", svg)));
    figures.extend(matrix::matrix(record).map(|svg| ("links.svg", svg)));
    let page = html::page(record, run, &figures);
    with_file(&folder.join("report.html"), |to| {
        to.write_all(page.as_bytes())
    })?;
    for (file, svg) in &figures {
        with_file(&folder.join(file), |to| to.write_all(svg.as_bytes()))?;
    }
    with_file(&folder.join("metrics.csv"), |to| csv::metrics(record, to))?;
    with_file(&folder.join("links.csv"), |to| csv::links(record, to))
}

/// The accuracy that it trained to, which stands in the names of its metrics; else one that is expected.
fn target(run: &RunSummary) -> Option<f64> {
    let number = |metric: &str| {
        let inside = |name: &String| {
            let inside = name.strip_prefix(metric)?.strip_suffix(')')?;
            inside.parse().ok()
        };
        run.metrics.keys().find_map(inside)
    };
    number("samples_to_accuracy(").or_else(|| number("time_to_accuracy("))
}

/// Writes `summary.json` and `index.html` into the folder of a campaign.
///
/// # Errors
/// When one cannot be written.
pub fn write_summary(folder: &Path, summary: &Summary) -> Result<(), FolderError> {
    write_json(&folder.join("summary.json"), summary)?;
    let page = html::index(summary);
    with_file(&folder.join("index.html"), |to| {
        to.write_all(page.as_bytes())
    })
}

/// Writes a summary as JSON.
///
/// # Errors
/// When it cannot be written.
pub fn write_json(path: &Path, summary: &Summary) -> Result<(), FolderError> {
    with_file(path, |mut to| {
        serde_json::to_writer_pretty(&mut to, summary)?;
        to.write_all(b"\n")
    })
}

/// Makes all reports of a campaign's folder again, from its records.
///
/// # Errors
/// When a file is missing, damaged or cannot be written.
pub fn report_again(folder: &Path) -> Result<Summary, FolderError> {
    let before: Summary = read_json(&folder.join("summary.json"))?;
    let mut runs = vec![];
    let mut records = vec![];
    for run in &before.runs {
        let inside = folder.join(own_folder(folder, &run.folder)?);
        let record: Record = read_json(&inside.join("record.json"))?;
        let run = judge_again(&record, run);
        write_report(&inside, &record, &run)?;
        runs.push(run.clone());
        if !before.comparison.is_empty() {
            records.push((record, run));
        }
    }
    let mut summary = Summary::new(before.name, runs);
    let target = before.runs.first().and_then(target);
    summary.comparison = compare(&records, target);
    write_summary(folder, &summary)?;
    Ok(summary)
}

/// A run's folder if it lies in the campaign's: a summary may come from elsewhere, and must not lead out of it.
fn own_folder<'a>(campaign: &Path, name: &'a str) -> Result<&'a str, FolderError> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(part)), None) if part == name => Ok(name),
        _ => {
            let what = format!(
                "{name:?} is no folder of a run; write the name of a folder beside this file"
            );
            Err(FolderError {
                path: campaign.join("summary.json"),
                source: io::Error::new(io::ErrorKind::InvalidData, what),
            })
        }
    }
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, FolderError> {
    let wrong = |source| FolderError {
        path: path.to_owned(),
        source,
    };
    let file = BufReader::new(File::open(path).map_err(wrong)?);
    serde_json::from_reader(file).map_err(|error| wrong(error.into()))
}

/// Writes beside and renames, so that nobody reads half a file.
fn with_file(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), FolderError> {
    let beside = path.with_extension("part");
    let written = File::create(&beside).and_then(|file| {
        let mut to = BufWriter::new(file);
        write(&mut to)?;
        to.flush()?;
        fs::rename(&beside, path)
    });
    written.map_err(|source| FolderError {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::super::{sample, summary::judge_again};
    use super::*;

    #[test]
    fn reports_made_again_from_the_records_are_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("run-1");
        fs::create_dir(&inside).unwrap();
        let record = sample::record();
        let mut asked = RunSummary {
            folder: "run-1".into(),
            about: "<script>alert(1)</script>".into(),
            ..RunSummary::default()
        };
        let asks = ["steps", "time_to_accuracy(0.8)", "time_to_accuracy(0.99)"];
        asked.metrics = asks.map(|name| (name.to_owned(), None)).into();
        let run = judge_again(&record, &asked);
        assert_eq!(run.metrics["time_to_accuracy(0.8)"], Some(60.0));
        write_record(&inside, &record).unwrap();
        write_report(&inside, &record, &run).unwrap();
        let summary = Summary::new("sample", vec![run]);
        write_summary(folder.path(), &summary).unwrap();
        let page = fs::read_to_string(inside.join("report.html")).unwrap();

        assert_eq!(report_again(folder.path()).unwrap(), summary);
        assert_eq!(
            fs::read_to_string(inside.join("report.html")).unwrap(),
            page
        );
        // It opens anywhere: no scripts, and nothing is fetched. The name space of SVG is no address.
        assert!(!page.contains("<script") && !page.contains("src="));
        assert_eq!(
            page.matches("http").count(),
            page.matches("xmlns=\"http").count()
        );
        for file in [
            "accuracy-time.svg",
            "loss-bytes.svg",
            "timeline.svg",
            "links.svg",
            "links.csv",
        ] {
            assert!(inside.join(file).metadata().unwrap().len() > 100, "{file}");
        }
        let rows = fs::read_to_string(inside.join("metrics.csv")).unwrap();
        assert!(
            rows.contains("b,60.000000,evaluated,val_accuracy,0.8\n"),
            "{rows}"
        );
    }

    #[test]
    fn a_summary_cannot_lead_out_of_its_folder() {
        let outside = tempfile::tempdir().unwrap();
        let inside = outside.path().join("campaign");
        fs::create_dir(&inside).unwrap();
        let record = sample::record();
        write_record(outside.path(), &record).unwrap();
        write_record(&inside, &record).unwrap();
        let absolute = outside.path().display().to_string();
        for name in ["..", "../campaign", "", ".", "a/..", &absolute] {
            let run = RunSummary {
                folder: name.into(),
                ..RunSummary::default()
            };
            write_summary(&inside, &Summary::new("sample", vec![run])).unwrap();
            let error = report_again(&inside).unwrap_err().to_string();
            assert!(error.contains("summary.json"), "{error}");
            assert!(!outside.path().join("report.html").exists(), "{name}");
        }
    }

    #[test]
    fn a_pipeline_has_a_section_on_its_stages_and_other_jobs_have_none() {
        let folder = tempfile::tempdir().unwrap();
        for (record, has_stages) in [(sample::pipeline(), true), (sample::record(), false)] {
            let inside = folder.path().join(&record.scenario);
            fs::create_dir(&inside).unwrap();
            let run = judge_again(&record, &RunSummary::default());
            write_report(&inside, &record, &run).unwrap();
            let page = fs::read_to_string(inside.join("report.html")).unwrap();
            for part in ["<h2>Stages</h2>", "Which stage each node hosted", "1.600 s"] {
                assert_eq!(page.contains(part), has_stages, "{part}");
            }
            assert_eq!(inside.join("stages.svg").exists(), has_stages);
        }
    }

    #[test]
    fn a_run_without_anything_still_has_a_report() {
        let folder = tempfile::tempdir().unwrap();
        let record = Record::default();
        let run = judge_again(&record, &RunSummary::default());
        write_report(folder.path(), &record, &run).unwrap();
        let page = fs::read_to_string(folder.path().join("report.html")).unwrap();
        assert!(page.contains("nothing was expected"));
    }
}
