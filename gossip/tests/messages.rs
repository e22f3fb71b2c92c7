//! Whatever bytes a peer sends where messages are expected: an error or a message, never a panic.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use skein_gossip::agreement::{Agreement, Config, Input};
use skein_gossip::exchange;
use skein_gossip::ids::{Digest, JobId, PeerId};
use skein_gossip::message::{
    Beat, Candidate, Decision, EndingState, Message, Standing, StateRequest, StateResponse,
};
use skein_gossip::time::Tick;
use skein_gossip::transfer::Manifest;
use skein_gossip::view::{
    Change, Contribution, Holding, Joiner, MAX_ANCESTRY, MAX_MEMBERS, Retired, Stamp, View,
    ViewError,
};
use skein_gossip::wire::codec;
use skein_gossip::wire::frame::FrameKind;

fn peer(n: u8) -> PeerId {
    PeerId([n; 32])
}

fn holding() -> impl Strategy<Value = Holding> {
    (any::<u64>(), any::<u64>(), any::<[u8; 32]>()).prop_map(|(samples, step, digest)| Holding {
        samples,
        step,
        digest: Digest(digest),
    })
}

fn view() -> impl Strategy<Value = View> {
    let joiner = (0..6u8, any::<u64>(), any::<u32>(), holding());
    let joiners = vec(joiner, 1..6).prop_map(|joiners| {
        let joiners = joiners.into_iter();
        let joiners = joiners.map(|(n, instance, batch, holds)| Joiner {
            peer: peer(n),
            instance,
            batch,
            holds,
        });
        joiners.collect::<Vec<_>>()
    });
    (joiners, 0..6u8, any::<u64>()).prop_map(|(joiners, steward, number)| {
        let mut view = View::first(peer(steward), &joiners).unwrap();
        view.stamp.number = number;
        view
    })
}

/// A change of any view, to members of another.
fn change() -> impl Strategy<Value = Change> {
    let stamp = || (0..4u64, 0..6u8);
    (stamp(), stamp(), view(), vec(0..6u8, 0..4)).prop_map(|(before, stamp, view, gone)| {
        let stamp_of = |(number, steward): (u64, u8)| Stamp {
            number,
            steward: peer(steward),
        };
        let retired = |n| Retired {
            peer: peer(n),
            instance: 1,
            work: Contribution::default(),
        };
        Change {
            before: stamp_of(before),
            stamp: stamp_of(stamp),
            gone: gone.into_iter().map(retired).collect(),
            admitted: view.members,
        }
    })
}

fn ending() -> impl Strategy<Value = EndingState> {
    let candidate = || (any::<f32>(), any::<f32>(), any::<[u8; 32]>(), any::<u64>());
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let decision = prop::option::of((any::<u64>(), 0..6u8, 0..6u8, candidate()));
    let make = |(accuracy, loss, digest, step)| Candidate {
        accuracy,
        loss,
        digest: Digest(digest),
        step,
    };
    (".{0,400}", prop::option::of(candidate()), decision, flags).prop_map(
        move |(reason, candidate, decision, (abstains, holds, closed))| EndingState {
            reason,
            candidate: candidate.map(make),
            abstains,
            decision: decision.map(|(round, steward, winner, candidate)| Decision {
                round,
                steward: peer(steward),
                winner: peer(winner),
                candidate: make(candidate),
            }),
            holds,
            closed,
        },
    )
}

fn beat() -> impl Strategy<Value = Beat> {
    let standing = prop_oneof![
        Just(Standing::Preparing),
        ".{0,400}".prop_map(Standing::Unable),
        holding().prop_map(Standing::Ready),
        Just(Standing::Syncing),
        Just(Standing::Training),
        Just(Standing::Ending),
    ];
    let stamp = prop::option::of((any::<u64>(), 0..6u8));
    let numbers = (any::<u64>(), any::<u32>(), any::<u64>(), any::<f32>());
    (standing, stamp, numbers, prop::option::of(ending())).prop_map(
        |(standing, stamp, (instance, batch, step, train_loss), ending)| Beat {
            instance,
            standing,
            batch,
            view: stamp.map(|(number, steward)| Stamp {
                number,
                steward: peer(steward),
            }),
            contribution: Contribution {
                samples: step,
                ..Contribution::default()
            },
            step,
            train_loss,
            ending,
        },
    )
}

