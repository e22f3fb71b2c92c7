//! `text`: any file as a stream of bytes, plain or gzip. Each byte is a token, so there is no alphabet to agree on, and every
//! language and encoding works; with a tokenizer the tokens are its own.
//!
//! The stream is cut into windows of `context` tokens; what is predicted of each token is the next one, so a window has one
//! token more, the first of the next window. The last part of the stream is held out for validation: samples next to each
//! other are alike, and a random choice of them would be no test.

use std::path::Path;

use super::DataError;
use super::dataset::{Pixels, Raw};
use super::file::Input;
use super::tokenizer::Tokenizer;

/// Number of tokens: all bytes.
pub(crate) const N_BYTES: i64 = 256;

/// Most bytes of a text that are read: 1 GiB, which takes twice that in memory.
const MAX_TEXT_BYTES: u64 = 1 << 30;

/// Training and validation part of the file `path`: the validation part is the file `own` if there is one, else the last
/// `fraction` of `path`.
pub(crate) fn load(
    path: &Path,
    own: Option<&Path>,
    context: usize,
    fraction: f64,
    tokenizer: Option<&Tokenizer>,
) -> Result<(Raw, Raw), DataError> {
    let tokens = read(path, context, tokenizer)?;
    if let Some(own) = own {
        return Ok((
            windows(&tokens, context),
            windows(&read(own, context, tokenizer)?, context),
        ));
    }
    // Whole windows, at least one on each side; the token at the border is predicted last by the one, given first by the other.
    let n_windows = (tokens.len() - 1) / context;
    if n_windows < 2 {
        return Err(too_short(path, tokens.len(), 2, context));
    }
    let held = (n_windows as f64 * fraction).round() as usize;
    let border = (n_windows - held.clamp(1, n_windows - 1)) * context;
    Ok((
        windows(&tokens[..=border], context),
        windows(&tokens[border..], context),
    ))
}

fn read(path: &Path, context: usize, tokenizer: Option<&Tokenizer>) -> Result<Vec<u16>, DataError> {
    let bytes = Input::open(path)?.rest(MAX_TEXT_BYTES)?;
    let tokens: Vec<u16> = match tokenizer {
        Some(tokenizer) => tokenizer.encode(&bytes),
        None => bytes.into_iter().map(u16::from).collect(),
    };
    if tokens.len() <= context {
        return Err(too_short(path, tokens.len(), 1, context));
    }
    Ok(tokens)
}

fn too_short(path: &Path, tokens: usize, windows: usize, context: usize) -> DataError {
    let what = format!(
        "{tokens} tokens; {windows} samples of data.context = {context} tokens need {} or more",
        windows * context + 1
    );
    DataError::mismatch(path, what)
}

