//! The whole state of training at a step boundary, in memory, and its bytes for the transfer from peer to peer.

use crate::arena::{push_values, read_values};
use crate::model::{Layout, Model, weights_hash};

const MAGIC: &[u8; 8] = b"skeinst1";
const HEADER_BYTES: usize = 8 + 4 * 8 + 4;

/// Everything that training goes on from.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The parameter arena.
    pub parameters: Vec<f32>,
    /// The buffer arena.
    pub buffers: Vec<f32>,
    /// Training batches seen (torch's `num_batches_tracked`).
    pub batches_tracked: i64,
    /// The optimiser's state vectors, each as long as the parameters.
    pub optimiser: Vec<Vec<f32>>,
    /// Optimiser updates made.
    pub optimiser_steps: u64,
}

/// Why bytes or values are no snapshot of this model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// The bytes do not start as a snapshot does.
    #[error("these bytes are no snapshot (or one of another version)")]
    Magic,
    /// The length is not that of a snapshot of this model.
    #[error("a snapshot of this model has {expected} bytes, got {got}")]
    Length {
        /// Bytes a snapshot of this model has.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// A part has another size than the model's.
    #[error("the model has {expected} {part}, the snapshot {got}")]
    Size {
        /// `parameters`, `buffers`, `optimiser state vectors` or `elements per optimiser vector`.
        part: &'static str,
        /// Size in the model.
        expected: u64,
        /// Size in the snapshot.
        got: u64,
    },
    /// A value is NaN or infinite.
    #[error("the {part} hold {value} at {index}: the sender's training has diverged")]
    NonFinite {
        /// `parameters`, `buffers` or `optimiser state`.
        part: &'static str,
        /// Index of the first such value.
        index: usize,
        /// `NaN`, `inf` or `-inf`.
        value: String,
    },
    /// A counter is negative.
    #[error("the number of batches seen is {got}, below zero")]
    NegativeCounter {
        /// The counter.
        got: i64,
    },
}

impl Snapshot {
    /// A copy of a bare model's weights, without optimiser state.
    pub fn of(model: &Model) -> Self {
        Self {
            parameters: model.parameters().values().to_vec(),
            buffers: model.buffers().values().to_vec(),
            batches_tracked: model.batches_tracked(),
            optimiser: Vec::new(),
            optimiser_steps: 0,
        }
    }

    /// Puts the weights into the model; they were checked against its layout.
    pub(crate) fn load_weights(&self, model: &mut Model) {
        model
            .parameters_mut()
            .values_mut()
            .copy_from_slice(&self.parameters);
        model
            .buffers_mut()
            .values_mut()
            .copy_from_slice(&self.buffers);
        model.set_batches_tracked(self.batches_tracked);
    }

    /// blake3 over the little-endian bytes of parameters and buffers.
    pub fn weights_hash(&self) -> [u8; 32] {
        weights_hash(&self.parameters, &self.buffers)
    }

    /// Checks sizes against `layout`, and that every value is finite.
    ///
    /// # Errors
    /// The first difference or value that is not finite.
    pub fn check(&self, layout: &Layout) -> Result<(), SnapshotError> {
        self.check_weights(layout)?;
        size(
            "optimiser state vectors",
            layout.optimiser.len(),
            self.optimiser.len(),
        )?;
        for state in &self.optimiser {
            size(
                "elements per optimiser vector",
                layout.n_parameters(),
                state.len(),
            )?;
        }
        self.optimiser
            .iter()
            .try_for_each(|state| finite("optimiser state", state))
    }

    /// Checks the weights as [`Snapshot::check`] does and leaves the optimiser's state aside.
    ///
    /// # Errors
    /// The first difference or value that is not finite.
    pub fn check_weights(&self, layout: &Layout) -> Result<(), SnapshotError> {
        size("parameters", layout.n_parameters(), self.parameters.len())?;
        size("buffers", layout.n_buffers(), self.buffers.len())?;
        if self.batches_tracked < 0 {
            return Err(SnapshotError::NegativeCounter {
                got: self.batches_tracked,
            });
        }
        finite("parameters", &self.parameters)?;
        finite("buffers", &self.buffers)
    }

    /// The bytes: magic, sizes, counters, then parameters, buffers and optimiser state as little-endian f32.
    pub fn encode(&self) -> Vec<u8> {
        let vectors = || {
            [&self.parameters, &self.buffers]
                .into_iter()
                .chain(&self.optimiser)
        };
        let values = vectors().map(Vec::len).sum::<usize>();
        let mut bytes = Vec::with_capacity(HEADER_BYTES + values * 4);
        bytes.extend(MAGIC);
        bytes.extend((self.parameters.len() as u64).to_le_bytes());
        bytes.extend((self.buffers.len() as u64).to_le_bytes());
        bytes.extend(self.batches_tracked.to_le_bytes());
        bytes.extend(self.optimiser_steps.to_le_bytes());
        bytes.extend((self.optimiser.len() as u32).to_le_bytes());
        vectors().for_each(|vector| push_values(&mut bytes, vector));
        bytes
    }

