//! One file with a trained model: torch names, and a description from which [`import`] builds the model again.

use std::path::Path;

use super::tensors::{
    Description, MAX_HEADER_BYTES, decode_description, decode_weights, encode_weights,
    max_weights_bytes,
};
use super::{CheckpointError, disk};
use crate::block::MAX_PARAMETERS;
use crate::config::ModelConfig;
use crate::data::Normalisation;
use crate::model::{Layout, Model};
use crate::snapshot::Snapshot;

/// Longest file of a model that is read.
pub const MAX_MODEL_BYTES: u64 = MAX_PARAMETERS as u64 * 4 + MAX_HEADER_BYTES;

/// A model read from a file.
#[derive(Debug)]
pub struct Import {
    /// The model with the file's weights.
    pub model: Model,
    /// How its images are normalised.
    pub normalisation: Normalisation,
}

/// Writes the weights of `snapshot` to `path`; `safetensors.torch.load_file` reads them. On an error what was at `path`
/// before is still there.
///
/// # Errors
/// A snapshot that does not suit the layout; a disk that is full or cannot be written.
pub fn export(
    path: &Path,
    snapshot: &Snapshot,
    layout: &Layout,
    normalisation: &Normalisation,
) -> Result<(), CheckpointError> {
    check_weights(path, snapshot, layout)?;
    let description = Description::new(layout, normalisation);
    disk::replace(path, &encode_weights(path, snapshot, layout, &description)?)
}

/// Builds the model that [`export`] (or a checkpoint) wrote to `path`.
///
/// # Errors
/// A file without our description, a torn file, tensors that do not suit the description, values that are not finite.
/// Never allocates more than the file's size and the model of that size.
pub fn import(path: &Path) -> Result<Import, CheckpointError> {
    let bytes = disk::read(path, MAX_MODEL_BYTES)?;
    let description = decode_description(path, &bytes)?;
    let description = description.ok_or_else(|| {
        CheckpointError::corrupt(
            path,
            "the file does not say which model it is of: only files that skein exported do",
        )
    })?;
    let layout = description.layout(path)?;
    // Before the model is built: the tensors must be in the file, so the file's size bounds the model's.
    let snapshot = decode_weights(path, &bytes, &layout)?;
    check_weights(path, &snapshot, &layout)?;
    drop(bytes);
    let model = Model::new(&layout.config, layout.input_shape, layout.n_classes, 0);
    let mut model = model.map_err(|source| CheckpointError::Model {
        path: path.to_owned(),
        source,
    })?;
    snapshot.load_weights(&mut model);
    Ok(Import {
        model,
        normalisation: description.normalisation,
    })
}

/// Writes to `path` what [`export`] wrote elsewhere, if it is the model of `config` whose weights have this hash. On an error what was
/// at `path` before is still there.
///
/// # Errors
/// Bytes that [`import`] refuses, or of another model; a disk that is full or cannot be written.
pub fn adopt(
    path: &Path,
    bytes: &[u8],
    config: &ModelConfig,
    hash: [u8; 32],
) -> Result<(), CheckpointError> {
    let temporary = disk::beside(path);
    let adopted = disk::write(&temporary, bytes).and_then(|()| {
        let Import { model, .. } = import(&temporary)?;
        if model.layout().config != *config || model.weights_hash() != hash {
            return Err(CheckpointError::corrupt(path, "it is of another model"));
        }
        disk::rename(&temporary, path)
    });
    if adopted.is_err() {
        // Best effort: the error is what counts.
        let _ = std::fs::remove_file(&temporary);
    }
    adopted
}

/// Reads the weights of a file with torch names (also one that PyTorch wrote) for a model that is known; the snapshot has
/// no optimiser state.
///
/// # Errors
/// A torn file, tensors that are not the model's, values that are not finite.
pub fn import_weights(path: &Path, layout: &Layout) -> Result<Snapshot, CheckpointError> {
    let snapshot = decode_weights(path, &disk::read(path, max_weights_bytes(layout))?, layout)?;
    check_weights(path, &snapshot, layout)?;
    Ok(snapshot)
}