fn input() -> impl Strategy<Value = Input> {
    let from = || (0..6u8).prop_map(peer);
    prop_oneof![
        from().prop_map(Input::Connected),
        from().prop_map(Input::Disconnected),
        from().prop_map(Input::Leaving),
        (from(), beat()).prop_map(|(from, beat)| Input::Beat(from, Arc::new(beat))),
        (from(), view()).prop_map(|(from, view)| Input::View(from, Arc::new(view))),
        (from(), change()).prop_map(|(from, change)| Input::Change(from, Arc::new(change))),
        holding().prop_map(Input::Prepared),
        Just(Input::Synced { step: 3 }),
        ".{0,400}".prop_map(Input::StopHolds),
        ".{0,400}".prop_map(Input::Unable),
        any::<[u8; 32]>().prop_map(|digest| Input::Fetched(Digest(digest))),
        Just(Input::Tick),
    ]
}

/// The longest view there can be: no number of it takes fewer bytes than it may.
#[test]
fn the_longest_view_fits_a_control_frame() {
    let peer = |n: usize| {
        let [high, low] = (n as u16).to_be_bytes();
        PeerId(std::array::from_fn(|i| if i % 2 == 0 { high } else { low }))
    };
    let holds = Holding {
        samples: u64::MAX,
        step: u64::MAX,
        digest: Digest([255; 32]),
    };
    let joiners: Vec<Joiner> = (0..MAX_MEMBERS + 1)
        .map(|n| Joiner {
            peer: peer(n),
            instance: u64::MAX,
            batch: u32::MAX,
            holds,
        })
        .collect();
    let mut view = View::first(peer(0), &joiners).unwrap();
    assert_eq!(view.members.len(), MAX_MEMBERS);
    assert_eq!(view.validate(), Ok(()));
    let number = u64::MAX - 1;
    for (n, member) in view.members.iter_mut().enumerate() {
        member.slot = u32::MAX - n as u32;
        member.since = number;
    }
    let work = Contribution {
        steps: u64::MAX,
        samples: u64::MAX,
        bytes_out: u64::MAX,
        dense_bytes_out: u64::MAX,
        computing_us: u64::MAX,
        waiting_us: u64::MAX,
        communicating_us: u64::MAX,
    };
    view.stamp.number = number;
    view.retired = (0..MAX_MEMBERS)
        .map(|n| Retired {
            peer: peer(n),
            instance: u64::MAX,
            work,
        })
        .collect();
    let ancestor = |n: usize| Stamp {
        number: number - 1 - n as u64,
        steward: peer(n),
    };
    view.ancestry = (0..MAX_ANCESTRY).map(ancestor).collect();
    assert_eq!(view.validate(), Ok(()));

    let view = Arc::new(view);
    let bytes = codec::encode(&Message::View(JobId([1; 32]), view.clone()));
    let bound = FrameKind::Control.bound() as usize;
    assert!(bytes.len() <= bound, "{} of {bound} bytes", bytes.len());
    let Message::View(_, back) = codec::decode(&bytes).unwrap() else {
        panic!("a view went in")
    };
    assert_eq!(back, view);

    let mut longer = View::clone(&view);
    longer.members.push(longer.members[0]);
    assert_eq!(longer.validate(), Err(ViewError::TooLong { number }));
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_a_message_or_an_error(bytes in vec(any::<u8>(), 0..600)) {
        let _ = codec::decode::<Message>(&bytes);
        let _ = codec::decode::<StateRequest>(&bytes);
        let _ = codec::decode::<StateResponse>(&bytes);
        let _ = codec::decode::<Manifest>(&bytes);
        let _ = exchange::split(&bytes);
    }

    #[test]
    fn messages_come_back_as_they_were_sent(beat in beat(), view in view()) {
        let job = JobId([1; 32]);
        for message in [Message::Beat(job, Arc::new(beat)), Message::View(job, Arc::new(view))] {
            let bytes = codec::encode(&message);
            let back: Message = codec::decode(&bytes).unwrap();
            // NaN is not equal to itself; the bytes are.
            prop_assert_eq!(codec::encode(&back), bytes);
        }
    }

    /// Any peer may say anything at any time: no panic, and what waits to be done stays bounded.
    #[test]
    fn any_sequence_of_inputs_is_survived(inputs in vec((input(), 0..2_000_000u64), 0..60)) {
        let mut agreement = Agreement::new(Config::new(2, 32), peer(3), 1, Tick(0));
        let mut now = 0;
        for (input, later) in inputs {
            now += later;
            agreement.handle(Tick(now), input);
            let outputs = std::iter::from_fn(|| agreement.poll()).count();
            prop_assert!(outputs < 100, "{} outputs", outputs);
            prop_assert!(agreement.next_wakeup() > Tick(now));
            let _ = agreement.mesh_samples();
        }
    }
}
