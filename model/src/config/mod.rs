//! What a job file says about the model, the optimiser and the data. Parsed by serde, checked once by `validate`.

mod data;
mod model;
mod optimiser;

pub use data::{DataConfig, MAX_CLASSES, MAX_CONTEXT, MAX_SHARDS, Mix, Source, Split};
pub use model::{ModelConfig, Stem};
pub use optimiser::OptimiserConfig;

/// A value that cannot work: names the key, what was given and the fix.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{key} = {given}: {fix}")]
pub struct ConfigError {
    /// The key as written in the job file, such as `optimiser.lr`.
    pub key: &'static str,
    /// The value that was given.
    pub given: String,
    /// What to write instead.
    pub fix: &'static str,
}

fn check(
    holds: bool,
    key: &'static str,
    given: impl std::fmt::Debug,
    fix: &'static str,
) -> Result<(), ConfigError> {
    if holds {
        Ok(())
    } else {
        Err(ConfigError {
            key,
            given: format!("{given:?}"),
            fix,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_filled_in_and_valid() {
        let model: ModelConfig = toml::from_str("kind = 'mlp'").unwrap();
        assert_eq!(
            model,
            ModelConfig::Mlp {
                hidden: vec![256, 128]
            }
        );
        for (kind, expected) in [
            (
                "efficientnet-b1",
                ModelConfig::EfficientnetB1 {
                    width: 1.0,
                    stochastic_depth: 0.2,
                },
            ),
            (
                "resnet-50",
                ModelConfig::Resnet50 {
                    width: 1.0,
                    stem: Stem::Imagenet,
                },
            ),
        ] {
            let model: ModelConfig = toml::from_str(&format!("kind = '{kind}'")).unwrap();
            assert_eq!((model.kind(), &model), (kind, &expected));
        }
        let optimiser: OptimiserConfig = toml::from_str("kind = 'sgd'\nlr = 0.05").unwrap();
        assert_eq!(optimiser, OptimiserConfig::default());
        let data: DataConfig = toml::from_str(
            "source = 'fashion-mnist'\nsplit = { kind = 'dirichlet', alpha = 0.5, shards = 4 }",
        )
        .unwrap();
        assert_eq!(
            data.split,
            Split::Dirichlet {
                alpha: 0.5,
                shards: 4
            }
        );
        model.validate().unwrap();
        optimiser.validate().unwrap();
        data.validate().unwrap();
    }

    #[test]
    fn unknown_keys_are_refused() {
        assert!(toml::from_str::<ModelConfig>("kind = 'cnn'\nwidth = 2.0").is_err());
        assert!(toml::from_str::<OptimiserConfig>("kind = 'sgd'\nlr = 0.1\nrate = 1.0").is_err());
        assert!(toml::from_str::<DataConfig>("sauce = 'digits'").is_err());
        assert!(toml::from_str::<Split>("kind = 'all'\nshards = 3").is_err());
    }

    #[test]
    fn an_impossible_value_names_the_key_and_the_fix() {
        let sgd = |lr, momentum, nesterov| OptimiserConfig::Sgd {
            lr,
            momentum,
            weight_decay: 0.0,
            nesterov,
        };
        let adamw = |beta2, epsilon| OptimiserConfig::Adamw {
            lr: 0.1,
            beta1: 0.9,
            beta2,
            epsilon,
            weight_decay: 0.0,
        };
        for (optimiser, key) in [
            (sgd(0.0, 0.9, false), "optimiser.lr"),
            (sgd(f64::NAN, 0.9, false), "optimiser.lr"),
            (sgd(0.1, 1.0, false), "optimiser.momentum"),
            (sgd(0.1, 0.0, true), "optimiser.nesterov"),
            (adamw(1.0, 1e-8), "optimiser.beta2"),
            (adamw(0.9, 0.0), "optimiser.epsilon"),
        ] {
            assert_eq!(optimiser.validate().unwrap_err().key, key, "{optimiser:?}");
        }
        for (text, key) in [
            ("source = 'npy'", "data.path"),
            ("path = 'here'", "data.path"),
            ("source = 'idx'\npath = 'a'\nname = 'b'", "data.name"),
            ("validation_fraction = 1.0", "data.validation_fraction"),
            ("size = [8, 8]", "data.size"),
            ("classes = 1", "data.classes"),
            ("context = 8", "data.context"),
            ("source = 'text'\npath = 'a'", "data.context"),
            ("source = 'text'\npath = 'a'\ncontext = 0", "data.context"),
            ("source = 'text'\ncontext = 8", "data.path"),
            (
                "source = 'text'\npath = 'a'\ncontext = 8\nmean = [0.5]\nstd = [1.0]",
                "data.mean",
            ),
            (
                "source = 'text'\npath = 'a'\ncontext = 8\nsplit = { kind = 'dirichlet', shards = 2, alpha = 1.0 }",
                "data.split.kind",
            ),
            ("mean = [0.5]", "data.std"),
            ("mean = [0.5]\nstd = [0.0]", "data.std"),
            ("split = { kind = 'iid', shards = 0 }", "data.split.shards"),
            (
                "split = { kind = 'dirichlet', shards = 2, alpha = 0.0 }",
                "data.split.alpha",
            ),
        ] {
            assert_eq!(
                toml::from_str::<DataConfig>(text)
                    .unwrap()
                    .validate()
                    .unwrap_err()
                    .key,
                key,
                "{text}"
            );
        }
        let gpt = |text: &str| -> ModelConfig {
            toml::from_str(&format!("kind = 'gpt'\n{text}")).unwrap()
        };
        for model in [
            ModelConfig::Mlp { hidden: vec![0] },
            ModelConfig::MobilenetV2 { width: f64::NAN },
            toml::from_str("kind = 'efficientnet-b1'\nwidth = 5").unwrap(),
            toml::from_str("kind = 'efficientnet-b1'\nstochastic_depth = 1.0").unwrap(),
            toml::from_str("kind = 'resnet-50'\nwidth = 0.05").unwrap(),
            gpt("heads = 3"),
            gpt("heads = 0"),
            gpt("layers = 0"),
            gpt("width = 100000"),
            gpt("context = 0"),
            gpt("vocabulary = 1"),
            gpt("dropout = 1.0"),
        ] {
            let error = model.validate().unwrap_err();
            assert!(error.to_string().contains("give"), "{error}");
        }
    }
}
