//! Identities. A peer is its ed25519 public key, a job is the hash of its signed file; both are 32 bytes and print as hex.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A peer: the 32 bytes of its ed25519 public key. Ordered, so that "the lowest live peer" means the same everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PeerId(pub [u8; 32]);

impl PeerId {
    #[inline]
    fn head(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

/// As that of the bytes. Eight of them are compared first, as one number: they nearly always differ, and every map of peers
/// compares ids all the time.
impl Ord for PeerId {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        let by_head = self.head().cmp(&other.head());
        by_head.then_with(|| self.0.cmp(&other.0))
    }
}

impl PartialOrd for PeerId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A job: the blake3 hash of the signed job file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId(pub [u8; 32]);

/// A blake3 hash of weights or of a blob.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Hashes `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

macro_rules! hex_id {
    ($name:ident) => {
        impl $name {
            /// The first eight hex digits: enough to tell the peers or jobs of one mesh apart on a screen.
            pub fn short(&self) -> String {
                self.to_string()[..8].to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.short())
            }
        }

        impl std::str::FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                let error = || ParseIdError {
                    text: text.chars().take(80).collect(),
                };
                if text.len() != 64 || !text.is_ascii() {
                    return Err(error());
                }
                let mut bytes = [0; 32];
                for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
                    let digit = |c: u8| (c as char).to_digit(16);
                    match (digit(pair[0]), digit(pair[1])) {
                        (Some(high), Some(low)) => *byte = (high * 16 + low) as u8,
                        _ => return Err(error()),
                    }
                }
                Ok(Self(bytes))
            }
        }
    };
}

hex_id!(PeerId);
hex_id!(JobId);
hex_id!(Digest);

/// The text was not 64 hex digits.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{text:?} is not an id of 64 hex digits")]
pub struct ParseIdError {
    /// What was given, at most 80 characters of it.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_print_as_hex_and_parse_back() {
        let id = PeerId(std::array::from_fn(|i| (i * 9) as u8));
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(id.short(), "0009121b");
    }

    proptest! {
        #[test]
        fn peers_are_ordered_as_their_bytes(a: [u8; 32], b: [u8; 32], same in 0..=32usize) {
            let mut b = b;
            b[..same].copy_from_slice(&a[..same]);
            prop_assert_eq!(PeerId(a).cmp(&PeerId(b)), a.cmp(&b));
        }
    }

    #[test]
    fn text_that_is_no_id_is_refused() {
        for text in ["", "abc", &"g".repeat(64), &"é".repeat(32)] {
            assert!(text.parse::<JobId>().is_err(), "{text}");
        }
    }
}
