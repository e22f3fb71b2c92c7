//! A folder of checkpoints of one job on one peer.

use std::fs;
use std::path::{Path, PathBuf};

use super::disk::{self, TEMPORARY};
use super::manifest::{self, FileEntry, Manifest};
use super::tensors::{
    Description, decode_optimiser, decode_weights, encode_optimiser, encode_weights,
    max_optimiser_bytes, max_weights_bytes,
};
use super::{CheckpointError, Progress};
use crate::data::Normalisation;
use crate::model::Layout;
use crate::snapshot::Snapshot;

const MODEL: &str = "model.safetensors";
const OPTIMISER: &str = "optimiser.safetensors";
const MANIFEST: &str = "manifest.json";
const PREFIX: &str = "step-";

/// Writes checkpoints into a folder, keeps the newest, and finds the newest that is whole. One process at a time.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    keep: usize,
}

/// What [`Store::newest`] found.
#[derive(Debug)]
pub struct Newest {
    /// The newest checkpoint that is whole.
    pub found: Option<(Snapshot, Progress)>,
    /// Newer ones that are not, newest first.
    pub skipped: Vec<Skipped>,
}

/// A checkpoint that cannot be used.
#[derive(Debug)]
pub struct Skipped {
    /// Its folder.
    pub path: PathBuf,
    /// Why not.
    pub reason: CheckpointError,
}

impl Store {
    /// A store in `folder`, which is made if it is not there. Keeps the `keep` newest checkpoints (at least one). Removes
    /// what a crash left half-written.
    ///
    /// # Errors
    /// The folder cannot be made or read.
    pub fn new(folder: impl Into<PathBuf>, keep: usize) -> Result<Self, CheckpointError> {
        let store = Self {
            folder: folder.into(),
            keep: keep.max(1),
        };
        fs::create_dir_all(&store.folder).map_err(CheckpointError::write(&store.folder))?;
        for name in store.names()? {
            if name.starts_with(PREFIX) && name.contains(TEMPORARY) {
                // Best effort: a left-over does no harm but for the room it takes.
                let _ = fs::remove_dir_all(store.folder.join(name));
            }
        }
        Ok(store)
    }

    /// Writes a checkpoint and returns its folder. Older ones beyond the number to keep are removed afterwards.
    ///
    /// # Errors
    /// A snapshot that does not suit the layout; a disk that is full or cannot be written. The checkpoints before are
    /// intact then.
    pub fn save(
        &self,
        snapshot: &Snapshot,
        layout: &Layout,
        normalisation: &Normalisation,
        progress: &Progress,
    ) -> Result<PathBuf, CheckpointError> {
        snapshot
            .check(layout)
            .map_err(|source| CheckpointError::Snapshot {
                path: self.folder.clone(),
                source,
            })?;
        let path = self.folder.join(self.free_name(progress.step)?);
        let temporary = disk::beside(&path);
        let written = write(&temporary, snapshot, layout, normalisation, progress)
            .and_then(|()| fs::rename(&temporary, &path).map_err(CheckpointError::write(&path)))
            .and_then(|()| disk::flush_folder(&self.folder));
        if let Err(error) = written {
            // Best effort: the error is what counts, and the next start removes it too.
            let _ = fs::remove_dir_all(&temporary);
            return Err(error);
        }
        // The new one stays even if older folders have higher steps (after going back to an older state).
        let others = self
            .checkpoints()?
            .into_iter()
            .map(|checkpoint| self.folder.join(checkpoint.name));
        for old in others.filter(|other| *other != path).skip(self.keep - 1) {
            // Best effort: the new checkpoint is safe, and the next save tries again.
            let _ = fs::remove_dir_all(old);
        }
        Ok(path)
    }

