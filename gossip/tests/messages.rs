//! Whatever bytes a peer sends where messages are expected: an error or a message, never a panic.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use skein_gossip::agreement::{Agreement, Config, Input};
use skein_gossip::batching::power::Fit;
use skein_gossip::exchange;
use skein_gossip::ids::{Digest, JobId, PeerId};
use skein_gossip::knowledge::sketch::Sketch;
use skein_gossip::message::{
    Beat, Candidate, Decision, EndingState, MAX_REASON, Message, Pace, Receipt, Standing,
    StateRequest, StateResponse,
};
use skein_gossip::pacing::search::state::{
    Direction, MAX_SAMPLES, Phase, Reward, Sample, SearchState,
};
use skein_gossip::time::Tick;
use skein_gossip::transfer::Manifest;
use skein_gossip::view::{
    Change, Contribution, Holding, Joiner, MAX_ANCESTRY, MAX_BATCH, MAX_MEMBERS, Member, Retired,
    Stamp, View, ViewError,
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
    let batches = vec((0..6u8, 0..70_000u32), 0..4);
    let lists = (vec(0..6u8, 0..4), batches, any::<u64>());
    (stamp(), stamp(), view(), lists).prop_map(|(before, stamp, view, lists)| {
        let (gone, batches, batches_from) = lists;
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
            batches: batches
                .into_iter()
                .map(|(n, batch)| (peer(n), batch))
                .collect(),
            batches_from,
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

/// Numbers of any kind: what a peer claims is bounded where it is used.
fn pace() -> impl Strategy<Value = Pace> {
    let fit = prop::option::of((any::<f32>(), any::<f32>()));
    let sketch = prop::option::of(any::<u64>());
    let numbers = (any::<u64>(), prop::option::of(any::<f32>()));
    (fit, sketch, numbers, prop::option::of(search())).prop_map(
        |(fit, sketch, (commits, held_out), search)| Pace {
            fit: fit.map(|(fixed_us, per_sample_us)| Fit {
                fixed_us,
                per_sample_us,
            }),
            commits,
            held_out,
            sketch: sketch.and_then(|seed| Sketch::of(&[1.0, seed as f32, -3.0], seed, 1)),
            search,
        },
    )
}

fn search() -> impl Strategy<Value = SearchState> {
    let reward = || (any::<f64>(), any::<f64>()).prop_map(|(per_s, error)| Reward { per_s, error });
    let samples = vec((any::<u64>(), any::<f32>()), 0..40);
    let samples = samples.prop_map(|samples| {
        let samples = samples.into_iter();
        let samples = samples.map(|(at_us, train_loss)| Sample { at_us, train_loss });
        samples.collect::<Vec<_>>()
    });
    let direction = prop_oneof![
        Just(Direction::Same),
        Just(Direction::Up),
        Just(Direction::Down),
        (any::<u32>(), reward()).prop_map(|(commits, reward)| Direction::Again { commits, reward }),
    ];
    let phase = prop_oneof![
        (any::<u32>(), direction, samples).prop_map(|(commits, direction, samples)| Phase::Try {
            commits,
            direction,
            samples,
        }),
        (any::<u64>(), prop::option::of(any::<f32>())).prop_map(|(unchecked_us, checked_loss)| {
            Phase::Hold {
                unchecked_us,
                checked_loss,
            }
        }),
    ];
    let numbers = (any::<u64>(), any::<u32>(), any::<bool>(), any::<u64>());
    let options = (
        prop::option::of(reward()),
        prop::option::of(any::<f32>()),
        phase,
    );
    (numbers, options).prop_map(
        |((turn, held, climbed, elapsed_us), (reward, began_at_loss, phase))| SearchState {
            turn,
            held,
            reward,
            began_at_loss,
            climbed,
            elapsed_us,
            phase,
        },
    )
}

fn beat() -> impl Strategy<Value = Beat> {
    let standing = prop_oneof![
        Just(Standing::Preparing),
        ".{0,400}".prop_map(Standing::Unable),
        holding().prop_map(Standing::Ready),
        holding().prop_map(Standing::Again),
        Just(Standing::Syncing),
        Just(Standing::Training),
        Just(Standing::Ending),
    ];
    let stamp = prop::option::of((any::<u64>(), 0..6u8));
    let numbers = (any::<u64>(), any::<u32>(), any::<u64>(), any::<f32>());
    (standing, stamp, numbers, prop::option::of(ending()), pace()).prop_map(
        |(standing, stamp, (instance, batch, step, train_loss), ending, pace)| Beat {
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
            pace,
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
        pace().prop_map(|pace| Input::Pace(Box::new(pace))),
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
        (member.batch, member.batch_before) = (MAX_BATCH, MAX_BATCH);
        member.batch_earlier = MAX_BATCH;
        (member.batch_from, member.batch_since) = (u64::MAX, number);
        (member.batch_before_from, member.batch_before_since) = (u64::MAX, number);
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

/// A change that replaces all but the steward and shares out anew among them, and the longest beat.
#[test]
fn the_longest_change_and_the_longest_beat_fit_a_control_frame() {
    let peer = |n: usize| {
        let [high, low] = (n as u16).to_be_bytes();
        PeerId(std::array::from_fn(|i| if i % 2 == 0 { high } else { low }))
    };
    let bound = FrameKind::Control.bound() as usize;
    let stamp = Stamp {
        number: u64::MAX - 1,
        steward: peer(9),
    };
    let work = Contribution {
        steps: u64::MAX,
        samples: u64::MAX,
        bytes_out: u64::MAX,
        dense_bytes_out: u64::MAX,
        computing_us: u64::MAX,
        waiting_us: u64::MAX,
        communicating_us: u64::MAX,
    };
    let change = Change {
        before: stamp,
        stamp,
        gone: (1..MAX_MEMBERS)
            .map(|n| Retired {
                peer: peer(n),
                instance: u64::MAX,
                work,
            })
            .collect(),
        admitted: (1..MAX_MEMBERS)
            .map(|n| Member {
                peer: peer(n),
                instance: u64::MAX,
                since: u64::MAX - 1,
                slot: u32::MAX,
                batch: MAX_BATCH,
                batch_from: u64::MAX,
                batch_since: u64::MAX - 1,
                batch_before: MAX_BATCH,
                batch_before_from: u64::MAX,
                batch_before_since: u64::MAX - 1,
                batch_earlier: MAX_BATCH,
                from_step: u64::MAX,
            })
            .collect(),
        batches: (0..MAX_MEMBERS).map(|n| (peer(n), MAX_BATCH)).collect(),
        batches_from: u64::MAX,
    };
    let bytes = codec::encode(&Message::Change(JobId([1; 32]), Arc::new(change)));
    assert!(bytes.len() <= bound, "{} of {bound} bytes", bytes.len());

    let reward = Reward {
        per_s: 1e-9,
        error: 1e9,
    };
    let sample = |n: usize| Sample {
        at_us: u64::MAX - MAX_SAMPLES as u64 + n as u64,
        train_loss: 1.5,
    };
    let search = SearchState {
        turn: u64::MAX - 1,
        held: 4096,
        reward: Some(reward),
        began_at_loss: Some(2.0),
        climbed: true,
        elapsed_us: u64::MAX,
        phase: Phase::Try {
            commits: 4096,
            direction: Direction::Again {
                commits: 4096,
                reward,
            },
            samples: (0..MAX_SAMPLES).map(sample).collect(),
        },
    };
    assert_eq!(search.validate(), Ok(()));
    let candidate = Candidate {
        accuracy: 1.0,
        loss: 1.0,
        digest: Digest([255; 32]),
        step: u64::MAX,
    };
    let beat = Beat {
        instance: u64::MAX,
        standing: Standing::Unable("x".repeat(MAX_REASON)),
        batch: u32::MAX,
        view: Some(stamp),
        contribution: work,
        step: u64::MAX,
        train_loss: 1.0,
        ending: Some(EndingState {
            reason: "x".repeat(MAX_REASON),
            candidate: Some(candidate),
            abstains: true,
            decision: Some(Decision {
                round: u64::MAX,
                steward: peer(9),
                winner: peer(9),
                candidate,
            }),
            holds: true,
            closed: true,
        }),
        pace: Pace {
            fit: Some(Fit {
                fixed_us: 1.0,
                per_sample_us: 1.0,
            }),
            commits: u64::MAX,
            held_out: Some(1.0),
            sketch: Sketch::of(&[1.0; 600], 1, 1),
            search: Some(search),
        },
    };
    let bytes = codec::encode(&Message::Beat(JobId([1; 32]), Arc::new(beat)));
    // A beat goes to everybody all the time.
    assert!(bytes.len() <= 2048, "{} bytes", bytes.len());
}

/// Bytes of this version, by hand: whoever changes a message must notice that older peers do not read it.
#[test]
fn a_receipt_and_a_fresh_pace_are_these_bytes() {
    let receipt = Receipt {
        seq: 5,
        arrived_us: 300,
    };
    let bytes = codec::encode(&Message::Applied(JobId([7; 32]), receipt));
    let mut expected = vec![4];
    expected.extend([7; 32]);
    expected.extend([5, 251, 44, 1]);
    assert_eq!(bytes, expected);
    assert_eq!(codec::encode(&Pace::default()), [0; 5]);
    let known = Pace {
        fit: Some(Fit {
            fixed_us: 1.0,
            per_sample_us: -2.0,
        }),
        commits: 3,
        held_out: Some(0.5),
        sketch: None,
        search: Some(SearchState::new(2)),
    };
    let expected = [
        [1, 0, 0, 128, 63, 0, 0, 0, 192, 3].as_slice(),
        &[1, 0, 0, 0, 63, 0],
        // Turn, held, reward, first loss, climbed, elapsed; a try at 2, in no direction, without losses.
        &[1, 0, 2, 0, 0, 0, 0, 0, 2, 0, 0],
    ]
    .concat();
    assert_eq!(codec::encode(&known), expected);
    assert_eq!(codec::decode::<Pace>(&expected).unwrap(), known);
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
    fn messages_come_back_as_they_were_sent(
        beat in beat(),
        view in view(),
        change in change(),
        receipt in any::<(u64, u64)>(),
    ) {
        let job = JobId([1; 32]);
        let (seq, arrived_us) = receipt;
        for message in [
            Message::Beat(job, Arc::new(beat)),
            Message::View(job, Arc::new(view)),
            Message::Change(job, Arc::new(change)),
            Message::Applied(job, Receipt { seq, arrived_us }),
        ] {
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
