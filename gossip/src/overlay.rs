//! Who talks to whom: the neighbour graph over a view, and a spanning tree of it along which updates reach everybody.
//!
//! In: the members of a view and a seed that all of them share. Out: this peer's neighbours, and its links in the tree.
//! Every member computes the same graph and nothing is negotiated. Up to [`COMPLETE`] members all are neighbours and
//! send directly. Beyond, the graph is the union of rings (after Law & Siu 2003, "Distributed construction of random
//! expander networks"): each ring orders the members by a hash of seed and peer, so the graph is connected, nobody has
//! more than two neighbours per ring, and a member that comes or goes changes two or three links per ring. The tree is
//! the breadth-first tree from the member of the lowest hash; of the neighbours that are nearer to it, a peer hangs on
//! the one of the lowest hash of both, so that few change their parent when others come and go. If the root itself
//! goes, the tree is a new one: once in as many changes as there are members.

use crate::ids::PeerId;

/// Up to this many members, all are neighbours.
pub const COMPLETE: usize = 16;

/// The links of one peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlay {
    /// With whom it exchanges, ascending.
    pub neighbours: Vec<PeerId>,
    /// The neighbours along which it passes on what it hears, ascending. All of them in a complete graph, where nothing
    /// needs to be passed on.
    pub tree: Vec<PeerId>,
    n_members: usize,
    /// Per member, which link of the tree leads to it; [`NO_LINK`] for this peer. Empty where all are neighbours.
    towards: Vec<u16>,
}

const NO_LINK: u16 = u16::MAX;

impl Overlay {
    /// The links of `me` among `members`, which are ascending and distinct. A peer that is no member has none.
    ///
    /// Sorts the members once per ring: about 1 ms for 1,024 members.
    pub fn of(members: &[PeerId], me: PeerId, seed: u64) -> Self {
        let n_members = members.len();
        let Ok(rank) = members.binary_search(&me) else {
            return Self {
                neighbours: Vec::new(),
                tree: Vec::new(),
                n_members,
                towards: Vec::new(),
            };
        };
        if n_members <= COMPLETE {
            let others = members.iter().copied().filter(|peer| *peer != me);
            let neighbours: Vec<PeerId> = others.collect();
            let tree = neighbours.clone();
            return Self {
                neighbours,
                tree,
                n_members,
                towards: Vec::new(),
            };
        }
        let graph = Graph::new(members, seed);
        let parents = graph.tree();
        let peers = |ranks: Vec<usize>| ranks.into_iter().map(|rank| members[rank]).collect();
        let links = graph.links(rank);
        let is_tree = |other: &usize| parents[*other] == rank || parents[rank] == *other;
        let tree: Vec<usize> = links.iter().copied().filter(is_tree).collect();
        Self {
            towards: towards(&parents, rank, &tree),
            tree: peers(tree),
            neighbours: peers(links),
            n_members,
        }
    }

    /// The links of the tree beyond which there are not the same members as in the tree `before` over `members_before`, those
    /// that came or went left out of account. What is under way along such a link may have reached members beyond it
    /// some other way, or nobody will bring it to others.
    pub fn rerouted(
        &self,
        members: &[PeerId],
        before: &Overlay,
        members_before: &[PeerId],
    ) -> Vec<PeerId> {
        if self.relays() != before.relays() {
            return self.tree.clone();
        }
        let link = |overlay: &Overlay, rank: usize| {
            let link = overlay.towards.get(rank);
            link.and_then(|link| overlay.tree.get(usize::from(*link)).copied())
        };
        let mut rerouted = Vec::new();
        let mut old = members_before.iter().enumerate().peekable();
        for (rank, peer) in members.iter().enumerate() {
            while old.next_if(|(_, other)| *other < peer).is_some() {}
            let Some((rank_before, _)) = old.next_if(|(_, other)| *other == peer) else {
                continue;
            };
            let (now, then) = (link(self, rank), link(before, rank_before));
            if now != then {
                rerouted.extend(now.into_iter().chain(then));
            }
        }
        rerouted.sort_unstable();
        rerouted.dedup();
        rerouted
    }

