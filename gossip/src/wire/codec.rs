//! Messages to bytes and back: serde over bincode, in one fixed configuration. The only file that names bincode.
//!
//! bincode 2.0.1 is complete but no longer maintained; should it have to go, this file is all that changes (and
//! [`super::frame::VERSION`] goes up). Integers are variable-length little endian, enum variants go by position, so variants
//! are only ever appended.
//!
//! Bound: decoding reads at most [`MAX_BYTES`]. A hostile length cannot make one string or byte string allocate more than
//! [`allocation_bound`] of the message's length; a list grows with the elements really present, after at most 1 MiB that
//! serde sets aside for it.

use bincode::config;
use serde::{Serialize, de::DeserializeOwned};

/// The longest message that is decoded, the bound of the longest frame with messages in it.
pub const MAX_BYTES: usize = super::frame::FrameKind::Response.bound() as usize;

/// Why bytes are no message.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Longer than any message.
    #[error("message of {got} bytes is longer than the bound of {MAX_BYTES}")]
    TooLong {
        /// The length given.
        got: usize,
    },
    /// Not an encoding of the type asked for, or one that asks for more memory than allowed.
    #[error("{n_bytes} bytes are no valid message: {reason}")]
    Invalid {
        /// The length given.
        n_bytes: usize,
        /// What bincode or the type's own check said.
        reason: String,
    },
    /// A message, and then more.
    #[error("message of {used} bytes is followed by {trailing} more")]
    Trailing {
        /// The message's length.
        used: usize,
        /// The bytes after it.
        trailing: usize,
    },
}

/// The bytes of `message`.
///
/// # Panics
/// If `T` is neither a struct, an enum, nor made of standard collections with a known length: a mistake in a message's
/// definition that its first test meets.
#[expect(
    clippy::expect_used,
    reason = "messages are plain structs and enums; encoding them to memory cannot fail"
)]
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    bincode::serde::encode_to_vec(message, config::standard()).expect("a message of plain data")
}

/// Appends the bytes of `message` to `out`.
///
/// # Panics
/// As [`encode`].
#[expect(
    clippy::expect_used,
    reason = "messages are plain structs and enums; encoding them to memory cannot fail"
)]
pub fn append<T: Serialize>(message: &T, out: &mut Vec<u8>) {
    bincode::serde::encode_into_std_write(message, out, config::standard())
        .expect("a message of plain data");
}

/// The message in `bytes`, all of them.
///
/// # Errors
/// [`DecodeError`]; the bytes are of no use.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    let decoded = match allocation_bound(bytes.len()) {
        Some(SMALL) => {
            bincode::serde::decode_from_slice(bytes, config::standard().with_limit::<SMALL>())
        }
        Some(MIDDLE) => {
            bincode::serde::decode_from_slice(bytes, config::standard().with_limit::<MIDDLE>())
        }
        Some(_) => {
            bincode::serde::decode_from_slice(bytes, config::standard().with_limit::<LARGE>())
        }
        None => return Err(DecodeError::TooLong { got: bytes.len() }),
    };
    let (message, used) = decoded.map_err(|error| {
        let reason = error.to_string().chars().take(200).collect();
        DecodeError::Invalid {
            n_bytes: bytes.len(),
            reason,
        }
    })?;
    match bytes.len() - used {
        0 => Ok(message),
        trailing => Err(DecodeError::Trailing { used, trailing }),
    }
}

// bincode counts an integer at its full width even where it took one byte, so the limit on what a valid message may
// count is eight times its length. The limit is a compile-time constant there, hence the steps.
const SMALL: usize = 64 << 10;
const MIDDLE: usize = 2 << 20;
const LARGE: usize = 8 * MAX_BYTES;

/// The most bytes that one string of a message of `n_bytes` can claim; `None` if no message is that long.
pub const fn allocation_bound(n_bytes: usize) -> Option<usize> {
    match n_bytes {
        0..=0x2000 => Some(SMALL),
        0x2001..=0x4_0000 => Some(MIDDLE),
        0x4_0001..=MAX_BYTES => Some(LARGE),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Message {
        Empty,
        Numbers(Vec<u64>),
        Named {
            name: String,
            blob: Vec<u8>,
            maybe: Option<(i8, f32)>,
        },
    }

    #[test]
    fn a_message_has_exactly_these_bytes() {
        let message = Message::Named {
            name: "é".into(),
            blob: vec![9, 8],
            maybe: Some((-1, 1.0)),
        };
        assert_eq!(
            encode(&message),
            [2, 2, 0xc3, 0xa9, 2, 9, 8, 1, 0xff, 0, 0, 0x80, 0x3f]
        );
        assert_eq!(encode(&300u64), [251, 44, 1]);
    }

    #[test]
    fn trailing_bytes_are_refused() {
        assert!(matches!(
            decode::<Message>(&[0, 0]),
            Err(DecodeError::Trailing {
                used: 1,
                trailing: 1
            })
        ));
        assert!(matches!(decode::<Message>(&[0]), Ok(Message::Empty)));
    }

    #[test]
    fn hostile_lengths_are_refused() {
        // A string of 2^40 bytes, one of 60 KiB that is not there, and a list of 2^40 numbers.
        for bytes in [
            &[2, 253, 0, 0, 0, 0, 0, 1, 0, 0][..],
            &[2, 251, 0, 0xf0],
            &[1, 253, 0, 0, 0, 0, 0, 1, 0, 0],
        ] {
            assert!(
                matches!(decode::<Message>(bytes), Err(DecodeError::Invalid { .. })),
                "{bytes:?}"
            );
        }
        assert!(matches!(
            decode::<Message>(&vec![0; MAX_BYTES + 1]),
            Err(DecodeError::TooLong { .. })
        ));
    }

    #[test]
    fn long_lists_of_small_numbers_pass_at_every_step_of_the_limit() {
        for n in [0x1ff0, 0x2001, 0x3fff0, 0x40001, MAX_BYTES - 6] {
            let message = Message::Numbers(vec![1; n]);
            assert!(
                decode::<Message>(&encode(&message)).unwrap() == message,
                "{n}"
            );
        }
    }

    proptest! {
        #[test]
        fn messages_come_back(name: String, blob: Vec<u8>, maybe: Option<(i8, f32)>, numbers: Vec<u64>) {
            for message in [Message::Named { name, blob, maybe }, Message::Numbers(numbers)] {
                prop_assert_eq!(decode::<Message>(&encode(&message)).unwrap(), message);
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = decode::<Message>(&bytes);
            let _ = decode::<Vec<Message>>(&bytes);
        }
    }
}
