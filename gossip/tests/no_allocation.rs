//! Packing and unpacking allocate nothing per step once they are warm, and the exchange nothing but the packets that go out.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod counting;
mod gradients;

use std::sync::Arc;

use counting::{Counts, count};
use gradients::heavy_tailed;
use skein_gossip::exchange::{Amount, Config, Exchange, Gradient, Output, ValueChoice, Waiting};
use skein_gossip::gradient::{
    accumulate::accumulate,
    fit::{Measure, Wanted},
    layout::Layout,
    pack::Packer,
    selection::{Order, Selection},
    unpack::Unpacker,
    values::Values,
};

use skein_gossip::ids::{Digest, JobId, PeerId};
use skein_gossip::time::Tick;
use skein_gossip::view::{Holding, Joiner, View};

const LENGTHS: [usize; 5] = [50_000, 64, 9_000, 1, 120_000];

/// Six steps, of which all but the first are counted; `order` says what to pack.
fn run(
    name: &str,
    mut packet: Vec<u8>,
    order: impl Fn(&mut Packer, &[f32], u64) -> (Selection, Values),
) {
    let layout = Layout::new(&LENGTHS).unwrap();
    let weights = heavy_tailed(layout.n_values(), 100);
    let mut packer = Packer::new(&layout).unwrap();
    let mut unpacker = Unpacker::new(&layout).unwrap();
    let mut residual = vec![0.0; layout.n_values()];
    let mut inbox = vec![0.0; layout.n_values()];
    for step in 0..6 {
        let gradient = heavy_tailed(layout.n_values(), step);
        let ((), counts) = count(|| {
            assert!(accumulate(&mut residual, &gradient));
            packet.clear();
            let (selection, values) = order(&mut packer, &residual, step);
            let weights = Some(&weights[..]);
            let order = Order {
                selection,
                values,
                weights,
            };
            packer.pack(&mut residual, order, &mut packet).unwrap();
            unpacker.check_and_add(&packet, 0.25, &mut inbox).unwrap();
        });
        if step > 0 {
            assert_eq!(counts, Counts::default(), "{name} step {step}");
        }
    }
}

#[test]
fn a_step_allocates_nothing_after_the_first_whatever_is_sent() {
    for values in Values::ALL {
        for selection in [
            Selection::Dense,
            Selection::TopK { fraction: 0.001 },
            Selection::TopK { fraction: 0.01 },
            Selection::TopK { fraction: 0.1 },
            Selection::MaxN { n: 30.0 },
            Selection::MaxN { n: 95.0 },
            Selection::MaxN { n: 100.0 },
            Selection::Significant { threshold: 0.1 },
            Selection::Significant { threshold: 1.0 },
        ] {
            run(&format!("{selection:?} {values:?}"), vec![], |_, _, _| {
                (selection, values)
            });
        }
        run(&format!("random {values:?}"), vec![], |_, _, seed| {
            let fraction = 0.05;
            (Selection::RandomK { fraction, seed }, values)
        });
        run(&format!("parts {values:?}"), vec![], |_, _, step| {
            let index = (step % 3) as u32;
            (Selection::Part { index, of: 3 }, values)
        });
    }
}

#[test]
fn fitting_a_budget_allocates_nothing_after_the_first_time() {
    for (measure, least, most) in [(Measure::TopK, 1e-4, 0.5), (Measure::MaxN, 1.0, 100.0)] {
        for bytes in [3_000, 40_000, 1_000_000] {
            // Amounts differ by step.
            let roomy = Vec::with_capacity(1 << 20);
            run(
                &format!("{measure:?} {bytes}"),
                roomy,
                |packer, residual, _| {
                    let fit = packer.fit(
                        residual,
                        Wanted {
                            bytes,
                            measure,
                            least,
                            most,
                            values: &Values::AUTO,
                        },
                    );
                    (fit.selection, fit.values)
                },
            );
        }
    }
}

fn peer(n: u8) -> PeerId {
    PeerId([n; 32])
}

/// The first of so many members, and the second.
fn two_of(n_members: u8, amount: Amount) -> (Exchange, Exchange) {
    let joiners: Vec<Joiner> = (1..=n_members)
        .map(|n| Joiner {
            peer: peer(n),
            instance: 1,
            batch: 8,
            holds: Holding {
                samples: 0,
                step: 0,
                digest: Digest([1; 32]),
            },
        })
        .collect();
    let view = Arc::new(View::first(peer(1), &joiners).unwrap());
    let config = Config {
        waiting: Waiting::Never,
        amount,
        values: ValueChoice::Fixed(Values::F16),
        full: false,
        level: 1,
    };
    let layout = Layout::new(&LENGTHS).unwrap();
    let exchange = |n| {
        let mut exchange = Exchange::new(JobId([1; 32]), peer(n), config, &layout).unwrap();
        exchange.set_view(Tick(0), Some(view.clone()), true);
        exchange
    };
    (exchange(1), exchange(2))
}

#[test]
fn a_commit_allocates_the_packets_that_go_out_and_a_packet_that_comes_in_nothing() {
    let amounts = [
        Amount::Dense,
        Amount::TopK {
            least: 0.01,
            most: 0.1,
        },
        Amount::RandomK { fraction: 0.05 },
    ];
    for (amount, n_members) in amounts
        .into_iter()
        .flat_map(|amount| [(amount, 4), (amount, 20)])
    {
        let (mut first, mut second) = two_of(n_members, amount);
        let mut inbox = Vec::new();
        // Kept copies grow to the largest packet so far.
        for step in 0..40 {
            let now = Tick(step * 100_000);
            let values = heavy_tailed(LENGTHS.iter().sum(), step % 8);
            let gradient = Gradient {
                step,
                n_steps: 1,
                samples: 8,
                values: &values,
                weights: &[],
            };
            let ((), counts) = count(|| first.gradient(now, gradient).unwrap());
            let sent: Vec<Output> = std::iter::from_fn(|| first.poll()).collect();
            if step >= 30 {
                assert!(!sent.is_empty());
                assert_eq!(counts.calls, sent.len(), "{amount:?} step {step}");
            }
            for output in sent {
                let Output::Send { to, seq, packet } = output else {
                    continue;
                };
                if to == peer(2) {
                    let ((), counts) = count(|| second.packet(now, now, peer(1), &packet));
                    assert!(second.take(&mut inbox));
                    while second.poll().is_some() {}
                    assert!(step < 30 || counts.calls == 0, "{amount:?}: {counts:?}");
                }
                let ((), counts) = count(|| first.applied(now, to, seq, now.0));
                assert!(step < 30 || counts.calls == 0, "{amount:?}: {counts:?}");
            }
            let ((), counts) = count(|| first.tick(now));
            assert!(step < 30 || counts.calls == 0, "{amount:?}: {counts:?}");
        }
    }
}
