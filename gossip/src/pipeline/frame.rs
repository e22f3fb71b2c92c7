//! The head of a frame of the pipeline's data: an activation on its way forward, a gradient on its way back, labels for the
//! last stage, and what the hosts of a shared stage tell each other. What follows the head are raw little-endian values, copied as
//! they are.
//!
//! ```text
//! 0..4   4..36  36..44   44..52  52..60   60..64   64     65     66      67     68..72   72..76  76..
//! "SKPL" job    view     step    version  micro    kind   marks  values  stage  samples  row     values
//! ```

use super::plan::MAX_STAGES;
use crate::ids::JobId;

/// Bytes of an encoded [`Head`].
pub const HEAD_BYTES: usize = 76;
/// Most micro-batches behind one step, and most in one look at held-out samples.
pub const MAX_MICRO: u32 = 4096;
/// Most samples of one micro-batch.
pub const MAX_SAMPLES: u32 = 1 << 16;
const MAGIC: &[u8; 4] = b"SKPL";

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// What a stage made of a micro-batch, for the next stage.
    Forward = 1,
    /// The gradient with respect to what was received, for the stage before.
    Backward = 2,
    /// The labels of a micro-batch, from the first stage to the last.
    Labels = 3,
    /// As `Forward`, of held-out samples.
    LookForward = 4,
    /// As `Labels`, of held-out samples.
    LookLabels = 5,
    /// The first stage's lead begins a step: to its other hosts.
    Begin = 6,
    /// A stage's lead is through with the held-out samples after a step: to its other hosts.
    Looked = 7,
    /// A piece of a host's gradient, for one who adds it up; the micro-batch is the number of the piece.
    Gradient = 8,
    /// The same piece of the sum of all hosts' gradients.
    Sum = 9,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        let all = [
            Self::Forward,
            Self::Backward,
            Self::Labels,
            Self::LookForward,
            Self::LookLabels,
            Self::Begin,
            Self::Looked,
            Self::Gradient,
            Self::Sum,
        ];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// What all stages do after a step; the first stage decides, and says so with every micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Keep a copy of the state: a line.
    pub line: bool,
    /// Judge the model on held-out samples.
    pub look: bool,
}

/// See the module's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The job.
    pub job: JobId,
    /// Names the view it belongs to: see [`super::view_key`].
    pub view: u64,
    /// Steps made before the one it belongs to.
    pub step: u64,
    /// Updates that the first stage's weights held when it went forward (asynchronous schedule; else `step`).
    pub version: u64,
    /// Number of the micro-batch in its step, or of the piece of a gradient.
    pub micro: u32,
    /// What it carries.
    pub kind: Kind,
    /// What is done after the step.
    pub marks: Marks,
    /// Number format of the values: 0 f32, 1 f16, 2 bf16, 3 int8 with a scale per block; labels are bytes of i64.
    pub values: u8,
    /// Number of the stage that it is for: its receiver may host several.
    pub stage: u8,
    /// Samples in the frame.
    pub samples: u32,
    /// Number in the micro-batch of the first of them.
    pub row: u32,
}

/// Why a frame is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// Too short, or it does not begin as such a frame does.
    #[error("these {got} bytes are no frame of a pipeline")]
    NoHead {
        /// Number of bytes.
        got: usize,
    },
    /// A number in the head is out of its range.
    #[error("a pipeline frame's {what} is {got}")]
    Range {
        /// Which.
        what: &'static str,
        /// Its value.
        got: u64,
    },
}

/// Whether `body` begins as a pipeline frame does.
pub fn is_one(body: &[u8]) -> bool {
    body.starts_with(MAGIC)
}

impl Head {
    /// Appends the encoded head.
    pub fn append(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.job.0);
        out.extend_from_slice(&self.view.to_le_bytes());
        out.extend_from_slice(&self.step.to_le_bytes());
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.micro.to_le_bytes());
        out.push(self.kind as u8);
        out.push(u8::from(self.marks.line) | u8::from(self.marks.look) << 1);
        out.push(self.values);
        out.push(self.stage);
        out.extend_from_slice(&self.samples.to_le_bytes());
        out.extend_from_slice(&self.row.to_le_bytes());
    }

    /// Reads the head; the values follow at [`HEAD_BYTES`].
    ///
    /// # Errors
    /// [`HeadError`]; nothing was allocated.
    pub fn read(body: &[u8]) -> Result<Self, HeadError> {
        let got = body.len();
        let no_head = HeadError::NoHead { got };
        let head = body
            .get(..HEAD_BYTES)
            .filter(|head| is_one(head))
            .ok_or(no_head)?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| head[at + i]));
        let half = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| head[at + i]));
        let range = |what, got, most| {
            if got < most {
                Ok(())
            } else {
                Err(HeadError::Range { what, got })
            }
        };
        let (micro, samples, row) = (half(60), half(68), half(72));
        range("micro-batch", u64::from(micro), u64::from(MAX_MICRO))?;
        range(
            "number of samples",
            u64::from(samples),
            u64::from(MAX_SAMPLES) + 1,
        )?;
        range("first sample", u64::from(row), u64::from(MAX_SAMPLES) + 1)?;
        range("marks", u64::from(head[65]), 4)?;
        range("number format", u64::from(head[66]), 4)?;
        range("stage", u64::from(head[67]), MAX_STAGES as u64)?;
        let kind = Kind::of(head[64]).ok_or(HeadError::Range {
            what: "kind",
            got: u64::from(head[64]),
        })?;
        Ok(Self {
            job: JobId(std::array::from_fn(|i| head[4 + i])),
            view: word(36),
            step: word(44),
            version: word(52),
            micro,
            kind,
            marks: Marks {
                line: head[65] & 1 != 0,
                look: head[65] & 2 != 0,
            },
            values: head[66],
            stage: head[67],
            samples,
            row,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_head_comes_back(view: u64, step: u64, micro in 0..MAX_MICRO, kind in 1u8..10, marks in 0u8..4, values in 0u8..4, stage in 0u8..64) {
            let head = Head {
                job: JobId([7; 32]),
                view,
                step,
                version: step / 2,
                micro,
                kind: Kind::of(kind).unwrap(),
                marks: Marks { line: marks & 1 == 1, look: marks & 2 == 2 },
                values,
                stage,
                samples: micro + 1,
                row: micro,
            };
            let mut body = Vec::new();
            head.append(&mut body);
            prop_assert_eq!(body.len(), HEAD_BYTES);
            body.extend([1, 2, 3]);
            prop_assert_eq!(Head::read(&body), Ok(head));
        }

        #[test]
        fn any_bytes_are_a_head_or_an_error(mut bytes: Vec<u8>, begin: bool) {
            if begin {
                bytes.splice(0..0, *MAGIC);
                bytes.resize(HEAD_BYTES, 0);
            }
            if let Ok(head) = Head::read(&bytes) {
                prop_assert!(head.micro < MAX_MICRO && usize::from(head.stage) < MAX_STAGES);
            }
        }
    }
}
