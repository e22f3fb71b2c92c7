//! Snapshots as safetensors: weights under their torch names, optimiser state under `NAME.VARIABLE`.
//!
//! Format: <https://huggingface.co/docs/safetensors>. Each batch norm also has torch's `num_batches_tracked`, so that
//! `load_state_dict(strict=True)` finds all it wants.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use safetensors::{Dtype, SafeTensors, View};
use serde::{Deserialize, Serialize};

use super::CheckpointError;
use crate::arena::{Segment, push_values, read_values};
use crate::config::ModelConfig;
use crate::data::Normalisation;
use crate::model::Layout;
use crate::snapshot::Snapshot;

/// Room for names, shapes and metadata in front of the tensors.
pub(crate) const MAX_HEADER_BYTES: u64 = 4 << 20;

/// Key of our description in the file's metadata.
const METADATA_KEY: &str = "skein";

const COUNTER: &str = "num_batches_tracked";

/// What a file says about its model: enough to build it and to feed it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Description {
    pub(crate) version: u32,
    pub(crate) model: ModelConfig,
    pub(crate) input_shape: [i64; 3],
    pub(crate) n_classes: i64,
    pub(crate) normalisation: Normalisation,
}

impl Description {
    pub(crate) const VERSION: u32 = 1;

    pub(crate) fn new(layout: &Layout, normalisation: &Normalisation) -> Self {
        Self {
            version: Self::VERSION,
            model: layout.config.clone(),
            input_shape: layout.input_shape,
            n_classes: layout.n_classes,
            normalisation: normalisation.clone(),
        }
    }

    /// The layout of the model described; nothing is allocated for its weights.
    pub(crate) fn layout(&self, path: &Path) -> Result<Layout, CheckpointError> {
        if self.version != Self::VERSION {
            let what = format!(
                "version {} of the format; this program reads {}",
                self.version,
                Self::VERSION
            );
            return Err(CheckpointError::corrupt(path, what));
        }
        let layout =
            Layout::new(&self.model, self.input_shape, self.n_classes).map_err(|source| {
                CheckpointError::Model {
                    path: path.to_owned(),
                    source,
                }
            })?;
        let Normalisation { mean, std } = &self.normalisation;
        let channels = self.input_shape[0] as usize;
        let sound = mean.len() == channels
            && std.len() == channels
            && mean.iter().all(|mean| mean.is_finite())
            && std.iter().all(|std| std.is_finite() && *std > 0.0);
        if !sound {
            return Err(CheckpointError::corrupt(
                path,
                format!("the normalisation does not suit {channels} channels"),
            ));
        }
        Ok(layout)
    }
}

/// Most bytes a weights file of `layout` can have.
pub(crate) fn max_weights_bytes(layout: &Layout) -> u64 {
    (layout.n_parameters() + layout.n_buffers()) as u64 * 4 + MAX_HEADER_BYTES
}

/// Most bytes an optimiser file of `layout` can have.
pub(crate) fn max_optimiser_bytes(layout: &Layout) -> u64 {
    (layout.n_parameters() * layout.optimiser.len()) as u64 * 4 + MAX_HEADER_BYTES
}

/// The weights as one file.
pub(crate) fn encode_weights(
    snapshot: &Snapshot,
    layout: &Layout,
    description: &Description,
) -> Vec<u8> {
    let tracked = snapshot.batches_tracked;
    let parameters = layout
        .parameters
        .iter()
        .map(|segment| f32_tensor(segment, &snapshot.parameters));
    let buffers = layout
        .buffers
        .iter()
        .map(|segment| f32_tensor(segment, &snapshot.buffers));
    let tensors = layout
        .parameters
        .iter()
        .chain(&layout.buffers)
        .zip(parameters.chain(buffers));
    let mut named: Vec<_> = tensors
        .map(|(segment, tensor)| (segment.name.clone(), tensor))
        .collect();
    named.extend(counters(layout).map(|name| (name, RawTensor::counter(tracked))));
    let description = serde_json::to_string(description).unwrap_or_default();
    let metadata = [
        ("format".to_owned(), "pt".to_owned()),
        (METADATA_KEY.to_owned(), description),
    ];
    serialise(named, Some(metadata.into()))
}

/// The optimiser's state as one file.
pub(crate) fn encode_optimiser(snapshot: &Snapshot, layout: &Layout) -> Vec<u8> {
    let states = layout.optimiser.iter().zip(&snapshot.optimiser);
    let named = states.flat_map(|(name, state)| {
        layout.parameters.iter().map(move |segment| {
            (
                format!("{name}.{}", segment.name),
                f32_tensor(segment, state),
            )
        })
    });
    serialise(named.collect(), None)
}

/// Reads the description in a weights file, if it has one of ours.
pub(crate) fn decode_description(
    path: &Path,
    bytes: &[u8],
) -> Result<Option<Description>, CheckpointError> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|error| broken(path, &error))?;
    let Some(text) = metadata
        .metadata()
        .as_ref()
        .and_then(|metadata| metadata.get(METADATA_KEY))
    else {
        return Ok(None);
    };
    let description = serde_json::from_str(text);
    description.map(Some).map_err(|error| {
        CheckpointError::corrupt(path, format!("the description of the model: {error}"))
    })
}

