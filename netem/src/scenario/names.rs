//! Names of nodes and of groups of them, and what they stand for.

use std::collections::BTreeMap;

use super::error::{Wrong, did_you_mean};
use super::section::texts;
use super::tree::{Item, Place};
use crate::link::NodeIndex;

/// Which nodes each name stands for.
#[derive(Debug, Default)]
pub(super) struct Names {
    all: Vec<NodeIndex>,
    by_name: BTreeMap<String, Vec<NodeIndex>>,
}

impl Names {
    /// `name` stands for `nodes` from here on; false if it stands for others already.
    pub(super) fn add(&mut self, name: &str, nodes: Vec<NodeIndex>) -> bool {
        // Ranks come in their order, and again where a group's name follows its nodes.
        for &rank in &nodes {
            if rank == self.all.len() {
                self.all.push(rank);
            }
        }
        self.by_name.insert(name.to_owned(), nodes).is_none()
    }

    /// The nodes of one name; `*` and `any` are all.
    pub(super) fn find(&self, name: &str) -> Option<&[NodeIndex]> {
        match name {
            "*" | "any" => Some(&self.all),
            _ => self.by_name.get(name).map(Vec::as_slice),
        }
    }

    /// The nodes of one name, which stands at `place`.
    pub(super) fn one(&self, name: &str, place: &Place, key: &str) -> Result<&[NodeIndex], Wrong> {
        self.find(name).ok_or_else(|| {
            let known = self.by_name.keys().map(String::as_str);
            let fix = did_you_mean(name, known);
            Wrong::new(place, key, format!("no node is named {name:?}"), fix)
        })
    }

    /// The nodes of a name or of a list of names, each once, in the order of their ranks.
    pub(super) fn several(&self, item: &Item, key: &str) -> Result<Vec<NodeIndex>, Wrong> {
        let mut nodes = vec![];
        for name in texts(item, key)? {
            nodes.extend(self.one(&name, &item.place, key)?);
        }
        nodes.sort_unstable();
        nodes.dedup();
        if nodes.is_empty() {
            let fix = "name a node, a group, or \"*\" for all";
            return Err(Wrong::new(&item.place, key, "names no node", fix));
        }
        Ok(nodes)
    }
}
