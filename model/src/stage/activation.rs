//! What passes between stages: a micro-batch's activation, or the gradient of the loss with respect to it. Plain data,
//! as it stands in a frame's body, so that neither side touches single values.

use tch::{Kind, TchError, Tensor};

use crate::arena::{push_values, read_values};

const _: () = assert!(
    cfg!(target_endian = "little"),
    "activations are copied between libtorch and frames as they are, which takes a little-endian machine"
);

/// Most dimensions a tensor between stages has.
const MAX_DIMENSIONS: usize = 8;

/// Why bytes are no activation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ActivationError {
    /// A side below one, no or too many dimensions, or a size beyond the address space.
    #[error("{shape:?} is no shape of a micro-batch")]
    Shape {
        /// The shape given.
        shape: Vec<i64>,
    },
    /// The length is not that of the shape.
    #[error("a micro-batch of shape {shape:?} has {expected} bytes, got {got}")]
    Length {
        /// The shape given.
        shape: Vec<i64>,
        /// Bytes it has.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// A value is NaN or infinite.
    #[error("the value at {index} is not finite: the sender's training has diverged")]
    NonFinite {
        /// Index of the first such value.
        index: usize,
    },
}

/// A tensor of f32 whose first dimension is the samples of a micro-batch.
#[derive(Clone, Debug)]
pub struct Activation {
    shape: Vec<i64>,
    bytes: Vec<u8>,
    /// Where the values begin: before them is, or comes, the head of a frame.
    start: usize,
}

impl PartialEq for Activation {
    fn eq(&self, other: &Self) -> bool {
        self.shape == other.shape && self.bytes() == other.bytes()
    }
}

impl Eq for Activation {}

impl Activation {
    /// Takes `bytes`, little-endian f32, as they are. The shape includes the batch: `[B, …]`.
    ///
    /// # Errors
    /// A shape that is none, or another length than the shape's.
    pub fn new(shape: Vec<i64>, bytes: Vec<u8>) -> Result<Self, ActivationError> {
        Self::in_frame(shape, bytes, 0)
    }

    /// As [`Activation::new`], of a frame whose values begin at byte `start`; nothing is copied.
    ///
    /// # Errors
    /// As [`Activation::new`].
    pub fn in_frame(
        shape: Vec<i64>,
        bytes: Vec<u8>,
        start: usize,
    ) -> Result<Self, ActivationError> {
        let got = bytes.len().checked_sub(start);
        let sides_fit = (1..=MAX_DIMENSIONS).contains(&shape.len());
        let expected = shape.iter().try_fold(4usize, |bytes, side| {
            let side = usize::try_from(*side).ok().filter(|side| *side > 0)?;
            bytes.checked_mul(side)
        });
        match expected.filter(|_| sides_fit) {
            None => Err(ActivationError::Shape { shape }),
            Some(expected) if Some(expected) != got => Err(ActivationError::Length {
                shape,
                expected,
                got: got.unwrap_or(0),
            }),
            Some(_) => Ok(Self {
                shape,
                bytes,
                start,
            }),
        }
    }

    /// Copies `bytes` out of a frame.
    ///
    /// # Errors
    /// As [`Activation::new`]; nothing is copied then.
    pub fn from_le_bytes(shape: Vec<i64>, bytes: &[u8]) -> Result<Self, ActivationError> {
        let n = shape.iter().try_fold(4i64, |n, side| n.checked_mul(*side));
        if n.and_then(|n| usize::try_from(n).ok()) != Some(bytes.len()) {
            return Self::new(shape, Vec::new());
        }
        Self::new(shape, bytes.to_vec())
    }

    /// Of values, such as those unpacked from a smaller format.
    ///
    /// # Errors
    /// As [`Activation::new`].
    pub fn from_values(shape: Vec<i64>, values: &[f32]) -> Result<Self, ActivationError> {
        let mut bytes = Vec::with_capacity(4 * values.len());
        push_values(&mut bytes, values);
        Self::new(shape, bytes)
    }

    /// `[B, …]`
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Samples, the first side of the shape.
    pub fn n_samples(&self) -> usize {
        self.shape.first().map_or(0, |side| *side as usize)
    }

    /// The values as little-endian f32: a frame's body.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Appends [`Activation::bytes`] to a frame.
    pub fn write_to(&self, frame: &mut Vec<u8>) {
        frame.extend_from_slice(self.bytes());
    }

    /// A frame of `head` and the values. Nothing is copied but the head where room for it was left in front of the values.
    pub fn into_frame(mut self, head: &[u8]) -> Vec<u8> {
        if self.start == head.len() {
            self.bytes[..self.start].copy_from_slice(head);
            return self.bytes;
        }
        [head, self.bytes()].concat()
    }

    /// Gives the buffer back, to be filled by the next frame.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// A copy of the values.
    pub fn values(&self) -> Vec<f32> {
        read_values(self.bytes())
    }

