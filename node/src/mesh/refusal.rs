//! Why a node does not start, as an exit code, and the checks of what it was told that need no network.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;

use crate::cli::{Exit, NamedData};
use crate::control::socket::SocketError;
use crate::home::HomeError;
use crate::net::NetError;
use crate::token::TokenError;

/// What the user typed cannot be meant.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Usage(pub(super) String);

/// With which code the process ends.
pub(super) fn exit_of(error: &anyhow::Error) -> Exit {
    for cause in error.chain() {
        if cause.is::<Usage>() || cause.is::<TokenError>() {
            return Exit::Usage;
        }
        match cause.downcast_ref() {
            Some(HomeError::NoPlace) => return Exit::Usage,
            Some(HomeError::InUse { .. }) => return Exit::Refused,
            Some(HomeError::Io { .. } | HomeError::Corrupt { .. }) | None => {}
        }
        match cause.downcast_ref() {
            Some(SocketError::PathTooLong { .. }) => return Exit::Usage,
            Some(SocketError::InUse { .. }) => return Exit::Refused,
            Some(SocketError::Io { .. }) | None => {}
        }
        match cause.downcast_ref() {
            Some(NetError::Listen { .. } | NetError::NowhereToListen | NetError::Peer(_)) => {
                return Exit::Usage;
            }
            Some(NetError::Interfaces(_) | NetError::Setup { .. }) | None => {}
        }
    }
    Exit::Internal
}

/// The error with its causes. Many a message holds its cause already; that one is not said twice.
pub(super) fn in_words(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |mut words, cause| {
        let cause = cause.to_string();
        if words.is_empty() {
            words = cause;
        } else if !words.contains(&cause) {
            words += &format!(": {cause}");
        }
        words
    })
}

/// Private data by name; each must be there, and each name once.
pub(super) fn private(data: Vec<NamedData>) -> Result<BTreeMap<String, PathBuf>> {
    let mut private = BTreeMap::new();
    for NamedData { name, path } in data {
        // A job finds it by this path, from wherever the node was started.
        let path = std::path::absolute(path)?;
        if let Err(error) = path.metadata() {
            let problem = format!("--data {name}={}: {error}", path.display());
            anyhow::bail!(Usage(problem));
        }
        if private.insert(name.clone(), path).is_some() {
            anyhow::bail!(Usage(format!(
                "--data {name} is given twice: give each its own name"
            )));
        }
    }
    Ok(private)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, path: &str) -> NamedData {
        NamedData {
            name: name.into(),
            path: path.into(),
        }
    }

    #[test]
    fn private_data_must_be_there_and_have_its_own_name() {
        assert_eq!(
            private(vec![named("a", "/"), named("b", "/")])
                .unwrap()
                .len(),
            2
        );
        for data in [
            vec![named("a", "/"), named("a", "/")],
            vec![named("a", "/absent/x")],
        ] {
            let error = private(data).unwrap_err();
            assert!(error.to_string().contains("--data a"), "{error}");
            assert_eq!(exit_of(&error), Exit::Usage);
        }
    }

    #[test]
    fn each_cause_is_said_once() {
        let source = std::io::Error::other("no space");
        let error = HomeError::Io {
            action: "make",
            path: "/h".into(),
            source,
        };
        let error = anyhow::Error::from(error).context("not started");
        assert_eq!(in_words(&error), "not started: cannot make /h: no space");
    }

    #[test]
    fn a_wrong_token_is_the_users_and_a_held_home_a_refusal() {
        use anyhow::Context;
        let token = Err::<(), _>(TokenError::Mistyped)
            .context("the token")
            .unwrap_err();
        assert_eq!(exit_of(&token), Exit::Usage);
        let held = HomeError::InUse {
            path: "/h".into(),
            pid: "7".into(),
        };
        assert_eq!(exit_of(&held.into()), Exit::Refused);
        assert_eq!(exit_of(&anyhow::anyhow!("else")), Exit::Internal);
    }
}
