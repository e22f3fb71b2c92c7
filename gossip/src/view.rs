//! A view: the agreed, numbered list of members that train one job together.
//!
//! The steward (the lowest member alive) proposes a successor when a member falls out or a joiner is ready; anybody
//! adopts a successor of the view it holds. After a network partition two lines of views exist: both sides see
//! the same two views and so pick the same winner, [`View::wins_over`]; the losing side joins the winning one again.
//! Of many members only what changes is sent, [`Change`]; whoever does not hold the view before is told the whole.
//! Messages are stamped with the view they were sent in, and [`View::admits`] fences what is older than the sender's
//! admission.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::ids::{Digest, PeerId};
pub use crate::member::{MAX_BATCH, Member};

/// Most members of one job. Bounds every list in a view, so that the longest view fits a control frame.
pub const MAX_MEMBERS: usize = 1024;
/// How many ancestors a view remembers: two sides that are further apart than this are told apart by size alone.
pub const MAX_ANCESTRY: usize = 32;

/// Names one view: its number and the steward who proposed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Stamp {
    /// Counts up along one line of views, from 1.
    pub number: u64,
    /// Who proposed it.
    pub steward: PeerId,
}

/// What a peer holds of the job's state before it is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Samples that the whole mesh had trained on at that state. Decides which state is the newest.
    pub samples: u64,
    /// Steps that the holder had made.
    pub step: u64,
    /// Hash of the weights.
    pub digest: Digest,
}

impl Holding {
    /// What a peer holds that lacks the weights which the job starts from: nobody begins from it.
    pub const NOTHING: Self = Self {
        samples: 0,
        step: 0,
        digest: Digest([0; 32]),
    };
}

/// Work of a peer that counts in the final report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Contribution {
    /// Optimiser updates made.
    pub steps: u64,
    /// Samples trained on.
    pub samples: u64,
    /// Bytes of update packets sent.
    pub bytes_out: u64,
    /// Bytes that the same exchanges would have taken as dense f32.
    pub dense_bytes_out: u64,
    /// Microseconds the training thread computed.
    pub computing_us: u64,
    /// Microseconds it waited for others.
    pub waiting_us: u64,
    /// Microseconds it spent handing over and merging gradients.
    pub communicating_us: u64,
}

impl Contribution {
    /// Adds the work of another process.
    pub fn add(&mut self, other: &Contribution) {
        let pairs = [
            (&mut self.steps, other.steps),
            (&mut self.samples, other.samples),
            (&mut self.bytes_out, other.bytes_out),
            (&mut self.dense_bytes_out, other.dense_bytes_out),
            (&mut self.computing_us, other.computing_us),
            (&mut self.waiting_us, other.waiting_us),
            (&mut self.communicating_us, other.communicating_us),
        ];
        for (sum, more) in pairs {
            *sum = sum.saturating_add(more);
        }
    }
}

/// What a member that is gone had contributed. Work is counted per instance: a peer that was restarted counts anew.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Retired {
    /// Who.
    pub peer: PeerId,
    /// As which process.
    pub instance: u64,
    /// Its work.
    pub work: Contribution,
}

/// An agreed membership.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct View {
    /// Its name.
    pub stamp: Stamp,
    /// Ascending by peer.
    pub members: Vec<Member>,
    /// Whose state all start from. Members of the first view that hold another one fetch it before they train.
    pub origin: (PeerId, Holding),
    /// The views this one descends from, newest first.
    pub ancestry: Vec<Stamp>,
    /// What members that are gone had contributed.
    pub retired: Vec<Retired>,
}

/// What a view differs in from the one before it: of many members a few come and go, and whoever holds the one can make the
/// other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The view that is changed.
    pub before: Stamp,
    /// The view that comes of it.
    pub stamp: Stamp,
    /// Members that fall out.
    pub gone: Vec<Retired>,
    /// Members that are admitted, those admitted anew included.
    pub admitted: Vec<Member>,
    /// Members whose samples per step change, and to what.
    pub batches: Vec<(PeerId, u32)>,
    /// From which step on; see [`Member::batch_from`].
    pub batches_from: u64,
}

/// Why a view from the network was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// A list is longer than its bound.
    #[error("view {number} has a list longer than its bound")]
    TooLong {
        /// The view's number.
        number: u64,
    },
    /// Members must ascend, so that every peer sums in the same order.
    #[error("view {number} lists its members out of order or not at all")]
    Unordered {
        /// The view's number.
        number: u64,
    },
    /// The stamp contradicts the content.
    #[error("view {number} contradicts itself: {what}")]
    Inconsistent {
        /// The view's number.
        number: u64,
        /// Which part.
        what: &'static str,
    },
}