    /// Reads the newest checkpoint whose files have the sizes and hashes in its manifest; damaged ones are skipped and listed.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn newest(&self) -> Result<Newest, CheckpointError> {
        let mut skipped = Vec::new();
        for Checkpoint { name, .. } in self.checkpoints()? {
            let path = self.folder.join(name);
            match read(&path) {
                Ok(found) => {
                    return Ok(Newest {
                        found: Some(found),
                        skipped,
                    });
                }
                Err(reason) => skipped.push(Skipped { path, reason }),
            }
        }
        Ok(Newest {
            found: None,
            skipped,
        })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A name for `step` that is not taken: a second checkpoint of the same step (after going back to an older state)
    /// gets a number of its own, so that the first is never touched.
    fn free_name(&self, step: u64) -> Result<String, CheckpointError> {
        let same = self
            .checkpoints()?
            .into_iter()
            .filter(|checkpoint| checkpoint.step == step);
        let next = same
            .map(|checkpoint| checkpoint.number + 1)
            .max()
            .unwrap_or(0);
        Ok(if next == 0 {
            format!("{PREFIX}{step:012}")
        } else {
            format!("{PREFIX}{step:012}-{next}")
        })
    }

    /// All checkpoints, newest first, whole or not.
    fn checkpoints(&self) -> Result<Vec<Checkpoint>, CheckpointError> {
        let mut checkpoints: Vec<_> = self
            .names()?
            .into_iter()
            .filter_map(Checkpoint::parse)
            .collect();
        checkpoints.sort();
        checkpoints.reverse();
        Ok(checkpoints)
    }

    fn names(&self) -> Result<Vec<String>, CheckpointError> {
        let read = || CheckpointError::read(&self.folder);
        let entries = fs::read_dir(&self.folder).map_err(read())?;
        let names = entries.map(|entry| Ok(entry.map_err(read())?.file_name().into_string().ok()));
        names.filter_map(Result::transpose).collect()
    }
}

/// A folder that is named as a checkpoint.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Checkpoint {
    step: u64,
    /// Tells checkpoints of the same step apart.
    number: u32,
    name: String,
}

impl Checkpoint {
    /// Step and number out of `step-000000000120` or `step-000000000120-1`.
    fn parse(name: String) -> Option<Self> {
        let (step, number) = match name.strip_prefix(PREFIX)?.split_once('-') {
            None => (name.strip_prefix(PREFIX)?.parse().ok()?, 0),
            Some((step, number)) => (step.parse().ok()?, number.parse().ok()?),
        };
        Some(Self { step, number, name })
    }
}

fn write(
    folder: &Path,
    snapshot: &Snapshot,
    layout: &Layout,
    normalisation: &Normalisation,
    progress: &Progress,
) -> Result<(), CheckpointError> {
    let description = Description::new(layout, normalisation);
    fs::create_dir(folder).map_err(CheckpointError::write(folder))?;
    let path = folder.join(MODEL);
    let model = encode_weights(&path, snapshot, layout, &description)?;
    disk::write(&path, &model)?;
    let model_file = FileEntry::of(&model);
    drop(model);
    let optimiser = encode_optimiser(snapshot, layout);
    disk::write(&folder.join(OPTIMISER), &optimiser)?;
    let manifest = Manifest {
        description,
        progress: progress.clone(),
        optimiser: layout.optimiser.clone(),
        optimiser_steps: snapshot.optimiser_steps,
        batches_tracked: snapshot.batches_tracked,
        model_file,
        optimiser_file: FileEntry::of(&optimiser),
    };
    disk::write(&folder.join(MANIFEST), &manifest.encode())?;
    disk::flush_folder(folder)
}

fn read(folder: &Path) -> Result<(Snapshot, Progress), CheckpointError> {
    let path = folder.join(MANIFEST);
    let manifest = Manifest::decode(&path, &disk::read(&path, manifest::MAX_BYTES)?)?;
    let mut layout = manifest.description.layout(&path)?;
    layout.optimiser = manifest.optimiser;
    let path = folder.join(MODEL);
    let bytes = read_verified(&path, &manifest.model_file, max_weights_bytes(&layout))?;
    let weights = decode_weights(&path, &bytes, &layout)?;
    let path = folder.join(OPTIMISER);
    let bytes = read_verified(
        &path,
        &manifest.optimiser_file,
        max_optimiser_bytes(&layout),
    )?;
    let optimiser = decode_optimiser(&path, &bytes, &layout)?;
    let (optimiser_steps, batches_tracked) = (manifest.optimiser_steps, manifest.batches_tracked);
    let snapshot = Snapshot {
        optimiser,
        optimiser_steps,
        batches_tracked,
        ..weights
    };
    snapshot
        .check(&layout)
        .map_err(|source| CheckpointError::Snapshot {
            path: folder.to_owned(),
            source,
        })?;
    Ok((snapshot, manifest.progress))
}