    /// Whether updates must be passed on, because not all members are neighbours of each other.
    pub fn relays(&self) -> bool {
        self.n_members > COMPLETE
    }
}

/// Rings of a graph over so many members: half of about log2 + 4, so one more at 65, 257 and 1,025 members.
fn n_rings(n_members: usize) -> usize {
    let log2 = n_members.max(2).next_power_of_two().ilog2() as usize;
    log2.div_ceil(2) + 2
}

/// The whole graph, members by rank.
struct Graph {
    /// Per ring, the member before and the member after each.
    rings: Vec<Vec<(usize, usize)>>,
    /// Per member, what root and parents are chosen by.
    keys: Vec<u64>,
}

impl Graph {
    fn new(members: &[PeerId], seed: u64) -> Self {
        let n_members = members.len();
        let n_rings = n_rings(n_members);
        let mut places = vec![Vec::with_capacity(n_members); n_rings];
        let mut keys = Vec::with_capacity(n_members);
        for (rank, peer) in members.iter().enumerate() {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&seed.to_le_bytes());
            hasher.update(&peer.0);
            let mut stream = hasher.finalize_xof();
            let mut next = || {
                let mut bytes = [0; 8];
                stream.fill(&mut bytes);
                u64::from_le_bytes(bytes)
            };
            keys.push(next());
            places.iter_mut().for_each(|ring| ring.push((next(), rank)));
        }
        let rings = places.into_iter().map(|mut order| {
            order.sort_unstable();
            let mut ring = vec![(0, 0); n_members];
            for (at, (_, rank)) in order.iter().enumerate() {
                let before = order[(at + n_members - 1) % n_members].1;
                let after = order[(at + 1) % n_members].1;
                ring[*rank] = (before, after);
            }
            ring
        });
        Self {
            rings: rings.collect(),
            keys,
        }
    }

    /// Neighbours of a member, ascending.
    fn links(&self, rank: usize) -> Vec<usize> {
        let both = self.rings.iter().map(|ring| ring[rank]);
        let mut links: Vec<usize> = both.flat_map(|(a, b)| [a, b]).collect();
        links.sort_unstable();
        links.dedup();
        links
    }

    /// The parent of each member; the root is its own.
    fn tree(&self) -> Vec<usize> {
        let n_members = self.keys.len();
        let root = (0..n_members).min_by_key(|rank| self.keys[*rank]);
        let root = root.unwrap_or_default();
        let (mut depths, mut reached) = (vec![usize::MAX; n_members], vec![root]);
        depths[root] = 0;
        let mut next = 0;
        while let Some(&rank) = reached.get(next) {
            next += 1;
            for other in self.links(rank) {
                if depths[other] == usize::MAX {
                    depths[other] = depths[rank] + 1;
                    reached.push(other);
                }
            }
        }
        let parent = |rank: usize| {
            let links = self.links(rank).into_iter();
            let nearer = links.filter(|other| depths[*other] < depths[rank]);
            nearer.min_by_key(|other| mixed(self.keys[rank], self.keys[*other]))
        };
        (0..n_members)
            .map(|rank| parent(rank).unwrap_or(rank))
            .collect()
    }
}

/// Which of the links of `me` leads to each member: the child below which it is, or else the parent.
fn towards(parents: &[usize], me: usize, tree: &[usize]) -> Vec<u16> {
    let link = |rank: usize| {
        let mut at = rank;
        while parents[at] != me && parents[at] != at {
            at = parents[at];
        }
        let link = if parents[at] == me { at } else { parents[me] };
        let place = tree.iter().position(|other| *other == link);
        let place = place.and_then(|place| u16::try_from(place).ok());
        place.filter(|_| rank != me).unwrap_or(NO_LINK)
    };
    (0..parents.len()).map(link).collect()
}

