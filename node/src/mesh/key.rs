//! Which mesh this peer is in: that of the token it was given, the one it was in before, or a new one.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail};

use super::refusal;
use crate::home::Home;
use crate::net::MeshKey;
use crate::token::Token;

/// The key of the mesh: the token's, the one kept, or a new one. With the token come addresses to try.
pub(super) fn mesh_key(home: &Home, join: Option<&str>) -> Result<(MeshKey, Vec<String>, bool)> {
    let kept = home.mesh_key()?;
    let Some(text) = join else {
        if let Some(key) = kept {
            return Ok((key, Vec::new(), false));
        }
        let key = MeshKey::generate();
        home.save_mesh_key(&key)?;
        return Ok((key, Vec::new(), true));
    };
    let token: Token = text
        .parse()
        .context("the token after --join cannot be used")?;
    let key = token.mesh_key().clone();
    if kept.is_some_and(|kept| kept != key) {
        bail!(refusal::Usage(format!(
            "{} already belongs to another mesh than this token's: use another --home, or remove {}",
            home.path().display(),
            home.path().join("mesh.key").display()
        )));
    }
    home.save_mesh_key(&key)?;
    Ok((
        key,
        token.addresses().iter().map(ToString::to_string).collect(),
        false,
    ))
}

/// What others type to join.
pub(super) fn join_line(mesh_key: &MeshKey, addresses: &[SocketAddr]) -> String {
    format!(
        "skein up --join {}",
        Token::new(mesh_key.clone(), addresses)
    )
}
