//! How a job ends with one model on every peer, whoever dies meanwhile.
//!
//! All state travels in beats ([`EndingState`]), so a message lost is mended by the next beat. The steward of the view
//! waits for a candidate (or an abstention: also of a member that judges its replica for more than twice as long as the first
//! one did) from every member alive, names the best, waits until every member alive holds its
//! weights, and only then closes. A steward that takes over repeats the decision it finds; it makes a new one, with a
//! higher round, only when nobody alive holds the decided weights. A job therefore closes with weights that every
//! member alive at that moment holds, and no two members close with different ones.

use crate::ids::{Digest, PeerId};
use crate::message::{Candidate, Decision, EndingState};

/// What the steward should do next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Move {
    /// Somebody has not said enough yet.
    Wait,
    /// Announce this decision.
    Decide(Decision),
    /// Every member alive holds the decided weights.
    Close,
    /// Nobody alive has or can have a model: close without one.
    CloseEmpty,
}

/// The steward's rule. `members`: every member alive, ascending and its own included, with its ending state; `None` for one
/// that has not begun to end yet. `is_elsewhere`: whether a peer alive that is no member has these weights; of the two sides of a
/// network partition each would otherwise replace what the other decided.
pub fn steward_move<'a>(
    me: PeerId,
    members: impl Iterator<Item = (PeerId, Option<&'a EndingState>)>,
    is_elsewhere: impl Fn(Digest) -> bool,
) -> Move {
    let mut states = Vec::new();
    for (peer, state) in members {
        match state {
            Some(state) if state.candidate.is_some() || state.abstains || state.closed => {
                states.push((peer, state));
            }
            _ => return Move::Wait,
        };
    }
    let known = states
        .iter()
        .filter_map(|(_, state)| state.decision)
        .reduce(newer);
    if let Some(decision) = known {
        let holds = |state: &EndingState| {
            state.holds && state.decision.is_some_and(|d| same_weights(&d, &decision))
        };
        if states.iter().all(|(_, state)| holds(state)) {
            return Move::Close;
        }
        let offers = |state: &EndingState| {
            state
                .candidate
                .is_some_and(|c| c.digest == decision.candidate.digest)
        };
        if states
            .iter()
            .any(|(_, state)| holds(state) || offers(state))
            || is_elsewhere(decision.candidate.digest)
        {
            return Move::Decide(decision);
        }
    }
    let offered = states
        .iter()
        .filter_map(|(peer, state)| state.candidate.map(|candidate| (*peer, candidate)));
    // Ascending by peer and replaced only by a better one: on equal rank the lowest peer wins.
    let best = offered.fold(None, |best: Option<(PeerId, Candidate)>, next| match best {
        Some((_, held)) if held.rank() >= next.1.rank() => best,
        _ => Some(next),
    });
    match best {
        Some((winner, candidate)) => {
            let round = known.map_or(1, |decision| decision.round.saturating_add(1));
            Move::Decide(Decision {
                round,
                steward: me,
                winner,
                candidate,
            })
        }
        None => Move::CloseEmpty,
    }
}

/// The decision that stands of two: the higher round, then the lower steward.
pub fn newer(a: Decision, b: Decision) -> Decision {
    let rank = |decision: &Decision| (decision.round, std::cmp::Reverse(decision.steward));
    if rank(&b) > rank(&a) { b } else { a }
}

fn same_weights(a: &Decision, b: &Decision) -> bool {
    a.candidate.digest == b.candidate.digest
}

