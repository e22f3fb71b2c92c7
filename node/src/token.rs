//! The join token: the one line that a user copies from one device to the next to make it part of the mesh.
//!
//! ```text
//! "skein1" + base32, lower case, no padding, of:
//!     32 bytes mesh key | 1 byte number of addresses | each: 4 or 6, ip bytes, port (big endian) | 4 bytes checksum
//! ```
//!
//! The checksum (blake3 of what precedes it) tells a typing error from a token of another mesh. The digit is the version.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use data_encoding::BASE32_NOPAD;

use crate::net::MeshKey;

/// Addresses in a token; more would only make it longer to copy.
pub const MAX_ADDRESSES: usize = 4;
/// The longest text looked at: four IPv6 addresses need 191 characters.
const MAX_TEXT: usize = 256;
const NAME: &str = "skein";
const VERSION: char = '1';
const CHECKSUM: usize = 4;

/// See the module's header. Whoever has the text of a token can join the mesh.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    mesh_key: MeshKey,
    addresses: Vec<SocketAddr>,
}

/// A text that is not a token of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It does not begin like one.
    #[error(
        "not a join token: it begins with skein1; copy it whole from the device that made the mesh"
    )]
    NotAToken,
    /// It begins like one, but is damaged.
    #[error("the join token is mistyped or cut short; copy it whole, without line breaks")]
    Mistyped,
    /// It was made by a newer release.
    #[error(
        "the join token is of version {version}, made by a newer release of skein; update this one"
    )]
    NewerVersion {
        /// Its version.
        version: u8,
    },
}

impl Token {
    /// The token of the mesh of `mesh_key`. Only the first [`MAX_ADDRESSES`] of `addresses` are taken.
    pub fn new(mesh_key: MeshKey, addresses: &[SocketAddr]) -> Self {
        Self {
            mesh_key,
            addresses: addresses
                .iter()
                .take(MAX_ADDRESSES)
                .copied()
                .map(plain)
                .collect(),
        }
    }

    /// The key of the mesh.
    pub fn mesh_key(&self) -> &MeshKey {
        &self.mesh_key
    }

    /// Where a peer of the mesh listened when the token was made.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Reads a token; spaces around it and the case of its letters do not matter.
    ///
    /// # Errors
    /// [`TokenError`] tells what kind of wrong the text is.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        if text.len() > MAX_TEXT || !text.is_ascii() {
            return Err(if text.starts_with(NAME) {
                TokenError::Mistyped
            } else {
                TokenError::NotAToken
            });
        }
        let text = text.to_ascii_lowercase();
        let rest = text.strip_prefix(NAME).ok_or(TokenError::NotAToken)?;
        match rest.chars().next() {
            Some(VERSION) => {}
            Some(digit @ '2'..='9') => {
                return Err(TokenError::NewerVersion {
                    version: digit as u8 - b'0',
                });
            }
            _ => return Err(TokenError::NotAToken),
        }
        let bytes = BASE32_NOPAD.decode(rest[1..].to_ascii_uppercase().as_bytes());
        let bytes = bytes.map_err(|_| TokenError::Mistyped)?;
        let (body, checksum) = bytes
            .split_last_chunk::<CHECKSUM>()
            .ok_or(TokenError::Mistyped)?;
        if check(body) != *checksum {
            return Err(TokenError::Mistyped);
        }
        read(body).ok_or(TokenError::Mistyped)
    }
}

fn read(body: &[u8]) -> Option<Token> {
    let (key, rest) = body.split_first_chunk::<32>()?;
    let (&count, mut rest) = rest.split_first()?;
    let mut addresses = Vec::new();
    for _ in 0..count {
        let (&family, tail) = rest.split_first()?;
        let (ip, tail): (IpAddr, _) = match family {
            4 => tail
                .split_first_chunk::<4>()
                .map(|(ip, tail)| ((*ip).into(), tail))?,
            6 => tail
                .split_first_chunk::<16>()
                .map(|(ip, tail)| ((*ip).into(), tail))?,
            _ => return None,
        };
        let (port, tail) = tail.split_first_chunk::<2>()?;
        addresses.push(SocketAddr::new(ip, u16::from_be_bytes(*port)));
        rest = tail;
    }
    (rest.is_empty() && addresses.len() <= MAX_ADDRESSES).then_some(Token {
        mesh_key: MeshKey(*key),
        addresses,
    })
}