/// A number that depends on all bits of both (the finaliser of splitmix64).
fn mixed(a: u64, b: u64) -> u64 {
    let mut z = a ^ b.rotate_left(32);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn members(n: usize, salt: u64) -> Vec<PeerId> {
        let id = |i: usize| crate::ids::Digest::of(&(i as u64 ^ salt << 32).to_le_bytes()).0;
        let mut members: Vec<PeerId> = (0..n).map(|i| PeerId(id(i))).collect();
        members.sort_unstable();
        members
    }

    type Links = BTreeSet<(PeerId, PeerId)>;

    /// All links of the graph and of its tree, both directions, and how deep the tree is.
    fn all(members: &[PeerId], seed: u64) -> (Links, Links, usize) {
        let graph = Graph::new(members, seed);
        let parents = graph.tree();
        let (mut links, mut tree, mut deepest) = (Links::new(), Links::new(), 0);
        for (rank, peer) in members.iter().enumerate() {
            let others = graph.links(rank).into_iter();
            links.extend(others.map(|other| (*peer, members[other])));
            let (mut at, mut depth) = (rank, 0);
            if parents[rank] != rank {
                tree.insert((*peer, members[parents[rank]]));
                tree.insert((members[parents[rank]], *peer));
            }
            while parents[at] != at {
                (at, depth) = (parents[at], depth + 1);
                assert!(depth <= members.len(), "a cycle");
            }
            deepest = deepest.max(depth);
        }
        (links, tree, deepest)
    }

    fn n_reached(members: &[PeerId], links: &Links) -> usize {
        let mut reached = BTreeSet::from([members[0]]);
        let mut left = vec![members[0]];
        while let Some(peer) = left.pop() {
            let (low, high) = ((peer, PeerId([0; 32])), (peer, PeerId([255; 32])));
            let others = links.range(low..=high).map(|(_, other)| *other);
            left.extend(others.filter(|other| reached.insert(*other)));
        }
        reached.len()
    }

    fn degree(members: &[PeerId], links: &Links) -> usize {
        let of = |peer: &PeerId| links.iter().filter(|(from, _)| from == peer).count();
        members.iter().map(of).max().unwrap()
    }

    #[test]
    fn few_members_are_all_neighbours_and_nothing_is_passed_on() {
        for n in 1..=COMPLETE {
            let members = members(n, 0);
            for me in &members {
                let overlay = Overlay::of(&members, *me, 7);
                assert_eq!(overlay.neighbours.len(), n - 1);
                assert_eq!(overlay.neighbours, overlay.tree);
                assert!(!overlay.neighbours.contains(me) && !overlay.relays());
            }
        }
        assert!(
            Overlay::of(&members(40, 0), PeerId([9; 32]), 7)
                .neighbours
                .is_empty()
        );
        assert!(Overlay::of(&[], PeerId([9; 32]), 7).tree.is_empty());
    }

    #[test]
    fn the_graph_is_connected_and_its_tree_spans_it_at_little_depth() {
        for (n, k, most_depth) in [
            (17, 10, 3),
            (36, 10, 3),
            (128, 12, 4),
            (512, 14, 4),
            (1024, 14, 5),
        ] {
            for seed in 0..3 {
                let members = members(n, seed);
                let (links, tree, depth) = all(&members, seed);
                assert_eq!(n_reached(&members, &links), n);
                assert_eq!(n_reached(&members, &tree), n);
                assert_eq!(tree.len(), 2 * (n - 1), "a spanning tree");
                assert!(tree.is_subset(&links));
                let mean = links.len() as f64 / n as f64;
                assert!(mean > k as f64 * 0.75, "{n} members: {mean}");
                assert!(degree(&members, &links) <= k);
                assert!(depth <= most_depth, "{n} members: {depth}");
            }
        }
    }

    #[test]
    fn one_member_more_or_less_changes_a_few_links_per_ring() {
        for n in [36, 128, 512] {
            let everybody = members(n, 1);
            let (links, tree, _) = all(&everybody, 5);
            let (mut n_changed, mut n_tree_changed) = (0, Vec::new());
            for gone in 0..20 {
                let mut rest = everybody.clone();
                let gone = rest.remove(gone * n / 20);
                let (fewer, smaller, _) = all(&rest, 5);
                let others = |link: &&(PeerId, PeerId)| link.0 != gone && link.1 != gone;
                let changed = links.symmetric_difference(&fewer).filter(others).count() / 2;
                assert!(changed <= 2 * n_rings(n), "{changed} links of others");
                n_changed += changed;
                let changed = tree.symmetric_difference(&smaller).filter(others);
                n_tree_changed.push(changed.count() / 2);
            }
            n_tree_changed.sort_unstable();
            assert!(n_changed <= 20 * n_rings(n), "{n}: {n_changed}");
            let median = n_tree_changed[10];
            assert!(median <= 2 * n_rings(n), "{n}: {n_tree_changed:?}");
        }
    }

    #[test]
    fn links_are_rerouted_exactly_where_other_members_are_beyond_them() {
        /// Members beyond a link of `me`, by walking the tree.
        fn beyond(members: &[PeerId], tree: &Links, me: PeerId, link: PeerId) -> BTreeSet<PeerId> {
            let mut cut = tree.clone();
            cut.remove(&(me, link));
            cut.remove(&(link, me));
            let mut reached = BTreeSet::from([link]);
            let mut left = vec![link];
            while let Some(peer) = left.pop() {
                let others = cut.iter().filter(|(from, _)| *from == peer);
                let new: Vec<PeerId> = others.map(|(_, other)| *other).collect();
                left.extend(new.into_iter().filter(|other| reached.insert(*other)));
            }
            assert!(reached.len() < members.len());
            reached
        }
        let all_of = |n| members(n, 3);
        let mut n_rerouted = 0;
        for (n, gone) in [(24, 5), (24, 11), (40, 0), (40, 39), (18, 7)] {
            let before = all_of(n);
            let mut after = before.clone();
            let gone = after.remove(gone);
            let (tree_before, tree_after) = (all(&before, 9).1, all(&after, 9).1);
            for me in &after {
                let (old, new) = (Overlay::of(&before, *me, 9), Overlay::of(&after, *me, 9));
                let rerouted = new.rerouted(&after, &old, &before);
                n_rerouted += rerouted.len();
                for link in new.tree.iter().filter(|link| old.tree.contains(link)) {
                    let mut then = beyond(&before, &tree_before, *me, *link);
                    then.remove(&gone);
                    let same = then == beyond(&after, &tree_after, *me, *link);
                    assert_eq!(same, !rerouted.contains(link), "{n} members");
                }
            }
        }
        assert!(n_rerouted > 0);
        // From a tree to a complete graph and back, nothing leads where it did.
        let (many, few) = (all_of(17), all_of(17)[..16].to_vec());
        let (old, new) = (
            Overlay::of(&many, many[0], 9),
            Overlay::of(&few, many[0], 9),
        );
        assert_eq!(new.rerouted(&few, &old, &many), new.tree);
        assert_eq!(old.rerouted(&many, &new, &few), old.tree);
        assert!(new.rerouted(&few, &new, &few).is_empty());
    }

    proptest! {
        #[test]
        fn all_members_see_the_same_graph(n in 0..60usize, seed: u64) {
            let members = members(n, seed);
            let of = |me: &PeerId| Overlay::of(&members, *me, seed);
            let overlays: Vec<Overlay> = members.iter().map(of).collect();
            for (me, overlay) in members.iter().zip(&overlays) {
                prop_assert_eq!(overlay, &of(me));
                prop_assert!(overlay.neighbours.is_sorted() && !overlay.neighbours.contains(me));
                for other in &overlay.neighbours {
                    let theirs = &overlays[members.binary_search(other).unwrap()];
                    prop_assert!(theirs.neighbours.contains(me));
                    prop_assert_eq!(theirs.tree.contains(me), overlay.tree.contains(other));
                }
                prop_assert!(overlay.tree.iter().all(|peer| overlay.neighbours.contains(peer)));
            }
            let links: usize = overlays.iter().map(|overlay| overlay.tree.len()).sum();
            prop_assert!(n <= COMPLETE || links == 2 * (n - 1));
        }
    }
}