/// Peers that can serve the weights named `digest`: those that hold the decision's weights or offered them.
pub fn holders<'a>(
    digest: Digest,
    states: impl Iterator<Item = (PeerId, &'a EndingState)>,
) -> Vec<PeerId> {
    states
        .filter(|(_, state)| state.has(digest))
        .map(|(peer, _)| peer)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(id: u8) -> PeerId {
        PeerId([id; 32])
    }

    fn offers(accuracy: f32, digest: u8) -> EndingState {
        let candidate = Candidate {
            accuracy,
            loss: 1.0,
            digest: Digest([digest; 32]),
            step: 9,
        };
        EndingState {
            reason: "test".into(),
            candidate: Some(candidate),
            abstains: false,
            decision: None,
            holds: false,
            closed: false,
        }
    }

    fn decided(mut state: EndingState, decision: Decision, holds: bool) -> EndingState {
        state.decision = Some(decision);
        state.holds = holds;
        state
    }

    fn decision(round: u64, steward: u8, winner: u8, digest: u8) -> Decision {
        let candidate = offers(0.9, digest).candidate.unwrap();
        Decision {
            round,
            steward: peer(steward),
            winner: peer(winner),
            candidate,
        }
    }

    fn moves(me: u8, members: &[(PeerId, Option<EndingState>)]) -> Move {
        let states = members.iter();
        steward_move(
            peer(me),
            states.map(|(peer, state)| (*peer, state.as_ref())),
            |digest| digest == ELSEWHERE,
        )
    }

    const ELSEWHERE: Digest = Digest([77; 32]);

    #[test]
    fn the_best_candidate_wins_and_ties_go_to_the_lowest_peer() {
        let members = [
            (peer(1), Some(offers(0.5, 1))),
            (peer(2), Some(offers(0.7, 2))),
            (peer(3), Some(offers(0.7, 3))),
        ];
        let Move::Decide(decision) = moves(1, &members) else {
            panic!("must decide")
        };
        assert_eq!((decision.round, decision.winner), (1, peer(2)));
    }

    #[test]
    fn a_candidate_that_is_not_finite_never_wins() {
        let members = [
            (peer(1), Some(offers(f32::NAN, 1))),
            (peer(2), Some(offers(0.1, 2))),
        ];
        let Move::Decide(decision) = moves(1, &members) else {
            panic!("must decide")
        };
        assert_eq!(decision.winner, peer(2));
    }

    #[test]
    fn everybody_alive_must_have_spoken_and_must_hold_the_weights() {
        let silent = [(peer(1), Some(offers(0.5, 1))), (peer(2), None)];
        assert_eq!(moves(1, &silent), Move::Wait);
        let d = decision(1, 1, 1, 1);
        let one_lacks = [
            (peer(1), Some(decided(offers(0.5, 1), d, true))),
            (peer(2), Some(decided(offers(0.4, 2), d, false))),
        ];
        assert_eq!(moves(1, &one_lacks), Move::Decide(d));
        let all = [
            (peer(1), Some(decided(offers(0.5, 1), d, true))),
            (peer(2), Some(decided(offers(0.4, 2), d, true))),
        ];
        assert_eq!(moves(1, &all), Move::Close);
    }

    #[test]
    fn a_new_steward_repeats_a_decision_that_somebody_holds() {
        let d = decision(1, 1, 1, 7);
        let members = [
            (peer(2), Some(offers(0.99, 2))),
            (peer(3), Some(decided(offers(0.1, 3), d, true))),
        ];
        assert_eq!(moves(2, &members), Move::Decide(d));
    }

    #[test]
    fn a_decision_whose_weights_died_is_replaced_in_a_higher_round() {
        let lost = decision(1, 1, 1, 7);
        let members = [
            (peer(2), Some(offers(0.6, 2))),
            (peer(3), Some(decided(offers(0.1, 3), lost, false))),
        ];
        let Move::Decide(next) = moves(2, &members) else {
            panic!("must decide")
        };
        assert_eq!((next.round, next.winner), (2, peer(2)));
        assert_eq!(newer(lost, next), next);
    }

    #[test]
    fn a_decision_of_the_other_side_stands_while_a_peer_of_it_has_the_weights() {
        let theirs = decision(1, 1, 1, 77);
        let members = [
            (peer(2), Some(decided(offers(0.6, 2), theirs, false))),
            (peer(3), Some(offers(0.7, 3))),
        ];
        assert_eq!(moves(2, &members), Move::Decide(theirs));
    }

    #[test]
    fn nobody_with_a_model_closes_without_one() {
        let mut state = offers(0.0, 0);
        state.candidate = None;
        state.abstains = true;
        assert_eq!(moves(1, &[(peer(1), Some(state))]), Move::CloseEmpty);
    }
}
