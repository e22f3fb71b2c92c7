//! A job as it travels: the text of the file, who submitted it and when, and that peer's signature.
//!
//! The id is the hash of everything but the signature, so it names one submission: the same file submitted again is
//! another job. What arrives from a peer is bounded, decoded, its signature checked, and only then parsed.

use std::fmt;

use serde::{Deserialize, Serialize};
use skein_gossip::ids::{JobId, PeerId};
use skein_gossip::wire::codec;

use super::error::JobError;
use super::file::{JobFile, MAX_JOB_BYTES};
use crate::net::{self, Identity};

/// Longest encoding of a signed job: a text of [`MAX_JOB_BYTES`] and its envelope fit twice.
pub const MAX_SIGNED_BYTES: usize = 2 * MAX_JOB_BYTES;

/// Keeps a signature under a job from meaning anything else, and the other way round.
const CONTEXT: &str = "skein job 1";

/// Why bytes are not a job that may run.
#[derive(Debug, thiserror::Error)]
pub enum SignedJobError {
    /// More bytes than any signed job has.
    #[error("a signed job has at most {MAX_SIGNED_BYTES} bytes, this one has {bytes}")]
    TooLong {
        /// How many.
        bytes: usize,
    },
    /// Not an encoding of a signed job.
    #[error("the bytes are not a signed job: {0}")]
    Encoding(#[from] codec::DecodeError),
    /// The submitter did not sign this.
    #[error(
        "the signature of job {job} is not by its submitter {submitter}: it was changed on the way or forged"
    )]
    Signature {
        /// The job.
        job: JobId,
        /// Who is said to have submitted it.
        submitter: PeerId,
    },
    /// Properly signed, but no job file.
    #[error("the signed text is not a job file: {0}")]
    Job(#[from] JobError),
}

/// A job file with its submitter's signature.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedJob {
    /// The job file, as the user wrote it.
    pub text: String,
    /// Who submitted it.
    pub submitter: PeerId,
    /// When, by the submitter's clock: milliseconds since 1970.
    pub submitted_at_ms: u64,
    /// The submitter's ed25519 signature.
    #[serde(with = "halves")]
    pub signature: [u8; 64],
}

/// What is hashed and signed.
#[derive(Serialize)]
struct Unsigned<'a> {
    context: &'a str,
    text: &'a str,
    submitter: PeerId,
    submitted_at_ms: u64,
}

impl SignedJob {
    /// Signs `text` as submitted now by the owner of `identity`. The text is not parsed; do that before.
    pub fn sign(identity: &Identity, text: String, now_ms: u64) -> Self {
        let mut job = Self {
            text,
            submitter: identity.peer(),
            submitted_at_ms: now_ms,
            signature: [0; 64],
        };
        job.signature = identity.sign(&job.signed_bytes());
        job
    }

    /// The job's id. Does not depend on the signature.
    pub fn id(&self) -> JobId {
        JobId(*blake3::hash(&self.signed_bytes()).as_bytes())
    }

    /// Checks the signature, then the job file.
    ///
    /// # Errors
    /// [`SignedJobError::Signature`] or [`SignedJobError::Job`].
    pub fn verify(&self) -> Result<JobFile, SignedJobError> {
        if !net::verify(self.submitter, &self.signed_bytes(), &self.signature) {
            return Err(SignedJobError::Signature {
                job: self.id(),
                submitter: self.submitter,
            });
        }
        Ok(JobFile::parse(&self.text)?)
    }

    /// The bytes that travel.
    pub fn encode(&self) -> Vec<u8> {
        codec::encode(self)
    }

    /// Reads what [`Self::encode`] wrote. Bound: [`MAX_SIGNED_BYTES`] of input, eight times that of memory.
    ///
    /// # Errors
    /// [`SignedJobError::TooLong`] or [`SignedJobError::Encoding`]; the signature is not looked at.
    pub fn decode(bytes: &[u8]) -> Result<Self, SignedJobError> {
        if bytes.len() > MAX_SIGNED_BYTES {
            return Err(SignedJobError::TooLong { bytes: bytes.len() });
        }
        Ok(codec::decode(bytes)?)
    }

    fn signed_bytes(&self) -> Vec<u8> {
        codec::encode(&Unsigned {
            context: CONTEXT,
            text: &self.text,
            submitter: self.submitter,
            submitted_at_ms: self.submitted_at_ms,
        })
    }
}

impl fmt::Debug for SignedJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignedJob")
            .field("id", &self.id())
            .field("submitter", &self.submitter)
            .field("submitted_at_ms", &self.submitted_at_ms)
            .field("text_bytes", &self.text.len())
            .finish()
    }
}

/// serde has no arrays of 64: a signature is written as its two halves.
mod halves {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        signature: &[u8; 64],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let mut halves = [[0; 32]; 2];
        halves[0].copy_from_slice(&signature[..32]);
        halves[1].copy_from_slice(&signature[32..]);
        halves.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<[u8; 64], D::Error> {
        let halves = <[[u8; 32]; 2]>::deserialize(deserializer)?;
        let mut signature = [0; 64];
        signature[..32].copy_from_slice(&halves[0]);
        signature[32..].copy_from_slice(&halves[1]);
        Ok(signature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "[model]\nkind = 'cnn'\n[stop]\nsteps = 5\n";

    fn job() -> SignedJob {
        SignedJob::sign(&Identity::generate(), TEXT.into(), 1_700_000_000_000)
    }

    #[test]
    fn a_signed_job_travels_and_is_accepted() {
        let job = job();
        let arrived = SignedJob::decode(&job.encode()).unwrap();
        assert_eq!(arrived, job);
        assert_eq!(arrived.id(), job.id());
        assert_eq!(arrived.verify().unwrap().stop.steps, Some(5));
    }

    #[test]
    fn whatever_is_changed_on_the_way_is_noticed() {
        let original = job();
        let other = Identity::generate();
        let changed = |change: fn(&mut SignedJob)| {
            let mut job = original.clone();
            change(&mut job);
            job
        };
        for job in [
            changed(|job| job.text.push('\n')),
            changed(|job| job.submitted_at_ms += 1),
            changed(|job| job.signature[63] ^= 1),
            SignedJob {
                submitter: other.peer(),
                ..original.clone()
            },
        ] {
            assert!(
                matches!(job.verify(), Err(SignedJobError::Signature { .. })),
                "{job:?}"
            );
        }
        assert_eq!(
            changed(|job| job.signature[0] ^= 1).id(),
            original.id(),
            "the id is not of the signature"
        );
        assert_ne!(changed(|job| job.submitted_at_ms += 1).id(), original.id());
    }

    #[test]
    fn a_signed_text_that_is_no_job_is_refused_with_its_line() {
        let job = SignedJob::sign(&Identity::generate(), "\nsede = 3".into(), 1);
        let error = job.verify().unwrap_err().to_string();
        assert!(
            error.contains("line 2") && error.contains("`seed`"),
            "{error}"
        );
    }

    #[test]
    fn too_many_bytes_are_not_looked_at() {
        let error = SignedJob::decode(&vec![0; MAX_SIGNED_BYTES + 1]).unwrap_err();
        assert!(matches!(error, SignedJobError::TooLong { .. }));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_a_job_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..500)) {
            if let Ok(job) = SignedJob::decode(&bytes) {
                prop_assert!(job.verify().is_err());
            }
        }

        #[test]
        fn damaged_bytes_never_verify(at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
            let mut bytes = job().encode();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            if let Ok(job) = SignedJob::decode(&bytes) {
                prop_assert!(job.verify().is_err());
            }
        }
    }
}