fn read_verified(path: &Path, entry: &FileEntry, limit: u64) -> Result<Vec<u8>, CheckpointError> {
    let bytes = disk::read(path, limit)?;
    let found = FileEntry::of(&bytes);
    if found != *entry {
        let what = format!(
            "{} bytes with hash {} where the manifest says {} bytes",
            found.bytes, found.blake3, entry.bytes
        );
        return Err(CheckpointError::corrupt(
            path,
            format!("{what}: the file is torn or was changed"),
        ));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::ModelConfig;
    use crate::model::Model;

    struct Fixture {
        folder: tempfile::TempDir,
        layout: Layout,
        snapshot: Snapshot,
    }

    impl Fixture {
        fn new() -> Self {
            let model = Model::new(&ModelConfig::Mlp { hidden: vec![2] }, [1, 1, 3], 2, 5).unwrap();
            let mut layout = model.layout().clone();
            layout.optimiser = vec!["momentum".into()];
            let mut snapshot = Snapshot::of(&model);
            snapshot.optimiser = vec![
                snapshot
                    .parameters
                    .iter()
                    .map(|value| value * 2.0)
                    .collect(),
            ];
            (snapshot.optimiser_steps, snapshot.batches_tracked) = (7, 8);
            Self {
                folder: tempfile::tempdir().unwrap(),
                layout,
                snapshot,
            }
        }

        fn store(&self) -> Store {
            Store::new(self.folder.path(), 2).unwrap()
        }

        fn save(&self, step: u64) -> PathBuf {
            let normalisation = Normalisation {
                mean: vec![0.5],
                std: vec![0.5],
            };
            self.store()
                .save(
                    &self.snapshot,
                    &self.layout,
                    &normalisation,
                    &progress(step),
                )
                .unwrap()
        }

        fn newest_step(&self) -> Option<u64> {
            self.store()
                .newest()
                .unwrap()
                .found
                .map(|(_, progress)| progress.step)
        }
    }

    fn progress(step: u64) -> Progress {
        let extra = [("view".to_owned(), 3.into())].into();
        Progress {
            job: "job".into(),
            step,
            samples: step * 32,
            sampler_position: step * 16,
            shard: 1,
            extra,
        }
    }

    #[test]
    fn the_newest_checkpoint_comes_back_and_old_ones_go() {
        let fixture = Fixture::new();
        assert_eq!(fixture.newest_step(), None);
        for step in [1, 20, 3] {
            fixture.save(step);
        }
        let newest = fixture.store().newest().unwrap();
        assert_eq!(newest.found, Some((fixture.snapshot.clone(), progress(20))));
        assert!(newest.skipped.is_empty());
        let names = fixture.store().names().unwrap();
        assert_eq!(names.len(), 2, "{names:?}");
    }

    #[test]
    fn the_one_just_saved_is_never_removed() {
        let fixture = Fixture::new();
        let store = Store::new(fixture.folder.path(), 1).unwrap();
        let normalisation = Normalisation {
            mean: vec![0.5],
            std: vec![0.5],
        };
        for step in [20, 3] {
            let path = store
                .save(
                    &fixture.snapshot,
                    &fixture.layout,
                    &normalisation,
                    &progress(step),
                )
                .unwrap();
            assert!(path.exists());
        }
        assert_eq!(fixture.newest_step(), Some(3));
    }

    #[test]
    fn a_damaged_checkpoint_is_skipped_with_the_reason() {
        for (file, damage) in [
            (
                MODEL,
                (|bytes: &mut Vec<u8>| bytes[400] ^= 1) as fn(&mut Vec<u8>),
            ),
            (OPTIMISER, |bytes| bytes.truncate(bytes.len() - 1)),
            (MANIFEST, |bytes| bytes.truncate(100)),
            (MANIFEST, Vec::clear),
        ] {
            let fixture = Fixture::new();
            fixture.save(1);
            let path = fixture.save(2).join(file);
            let mut bytes = fs::read(&path).unwrap();
            damage(&mut bytes);
            fs::write(&path, bytes).unwrap();
            let newest = fixture.store().newest().unwrap();
            assert_eq!(newest.found.unwrap().1.step, 1);
            assert_eq!(newest.skipped.len(), 1);
            assert!(
                newest.skipped[0].reason.to_string().contains(file),
                "{}",
                newest.skipped[0].reason
            );
        }
    }

    #[test]
    fn a_missing_file_makes_the_checkpoint_absent() {
        let fixture = Fixture::new();
        let path = fixture.save(1);
        fs::remove_file(path.join(MANIFEST)).unwrap();
        assert_eq!(fixture.newest_step(), None);
    }

    #[test]
    fn a_half_written_checkpoint_is_ignored_and_removed() {
        let fixture = Fixture::new();
        fixture.save(1);
        let torn = fixture.folder.path().join("step-000000000002.tmp-99");
        fs::create_dir(&torn).unwrap();
        fs::write(torn.join(MODEL), b"half").unwrap();
        assert_eq!(fixture.newest_step(), Some(1));
        assert!(!torn.exists());
    }

    #[test]
    fn a_save_that_fails_leaves_the_checkpoint_before() {
        let fixture = Fixture::new();
        fixture.save(1);
        let store = fixture.store();
        // A folder in the way stands for a full disk.
        let blocked = disk::beside(&fixture.folder.path().join("step-000000000002"));
        fs::create_dir(&blocked).unwrap();
        let normalisation = Normalisation {
            mean: vec![0.5],
            std: vec![0.5],
        };
        let error = store
            .save(
                &fixture.snapshot,
                &fixture.layout,
                &normalisation,
                &progress(2),
            )
            .unwrap_err();
        assert!(error.to_string().starts_with("cannot write"), "{error}");
        assert_eq!(fixture.newest_step(), Some(1));
        let diverged = Snapshot {
            parameters: vec![f32::NAN; fixture.snapshot.parameters.len()],
            ..fixture.snapshot.clone()
        };
        assert!(
            store
                .save(&diverged, &fixture.layout, &normalisation, &progress(3))
                .is_err()
        );
        assert_eq!(fixture.newest_step(), Some(1));
    }

    #[test]
    fn the_same_step_twice_keeps_both_and_takes_the_later() {
        let mut fixture = Fixture::new();
        let first = fixture.save(5);
        fixture.snapshot.optimiser_steps = 70;
        assert_ne!(fixture.save(5), first);
        assert!(first.exists());
        assert_eq!(
            fixture
                .store()
                .newest()
                .unwrap()
                .found
                .unwrap()
                .0
                .optimiser_steps,
            70
        );
    }

    proptest! {
        #[test]
        fn arbitrary_manifests_and_files_are_skipped(which in 0usize..3, bytes in proptest::collection::vec(any::<u8>(), 0..300), text in ".{0,100}") {
            let fixture = Fixture::new();
            let path = fixture.save(1).join([MODEL, OPTIMISER, MANIFEST][which]);
            for content in [bytes.as_slice(), text.as_bytes(), format!("{{\"description\":{text:?}}}").as_bytes()] {
                fs::write(&path, content).unwrap();
                prop_assert_eq!(fixture.newest_step(), None);
            }
        }

        #[test]
        fn a_changed_manifest_never_panics(at: u16, byte: u8) {
            let fixture = Fixture::new();
            let path = fixture.save(1).join(MANIFEST);
            let mut bytes = fs::read(&path).unwrap();
            let at = usize::from(at) % bytes.len();
            bytes[at] = byte;
            fs::write(&path, bytes).unwrap();
            fixture.newest_step();
        }
    }
}
