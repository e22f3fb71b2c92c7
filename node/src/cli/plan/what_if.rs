//! Problems as the command line changes them: the job's step, without devices, with others.

use std::collections::BTreeMap;

use serde::Deserialize;
use skein_model::plan::{Data, Device, Problem};

use super::super::exit::CliError;
use super::{Names, checked};

/// A further device and its links, as `--add` reads them.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Added {
    /// The device, with the keys that it has among the devices of a problem.
    pub(super) device: Device,
    /// Its links.
    links: AddedLinks,
}

/// What links a further device has.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct AddedLinks {
    /// Bytes per second to and from each of the others that is not named; 0: no link.
    rate: f64,
    /// Seconds there, and as many back.
    #[serde(default)]
    latency: f64,
    /// Links to some of the others, by name or the beginning of the id.
    #[serde(default)]
    with: BTreeMap<String, AddedLink>,
}

/// A link to one other device, both directions.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct AddedLink {
    rate: f64,
    #[serde(default)]
    latency: f64,
}

/// Gives the problem the step of the job file `text`, as far as that sets it: `train.batch` samples, in
/// `strategy.pipeline.micro_batches`.
///
/// # Errors
/// More micro-batches than samples.
pub(super) fn step_of(text: &str, problem: &mut Problem) -> Result<(), String> {
    let table: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| error.to_string())?;
    let number = |path: &[&str]| {
        let mut value = table.get(*path.first()?)?;
        for key in &path[1..] {
            value = value.get(key)?;
        }
        usize::try_from(value.as_integer()?).ok()
    };
    let batch = number(&["train", "batch"]);
    let micro_batches = number(&["strategy", "pipeline", "micro_batches"]);
    if batch.is_none() && micro_batches.is_none() {
        return Ok(());
    }
    let work = &mut problem.work;
    let samples = batch.unwrap_or_else(|| work.micro_batch.saturating_mul(work.n_micro));
    let n_micro = micro_batches.unwrap_or_else(|| work.n_micro.min(samples));
    if n_micro == 0 || n_micro > samples {
        return Err(format!(
            "a step of {samples} samples in {n_micro} micro-batches: write at most as many micro-batches as samples"
        ));
    }
    (work.micro_batch, work.n_micro) = (samples.div_ceil(n_micro), n_micro);
    problem.least_samples = problem.least_samples.min(problem.work.micro_batch);
    Ok(())
}

/// The device that a user means by its name or the beginning of its id.
fn meant(problem: &Problem, word: &str) -> Result<usize, CliError> {
    let names = Names::new(problem);
    let numbers = 0..problem.devices.len();
    let own = |device: &usize| problem.devices[*device].name.as_str();
    let exact = |device: &usize| own(device) == word || names.of(*device) == word;
    let lower = word.to_ascii_lowercase();
    let begins =
        |device: &usize| !lower.is_empty() && own(device).to_ascii_lowercase().starts_with(&lower);
    let mut found: Vec<usize> = numbers.clone().filter(exact).collect();
    if found.is_empty() {
        found = numbers.filter(begins).collect();
    }
    match found[..] {
        [device] => Ok(device),
        [] => Err(CliError::usage(format!(
            "no device has the name or id {word:?}: there are {}",
            names.0.join(", ")
        ))),
        _ => {
            let all: Vec<&str> = found.iter().map(own).collect();
            let all = all.join(", ");
            Err(CliError::usage(format!(
                "{word:?} fits several devices: {all}"
            )))
        }
    }
}

/// The problem without the device that `word` means.
///
/// # Errors
/// No such device, several, the last one, or the one that alone has the data.
pub(super) fn without(problem: &Problem, word: &str) -> Result<Problem, CliError> {
    let device = meant(problem, word)?;
    problem.without(device).ok_or_else(|| {
        let name = Names::new(problem).of(device).to_owned();
        let why = if problem.data == Data::At(device) {
            "it alone has the data"
        } else {
            "it is the only one"
        };
        CliError::usage(format!("nothing can be planned without {name}: {why}"))
    })
}

/// The problem with one more device.
///
/// # Errors
/// Links with devices that are not there, figures that cannot be.
pub(super) fn with(problem: &Problem, added: Added) -> Result<Problem, CliError> {
    let n = problem.devices.len();
    let Added { device, links } = added;
    let name = match device.name.as_str() {
        "" => "the added device".to_owned(),
        name => name.to_owned(),
    };
    let mut rates = vec![[links.rate; 2]; n];
    let mut delays = vec![[links.latency; 2]; n];
    for (word, link) in &links.with {
        let other = meant(problem, word)?;
        (rates[other], delays[other]) = ([link.rate; 2], [link.latency; 2]);
    }
    checked(problem, "before")?;
    problem.with(device, &rates, &delays).map_err(|error| {
        let mut names = Names::new(problem);
        names.0.push(name.clone());
        CliError::usage(format!("with {name}: {}", names.error(&error)))
    })
}
