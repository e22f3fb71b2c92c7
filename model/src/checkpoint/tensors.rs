//! Snapshots as safetensors: weights under their torch names, optimiser state under `NAME.VARIABLE`.
//!
//! Format: <https://huggingface.co/docs/safetensors>. Each batch norm also has torch's `num_batches_tracked`, so that
//! `load_state_dict(strict=True)` finds all it wants.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensors, View};
use serde::{Deserialize, Serialize};

use super::CheckpointError;
use crate::arena::{Segment, push_values, read_values};
use crate::config::ModelConfig;
use crate::data::Normalisation;
use crate::model::Layout;
use crate::snapshot::Snapshot;

/// The length of the header stands in front of it.
pub(super) const LENGTH_BYTES: u64 = 8;

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
///
/// # Errors
/// A layout that no file can have; `path` is named.
pub(crate) fn encode_weights(
    path: &Path,
    snapshot: &Snapshot,
    layout: &Layout,
    description: &Description,
) -> Result<Vec<u8>, CheckpointError> {
    let (mut bytes, table) = header_of(path, layout, description)?;
    let parameters = layout.parameters.iter();
    let parameters = parameters.map(|segment| (segment, &snapshot.parameters));
    let buffers = layout.buffers.iter();
    let buffers = buffers.map(|segment| (segment, &snapshot.buffers));
    let named = parameters.chain(buffers);
    let values: HashMap<&str, &[f32]> = named
        .map(|(segment, values)| {
            let values = &values[segment.offset..segment.offset + segment.len];
            (segment.name.as_str(), values)
        })
        .collect();
    bytes.reserve(table.data_len());
    for name in table.offset_keys() {
        match values.get(name.as_str()) {
            Some(values) => push_values(&mut bytes, values),
            None => bytes.extend(snapshot.batches_tracked.to_le_bytes()),
        }
    }
    Ok(bytes)
}

/// The head of a weights file, and where each tensor lies behind it. The same bytes every time.
pub(super) fn header_of(
    path: &Path,
    layout: &Layout,
    description: &Description,
) -> Result<(Vec<u8>, Metadata), CheckpointError> {
    let refuse = |what: String| CheckpointError::corrupt(path, what);
    let segments = layout.parameters.iter().chain(&layout.buffers);
    let floats = segments.map(|segment| {
        let shape: Vec<usize> = segment.shape.iter().map(|side| *side as usize).collect();
        (segment.name.clone(), Dtype::F32, shape, segment.len * 4)
    });
    let counters = counters(layout).map(|name| (name, Dtype::I64, Vec::new(), 8));
    let mut tensors: Vec<_> = floats.chain(counters).collect();
    // As `safetensors` orders them: the widest type first, then by name.
    tensors.sort_by(|(name, dtype, ..), (other, other_dtype, ..)| {
        other_dtype.cmp(dtype).then(name.cmp(other))
    });
    let mut end = 0;
    let infos = tensors.into_iter().map(|(name, dtype, shape, bytes)| {
        let data_offsets = (end, end + bytes);
        end += bytes;
        let info = TensorInfo {
            dtype,
            shape,
            data_offsets,
        };
        (name, info)
    });
    let table = Metadata::new(None, infos.collect()).map_err(|error| refuse(error.to_string()))?;
    let json =
        |value: Result<String, serde_json::Error>| value.map_err(|error| refuse(error.to_string()));
    let tensors = json(serde_json::to_string(&table))?;
    let description =
        json(serde_json::to_string(description).and_then(|text| serde_json::to_string(&text)))?;
    // A map of the library's would be in another order each time.
    let mut text = format!(
        "{{\"__metadata__\":{{\"format\":\"pt\",\"{METADATA_KEY}\":{description}}},{}",
        tensors.strip_prefix('{').unwrap_or_default()
    );
    let length = text.len().next_multiple_of(LENGTH_BYTES as usize);
    text.extend(std::iter::repeat_n(' ', length - text.len()));
    let mut header = (length as u64).to_le_bytes().to_vec();
    header.extend(text.into_bytes());
    Ok((header, table))
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
    serialise(named.collect())
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
    check_names(path, names_in(&file), layout)?;
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
    check_tensors(path, names_in(&file), &expected.collect())?;
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
pub(super) fn counters(layout: &Layout) -> impl Iterator<Item = String> {
    let norms = layout
        .buffers
        .iter()
        .filter_map(|segment| segment.name.strip_suffix("running_mean"));
    norms.map(|prefix| format!("{prefix}{COUNTER}"))
}

fn names_in<'a>(file: &'a SafeTensors) -> BTreeSet<&'a str> {
    file.names().into_iter().collect()
}

/// Whether a weights file has the tensors of `layout` and no others.
pub(super) fn check_names(
    path: &Path,
    found: BTreeSet<&str>,
    layout: &Layout,
) -> Result<(), CheckpointError> {
    let segments = layout.parameters.iter().chain(&layout.buffers);
    let names = segments.map(|segment| segment.name.clone());
    check_tensors(path, found, &names.chain(counters(layout)).collect())
}

fn check_tensors(
    path: &Path,
    found: BTreeSet<&str>,
    expected: &BTreeSet<String>,
) -> Result<(), CheckpointError> {
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
        check_tensor(path, &name, (tensor.dtype(), tensor.shape()), segment)?;
        values.extend(read_values(tensor.data()));
    }
    Ok(values)
}

/// Whether a tensor is the variable of `segment`.
pub(super) fn check_tensor(
    path: &Path,
    name: &str,
    (dtype, shape): (Dtype, &[usize]),
    segment: &Segment,
) -> Result<(), CheckpointError> {
    let sides = shape.iter().map(|side| *side as i64);
    if dtype == Dtype::F32 && sides.eq(segment.shape.iter().copied()) {
        return Ok(());
    }
    let what = format!(
        "{name} is {dtype:?} {shape:?}, the model has F32 {:?}",
        segment.shape
    );
    Err(CheckpointError::other_model(path, what))
}

fn f32_tensor<'a>(segment: &Segment, values: &'a [f32]) -> RawTensor<'a> {
    let shape = segment.shape.iter().map(|side| *side as usize).collect();
    RawTensor {
        shape,
        values: &values[segment.offset..segment.offset + segment.len],
    }
}

#[expect(
    clippy::expect_used,
    reason = "names are distinct, sizes fit their shapes, and the header is a few kilobytes"
)]
fn serialise(named: Vec<(String, RawTensor)>) -> Vec<u8> {
    safetensors::serialize(named, None).expect("a valid layout serialises")
}

/// A tensor as safetensors wants to see it; bytes are made when they are written.
struct RawTensor<'a> {
    shape: Vec<usize>,
    values: &'a [f32],
}

impl View for RawTensor<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let mut bytes = Vec::with_capacity(self.data_len());
        push_values(&mut bytes, self.values);
        bytes.into()
    }

    fn data_len(&self) -> usize {
        self.values.len() * 4
    }
}