impl View {
    /// Checks what every receiver may rely on.
    ///
    /// # Errors
    /// [`ViewError`]: the view is not adopted.
    pub fn validate(&self) -> Result<(), ViewError> {
        let number = self.stamp.number;
        if self.members.len() > MAX_MEMBERS
            || self.ancestry.len() > MAX_ANCESTRY
            || self.retired.len() > MAX_MEMBERS
        {
            return Err(ViewError::TooLong { number });
        }
        if self.members.is_empty()
            || self
                .members
                .windows(2)
                .any(|pair| pair[0].peer >= pair[1].peer)
        {
            return Err(ViewError::Unordered { number });
        }
        let inconsistent = |what| Err(ViewError::Inconsistent { number, what });
        if number == 0 || number == u64::MAX {
            return inconsistent("its number");
        }
        if !self.contains(self.stamp.steward) {
            return inconsistent("its steward is no member");
        }
        let is_batch = |batch: u32| (1..=MAX_BATCH).contains(&batch);
        let is_wrong = |member: &Member| {
            let since = [member.since, member.batch_since, member.batch_before_since];
            let batches = [member.batch, member.batch_before, member.batch_earlier];
            since.into_iter().any(|since| since > number) || !batches.into_iter().all(is_batch)
        };
        if self.members.iter().any(is_wrong) {
            return inconsistent("a member's admission or batch");
        }
        if self
            .ancestry
            .iter()
            .any(|ancestor| ancestor.number >= number)
        {
            return inconsistent("its ancestry");
        }
        Ok(())
    }

    /// The member entry of `peer`.
    pub fn member(&self, peer: PeerId) -> Option<&Member> {
        self.members
            .binary_search_by_key(&peer, |member| member.peer)
            .ok()
            .map(|index| &self.members[index])
    }

    /// Whether `peer` is a member.
    pub fn contains(&self, peer: PeerId) -> bool {
        self.member(peer).is_some()
    }

    /// Whether a message from `from`, sent in the view numbered `sent_in`, may be applied: the sender is a member and
    /// was already admitted then (fencing).
    pub fn admits(&self, from: PeerId, sent_in: u64) -> bool {
        self.member(from)
            .is_some_and(|member| sent_in >= member.since)
    }

    /// Samples behind one step of all members together.
    pub fn global_batch(&self) -> u64 {
        self.members
            .iter()
            .map(|member| u64::from(member.batch))
            .sum()
    }

    /// Whether all its members are admitted by it: they start together, the origin with the state that it holds.
    pub fn is_start(&self) -> bool {
        let mut members = self.members.iter();
        members.all(|member| member.since == self.stamp.number)
    }

    /// Whether `self` descends from the view named `stamp`.
    pub fn descends_from(&self, stamp: Stamp) -> bool {
        self.ancestry.contains(&stamp)
    }

    /// Which of two views all peers that know both go on with: a descendant before its ancestor; of two lines the one with
    /// more members, then the higher number, then the lower steward.
    pub fn wins_over(&self, other: &View) -> bool {
        if self.descends_from(other.stamp) {
            return true;
        }
        if other.descends_from(self.stamp) || self.stamp == other.stamp {
            return false;
        }
        let rank = |view: &View| {
            (
                view.members.len(),
                view.stamp.number,
                Reverse(view.stamp.steward),
            )
        };
        rank(self) > rank(other)
    }

    /// The successor that `steward` proposes: `self` without `gone`, with `joiners` admitted (an instance that is already a
    /// member is admitted anew).
    pub fn successor(
        &self,
        steward: PeerId,
        gone: &BTreeMap<PeerId, Contribution>,
        joiners: &[Joiner],
        from_step: u64,
    ) -> View {
        let number = self.stamp.number.saturating_add(1);
        let stamp = Stamp { number, steward };
        self.after(&self.change(stamp, gone, joiners, from_step))
    }

    /// What the successor named `stamp`, with a higher number, differs in.
    pub fn change(
        &self,
        stamp: Stamp,
        gone: &BTreeMap<PeerId, Contribution>,
        joiners: &[Joiner],
        from_step: u64,
    ) -> Change {
        let retired = gone.iter().filter_map(|(peer, work)| {
            Some(Retired {
                peer: *peer,
                instance: self.member(*peer)?.instance,
                work: *work,
            })
        });
        let joining: BTreeSet<PeerId> = joiners.iter().map(|joiner| joiner.peer).collect();
        let stays =
            |member: &&Member| !gone.contains_key(&member.peer) && !joining.contains(&member.peer);
        let kept: Vec<Member> = self.members.iter().filter(stays).copied().collect();
        Change {
            before: self.stamp,
            stamp,
            gone: retired.collect(),
            admitted: admit(&kept, joiners, stamp.number, from_step),
            batches: Vec::new(),
            batches_from: from_step,
        }
    }

