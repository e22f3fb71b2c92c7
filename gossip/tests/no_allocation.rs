//! Packing and unpacking allocate nothing per step once they are warm.

mod counting;
mod gradients;

use counting::{Counts, count};
use gradients::heavy_tailed;
use skein_gossip::gradient::{layout::Layout, pack::Packer, unpack::Unpacker, values::Values};

#[test]
fn a_step_allocates_nothing_after_the_first() {
    let layout = Layout::new(&[50_000, 64, 9_000, 1, 120_000]).unwrap();
    for values in [Values::F16, Values::F32] {
        for fraction in [0.001, 0.01, 0.1, 1.0] {
            let mut packer = Packer::new(&layout).unwrap();
            let mut unpacker = Unpacker::new(&layout).unwrap();
            let mut residual = vec![0.0; layout.n_values()];
            let mut inbox = vec![0.0; layout.n_values()];
            let mut packet = vec![];
            for step in 0..6 {
                let gradient = heavy_tailed(layout.n_values(), step);
                let ((), counts) = count(|| {
                    residual
                        .iter_mut()
                        .zip(&gradient)
                        .for_each(|(residual, gradient)| *residual += gradient);
                    packet.clear();
                    packer
                        .pack(&mut residual, fraction, values, &mut packet)
                        .unwrap();
                    unpacker.check_and_add(&packet, 0.25, &mut inbox).unwrap();
                });
                if step > 0 {
                    assert_eq!(
                        counts,
                        Counts::default(),
                        "{values:?} {fraction} step {step}"
                    );
                }
            }
        }
    }
}
