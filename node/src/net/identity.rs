//! Keys: who this peer is, and which mesh it belongs to. Here ed25519 keys become the ids of the rest of the program
//! and back; secrets come from the operating system's generator.

use std::fmt;

use libp2p::identity::{self, ed25519};
use skein_gossip::ids::PeerId;

/// A peer's own key pair. Its public half is its [`PeerId`].
#[derive(Clone)]
pub struct Identity {
    keypair: ed25519::Keypair,
}

impl Identity {
    /// Makes a new identity.
    pub fn generate() -> Self {
        Self {
            keypair: ed25519::Keypair::generate(),
        }
    }

    /// The identity whose secret key is `secret`; any 32 bytes are one.
    pub fn from_secret(mut secret: [u8; 32]) -> Self {
        #[expect(
            clippy::expect_used,
            reason = "the only failure is a length other than 32"
        )]
        let key =
            ed25519::SecretKey::try_from_bytes(&mut secret).expect("32 bytes are a secret key");
        Self {
            keypair: key.into(),
        }
    }

    /// The secret key. Whoever knows it is this peer.
    pub fn secret(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.keypair.secret().as_ref());
        bytes
    }

    /// The public key, which is the name of this peer.
    pub fn peer(&self) -> PeerId {
        PeerId(self.keypair.public().to_bytes())
    }

    /// Signs `bytes`.
    pub fn sign(&self, bytes: &[u8]) -> [u8; 64] {
        let mut signature = [0; 64];
        signature.copy_from_slice(&self.keypair.sign(bytes));
        signature
    }

    /// The form the swarm wants.
    pub(super) fn to_libp2p(&self) -> identity::Keypair {
        self.keypair.clone().into()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.peer().short())
    }
}

/// Whether `signature` over `bytes` was made by `peer`.
pub fn verify(peer: PeerId, bytes: &[u8], signature: &[u8]) -> bool {
    ed25519::PublicKey::try_from_bytes(&peer.0).is_ok_and(|key| key.verify(bytes, signature))
}

/// What all peers of a mesh share. Without it there is no handshake.
#[derive(Clone, PartialEq, Eq)]
pub struct MeshKey(pub [u8; 32]);

impl MeshKey {
    /// Makes the key of a new mesh.
    pub fn generate() -> Self {
        Self(random())
    }

    /// A short name that gives the key away to nobody.
    pub fn name(&self) -> String {
        data_encoding::HEXLOWER.encode(&self.derive("skein 2026-11 mesh name")[..4])
    }

    /// A key for one purpose, from which the mesh key cannot be found.
    pub(super) fn derive(&self, purpose: &'static str) -> [u8; 32] {
        blake3::derive_key(purpose, &self.0)
    }
}

impl fmt::Debug for MeshKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MeshKey(secret)")
    }
}

/// A number that no other process draws.
pub fn draw_instance() -> u64 {
    u64::from_le_bytes(random())
}

/// Fresh unpredictable bytes, at most 32.
pub(super) fn random<const N: usize>() -> [u8; N] {
    let seed = ed25519::SecretKey::generate();
    let mut bytes = [0; N];
    blake3::Hasher::new()
        .update(seed.as_ref())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}

/// `peer` as libp2p names it; `None` if the bytes are no ed25519 public key.
pub(super) fn to_libp2p(peer: PeerId) -> Option<libp2p::PeerId> {
    let key = ed25519::PublicKey::try_from_bytes(&peer.0).ok()?;
    Some(identity::PublicKey::from(key).to_peer_id())
}

/// The public key inside `peer`; `None` for ids that are no inline ed25519 key.
pub(super) fn from_libp2p(peer: &libp2p::PeerId) -> Option<PeerId> {
    /// Multihash "identity" of 36 bytes: protobuf (key type ed25519, 32 bytes of key).
    const PREFIX: [u8; 6] = [0x00, 0x24, 0x08, 0x01, 0x12, 0x20];
    let bytes = peer.to_bytes();
    let key = bytes.strip_prefix(&PREFIX)?;
    Some(PeerId(key.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_ids_go_to_libp2p_and_come_back() {
        let identity = Identity::generate();
        let foreign = to_libp2p(identity.peer()).unwrap();
        assert_eq!(foreign, identity.to_libp2p().public().to_peer_id());
        assert_eq!(from_libp2p(&foreign), Some(identity.peer()));
    }

    #[test]
    fn a_secret_makes_the_same_identity_again() {
        let identity = Identity::generate();
        assert_eq!(
            Identity::from_secret(identity.secret()).peer(),
            identity.peer()
        );
    }

    #[test]
    fn signatures_hold_for_the_bytes_and_the_peer_that_signed() {
        let (one, other) = (Identity::generate(), Identity::generate());
        let signature = one.sign(b"job");
        assert!(verify(one.peer(), b"job", &signature));
        assert!(!verify(one.peer(), b"jab", &signature));
        assert!(!verify(other.peer(), b"job", &signature));
        assert!(!verify(PeerId([0xff; 32]), b"job", &signature));
        assert!(!verify(one.peer(), b"job", b"short"));
    }

    #[test]
    fn a_mesh_key_does_not_show_itself() {
        assert_eq!(format!("{:?}", MeshKey([7; 32])), "MeshKey(secret)");
        assert_ne!(random::<16>(), random::<16>());
    }
}