fn windows(stream: &[u16], context: usize) -> Raw {
    let n = stream.len().saturating_sub(1) / context;
    let window = |number: usize| &stream[number * context..=(number + 1) * context];
    let tokens = (0..n).flat_map(window).copied();
    Raw {
        pixels: Pixels::Tokens(tokens.collect()),
        labels: (0..n)
            .map(|n| i64::from(stream[(n + 1) * context]))
            .collect(),
        shape: [1, 1, context as i64],
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::config::{DataConfig, Source};
    use crate::data::{self, tokenizer};

    fn config(path: &Path, context: u32) -> DataConfig {
        DataConfig {
            source: Source::Text,
            path: Some(path.to_owned()),
            context: Some(context),
            validation_fraction: 0.25,
            ..DataConfig::default()
        }
    }

    #[test]
    fn every_token_is_predicted_once_and_the_end_is_held_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "In the beginning!").unwrap();
        let splits = data::load(&config(&path, 4), &BTreeMap::new()).unwrap();
        assert_eq!((splits.train.len(), splits.validation.len()), (3, 1));
        assert_eq!(
            (splits.train.input_shape(), splits.train.n_classes()),
            ([1, 1, 4], 256)
        );
        let batch = splits.train.batch(&[2, 0]);
        assert_eq!((batch.len(), batch.x().size()), (2, vec![2, 1, 1, 4]));
        let x: Vec<f32> = batch.x().flatten(0, -1).try_into().unwrap();
        let text: Vec<u8> = x.iter().map(|token| *token as u8).collect();
        assert_eq!(text, b"eginIn t");
        assert_eq!(batch.y().size(), [2, 4]);
        let labels: Vec<u8> = batch.labels().iter().map(|label| *label as u8).collect();
        assert_eq!(labels, b"ginnn th");
        let held = splits.validation.batch(&[0]).labels();
        assert_eq!(
            held.iter().map(|label| *label as u8).collect::<Vec<_>>(),
            b"ing!"
        );
        assert_eq!(splits.train.normalisation().std, [1.0]);
    }

    #[test]
    fn a_validation_file_of_its_own_is_taken_whole() {
        let folder = tempfile::tempdir().unwrap();
        let (path, own) = (folder.path().join("text"), folder.path().join("own"));
        std::fs::write(&path, "0123456789").unwrap();
        std::fs::write(&own, "abcdef").unwrap();
        let with_own = DataConfig {
            validation_path: Some(own),
            ..config(&path, 3)
        };
        let splits = data::load(&with_own, &BTreeMap::new()).unwrap();
        assert_eq!((splits.train.len(), splits.validation.len()), (3, 1));
    }

    #[test]
    fn a_text_that_is_too_short_says_what_it_needs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("short");
        std::fs::write(&path, "12345678").unwrap();
        for (context, needs) in [
            (8, "need 9 or more"),
            (4, "need 9 or more"),
            (7, "need 15 or more"),
        ] {
            let error = data::load(&config(&path, context), &BTreeMap::new()).unwrap_err();
            let error = error.to_string();
            assert!(
                error.contains("short: 8 tokens") && error.contains(needs),
                "{error}"
            );
        }
        let missing = folder.path().join("none");
        let error = data::load(&config(&missing, 4), &BTreeMap::new()).unwrap_err();
        assert!(error.to_string().contains("none"), "{error}");
    }

    #[test]
    fn a_tokenizer_makes_the_tokens_and_their_number() {
        let folder = tempfile::tempdir().unwrap();
        let (path, tokenizer) = (
            folder.path().join("text"),
            folder.path().join("tokenizer.json"),
        );
        std::fs::write(&path, "the then bathe the the the").unwrap();
        std::fs::write(&tokenizer, tokenizer::small().to_string()).unwrap();
        let with = DataConfig {
            tokenizer: Some(tokenizer.clone()),
            ..config(&path, 2)
        };
        let splits = data::load(&with, &BTreeMap::new()).unwrap();
        assert_eq!((splits.train.len(), splits.train.n_classes()), (3, 269));
        let batch = splits.train.batch(&[0]);
        assert_eq!(
            Vec::<f32>::try_from(batch.x().view(-1)).unwrap(),
            [257.0, 258.0]
        );
        assert_eq!(batch.labels(), [258, 110]);
        assert!(splits.tokenizer.is_some());
        std::fs::remove_file(&tokenizer).unwrap();
        let error = data::load(&with, &BTreeMap::new()).unwrap_err().to_string();
        assert!(error.contains("tokenizer.json"), "{error}");
        let images = DataConfig {
            tokenizer: Some(tokenizer),
            ..DataConfig::default()
        };
        let error = data::load(&images, &BTreeMap::new())
            .unwrap_err()
            .to_string();
        assert!(error.contains("data.tokenizer"), "{error}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_text(bytes in proptest::collection::vec(any::<u8>(), 0..200), context in 1u32..20) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("text");
            let is_gzip = bytes.starts_with(&[0x1f, 0x8b]);
            std::fs::write(&path, &bytes).unwrap();
            let n_windows = bytes.len().saturating_sub(1) / context as usize;
            match data::load(&config(&path, context), &BTreeMap::new()) {
                Ok(splits) => prop_assert_eq!(splits.train.len() + splits.validation.len(), n_windows),
                Err(_) => prop_assert!(n_windows < 2 || is_gzip),
            }
        }
    }
}
