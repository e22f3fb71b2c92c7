//! Residuals: what some links have not been told. Links that carry about as much share one, and the packets made of it.
//!
//! Links leave their group together, with a copy, when they hold the others up. When they keep up again they are told the difference, and
//! join when there is none left, so nothing is told twice or not at all. So memory is an arena per group, at most [`MAX_GROUPS`]; where
//! there are more kinds of links than that, a group goes at the pace of its slowest. Where updates are relayed each link has its own,
//! because it must not be told what came from it.

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
    /// Samples of those steps; the others were passed on.
    pub(super) own_samples: u64,
    /// Packets made of it.
    pub(super) turn: u64,
    /// Samples added since the group was made.
    pub(super) samples_since: u64,
    /// Commits in a row at which no link of it held it up.
    pub(super) calm: u32,
    /// Of them, how many must pass before it is looked at again whether little is missing to join the others.
    pub(super) look_at: u32,
    /// Bytes that each link was given at the last packet, and bytes of it.
    pub(super) budget: usize,
    pub(super) bytes: usize,
}

/// Commits without a hold-up after which a group may begin to catch up with another.
pub(super) const CALM: u32 = 8;

impl Residual {
    fn empty(n_values: usize) -> Self {
        Self {
            values: vec![0.0; n_values],
            samples: 0,
            steps: 0,
            own_samples: 0,
            turn: 0,
            samples_since: 0,
            calm: 0,
            look_at: CALM,
            budget: 0,
            bytes: 0,
        }
    }

    /// What was added is owed: so many samples, and own steps.
    pub(super) fn count(&mut self, samples: u64, steps: u32) {
        self.samples = self.samples.saturating_add(samples);
        self.samples_since = self.samples_since.saturating_add(samples);
        self.steps = self.steps.saturating_add(steps);
        if steps > 0 {
            self.own_samples = self.own_samples.saturating_add(samples);
        }
    }

    /// How many peers' worth of updates wait in it, 1 or more: what is passed on needs room beside what is one's own.
    pub(super) fn updates(&self) -> f32 {
        match self.own_samples {
            0 => 1.0,
            own => (self.samples as f32 / own as f32).max(1.0),
        }
    }
}

/// Which link is in which group.
#[derive(Debug, Default)]
pub(super) struct Residuals {
    groups: BTreeMap<u32, Residual>,
    of: BTreeMap<PeerId, u32>,
    next: u32,
}

impl Residuals {
    /// The links there are now: those that are gone are forgotten, new ones start together, each by itself where `apart`. So do
    /// `fresh` ones, whatever they were owed.
    pub(super) fn set_links(
        &mut self,
        links: &[PeerId],
        fresh: &[PeerId],
        apart: bool,
        n_values: usize,
    ) {
        self.of
            .retain(|peer, _| links.contains(peer) && !fresh.contains(peer));
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
                        None => self.add(Residual::empty(n_values)),
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

    /// Gives these links of one group, but not all of it, a residual of their own, equal to the one they shared. False where there is
    /// no room.
    pub(super) fn leave(&mut self, group: u32, peers: &[PeerId]) -> bool {
        if self.groups.len() >= MAX_GROUPS {
            return false;
        }
        let Some(copy) = self.groups.get(&group) else {
            return false;
        };
        let own = Residual {
            samples_since: 0,
            calm: 0,
            look_at: CALM,
            ..copy.clone()
        };
        let own = self.add(own);
        for peer in peers {
            self.of.insert(*peer, own);
        }
        true
    }

    /// The group that most links are in, the oldest of several.
    pub(super) fn largest(&self) -> Option<u32> {
        let names = self.groups.keys().copied();
        names.max_by_key(|group| (self.links(*group).count(), std::cmp::Reverse(*group)))
    }

    /// Two residuals: the first to look at, the second to change.
    pub(super) fn pair_mut(&mut self, one: u32, other: u32) -> Option<(&Residual, &mut Residual)> {
        let mut found = (None, None);
        for (name, residual) in &mut self.groups {
            if *name == one {
                found.0 = Some(&*residual);
            } else if *name == other {
                found.1 = Some(residual);
            }
        }
        found.0.zip(found.1)
    }

    /// Moves all links of a group, which is forgotten, to another.
    pub(super) fn join(&mut self, group: u32, other: u32) {
        let of = self.of.values_mut();
        of.filter(|of| **of == group).for_each(|of| *of = other);
        self.groups.remove(&group);
    }

    /// The groups' names.
    pub(super) fn names(&self) -> impl Iterator<Item = u32> + '_ {
        self.groups.keys().copied()
    }

