//! From a problem to what is reported of it: the choice, who stands by and why, what each device is worth, one step.

use skein_model::plan::{self, Candidate, Choice, Family, PlanError, Problem, Settings, WhyIdle};

use super::super::show;
use super::{Names, text};
use crate::control::{CandidateReport, LossReport, PlanReport, PlanStatus, StandbyReport};
use crate::job::JobFile;
use crate::job::strategy::Kind;

/// Most bars of a timeline that is told.
const MOST_BARS: usize = 20_000;

/// Plans all families; with what would be left without each device if that is asked for.
///
/// # Errors
/// There is no plan at all.
pub(super) fn make(
    job: &JobFile,
    problem: &Problem,
    settings: &Settings,
    (cut, explain): (Option<PlanStatus>, bool),
) -> Result<PlanReport, PlanError> {
    let names = Names::new(problem);
    let choice = plan::choose(problem, settings)?;
    let (family, best) = choice.best().ok_or(PlanError::Unlinked)?;
    let standby = plan::idle(problem, settings, best)?;
    let losses = match explain {
        true => losses(problem, settings, &choice, &names)?,
        false => Vec::new(),
    };
    let spans = plan::of_step(problem, settings, best)?;
    let asked = match job.strategy.kind {
        Kind::Auto => None,
        Kind::Exchange => Some(Family::Exchange),
        Kind::Pipeline => Some(Family::Pipeline),
        Kind::Hybrid => Some(Family::Hybrid),
        Kind::Tiers => Some(Family::Tiers),
    };
    let work = &problem.work;
    Ok(PlanReport {
        name: job.name.clone(),
        family,
        asked: asked.filter(|asked| *asked != family),
        step_s: best.step_seconds,
        samples_per_s: best.samples_per_second,
        step_samples: work.micro_batch * work.n_micro,
        n_micro: work.n_micro,
        devices: names.0.clone(),
        candidates: choice
            .ranked
            .iter()
            .map(|candidate| told(candidate, &names))
            .collect(),
        standby: standby.iter().map(|idle| stands_by(idle, &names)).collect(),
        losses,
        timeline: (spans.len() <= MOST_BARS).then_some(spans),
        cut,
    })
}

fn told(candidate: &Candidate, names: &Names) -> CandidateReport {
    let refusal = match &candidate.outcome {
        Ok(_) => None,
        Err(plan::Refusal::Plan(error)) => Some(names.error(error)),
        Err(plan::Refusal::DataElsewhere { device }) => Some(format!(
            "the data is on {} alone, and every replica draws its own samples",
            names.of(*device)
        )),
        Err(plan::Refusal::NoRoom { needs }) => Some(format!(
            "no device has room for all that it would hold, which is {}",
            show::bytes(*needs)
        )),
        Err(plan::Refusal::Private { device }) => Some(format!(
            "its best plan would send private samples away from {}",
            names.of(*device)
        )),
        Err(refusal) => Some(refusal.to_string()),
    };
    CandidateReport {
        family: candidate.family,
        offer: candidate.outcome.as_ref().ok().cloned(),
        refusal,
    }
}

fn stands_by(idle: &plan::Idle, names: &Names) -> StandbyReport {
    let name = names.of(idle.device);
    let (why, with) = match idle.why {
        WhyIdle::Slower { with, without } if with < without => {
            let why = format!(
                "{name} would slow the mesh: with it {}, without it {} samples/s",
                text::rate(with),
                text::rate(without)
            );
            (why, Some(with))
        }
        WhyIdle::Slower { with, without } => {
            let why = format!(
                "{name} would add little: with it {}, without it {} samples/s",
                text::rate(with),
                text::rate(without)
            );
            (why, Some(with))
        }
        WhyIdle::NoRoom { needs, has } => {
            let (needs, has) = (show::bytes(needs), show::bytes(has));
            let why = format!("{name} has no room: its part takes at least {needs}, it has {has}");
            (why, None)
        }
        WhyIdle::Unlinked => (format!("{name} has no link to any other"), None),
        WhyIdle::NoPlace => (format!("no plan like this one has a part for {name}"), None),
    };
    StandbyReport {
        device: idle.device,
        why,
        with_samples_per_s: with,
    }
}

fn losses(
    problem: &Problem,
    settings: &Settings,
    choice: &Choice,
    names: &Names,
) -> Result<Vec<LossReport>, PlanError> {
    let losses = plan::losses(problem, settings, choice)?;
    let told = |loss: &plan::Loss| LossReport {
        device: loss.device,
        family: loss.then.as_ref().ok().map(|left| left.family),
        samples_per_s: loss.then.as_ref().ok().map(|left| left.samples_per_second),
        seconds_per_sample: loss.then.as_ref().ok().map(|left| left.seconds_per_sample),
        reason: loss.then.as_ref().err().map(|error| match error {
            PlanError::Device { device, what } if *device == loss.device => {
                format!("{}: {what}", names.of(*device))
            }
            error => error.to_string(),
        }),
    };
    Ok(losses.iter().map(told).collect())
}