    /// The view that `change` makes of this one; `None` if it is a change of another view or longer than any. The result
    /// is to be validated like any view from the network.
    pub fn changed_by(&self, change: &Change) -> Option<View> {
        let lengths = [
            change.gone.len(),
            change.admitted.len(),
            change.batches.len(),
        ];
        let fits = lengths.iter().all(|length| *length <= MAX_MEMBERS);
        (change.before == self.stamp && fits).then(|| self.after(change))
    }

    fn after(&self, change: &Change) -> View {
        let mut ancestry = vec![self.stamp];
        ancestry.extend(self.ancestry.iter().copied().take(MAX_ANCESTRY - 1));
        let mut retired = self.retired.clone();
        for gone in &change.gone {
            retire(&mut retired, *gone);
        }
        let gone = change.gone.iter().map(|gone| gone.peer);
        let admitted = change.admitted.iter().map(|member| member.peer);
        let replaced: BTreeSet<PeerId> = gone.chain(admitted).collect();
        let stays = |member: &&Member| !replaced.contains(&member.peer);
        let mut members: Vec<Member> = self.members.iter().filter(stays).copied().collect();
        members.extend(&change.admitted);
        members.sort_by_key(|member| member.peer);
        for (peer, batch) in &change.batches {
            let Ok(at) = members.binary_search_by_key(peer, |member| member.peer) else {
                continue;
            };
            members[at].set_batch(*batch, change.batches_from, change.stamp.number);
        }
        View {
            stamp: change.stamp,
            members,
            origin: self.origin,
            ancestry,
            retired,
        }
    }

    /// The first view of a job: `joiners` start together from the newest state that any of them holds; none where they hold nothing.
    pub fn first(steward: PeerId, joiners: &[Joiner]) -> Option<View> {
        let newest = newest(joiners)?;
        let mut members = admit(&[], joiners, 1, newest.holds.step);
        members.sort_by_key(|member| member.peer);
        Some(View {
            stamp: Stamp { number: 1, steward },
            members,
            origin: (newest.peer, newest.holds),
            ancestry: Vec::new(),
            retired: Vec::new(),
        })
    }

    /// The start named `stamp` of those who had trained in views of this line, and in none now: `joiners` go on together from the
    /// newest state that any of them holds. `gone`: the members of this view who are not among them.
    pub fn start_again(
        &self,
        stamp: Stamp,
        gone: &BTreeMap<PeerId, Contribution>,
        joiners: &[Joiner],
    ) -> Option<View> {
        let newest = newest(joiners)?;
        let mut view = self.after(&self.change(stamp, gone, joiners, newest.holds.step));
        // All that was trained since the line began is in the members' work, which is counted apart.
        let samples = self.origin.1.samples;
        let origin = Holding {
            samples,
            ..newest.holds
        };
        view.origin = (newest.peer, origin);
        Some(view)
    }
}

/// None where they hold nothing.
fn newest(joiners: &[Joiner]) -> Option<&Joiner> {
    let holders = joiners
        .iter()
        .filter(|joiner| joiner.holds != Holding::NOTHING);
    holders.max_by_key(|joiner| {
        (
            joiner.holds.samples,
            joiner.holds.step,
            Reverse(joiner.peer),
        )
    })
}

/// A peer that is ready to be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joiner {
    /// Who.
    pub peer: PeerId,
    /// As which process.
    pub instance: u64,
    /// Samples it will train on per step.
    pub batch: u32,
    /// What it holds.
    pub holds: Holding,
}

/// The joiners for whom there is room beside `kept`, as members in the lowest free slots.
fn admit(kept: &[Member], joiners: &[Joiner], since: u64, from_step: u64) -> Vec<Member> {
    let taken: BTreeSet<u32> = kept.iter().map(|member| member.slot).collect();
    let free = (0..).filter(|slot| !taken.contains(slot));
    let room = MAX_MEMBERS.saturating_sub(kept.len());
    let admitted = joiners.iter().take(room).zip(free);
    let members = admitted.map(|(joiner, slot)| Member {
        peer: joiner.peer,
        instance: joiner.instance,
        since,
        slot,
        batch: joiner.batch.clamp(1, MAX_BATCH),
        batch_from: from_step,
        batch_since: since,
        batch_before: joiner.batch.clamp(1, MAX_BATCH),
        batch_before_from: from_step,
        batch_before_since: since,
        batch_earlier: joiner.batch.clamp(1, MAX_BATCH),
        from_step,
    });
    members.collect()
}

