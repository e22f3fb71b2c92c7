//! Residuals: what some links have not been told. Links that carry about as much share one, and the packets made of it.
//!
//! A link leaves its group with a copy when it holds the others up, and starts in the common group again when its connection or
//! the view is new. So memory is an arena per group, at most [`MAX_GROUPS`]; where there are more kinds of links than that, the slower
//! ones go at the pace of the slowest among them. Where updates are relayed each link has its own, because it must not be
//! told what came from it.

use std::collections::BTreeMap;

use crate::ids::PeerId;

/// Residuals of links between at most 16 peers, each of which sends directly to all.
pub(super) const MAX_GROUPS: usize = 4;

/// One residual and what is behind it.
#[derive(Clone, Debug)]
pub(super) struct Residual {
    /// Sum over samples of the gradients (`full`: of the changes) that the group's links have not been told.
    pub(super) values: Vec<f32>,
    /// Samples behind what was added since the last packet.
    pub(super) samples: u64,
    /// Own steps behind it.
    pub(super) steps: u32,
    /// Packets made of it.
    pub(super) turn: u64,
}

/// Which link is in which group.
#[derive(Debug, Default)]
pub(super) struct Residuals {
    groups: BTreeMap<u32, Residual>,
    of: BTreeMap<PeerId, u32>,
    next: u32,
}

impl Residuals {
    /// The links there are now: those that are gone are forgotten, new ones start together, each by itself where `apart`.
    pub(super) fn set_links(&mut self, links: &[PeerId], apart: bool, n_values: usize) {
        self.of.retain(|peer, _| links.contains(peer));
        let groups = &mut self.groups;
        let of = &self.of;
        groups.retain(|group, _| of.values().any(|member| member == group));
        let mut common = None;
        for peer in links {
            if self.of.contains_key(peer) {
                continue;
            }
            // What the others of an old group still lack is not what a new link lacks: it starts with nothing owed.
            let group = match common.filter(|_| !apart) {
                Some(group) => group,
                None => {
                    let room = apart || self.groups.len() < MAX_GROUPS;
                    match self.groups.keys().next_back().copied().filter(|_| !room) {
                        Some(group) => group,
                        None => self.add(Residual {
                            values: vec![0.0; n_values],
                            samples: 0,
                            steps: 0,
                            turn: 0,
                        }),
                    }
                }
            };
            common = Some(group);
            self.of.insert(*peer, group);
        }
    }

    fn add(&mut self, residual: Residual) -> u32 {
        let group = self.next;
        self.next = self.next.wrapping_add(1);
        self.groups.insert(group, residual);
        group
    }

    /// Gives the link a residual of its own, equal to the one it shared. False where there is no room, or it has one already.
    pub(super) fn leave(&mut self, peer: PeerId) -> bool {
        let Some(group) = self.of.get(&peer).copied() else {
            return false;
        };
        let shared = self.of.values().filter(|member| **member == group).count() > 1;
        if !shared || self.groups.len() >= MAX_GROUPS {
            return false;
        }
        let Some(copy) = self.groups.get(&group).cloned() else {
            return false;
        };
        let own = self.add(copy);
        self.of.insert(peer, own);
        true
    }

    /// The groups' names.
    pub(super) fn names(&self) -> Vec<u32> {
        self.groups.keys().copied().collect()
    }

    pub(super) fn get_mut(&mut self, group: u32) -> Option<&mut Residual> {
        self.groups.get_mut(&group)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Residual)> {
        let groups = self.groups.iter_mut();
        groups.map(|(group, residual)| (*group, residual))
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut Residual> {
        self.groups.values_mut()
    }

    /// The links of a group, ascending.
    pub(super) fn links(&self, group: u32) -> impl Iterator<Item = PeerId> + '_ {
        let links = self.of.iter();
        links
            .filter(move |(_, of)| **of == group)
            .map(|(peer, _)| *peer)
    }

    /// The group of a link.
    pub(super) fn group(&self, peer: PeerId) -> Option<u32> {
        self.of.get(&peer).copied()
    }

    /// How many links there are.
    pub(super) fn n_links(&self) -> usize {
        self.of.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u8) -> PeerId {
        PeerId([n; 32])
    }

    #[test]
    fn a_link_that_leaves_takes_a_copy_and_a_new_one_is_owed_nothing() {
        let mut residuals = Residuals::default();
        residuals.set_links(&[peer(1), peer(2), peer(3)], false, 2);
        assert_eq!(residuals.names().len(), 1);
        residuals
            .all_mut()
            .for_each(|residual| residual.values[0] = 5.0);
        assert!(residuals.leave(peer(2)));
        assert!(!residuals.leave(peer(2)), "it is alone already");
        let own = residuals.group(peer(2)).unwrap();
        assert_eq!(residuals.get_mut(own).unwrap().values, [5.0, 0.0]);
        residuals.set_links(&[peer(1), peer(2), peer(4)], false, 2);
        let new = residuals.group(peer(4)).unwrap();
        assert_eq!(residuals.get_mut(new).unwrap().values, [0.0, 0.0]);
        assert_eq!(residuals.names().len(), 3);
        residuals.set_links(&[peer(4)], false, 2);
        assert_eq!(residuals.names(), [new], "the others are forgotten");
    }

    #[test]
    fn there_are_never_more_residuals_than_the_bound_unless_links_must_be_apart() {
        let peers: Vec<PeerId> = (0..9).map(peer).collect();
        let mut residuals = Residuals::default();
        residuals.set_links(&peers, false, 1);
        let left = peers.iter().filter(|peer| residuals.leave(**peer)).count();
        assert_eq!(
            (left, residuals.names().len()),
            (MAX_GROUPS - 1, MAX_GROUPS)
        );
        let mut apart = Residuals::default();
        apart.set_links(&peers, true, 1);
        assert_eq!(apart.names().len(), 9);
    }
}
