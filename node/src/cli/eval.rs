//! `skein eval`: how well a job's model, or an exported file, does on a whole validation set. A file needs no node.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use skein_gossip::ids::Digest;
use skein_model::checkpoint::{self, Import};
use skein_model::config::{DataConfig, Source};
use skein_model::{data, train};

use super::args::EvalArgs;
use super::exit::{CliError, Exit};
use super::find::{self, unexpected};
use super::output::Output;
use super::show;
use crate::control::protocol::Evaluated;
use crate::control::{Client, Request, Response};
use crate::job::JobFile;
use crate::nearest::nearest;

/// Rows per forward pass: fills the cores of a small machine, and needs some 100 MB with the largest model.
const BATCH: usize = 256;

/// `skein eval`.
pub(super) async fn eval(home: &Path, args: EvalArgs, output: &Output) -> Result<Exit, CliError> {
    let path = PathBuf::from(&args.target);
    let response = if path.is_file() {
        let config = args.data.as_deref().ok_or_else(|| {
            CliError::usage("say what to judge the file on: --data digits, --data npy=/data/v.npz, --data job.toml")
        })?;
        Response::Evaluated(file(&path, data_config(config)?)?)
    } else if args.target.contains('/') || path.extension().is_some() {
        return Err(CliError::not_found(format!(
            "there is no file {}",
            path.display()
        )));
    } else if args.data.is_some() {
        return Err(CliError::usage(
            "--data is for files; a job is judged on its own data",
        ));
    } else {
        let job = find::job(home, &args.target).await?;
        Client::ask(home, &Request::EvalJob { job }).await?
    };
    let Response::Evaluated(result) = &response else {
        return Err(unexpected("eval", &response));
    };
    output.response(&response, || {
        let (accuracy, loss) = (
            show::percent(Some(result.accuracy)),
            show::number(result.loss, 4),
        );
        format!(
            "accuracy {accuracy}, loss {loss} on {} samples, model hash {}",
            result.samples, result.model_hash
        )
    })?;
    // Written so that an accuracy that is no number misses it too.
    let reached = args
        .at_least
        .is_none_or(|at_least| result.accuracy >= at_least);
    Ok(if reached { Exit::Ok } else { Exit::Failed })
}

/// Judges the model in `path` on the validation part of the data.
fn file(path: &Path, mut config: DataConfig) -> Result<Evaluated, CliError> {
    let Import {
        mut model,
        normalisation,
    } = checkpoint::import(path).map_err(|error| CliError::usage(error.to_string()))?;
    // The model has learnt images normalised as the file says, whatever this data would suggest.
    config.mean = Some(normalisation.mean);
    config.std = Some(normalisation.std);
    let [channels, height, width] = model.layout().input_shape;
    if config.source == Source::Images {
        config.size = Some([height as u32, width as u32]);
    }
    if config.source == Source::Text {
        config.context = Some(width as u32);
    }
    config.classes = config
        .classes
        .or_else(|| is_open(config.source).then_some(model.layout().n_classes));
    let data = data::load(&config, &BTreeMap::new())
        .map_err(|error| CliError::usage(error.to_string()))?
        .validation;
    if data.input_shape() != [channels, height, width]
        || data.n_classes() != model.layout().n_classes
    {
        return Err(CliError::usage(format!(
            "{} is for {channels}x{height}x{width} values and {} classes, but the data has {:?} and {}: give other --data",
            path.display(),
            model.layout().n_classes,
            data.input_shape(),
            data.n_classes(),
        )));
    }
    let model_hash = Digest(model.weights_hash()).into();
    let result = train::evaluate(&mut model, &data, 0..data.len(), BATCH)
        .map_err(|error| CliError::internal(error.to_string()))?;
    Ok(Evaluated {
        accuracy: result.accuracy,
        loss: Some(result.loss).filter(|loss| loss.is_finite()),
        samples: result.samples as u64,
        model_hash,
    })
}