    /// How many groups there are.
    pub(super) fn n_groups(&self) -> usize {
        self.groups.len()
    }

    pub(super) fn get_mut(&mut self, group: u32) -> Option<&mut Residual> {
        self.groups.get_mut(&group)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Residual)> {
        let groups = self.groups.iter();
        groups.map(|(group, residual)| (*group, residual))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Residual)> {
        let groups = self.groups.iter_mut();
        groups.map(|(group, residual)| (*group, residual))
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

    fn fill(residuals: &mut Residuals, value: f32) {
        let all = residuals.iter_mut();
        all.for_each(|(_, residual)| residual.values[0] = value);
    }

    #[test]
    fn links_that_leave_take_a_copy_and_a_new_one_is_owed_nothing() {
        let mut residuals = Residuals::default();
        residuals.set_links(&[peer(1), peer(2), peer(3)], &[], false, 2);
        assert_eq!(residuals.n_groups(), 1);
        fill(&mut residuals, 5.0);
        let first = residuals.group(peer(1)).unwrap();
        assert!(residuals.leave(first, &[peer(2), peer(3)]));
        let own = residuals.group(peer(2)).unwrap();
        assert_eq!(residuals.group(peer(3)), Some(own));
        assert_eq!(residuals.get_mut(own).unwrap().values, [5.0, 0.0]);
        assert_eq!(residuals.largest(), Some(own));
        residuals.set_links(&[peer(1), peer(2), peer(4)], &[], false, 2);
        let new = residuals.group(peer(4)).unwrap();
        assert_eq!(residuals.get_mut(new).unwrap().values, [0.0, 0.0]);
        assert_eq!(residuals.n_groups(), 3);
        residuals.join(own, first);
        assert_eq!(residuals.group(peer(2)), Some(first));
        residuals.set_links(&[peer(4)], &[], false, 2);
        assert_eq!(residuals.names().collect::<Vec<_>>(), [new]);
    }

    #[test]
    fn a_link_that_begins_anew_is_owed_nothing() {
        let mut residuals = Residuals::default();
        let links = [peer(1), peer(2)];
        residuals.set_links(&links, &[], false, 1);
        fill(&mut residuals, 5.0);
        residuals.set_links(&links, &[peer(2)], false, 1);
        let of = |residuals: &mut Residuals, n| {
            let group = residuals.group(peer(n)).unwrap();
            residuals.get_mut(group).unwrap().values[0]
        };
        assert_eq!((of(&mut residuals, 1), of(&mut residuals, 2)), (5.0, 0.0));
        // Shared residuals cannot go on where each link needs its own.
        residuals.set_links(&links, &links, true, 1);
        assert_eq!(residuals.n_groups(), 2);
        assert_eq!((of(&mut residuals, 1), of(&mut residuals, 2)), (0.0, 0.0));
    }

    #[test]
    fn there_are_never_more_residuals_than_the_bound_unless_links_must_be_apart() {
        let peers: Vec<PeerId> = (0..9).map(peer).collect();
        let mut residuals = Residuals::default();
        residuals.set_links(&peers, &[], false, 1);
        let first = residuals.group(peer(0)).unwrap();
        let leaves = |peer: &&PeerId| residuals.leave(first, &[**peer]);
        assert_eq!(peers[1..].iter().filter(leaves).count(), MAX_GROUPS - 1);
        assert_eq!(residuals.n_groups(), MAX_GROUPS);
        let mut apart = Residuals::default();
        apart.set_links(&peers, &[], true, 1);
        assert_eq!(apart.n_groups(), 9);
    }
}