/// Adds what a member had contributed when it left. The oldest entry makes room when the list is full.
fn retire(retired: &mut Vec<Retired>, gone: Retired) {
    let same = |known: &&mut Retired| (known.peer, known.instance) == (gone.peer, gone.instance);
    match retired.iter_mut().find(same) {
        Some(known) if known.work.samples >= gone.work.samples => {}
        Some(known) => *known = gone,
        None => {
            if retired.len() >= MAX_MEMBERS {
                retired.remove(0);
            }
            retired.push(gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn joiner(id: u8, samples: u64) -> Joiner {
        let holds = Holding {
            samples,
            step: samples / 32,
            digest: Digest([samples as u8; 32]),
        };
        Joiner {
            peer: PeerId([id; 32]),
            instance: u64::from(id),
            batch: 32,
            holds,
        }
    }

    fn peer(id: u8) -> PeerId {
        PeerId([id; 32])
    }

    fn first() -> View {
        View::first(peer(1), &[joiner(3, 0), joiner(1, 0), joiner(2, 640)]).unwrap()
    }

    #[test]
    fn the_first_view_starts_from_the_newest_state() {
        let view = first();
        assert_eq!(view.origin.0, peer(2));
        assert_eq!(
            view.members.iter().map(|m| m.peer).collect::<Vec<_>>(),
            [peer(1), peer(2), peer(3)]
        );
        assert_eq!(view.global_batch(), 96);
        assert_eq!(view.validate(), Ok(()));
        let mut slots: Vec<_> = view.members.iter().map(|m| m.slot).collect();
        slots.sort_unstable();
        assert_eq!(slots, [0, 1, 2]);
    }

    #[test]
    fn a_successor_drops_the_gone_and_gives_their_slot_away() {
        let view = first();
        let freed = view.member(peer(3)).unwrap().slot;
        let work = Contribution {
            steps: 5,
            samples: 160,
            ..Default::default()
        };
        let next = view.successor(peer(1), &[(peer(3), work)].into(), &[joiner(9, 0)], 7);
        assert_eq!(next.validate(), Ok(()));
        assert_eq!(next.member(peer(9)).unwrap().slot, freed);
        assert_eq!(next.member(peer(9)).unwrap().since, 2);
        assert_eq!(next.member(peer(1)).unwrap().since, 1);
        let retired = Retired {
            peer: peer(3),
            instance: 3,
            work,
        };
        assert_eq!(next.retired, [retired]);
        let stamp = next.stamp;
        let change = view.change(stamp, &[(peer(3), work)].into(), &[joiner(9, 0)], 7);
        assert_eq!(view.changed_by(&change), Some(next.clone()));
        assert_eq!(next.changed_by(&change), None, "a change of another view");
        assert!(next.wins_over(&view) && !view.wins_over(&next));
    }

    #[test]
    fn what_is_older_than_the_senders_admission_is_fenced() {
        let next = first().successor(peer(1), &BTreeMap::new(), &[joiner(2, 0)], 7);
        assert!(
            !next.admits(peer(2), 1),
            "the same peer before it was admitted anew"
        );
        assert!(next.admits(peer(2), 2));
        assert!(
            next.admits(peer(1), 1),
            "members that stayed need no new stamp"
        );
        assert!(!next.admits(peer(7), 2), "no member");
    }

    #[test]
    fn both_sides_of_a_healed_partition_pick_the_same_winner() {
        let view = first();
        let gone = |id| BTreeMap::from([(peer(id), Contribution::default())]);
        let left = view.successor(peer(1), &gone(3), &[], 0);
        let right = view.successor(
            peer(3),
            &[
                (peer(1), Contribution::default()),
                (peer(2), Contribution::default()),
            ]
            .into(),
            &[],
            0,
        );
        let right = right.successor(peer(3), &BTreeMap::new(), &[], 0);
        assert!(
            left.wins_over(&right),
            "two members before one, though its number is higher"
        );
        assert!(!right.wins_over(&left));
        assert!(!left.wins_over(&left));
    }

    #[test]
    fn hostile_views_are_refused() {
        let mut view = first();
        view.members.reverse();
        assert_eq!(view.validate(), Err(ViewError::Unordered { number: 1 }));
        let mut view = first();
        view.stamp.steward = peer(200);
        assert!(matches!(
            view.validate(),
            Err(ViewError::Inconsistent { .. })
        ));
        let mut view = first();
        view.members.clear();
        assert!(view.validate().is_err());
        let mut view = first();
        view.stamp.number = u64::MAX;
        assert!(view.validate().is_err());
    }
}
