//! Packing and unpacking allocate nothing per step once they are warm.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod counting;
mod gradients;

use counting::{Counts, count};
use gradients::heavy_tailed;
use skein_gossip::gradient::{
    accumulate::accumulate,
    fit::{Measure, Wanted},
    layout::Layout,
    pack::Packer,
    selection::{Order, Selection},
    unpack::Unpacker,
    values::Values,
};

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
