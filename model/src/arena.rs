//! One flat f32 tensor that holds all variables of a model.
//!
//! Each variable is a leaf tensor on a part of the same storage, so the optimiser, the exchange and the checkpoint see
//! one `&[f32]` while the layers see shaped tensors, and nothing is copied between the two.

use tch::{Device, Kind, TchError, Tensor};

/// Where one variable lies in the flat tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Name as PyTorch users know it, such as `features.0.0.weight`.
    pub name: String,
    /// First element.
    pub offset: usize,
    /// Number of elements.
    pub len: usize,
    /// Shape; its product is `len`.
    pub shape: Vec<i64>,
}

/// f32 in the 64 bytes that kernels like their operands to be aligned to.
const LINE: usize = 16;

/// All variables of one kind (parameters or buffers), one behind the other without gaps.
#[derive(Debug)]
pub struct Arena {
    flat: Tensor,
    variables: Vec<Tensor>,
    segments: Vec<Segment>,
    len: usize,
}

impl Arena {
    /// An arena of zeros. `segments` must follow each other without gaps; `trainable` variables record gradients. `before`
    /// is the number of elements that the whole model has before the first of them: kernels sum in another order where
    /// operands are aligned otherwise, so a part of a model lies in its memory as the whole model would.
    pub(crate) fn new(
        segments: Vec<Segment>,
        before: usize,
        trainable: bool,
    ) -> Result<Self, TchError> {
        let len = segments.iter().map(|segment| segment.len).sum::<usize>();
        let shift = before % LINE;
        let memory = Tensor::f_zeros([(shift + len) as i64], (Kind::Float, Device::Cpu))?;
        let flat = memory.f_narrow(0, shift as i64, len as i64)?;
        let variable = |segment: &Segment| {
            flat.f_narrow(0, segment.offset as i64, segment.len as i64)?
                .f_view(segment.shape.as_slice())?
                .f_detach()?
                .f_set_requires_grad(trainable)
        };
        let variables = segments.iter().map(variable).collect::<Result<_, _>>()?;
        Ok(Self {
            flat,
            variables,
            segments,
            len,
        })
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds nothing (a model without batch norm has no buffers).
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where each variable lies, in order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The variables as leaf tensors, in the order of the segments.
    pub(crate) fn variables(&self) -> &[Tensor] {
        &self.variables
    }

    /// All values, `[N]`.
    #[expect(
        unsafe_code,
        reason = "tch has no safe view of a tensor's storage, and a copy per step would cost memory"
    )]
    pub fn values(&self) -> &[f32] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: `flat` is a contiguous CPU tensor of `len` f32 that lives as long as `self` and is never resized.
        // Only `&mut self` and libtorch operations of the thread that holds `self` (not Sync) write to it.
        unsafe { std::slice::from_raw_parts(self.flat.data_ptr().cast::<f32>(), self.len) }
    }

    /// All values, to be changed in place; the variables see the change.
    #[expect(
        unsafe_code,
        reason = "tch has no safe view of a tensor's storage, and a copy per step would cost memory"
    )]
    pub fn values_mut(&mut self) -> &mut [f32] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: as `values`; the variables that share the storage are only used through `&self`, which the borrow excludes.
        unsafe { std::slice::from_raw_parts_mut(self.flat.data_ptr().cast::<f32>(), self.len) }
    }
}

/// Feeds the little-endian bytes of `values` to `hasher`.
pub(crate) fn hash_values(hasher: &mut blake3::Hasher, values: &[f32]) {
    let mut bytes = Vec::with_capacity(values.len().min(1 << 14) * 4);
    for part in values.chunks(1 << 14) {
        bytes.clear();
        push_values(&mut bytes, part);
        hasher.update(&bytes);
    }
}

/// Appends the little-endian bytes of `values` to `bytes`.
pub(crate) fn push_values(bytes: &mut Vec<u8>, values: &[f32]) {
    let start = bytes.len();
    bytes.resize(start + 4 * values.len(), 0);
    let words = bytes[start..].as_chunks_mut().0;
    for (word, value) in words.iter_mut().zip(values) {
        *word = value.to_le_bytes();
    }
}

/// The values of little-endian `bytes`; a rest of fewer than four bytes is left out.
pub(crate) fn read_values(bytes: &[u8]) -> Vec<f32> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|chunk| f32::from_le_bytes(*chunk))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_share_the_flat_storage() {
        let segment = |name: &str, offset, shape: &[i64]| Segment {
            name: name.into(),
            offset,
            len: shape.iter().product::<i64>() as usize,
            shape: shape.to_vec(),
        };
        let mut arena = Arena::new(
            vec![segment("a", 0, &[2, 3]), segment("b", 6, &[4])],
            0,
            true,
        )
        .unwrap();
        arena
            .values_mut()
            .iter_mut()
            .enumerate()
            .for_each(|(i, value)| *value = i as f32);
        assert_eq!(arena.variables()[0].double_value(&[1, 2]), 5.0);
        assert_eq!(arena.variables()[1].double_value(&[3]), 9.0);
        assert!(arena.variables()[0].requires_grad());
        assert_eq!(arena.values().len(), 10);
    }

    #[test]
    fn a_part_of_a_model_is_aligned_as_in_the_whole() {
        let segment = |offset, len: usize| Segment {
            name: format!("from {offset}"),
            offset,
            len,
            shape: vec![len as i64],
        };
        let whole = Arena::new(vec![segment(0, 19), segment(19, 5)], 0, false).unwrap();
        let mut part = Arena::new(vec![segment(0, 5)], 19, false).unwrap();
        part.values_mut().fill(2.0);
        assert_eq!(
            (part.len(), part.variables()[0].double_value(&[4])),
            (5, 2.0)
        );
        let place = |arena: &Arena, number: usize| arena.variables()[number].data_ptr().addr() % 64;
        assert_eq!(place(&whole, 1), place(&part, 0));
        assert_eq!(place(&part, 0), 4 * 19 % 64);
    }

    #[test]
    fn an_empty_arena_is_an_empty_slice() {
        let mut arena = Arena::new(Vec::new(), 0, false).unwrap();
        assert!(arena.is_empty());
        assert!(arena.values_mut().is_empty());
    }

    #[test]
    fn values_survive_their_bytes() {
        let values = [1.5, -0.0, f32::MIN_POSITIVE];
        let mut bytes = Vec::new();
        push_values(&mut bytes, &values);
        assert_eq!(read_values(&bytes), values);
    }
}