/// A token holds no IPv6 scope or flow.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port())
}

fn check(body: &[u8]) -> [u8; CHECKSUM] {
    let mut sum = [0; CHECKSUM];
    blake3::Hasher::new()
        .update(body)
        .finalize_xof()
        .fill(&mut sum);
    sum
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut body = self.mesh_key.0.to_vec();
        body.push(self.addresses.len() as u8);
        for address in &self.addresses {
            match address.ip() {
                IpAddr::V4(ip) => {
                    body.push(4);
                    body.extend_from_slice(&ip.octets());
                }
                IpAddr::V6(ip) => {
                    body.push(6);
                    body.extend_from_slice(&ip.octets());
                }
            }
            body.extend_from_slice(&address.port().to_be_bytes());
        }
        let checksum = check(&body);
        body.extend_from_slice(&checksum);
        write!(
            f,
            "{NAME}{VERSION}{}",
            BASE32_NOPAD.encode(&body).to_ascii_lowercase()
        )
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn token() -> Token {
        Token::new(
            MeshKey([9; 32]),
            &[
                "10.0.0.1:4001".parse().unwrap(),
                "[fd00::1]:4002".parse().unwrap(),
            ],
        )
    }

    #[test]
    fn a_token_survives_spaces_and_capitals() {
        let text = token().to_string();
        assert!(text.starts_with("skein1") && text.len() < 120, "{text}");
        assert_eq!(
            Token::parse(&format!("  {}\n", text.to_uppercase())),
            Ok(token())
        );
    }

    #[test]
    fn the_kinds_of_wrong_are_told_apart() {
        let text = token().to_string();
        for wrong in ["", "hello", "skein", "skein0abc", "skeins", &text[1..]] {
            assert_eq!(Token::parse(wrong), Err(TokenError::NotAToken), "{wrong}");
        }
        for wrong in [
            &text[..text.len() - 1],
            &text.replacen("beeq", "baeq", 1),
            "skein1",
            "skein1!",
            &"skein1".repeat(99),
        ] {
            assert_eq!(Token::parse(wrong), Err(TokenError::Mistyped), "{wrong}");
        }
        assert_eq!(
            Token::parse(&text.replacen('1', "3", 1)),
            Err(TokenError::NewerVersion { version: 3 })
        );
    }

    #[test]
    fn the_key_is_not_printed_by_accident() {
        assert!(!format!("{:?}", token()).contains("9, 9"));
    }

    #[test]
    fn the_longest_token_fits() {
        let addresses = vec!["[fd00::1]:4002".parse().unwrap(); 9];
        let long = Token::new(MeshKey([255; 32]), &addresses);
        assert_eq!(long.addresses().len(), MAX_ADDRESSES);
        assert_eq!(Token::parse(&long.to_string()), Ok(long));
    }

    proptest! {
        #[test]
        fn tokens_come_back(key: [u8; 32], ips in prop::collection::vec((any::<IpAddr>(), any::<u16>()), 0..=4)) {
            let addresses: Vec<SocketAddr> = ips.into_iter().map(|(ip, port)| SocketAddr::new(ip, port)).collect();
            let token = Token::new(MeshKey(key), &addresses);
            prop_assert_eq!(Token::parse(&token.to_string()), Ok(token));
        }

        #[test]
        fn one_wrong_letter_is_noticed(at in 6usize..80, letter in "[a-z2-7]") {
            let mut text = token().to_string();
            prop_assume!(text[at..=at] != letter);
            text.replace_range(at..=at, &letter);
            prop_assert_eq!(Token::parse(&text), Err(TokenError::Mistyped));
        }

        #[test]
        fn any_text_is_a_token_or_an_error(text in "(skein[0-9]?)?.{0,300}") {
            let _ = Token::parse(&text);
        }

        #[test]
        fn any_bytes_with_a_right_checksum_are_a_token_or_an_error(mut body in prop::collection::vec(any::<u8>(), 0..120)) {
            let checksum = check(&body);
            body.extend_from_slice(&checksum);
            let _ = Token::parse(&format!("skein1{}", BASE32_NOPAD.encode(&body)));
        }
    }
}