/// Whether the number of classes is not fixed by the source but by what happens to be in it.
fn is_open(source: Source) -> bool {
    matches!(source, Source::Npy | Source::Idx)
}

/// Reads `SOURCE`, `SOURCE=PATH`, or a job file of which the data is meant.
fn data_config(text: &str) -> Result<DataConfig, CliError> {
    if text.ends_with(".toml") {
        let job = super::job_text::read(Path::new(text))?;
        let job = JobFile::parse(&job).map_err(|error| CliError::job(text, &error))?;
        return Ok(job.data);
    }
    let (name, path) = match text.split_once('=') {
        Some((name, path)) => (name, Some(PathBuf::from(path))),
        None => (text, None),
    };
    let source = serde_json::from_value::<Source>(name.into()).map_err(|error| {
        let message = error.to_string();
        // "unknown variant `x`, expected one of `a`, `b`": the names are kept in one place, the model crate.
        let known = message.split('`').skip(3).step_by(2);
        let hint = nearest(name, known.clone()).map_or_else(
            || format!("use one of {}", known.collect::<Vec<_>>().join(", ")),
            |near| format!("did you mean {near}?"),
        );
        CliError::usage(format!(
            "--data {text}: there is no source {name:?}: {hint}"
        ))
    })?;
    Ok(DataConfig {
        source,
        path,
        ..DataConfig::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use skein_model::config::ModelConfig;
    use skein_model::model::Model;
    use skein_model::snapshot::Snapshot;

    fn args(target: &Path, data: Option<&str>, at_least: Option<f64>) -> EvalArgs {
        EvalArgs {
            target: target.display().to_string(),
            data: data.map(String::from),
            at_least,
        }
    }

    #[tokio::test]
    async fn an_exported_file_is_judged_without_a_node() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let digits = data::load(&DataConfig::default(), &BTreeMap::new()).unwrap();
        let data = &digits.validation;
        let model = Model::new(
            &ModelConfig::Mlp { hidden: vec![8] },
            data.input_shape(),
            data.n_classes(),
            1,
        )
        .unwrap();
        checkpoint::export(
            &path,
            &Snapshot::of(&model),
            model.layout(),
            data.normalisation(),
        )
        .unwrap();
        let result = file(&path, data_config("digits").unwrap()).unwrap();
        assert_eq!(result.samples, data.len() as u64);
        assert_eq!(result.model_hash.0.0, model.weights_hash());

        let output = Output::to(true, std::io::sink());
        let run = |data, at_least| eval(folder.path(), args(&path, data, at_least), &output);
        assert_eq!(run(Some("digits"), None).await.unwrap(), Exit::Ok);
        assert_eq!(
            run(Some("digits"), Some(1.0)).await.unwrap(),
            Exit::Failed,
            "an untrained model"
        );
        assert_eq!(run(None, None).await.unwrap_err().exit, Exit::Usage);
        assert!(
            run(Some("digit"), None)
                .await
                .unwrap_err()
                .message
                .contains("did you mean digits?")
        );
    }

    #[tokio::test]
    async fn what_is_neither_file_nor_job_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let output = Output::to(true, std::io::sink());
        let missing = folder.path().join("absent.safetensors");
        let error = eval(folder.path(), args(&missing, Some("digits"), None), &output)
            .await
            .unwrap_err();
        assert_eq!(error.exit, Exit::NotFound);
        let error = eval(
            folder.path(),
            args(Path::new("digits"), None, None),
            &output,
        )
        .await
        .unwrap_err();
        assert_eq!(error.exit, Exit::NoNode, "a job needs its node");
        let torn = folder.path().join("torn.safetensors");
        std::fs::write(&torn, b"{}").unwrap();
        let error = eval(folder.path(), args(&torn, Some("digits"), None), &output)
            .await
            .unwrap_err();
        assert_eq!(error.exit, Exit::Usage);
        assert!(error.message.contains("torn.safetensors"), "{error}");
    }
}