/// Checks the weights alone, whatever optimiser state either side has.
fn check_weights(path: &Path, snapshot: &Snapshot, layout: &Layout) -> Result<(), CheckpointError> {
    snapshot
        .check_weights(layout)
        .map_err(|source| CheckpointError::Snapshot {
            path: path.to_owned(),
            source,
        })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn exported() -> (tempfile::TempDir, std::path::PathBuf, Model, Normalisation) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let model = Model::new(&ModelConfig::Mlp { hidden: vec![3] }, [1, 2, 2], 2, 5).unwrap();
        let normalisation = Normalisation {
            mean: vec![0.25],
            std: vec![0.5],
        };
        export(&path, &Snapshot::of(&model), model.layout(), &normalisation).unwrap();
        (folder, path, model, normalisation)
    }

    #[test]
    fn an_export_is_adopted_elsewhere_if_it_is_the_model_that_was_meant() {
        let (folder, path, model, _) = exported();
        let bytes = std::fs::read(&path).unwrap();
        let copy = folder.path().join("copy.safetensors");
        let adopt = |bytes, hash| adopt(&copy, bytes, &model.layout().config, hash);
        assert!(adopt(&bytes, [7; 32]).is_err());
        assert!(adopt(&bytes[..bytes.len() - 1], model.weights_hash()).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        adopt(&bytes, model.weights_hash()).unwrap();
        assert_eq!(std::fs::read(&copy).unwrap(), bytes);
    }

    #[test]
    fn an_export_builds_the_model_again() {
        let (_folder, path, model, normalisation) = exported();
        let import = import(&path).unwrap();
        assert_eq!(import.model.weights_hash(), model.weights_hash());
        assert_eq!(import.model.layout(), model.layout());
        assert_eq!(import.normalisation, normalisation);
    }

    #[test]
    fn batch_norm_has_the_counter_that_torch_expects() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.safetensors");
        let model = Model::new(
            &ModelConfig::MobilenetV2 { width: 0.25 },
            [3, 32, 32],
            10,
            5,
        )
        .unwrap();
        let snapshot = Snapshot {
            batches_tracked: 17,
            ..Snapshot::of(&model)
        };
        let normalisation = Normalisation {
            mean: vec![0.5; 3],
            std: vec![0.5; 3],
        };
        export(&path, &snapshot, model.layout(), &normalisation).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let counter = file.tensor("features.0.1.num_batches_tracked").unwrap();
        assert_eq!(
            (counter.shape(), counter.data()),
            ([].as_slice(), 17i64.to_le_bytes().as_slice())
        );
        assert_eq!(import_weights(&path, model.layout()).unwrap(), snapshot);
    }

    #[test]
    fn a_file_of_another_model_names_the_tensor() {
        let (_folder, path, _, _) = exported();
        let layout = |hidden, shape| Layout::new(&ModelConfig::Mlp { hidden }, shape, 2).unwrap();
        let message = |layout| import_weights(&path, &layout).unwrap_err().to_string();
        assert!(message(layout(vec![3, 3], [1, 2, 2])).contains("\"fc3.bias\" is missing"));
        assert!(
            message(layout(vec![], [1, 2, 2])).contains("the model has no tensor \"fc2.bias\"")
        );
        assert!(
            message(layout(vec![4], [1, 2, 2]))
                .contains("fc1.weight is F32 [3, 4], the model has F32 [4, 4]")
        );
    }

    #[test]
    fn weights_that_are_not_finite_are_neither_written_nor_read() {
        let (_folder, path, model, normalisation) = exported();
        let mut snapshot = Snapshot::of(&model);
        snapshot.parameters[2] = f32::NAN;
        assert!(
            export(&path, &snapshot, model.layout(), &normalisation)
                .unwrap_err()
                .to_string()
                .contains("NaN at 2")
        );
        assert_eq!(
            import(&path).unwrap().model.weights_hash(),
            model.weights_hash()
        );
    }

    #[test]
    fn a_description_that_claims_a_huge_model_allocates_nothing() {
        let (_folder, path, _, _) = exported();
        let bytes = std::fs::read(&path).unwrap();
        let text = String::from_utf8_lossy(&bytes[8..]).into_owned();
        let header = text
            .split_once('\0')
            .map_or(text.as_str(), |(header, _)| header);
        assert!(header.contains("\\\"hidden\\\":[3]"), "{header}");
        let at = bytes.windows(3).position(|part| part == b"[3]").unwrap();
        // Longer by three bytes: the header's length grows with it.
        let mut huge = [&bytes[..at], b"[9999]", &bytes[at + 3..]].concat();
        huge[0] = huge[0].wrapping_add(3);
        std::fs::write(&path, &huge).unwrap();
        let error = import(&path).unwrap_err().to_string();
        assert!(
            error.contains("the model has F32 [9999, 4]") || error.contains("not a whole"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn arbitrary_and_changed_files_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), at: u16, byte: u8, cut: u16) {
            let (_folder, path, _, _) = exported();
            let mut whole = std::fs::read(&path).unwrap();
            std::fs::write(&path, &bytes).unwrap();
            prop_assert!(import(&path).is_err());
            let at = usize::from(at) % whole.len();
            whole[at] = byte;
            std::fs::write(&path, &whole).unwrap();
            let _ = import(&path);
            whole.truncate(usize::from(cut) % whole.len());
            std::fs::write(&path, &whole).unwrap();
            prop_assert!(import(&path).is_err());
        }
    }
}
