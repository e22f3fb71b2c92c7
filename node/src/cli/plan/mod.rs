//! `skein plan`: how devices would train a job's model together, without training it.
//!
//! ```text
//! node ── mesh ──┐
//! file ── saved ─┴> Problem ─> what_if ─> skein_model::plan::choose ─> report ─> text, timeline, SVG, JSON
//! ```

mod saved;
mod what_if;
mod mesh;
mod timeline;
mod text;
mod report;

use std::path::Path;

use skein_model::plan::{self, Choice, PlanError, Problem, Settings};

use super::args::PlanArgs;
use super::exit::{CliError, Exit};
use super::job_text;
use super::output::Output;
use crate::control::{PlanStatus, Response};
use crate::job::JobFile;

/// What devices are called on a screen.
struct Names(Vec<String>);

impl Names {
    /// Peers by the beginning of their ids, others by their names, those without one by their number.
    fn new(problem: &Problem) -> Self {
        let is_id = |name: &str| name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit());
        let name = |(number, device): (usize, &plan::Device)| match device.name.as_str() {
            "" => format!("device {number}"),
            name if is_id(name) => name[..8].to_owned(),
            name => name.to_owned(),
        };
        Self(problem.devices.iter().enumerate().map(name).collect())
    }

    fn of(&self, device: usize) -> &str {
        self.0.get(device).map_or("?", String::as_str)
    }

    /// An error with the name of the device that is wrong.
    fn error(&self, error: &PlanError) -> String {
        match error {
            PlanError::Device { device, what } if *device < self.0.len() => {
                format!("{}: {what}", self.of(*device))
            }
            error => error.to_string(),
        }
    }
}

/// Runs the command.
pub(super) async fn plan(home: &Path, args: PlanArgs, output: &Output) -> Result<Exit, CliError> {
    let name = args.file.display().to_string();
    let text = job_text::read(&args.file)?;
    let job = JobFile::parse(&text).map_err(|error| CliError::job(&name, &error))?;
    let added = args.add.iter().map(|file| saved::read_added(file));
    let added = added.collect::<Result<Vec<_>, _>>()?;
    let (problem, cut) = match &args.profile {
        Some(file) => {
            let mut problem = saved::read(file)?;
            what_if::step_of(&text, &mut problem)
                .map_err(|reason| CliError::usage(format!("{name}: {reason}")))?;
            checked(&problem, &file.display().to_string())?;
            (problem, None)
        }
        None => mesh::measured(home, &name, &text).await?,
    };
    if let Some(file) = &args.save {
        saved::write(file, &problem)?;
    }
    let (problem, cut) = changed(problem, cut, &args, added)?;
    let settings = settings(&job);
    let report = report::make(&job, &problem, &settings, (cut, args.explain))
        .map_err(|error| cannot(&Names::new(&problem), &error))?;
    if let Some(file) = &args.svg {
        let spans = report.timeline.as_deref().unwrap_or_default();
        let picture = timeline::svg(spans, &report);
        std::fs::write(file, picture).map_err(|error| saved::cannot_write(file, &error))?;
    }
    let report = Box::new(report);
    let names = Names::new(&problem);
    let shown = || text::whole(&report, &names, args.explain);
    output.response(&Response::Plan(report.clone()), shown)?;
    Ok(Exit::Ok)
}

fn settings(job: &JobFile) -> Settings {
    Settings {
        private: job.data.name.is_some(),
        ..Settings::default()
    }
}

/// What the peers that are here can do with a job, the best first.
///
/// # Errors
/// No node, a job that cannot be measured, nothing that fits.
pub(super) async fn choice(
    home: &Path,
    (name, text): (&str, &str),
    job: &JobFile,
) -> Result<Choice, CliError> {
    let (problem, _) = mesh::measured(home, name, text).await?;
    let choice = plan::choose(&problem, &settings(job));
    choice.map_err(|error| cannot(&Names::new(&problem), &error))
}

/// The problem with and without what the command line says; the cut of a mesh that is not this one says nothing of it.
fn changed(
    mut problem: Problem,
    cut: Option<PlanStatus>,
    args: &PlanArgs,
    added: Vec<what_if::Added>,
) -> Result<(Problem, Option<PlanStatus>), CliError> {
    for word in &args.without {
        problem = what_if::without(&problem, word)?;
    }
    for device in added {
        problem = what_if::with(&problem, device)?;
    }
    let is_as_it_is = args.without.is_empty() && args.add.is_empty();
    Ok((problem, cut.filter(|_| is_as_it_is)))
}

fn checked(problem: &Problem, file: &str) -> Result<(), CliError> {
    let said = problem.check_figures();
    said.map_err(|error| {
        let names = Names::new(problem);
        CliError::usage(format!("{file}: {}", names.error(&error)))
    })
}

/// There is no plan.
fn cannot(names: &Names, error: &PlanError) -> CliError {
    CliError {
        exit: Exit::Refused,
        message: format!("there is no plan: {}", names.error(error)),
    }
}

#[cfg(test)]
mod tests;
