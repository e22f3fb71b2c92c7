//! A file with a model's weights, written and read block by block: for devices whose memory does not take the whole model. The
//! bytes are those of [`export`](super::export), which has it all in memory.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use safetensors::tensor::Metadata;

use super::tensors::{
    Description, LENGTH_BYTES, MAX_HEADER_BYTES, check_names, check_tensor, counters, header_of,
};
use super::{CheckpointError, disk};
use crate::arena::{Segment, push_values, read_values};
use crate::data::Normalisation;
use crate::model::Layout;
use crate::stage::{BlockLayout, BlockState, StateError};

/// Bytes hashed at once.
const PART: usize = 1 << 16;

/// Writes what [`export`](super::export) writes of states that come one at a time, first block to last; `encoded` gives those of
/// a block. Returns the hash of the weights. On an error what was at `path` before is still there.
///
/// # Errors
/// A state that cannot be had, is of another block or of another step than the first one's; a disk that is full or cannot be written.
pub fn export_blocks<B: AsRef<Vec<u8>>>(
    path: &Path,
    layout: &Layout,
    blocks: &[BlockLayout],
    normalisation: &Normalisation,
    encoded: impl FnMut(&BlockLayout) -> Result<B, String>,
) -> Result<[u8; 32], CheckpointError> {
    let temporary = disk::beside(path);
    let description = Description::new(layout, normalisation);
    let written = write(&temporary, layout, blocks, &description, encoded)
        .and_then(|hash| disk::rename(&temporary, path).map(|()| hash));
    if written.is_err() {
        // Best effort: the error is what counts.
        let _ = std::fs::remove_file(&temporary);
    }
    written
}

fn write<B: AsRef<Vec<u8>>>(
    path: &Path,
    layout: &Layout,
    blocks: &[BlockLayout],
    description: &Description,
    mut encoded: impl FnMut(&BlockLayout) -> Result<B, String>,
) -> Result<[u8; 32], CheckpointError> {
    let (header, table) = header_of(path, layout, description)?;
    let create = |path: &Path| {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        options.open(path)
    };
    let file = create(path).map_err(CheckpointError::write(path))?;
    let mut file = WeightsFile {
        path: path.to_owned(),
        file,
        data_at: header.len() as u64,
        table,
        layout: layout.clone(),
    };
    file.put(0, &header)?;
    let mut first: Option<(u64, i64)> = None;
    for block in blocks {
        let bytes = encoded(block).map_err(|reason| CheckpointError::Block {
            block: block.index,
            reason,
        })?;
        let state = BlockState::decode(bytes.as_ref(), block);
        let refuse = |source| CheckpointError::State {
            path: path.to_owned(),
            source,
        };
        let state = state.map_err(refuse)?;
        drop(bytes);
        let (steps, batches) = *first.get_or_insert((state.optimiser_steps, state.batches_tracked));
        if (steps, batches) != (state.optimiser_steps, state.batches_tracked) {
            return Err(refuse(StateError::Uneven {
                block: block.index,
                steps,
                batches,
                got_steps: state.optimiser_steps,
                got_batches: state.batches_tracked,
            }));
        }
        file.put_state(block, &state)?;
    }
    let batches = first.map_or(0, |(_, batches)| batches);
    for name in counters(layout) {
        let at = file.offset(&name)?;
        file.put(at, &batches.to_le_bytes())?;
    }
    file.file.sync_all().map_err(CheckpointError::write(path))?;
    file.hash()
}

/// A file with the weights of a model that is known, read a block at a time.
#[derive(Debug)]
pub struct WeightsFile {
    path: PathBuf,
    file: File,
    /// Where the tensors begin.
    data_at: u64,
    table: Metadata,
    layout: Layout,
}

