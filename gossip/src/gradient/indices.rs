//! Positions of the sent entries of a variable, as gaps: how many entries are skipped before each.
//!
//! A gap is one byte where entries are dense, two where they are rare; all ones means "skip that many and go on". At a
//! density of 1 % that takes 1.08 bytes per entry, less than LEB128's 1.28, and both reading and checking are plain sums:
//! positions increase by construction.

/// Bytes of a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// Up to 254, 255 to go on.
    One,
    /// Up to 65,534, 65,535 to go on.
    Two,
}

impl Width {
    /// The smaller for `n` entries of `length`, were they spread at random: at a mean gap of 255 / ln 2 every entry takes
    /// one escape on average.
    pub(super) const fn of(n: usize, length: usize) -> Self {
        if length > n * 368 {
            Self::Two
        } else {
            Self::One
        }
    }

    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }
}

/// The escape of each width.
const ESCAPE_ONE: usize = 0xff;
const ESCAPE_TWO: usize = 0xffff;

fn ones(gaps: &[u8]) -> impl Iterator<Item = usize> {
    gaps.iter().map(|gap| usize::from(*gap))
}

fn twos(gaps: &[u8]) -> impl Iterator<Item = usize> {
    gaps.chunks_exact(2)
        .map(|gap| usize::from(u16::from_le_bytes([gap[0], gap[1]])))
}

/// Appends the gaps before ascending `indices`.
pub(super) fn put(indices: &[u32], width: Width, out: &mut Vec<u8>) {
    let mut next = 0;
    for index in indices {
        let mut gap = (index - next) as usize;
        match width {
            Width::One => {
                while gap >= ESCAPE_ONE {
                    out.push(0xff);
                    gap -= ESCAPE_ONE;
                }
                out.push(gap as u8);
            }
            Width::Two => {
                while gap >= ESCAPE_TWO {
                    out.extend_from_slice(&[0xff; 2]);
                    gap -= ESCAPE_TWO;
                }
                out.extend_from_slice(&(gap as u16).to_le_bytes());
            }
        }
        next = index + 1;
    }
}

/// Whether `gaps` lead to exactly `n` positions, all below `length`, and end with one.
pub(super) fn check(gaps: &[u8], width: Width, n: usize, length: usize) -> bool {
    match width {
        Width::One => is_valid(ones(gaps), ESCAPE_ONE, n, length),
        Width::Two => gaps.len().is_multiple_of(2) && is_valid(twos(gaps), ESCAPE_TWO, n, length),
    }
}

fn is_valid(gaps: impl Iterator<Item = usize>, escape: usize, n: usize, length: usize) -> bool {
    let (mut skipped, mut positions, mut last) = (0u64, 0u64, escape);
    for gap in gaps {
        skipped += gap as u64;
        positions += u64::from(gap != escape);
        last = gap;
    }
    last != escape && positions == n as u64 && skipped + positions <= length as u64
}

/// A function that adds `weight * value` at the next positions, for checked gaps.
pub(super) fn scatter(
    gaps: &[u8],
    width: Width,
    weight: f32,
    into: &mut [f32],
) -> impl FnMut(&[f32]) {
    let (mut one, mut two) = match width {
        Width::One => (Some(adder(ones(gaps), ESCAPE_ONE, weight)), None),
        Width::Two => (None, Some(adder(twos(gaps), ESCAPE_TWO, weight))),
    };
    move |values| match (&mut one, &mut two) {
        (Some(add), _) => add(values, into),
        (_, Some(add)) => add(values, into),
        (None, None) => (),
    }
}

fn adder(
    mut gaps: impl Iterator<Item = usize>,
    escape: usize,
    weight: f32,
) -> impl FnMut(&[f32], &mut [f32]) {
    let mut position = 0;
    move |values, into| {
        for value in values {
            for gap in gaps.by_ref() {
                position += gap;
                if gap != escape {
                    break;
                }
            }
            if let Some(entry) = into.get_mut(position) {
                *entry += weight * value;
            }
            position += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn positions(gaps: &[u8], width: Width, n: usize, length: usize) -> Vec<u32> {
        let mut into = vec![0.0; length];
        let ordinals: Vec<f32> = (1..=n).map(|ordinal| ordinal as f32).collect();
        let (head, tail) = ordinals.split_at(n / 3);
        let mut add = scatter(gaps, width, 1.0, &mut into);
        add(head);
        add(tail);
        drop(add);
        let found: Vec<u32> = (0..length as u32)
            .filter(|i| into[*i as usize] != 0.0)
            .collect();
        assert!(
            found
                .iter()
                .zip(&ordinals)
                .all(|(i, ordinal)| into[*i as usize] == *ordinal)
        );
        found
    }

    proptest! {
        #[test]
        fn positions_come_back(
            steps in proptest::collection::vec(prop_oneof![1u32..4, 253u32..259, 508u32..514, 65_533u32..65_540], 1..40),
        ) {
            let indices: Vec<u32> = steps.iter().scan(0, |at, step| { *at += step; Some(*at - 1) }).collect();
            let length = indices[indices.len() - 1] as usize + 1;
            for width in [Width::One, Width::Two] {
                let mut gaps = vec![];
                put(&indices, width, &mut gaps);
                prop_assert!(check(&gaps, width, indices.len(), length));
                prop_assert_eq!(&positions(&gaps, width, indices.len(), length), &indices);
                prop_assert!(!check(&gaps, width, indices.len(), length - 1), "past the end");
                prop_assert!(!check(&gaps, width, indices.len() + 1, length), "another count");
                gaps.extend_from_slice(&[0xff; 2]);
                prop_assert!(!check(&gaps, width, indices.len(), length + 70_000), "an escape at the end");
            }
        }

        #[test]
        fn arbitrary_gaps_that_pass_lead_to_as_many_positions(gaps: Vec<u8>, n in 0usize..80, length in 0usize..9000) {
            for width in [Width::One, Width::Two] {
                if check(&gaps, width, n, length) {
                    prop_assert_eq!(positions(&gaps, width, n, length).len(), n);
                }
            }
        }
    }
}