/// Reads weights: a snapshot without optimiser state. Every tensor of `layout` must be there and no other.
pub(crate) fn decode_weights(
    path: &Path,
    bytes: &[u8],
    layout: &Layout,
) -> Result<Snapshot, CheckpointError> {
    let file = SafeTensors::deserialize(bytes).map_err(|error| broken(path, &error))?;
    let segments = || layout.parameters.iter().chain(&layout.buffers);
    let expected = segments()
        .map(|segment| segment.name.clone())
        .chain(counters(layout))
        .collect();
    check_names(path, &file, &expected)?;
    let mut batches_tracked = 0;
    for name in counters(layout) {
        let tensor = file.tensor(&name).map_err(|error| broken(path, &error))?;
        let counter = (tensor.dtype() == Dtype::I64)
            .then(|| tensor.data().try_into().ok())
            .flatten();
        let counter = counter
            .ok_or_else(|| CheckpointError::other_model(path, format!("{name} is not one i64")))?;
        batches_tracked = i64::from_le_bytes(counter);
    }
    Ok(Snapshot {
        parameters: gather(path, &file, "", &layout.parameters)?,
        buffers: gather(path, &file, "", &layout.buffers)?,
        batches_tracked,
        optimiser: Vec::new(),
        optimiser_steps: 0,
    })
}

/// Reads the optimiser's state vectors.
pub(crate) fn decode_optimiser(
    path: &Path,
    bytes: &[u8],
    layout: &Layout,
) -> Result<Vec<Vec<f32>>, CheckpointError> {
    let file = SafeTensors::deserialize(bytes).map_err(|error| broken(path, &error))?;
    let names = layout.optimiser.iter();
    let expected = names.flat_map(|name| {
        layout
            .parameters
            .iter()
            .map(move |segment| format!("{name}.{}", segment.name))
    });
    check_names(path, &file, &expected.collect())?;
    layout
        .optimiser
        .iter()
        .map(|name| gather(path, &file, &format!("{name}."), &layout.parameters))
        .collect()
}

fn broken(path: &Path, error: &safetensors::SafeTensorError) -> CheckpointError {
    CheckpointError::corrupt(path, format!("not a whole safetensors file: {error}"))
}

/// `num_batches_tracked` beside each `running_mean`.
fn counters(layout: &Layout) -> impl Iterator<Item = String> {
    let norms = layout
        .buffers
        .iter()
        .filter_map(|segment| segment.name.strip_suffix("running_mean"));
    norms.map(|prefix| format!("{prefix}{COUNTER}"))
}

fn check_names(
    path: &Path,
    file: &SafeTensors,
    expected: &BTreeSet<String>,
) -> Result<(), CheckpointError> {
    let found: BTreeSet<&str> = file.names().into_iter().collect();
    if let Some(missing) = expected.iter().find(|name| !found.contains(name.as_str())) {
        return Err(CheckpointError::other_model(
            path,
            format!("the tensor {missing:?} is missing: the file is of another model"),
        ));
    }
    match found.into_iter().find(|name| !expected.contains(*name)) {
        None => Ok(()),
        Some(name) => {
            let name: String = name.chars().take(120).collect();
            Err(CheckpointError::other_model(
                path,
                format!("the model has no tensor {name:?}: the file is of another model"),
            ))
        }
    }
}

/// The values of all `segments`, one behind the other.
fn gather(
    path: &Path,
    file: &SafeTensors,
    prefix: &str,
    segments: &[Segment],
) -> Result<Vec<f32>, CheckpointError> {
    let mut values = Vec::with_capacity(segments.last().map_or(0, |last| last.offset + last.len));
    for segment in segments {
        let name = format!("{prefix}{}", segment.name);
        let tensor = file.tensor(&name).map_err(|error| broken(path, &error))?;
        let same_shape = tensor
            .shape()
            .iter()
            .map(|side| *side as i64)
            .eq(segment.shape.iter().copied());
        if tensor.dtype() != Dtype::F32 || !same_shape {
            let (dtype, shape) = (tensor.dtype(), tensor.shape());
            let what = format!(
                "{name} is {dtype:?} {shape:?}, the model has F32 {:?}",
                segment.shape
            );
            return Err(CheckpointError::other_model(path, what));
        }
        values.extend(read_values(tensor.data()));
    }
    Ok(values)
}

fn f32_tensor<'a>(segment: &Segment, values: &'a [f32]) -> RawTensor<'a> {
    let shape = segment.shape.iter().map(|side| *side as usize).collect();
    RawTensor {
        shape,
        values: Values::F32(&values[segment.offset..segment.offset + segment.len]),
    }
}

#[expect(
    clippy::expect_used,
    reason = "names are distinct, sizes fit their shapes, and the header is a few kilobytes"
)]
fn serialise(
    named: Vec<(String, RawTensor)>,
    metadata: Option<HashMap<String, String>>,
) -> Vec<u8> {
    safetensors::serialize(named, metadata).expect("a valid layout serialises")
}

/// A tensor as safetensors wants to see it; bytes are made when they are written.
struct RawTensor<'a> {
    shape: Vec<usize>,
    values: Values<'a>,
}

enum Values<'a> {
    F32(&'a [f32]),
    Counter(i64),
}

impl RawTensor<'_> {
    fn counter(value: i64) -> Self {
        Self {
            shape: Vec::new(),
            values: Values::Counter(value),
        }
    }
}

impl View for RawTensor<'_> {
    fn dtype(&self) -> Dtype {
        if matches!(self.values, Values::F32(_)) {
            Dtype::F32
        } else {
            Dtype::I64
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let mut bytes = Vec::with_capacity(self.data_len());
        match self.values {
            Values::F32(values) => push_values(&mut bytes, values),
            Values::Counter(value) => bytes.extend(value.to_le_bytes()),
        }
        bytes.into()
    }

    fn data_len(&self) -> usize {
        match self.values {
            Values::F32(values) => values.len() * 4,
            Values::Counter(_) => 8,
        }
    }
}