impl WeightsFile {
    /// Opens a file with torch names, also one that PyTorch wrote. Every tensor of `layout` must be there and no other. Reads no
    /// weights yet.
    ///
    /// # Errors
    /// A file that cannot be read, is torn, or is of another model; the first tensor that differs is named.
    pub fn open(path: &Path, layout: &Layout) -> Result<Self, CheckpointError> {
        let read = || CheckpointError::read(path);
        let mut file = File::open(path).map_err(read())?;
        let bytes = file.metadata().map_err(read())?.len();
        let mut length = [0; LENGTH_BYTES as usize];
        let torn = |what: String| {
            CheckpointError::corrupt(path, format!("not a whole safetensors file: {what}"))
        };
        file.read_exact(&mut length)
            .map_err(|error| torn(error.to_string()))?;
        let n = u64::from_le_bytes(length);
        if n > MAX_HEADER_BYTES || n > bytes {
            return Err(torn(format!("a header of {n} bytes")));
        }
        let mut header = vec![0; n as usize];
        file.read_exact(&mut header)
            .map_err(|error| torn(error.to_string()))?;
        let table: Metadata =
            serde_json::from_slice(&header).map_err(|error| torn(error.to_string()))?;
        let data_at = LENGTH_BYTES + n;
        let expected = data_at + table.data_len() as u64;
        if bytes != expected {
            return Err(torn(format!(
                "{bytes} bytes where its header says {expected}"
            )));
        }
        let tensors = table.tensors();
        let found = tensors.keys().map(String::as_str).collect();
        check_names(path, found, layout)?;
        for segment in layout.parameters.iter().chain(&layout.buffers) {
            let info = tensors.get(&segment.name);
            let info = info.ok_or_else(|| torn(format!("no tensor {}", segment.name)))?;
            check_tensor(path, &segment.name, (info.dtype, &info.shape), segment)?;
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            data_at,
            table,
            layout: layout.clone(),
        })
    }

    /// The weights of one block, as a state to begin from: no optimiser state yet.
    ///
    /// # Errors
    /// The file cannot be read any more, or holds values that are not finite.
    pub fn state(&mut self, block: &BlockLayout) -> Result<BlockState, CheckpointError> {
        let (parameters, buffers) = (&self.layout.parameters, &self.layout.buffers);
        let inside = |segments: &[Segment], range: &std::ops::Range<usize>| {
            let is_inside = |segment: &&Segment| range.contains(&segment.offset);
            segments.iter().filter(is_inside).cloned().collect()
        };
        let parameters: Vec<Segment> = inside(parameters, &block.parameters);
        let buffers: Vec<Segment> = inside(buffers, &block.buffers);
        let parameters = self.values(&parameters)?;
        let state = BlockState {
            block: block.index,
            optimiser: vec![vec![0.0; parameters.len()]; block.n_vectors],
            buffers: self.values(&buffers)?,
            parameters,
            batches_tracked: 0,
            optimiser_steps: 0,
        };
        let refuse = |source| CheckpointError::State {
            path: self.path.clone(),
            source,
        };
        state.check(block).map_err(refuse)?;
        Ok(state)
    }

    /// blake3 over the weights, as [`Snapshot::weights_hash`](crate::snapshot::Snapshot::weights_hash) gives it.
    ///
    /// # Errors
    /// The file cannot be read any more.
    pub fn hash(&mut self) -> Result<[u8; 32], CheckpointError> {
        let mut hasher = blake3::Hasher::new();
        let mut part = vec![0; PART];
        let segments = [self.layout.parameters.clone(), self.layout.buffers.clone()].concat();
        for segment in segments {
            let mut at = self.offset(&segment.name)?;
            let end = at + segment.len as u64 * 4;
            while at < end {
                let n = PART.min((end - at) as usize);
                self.get(at, &mut part[..n])?;
                hasher.update(&part[..n]);
                at += n as u64;
            }
        }
        Ok(*hasher.finalize().as_bytes())
    }

    fn values(&mut self, segments: &[Segment]) -> Result<Vec<f32>, CheckpointError> {
        let mut values = Vec::new();
        for segment in segments {
            let mut bytes = vec![0; segment.len * 4];
            let at = self.offset(&segment.name)?;
            self.get(at, &mut bytes)?;
            values.extend(read_values(&bytes));
        }
        Ok(values)
    }

    fn put_state(
        &mut self,
        block: &BlockLayout,
        state: &BlockState,
    ) -> Result<(), CheckpointError> {
        let parts = [
            (
                self.layout.parameters.clone(),
                &block.parameters,
                &state.parameters,
            ),
            (self.layout.buffers.clone(), &block.buffers, &state.buffers),
        ];
        for (segments, range, values) in parts {
            let inside = segments
                .iter()
                .filter(|segment| range.contains(&segment.offset));
            for segment in inside {
                let start = segment.offset - range.start;
                let mut bytes = Vec::with_capacity(segment.len * 4);
                push_values(&mut bytes, &values[start..start + segment.len]);
                let at = self.offset(&segment.name)?;
                self.put(at, &bytes)?;
            }
        }
        Ok(())
    }

    /// Where a tensor begins in the file.
    fn offset(&self, name: &str) -> Result<u64, CheckpointError> {
        let missing = || CheckpointError::other_model(&self.path, format!("no tensor {name:?}"));
        let info = self.table.info(name).ok_or_else(missing)?;
        Ok(self.data_at + info.data_offsets.0 as u64)
    }

    fn put(&mut self, at: u64, bytes: &[u8]) -> Result<(), CheckpointError> {
        let mut written = self.file.seek(SeekFrom::Start(at)).map(|_| ());
        written = written.and_then(|()| self.file.write_all(bytes));
        written.map_err(CheckpointError::write(&self.path))
    }

    fn get(&mut self, at: u64, bytes: &mut [u8]) -> Result<(), CheckpointError> {
        let mut read = self.file.seek(SeekFrom::Start(at)).map(|_| ());
        read = read.and_then(|()| self.file.read_exact(bytes));
        read.map_err(CheckpointError::read(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{export, import_weights};
    use crate::config::{ModelConfig, OptimiserConfig};
    use crate::model::Model;
    use crate::snapshot::Snapshot;
    use crate::stage::{block_layouts, dissect};

    /// A model with batch norm, as a snapshot, and its blocks.
    fn whole() -> (Layout, Snapshot, Vec<BlockLayout>, Normalisation) {
        let config = ModelConfig::MobilenetV2 { width: 0.25 };
        let model = Model::new(&config, [3, 32, 32], 10, 5).unwrap();
        let optimiser = OptimiserConfig::default();
        let mut layout = model.layout().clone();
        let names = optimiser.state_names().iter();
        layout.optimiser = names.map(|name| (*name).to_owned()).collect();
        let mut snapshot = Snapshot::of(&model);
        snapshot.optimiser = vec![vec![0.5; layout.n_parameters()]; layout.optimiser.len()];
        (snapshot.batches_tracked, snapshot.optimiser_steps) = (17, 9);
        let blocks = block_layouts(&config, [3, 32, 32], 10, &optimiser).unwrap();
        let normalisation = Normalisation {
            mean: vec![0.5; 3],
            std: vec![0.25; 3],
        };
        (layout, snapshot, blocks, normalisation)
    }

    #[test]
    fn a_file_made_block_by_block_is_the_one_made_of_the_whole_model() {
        let (layout, snapshot, blocks, normalisation) = whole();
        let folder = tempfile::tempdir().unwrap();
        let (at_once, in_parts) = (folder.path().join("a"), folder.path().join("b"));
        export(&at_once, &snapshot, &layout, &normalisation).unwrap();
        let encoded = |block: &BlockLayout| {
            let state = dissect(&layout, &snapshot, block);
            state
                .map(|state| state.encode())
                .map_err(|error| error.to_string())
        };
        let hash = export_blocks(&in_parts, &layout, &blocks, &normalisation, encoded).unwrap();
        assert_eq!(hash, snapshot.weights_hash());
        assert!(std::fs::read(&at_once).unwrap() == std::fs::read(&in_parts).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_block_that_cannot_be_had_leaves_the_file_as_it_was() {
        let (layout, snapshot, blocks, normalisation) = whole();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        std::fs::write(&path, b"old").unwrap();
        let make = |lacking: usize, steps: u64| {
            let encoded = |block: &BlockLayout| {
                let mut state = dissect(&layout, &snapshot, block).unwrap();
                state.optimiser_steps += if block.index == 3 { steps } else { 0 };
                match block.index == lacking {
                    true => Err("its disk is gone".to_owned()),
                    false => Ok(state.encode()),
                }
            };
            export_blocks(&path, &layout, &blocks, &normalisation, encoded).unwrap_err()
        };
        let error = make(2, 0).to_string();
        assert!(
            error.contains("block 2") && error.contains("its disk is gone"),
            "{error}"
        );
        assert!(matches!(
            make(99, 1),
            CheckpointError::State {
                source: StateError::Uneven { block: 3, .. },
                ..
            }
        ));
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_block_of_a_file_is_what_the_whole_file_has_of_it() {
        let (layout, snapshot, blocks, normalisation) = whole();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        export(&path, &snapshot, &layout, &normalisation).unwrap();
        let mut file = WeightsFile::open(&path, &layout).unwrap();
        assert_eq!(file.hash().unwrap(), snapshot.weights_hash());
        for block in &blocks {
            let state = file.state(block).unwrap();
            assert_eq!(
                state.parameters,
                snapshot.parameters[block.parameters.clone()]
            );
            assert_eq!(state.buffers, snapshot.buffers[block.buffers.clone()]);
            assert!(state.optimiser.iter().flatten().all(|value| *value == 0.0));
        }
        assert_eq!(
            import_weights(&path, &layout).unwrap().weights_hash(),
            snapshot.weights_hash()
        );
    }

    #[test]
    fn a_file_of_another_model_or_a_torn_one_is_refused() {
        let (layout, snapshot, _, normalisation) = whole();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        export(&path, &snapshot, &layout, &normalisation).unwrap();
        let wider = Layout::new(&ModelConfig::MobilenetV2 { width: 0.5 }, [3, 32, 32], 10).unwrap();
        let error = WeightsFile::open(&path, &wider).unwrap_err().to_string();
        assert!(error.contains("the model has F32"), "{error}");
        let bytes = std::fs::read(&path).unwrap();
        for cut in [0, 4, 100, bytes.len() - 1] {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            let error = WeightsFile::open(&path, &layout).unwrap_err().to_string();
            assert!(error.contains("not a whole safetensors file"), "{error}");
        }
    }
}