    /// Bytes that a snapshot of `layout` has: the bound for a transfer.
    pub fn encoded_len(layout: &Layout) -> usize {
        HEADER_BYTES
            + (layout.n_parameters() * (1 + layout.optimiser.len()) + layout.n_buffers()) * 4
    }

    /// Reads what [`Snapshot::encode`] wrote. Allocates nothing before the length fits the layout.
    ///
    /// # Errors
    /// Bytes that are not exactly a snapshot of a model with this layout, or hold values that are not finite.
    pub fn decode(bytes: &[u8], layout: &Layout) -> Result<Self, SnapshotError> {
        if bytes.get(..8) != Some(MAGIC) {
            return Err(SnapshotError::Magic);
        }
        let expected = Self::encoded_len(layout);
        if bytes.len() != expected {
            return Err(SnapshotError::Length {
                expected,
                got: bytes.len(),
            });
        }
        let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|j| bytes[8 + 8 * i + j]));
        let vectors = u32::from_le_bytes(std::array::from_fn(|j| bytes[40 + j]));
        for (part, expected, got) in [
            ("parameters", layout.n_parameters(), word(0)),
            ("buffers", layout.n_buffers(), word(1)),
            (
                "optimiser state vectors",
                layout.optimiser.len(),
                u64::from(vectors),
            ),
        ] {
            size(part, expected, usize::try_from(got).unwrap_or(usize::MAX))?;
        }
        let mut rest = &bytes[HEADER_BYTES..];
        let mut take = |n: usize| {
            let (values, after) = rest.split_at(n * 4);
            rest = after;
            read_values(values)
        };
        let snapshot = Self {
            parameters: take(layout.n_parameters()),
            buffers: take(layout.n_buffers()),
            batches_tracked: word(2) as i64,
            optimiser: layout
                .optimiser
                .iter()
                .map(|_| take(layout.n_parameters()))
                .collect(),
            optimiser_steps: word(3),
        };
        snapshot.check(layout)?;
        Ok(snapshot)
    }
}

fn size(part: &'static str, expected: usize, got: usize) -> Result<(), SnapshotError> {
    let error = SnapshotError::Size {
        part,
        expected: expected as u64,
        got: got as u64,
    };
    if expected == got { Ok(()) } else { Err(error) }
}

fn finite(part: &'static str, values: &[f32]) -> Result<(), SnapshotError> {
    match values.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(index) => Err(SnapshotError::NonFinite {
            part,
            index,
            value: values[index].to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::ModelConfig;

    fn layout() -> Layout {
        let mut layout = Layout::new(&ModelConfig::Mlp { hidden: vec![2] }, [1, 1, 2], 2).unwrap();
        layout.optimiser = vec!["momentum".into()];
        layout
    }

    fn snapshot() -> Snapshot {
        let parameters: Vec<f32> = (0..12).map(|i| i as f32 / 3.0).collect();
        let optimiser = vec![parameters.iter().map(|value| -value).collect()];
        Snapshot {
            parameters,
            buffers: Vec::new(),
            batches_tracked: 5,
            optimiser,
            optimiser_steps: 4,
        }
    }

    #[test]
    fn a_snapshot_survives_its_bytes() {
        let bytes = snapshot().encode();
        assert_eq!(bytes.len(), Snapshot::encoded_len(&layout()));
        assert_eq!(Snapshot::decode(&bytes, &layout()), Ok(snapshot()));
    }

    #[test]
    fn a_snapshot_of_another_model_or_with_nan_is_refused() {
        let decode = |snapshot: &Snapshot| Snapshot::decode(&snapshot.encode(), &layout());
        let mut other = snapshot();
        other.parameters.push(0.0);
        assert!(matches!(decode(&other), Err(SnapshotError::Length { .. })));
        let mut swapped = snapshot();
        swapped.buffers = swapped.parameters.split_off(6);
        assert!(matches!(
            decode(&swapped),
            Err(SnapshotError::Size {
                part: "parameters",
                ..
            })
        ));
        let mut diverged = snapshot();
        diverged.optimiser[0][3] = f32::INFINITY;
        assert!(matches!(
            decode(&diverged),
            Err(SnapshotError::NonFinite { index: 3, .. })
        ));
        let negative = Snapshot {
            batches_tracked: -1,
            ..snapshot()
        };
        assert_eq!(
            decode(&negative),
            Err(SnapshotError::NegativeCounter { got: -1 })
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(Snapshot::decode(&bytes, &layout()).is_err());
        }

        #[test]
        fn a_changed_byte_is_an_error_or_another_finite_snapshot(at in 0usize..140, byte: u8) {
            let mut bytes = snapshot().encode();
            bytes[at] = byte;
            if let Ok(decoded) = Snapshot::decode(&bytes, &layout()) {
                prop_assert_eq!(decoded.check(&layout()), Ok(()));
                prop_assert_eq!(decoded.encode(), bytes);
            }
        }
    }
}