    /// Refuses values that are not finite. Stages do so with all they are given; it costs one pass over memory.
    ///
    /// # Errors
    /// The first such value.
    pub fn check_finite(&self) -> Result<(), ActivationError> {
        let words = self.bytes().as_chunks::<4>().0;
        let is_finite = |word: &[u8; 4]| u32::from_le_bytes(*word) & 0x7f80_0000 != 0x7f80_0000;
        // Whole parts without a branch per value.
        for (number, part) in words.chunks(4096).enumerate() {
            if !part.iter().fold(true, |all, word| all & is_finite(word)) {
                let at = part.iter().position(|word| !is_finite(word)).unwrap_or(0);
                let index = number * 4096 + at;
                return Err(ActivationError::NonFinite { index });
            }
        }
        Ok(())
    }

    /// A copy of a tensor's values.
    pub(crate) fn of(tensor: &Tensor) -> Result<Self, TchError> {
        Self::put(tensor, Vec::new(), 0)
    }

    /// A copy of a tensor's values in `memory`, behind `start` bytes.
    pub(crate) fn put(tensor: &Tensor, memory: Vec<u8>, start: usize) -> Result<Self, TchError> {
        let (n, mut bytes) = (tensor.numel(), memory);
        bytes.resize(start + 4 * n, 0);
        tensor.f_copy_data_u8(&mut bytes[start..], n)?;
        Ok(Self {
            shape: tensor.size(),
            bytes,
            start,
        })
    }

    /// A tensor with a copy of the values.
    pub(crate) fn tensor(&self) -> Result<Tensor, TchError> {
        Tensor::f_from_data_size(self.bytes(), &self.shape, Kind::Float)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_tensor_survives_its_bytes() {
        let tensor = Tensor::from_slice(&[1.5f32, -0.0, f32::MIN_POSITIVE, 3.0, 4.0, 5.0])
            .view([2, 3])
            .transpose(0, 1);
        let activation = Activation::of(&tensor).unwrap();
        assert_eq!(activation.shape(), [3, 2]);
        assert_eq!(activation.values()[..3], [1.5, 3.0, -0.0]);
        let mut frame = Vec::new();
        activation.write_to(&mut frame);
        let read = Activation::from_le_bytes(vec![3, 2], &frame).unwrap();
        assert_eq!(read, activation);
        assert_eq!(read.tensor().unwrap(), tensor);
        assert_eq!(read.n_samples(), 3);
        assert_eq!(read.into_bytes(), frame);
    }

    #[test]
    fn a_frame_is_read_and_made_where_it_lies() {
        let tensor = Tensor::from_slice(&[1.0f32, 2.0]).view([1, 2]);
        let memory = vec![7; 100];
        let at = memory.as_ptr();
        let activation = Activation::put(&tensor, memory, 3).unwrap();
        assert_eq!(activation, Activation::of(&tensor).unwrap());
        let frame = activation.clone().into_frame(b"abcd");
        assert_eq!(frame[..4], *b"abcd");
        assert_eq!(frame[4..], *activation.bytes());
        let frame = activation.into_frame(b"abc");
        assert_eq!((frame.as_ptr(), frame.len()), (at, 11));
        let read = Activation::in_frame(vec![1, 2], frame, 3).unwrap();
        assert_eq!(read.tensor().unwrap(), tensor);
        let memory = read.into_bytes();
        assert_eq!(memory.as_ptr(), at);
        assert!(Activation::in_frame(vec![1, 2], vec![0; 11], 4).is_err());
        assert!(Activation::in_frame(vec![1, 2], vec![0; 11], 12).is_err());
    }

    #[test]
    fn a_value_that_is_not_finite_is_found_anywhere() {
        for (index, bad) in [
            (0, f32::NAN),
            (4099, f32::INFINITY),
            (9999, f32::NEG_INFINITY),
        ] {
            let mut values = vec![1.0; 10_000];
            values[index] = bad;
            let activation = Activation::from_values(vec![100, 100], &values).unwrap();
            assert_eq!(
                activation.check_finite(),
                Err(ActivationError::NonFinite { index })
            );
        }
    }

    proptest! {
        #[test]
        fn only_bytes_of_the_shapes_length_are_taken(
            shape in proptest::collection::vec(-2i64..6, 0..10),
            n in 0usize..300,
        ) {
            let expected = shape.iter().product::<i64>() * 4;
            let fits = (1..=MAX_DIMENSIONS).contains(&shape.len())
                && shape.iter().all(|side| *side > 0)
                && expected == n as i64;
            prop_assert_eq!(Activation::from_le_bytes(shape, &vec![0; n]).is_ok(), fits);
        }

        #[test]
        fn shapes_beyond_memory_allocate_nothing(side in 1i64..i64::MAX) {
            let refused = Activation::from_le_bytes(vec![side, i64::MAX, side], &[0; 8]).is_err();
            prop_assert!(refused);
        }
    }
}
