//! What a packet carries, what stays in the residual, and which packets are refused.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod gradients;

use gradients::heavy_tailed;
use proptest::prelude::*;
use skein_gossip::gradient::{
    layout::Layout,
    pack::{PackError, Packer},
    selection::{Order, Selection},
    unpack::{UnpackError, Unpacked, Unpacker},
    values::Values,
};

const LENGTHS: [usize; 5] = [300, 1, 17, 5000, 2000];

/// Every selection.
fn selections(seed: u64) -> [Selection; 8] {
    [
        Selection::Dense,
        Selection::TopK { fraction: 0.1 },
        Selection::TopK { fraction: 0.7 },
        Selection::MaxN { n: 80.0 },
        Selection::MaxN { n: 100.0 },
        Selection::RandomK {
            fraction: 0.2,
            seed,
        },
        Selection::Significant { threshold: 0.01 },
        Selection::Part {
            index: (seed % 3) as u32,
            of: 3,
        },
    ]
}

fn top(fraction: f32, values: Values) -> Order<'static> {
    Order {
        selection: Selection::TopK { fraction },
        values,
        weights: None,
    }
}

fn packed(layout: &Layout, residual: &mut [f32], fraction: f32, values: Values) -> Vec<u8> {
    packed_as(layout, residual, top(fraction, values))
}

fn packed_as(layout: &Layout, residual: &mut [f32], order: Order<'_>) -> Vec<u8> {
    let mut packet = vec![];
    let packed = Packer::new(layout)
        .unwrap()
        .pack(residual, order, &mut packet)
        .unwrap();
    assert_eq!(packed.bytes, packet.len());
    assert!(packet.len() <= layout.max_packet_bytes());
    packet
}

fn unpacked(layout: &Layout, packet: &[u8]) -> (Vec<f32>, Unpacked) {
    let mut inbox = vec![0.0; layout.n_values()];
    let unpacked = Unpacker::new(layout)
        .unwrap()
        .check_and_add(packet, 1.0, &mut inbox)
        .unwrap();
    (inbox, unpacked)
}

fn refused(layout: &Layout, packet: &[u8]) -> UnpackError {
    let mut inbox = vec![0.5; layout.n_values()];
    let error = Unpacker::new(layout)
        .unwrap()
        .check_and_add(packet, 1.0, &mut inbox)
        .unwrap_err();
    assert!(
        inbox.iter().all(|value| *value == 0.5),
        "the arena changed although {error}"
    );
    error
}

#[test]
fn a_small_packet_has_exactly_these_bytes() {
    let layout = Layout::new(&[10, 2, 3]).unwrap();
    let mut residual = [
        0.5, 0.0, 0.0, -3.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, -4.0,
    ];
    let packet = packed(&layout, &mut residual, 0.2, Values::F16);
    #[rustfmt::skip]
    assert_eq!(packet, [
        0, 0, 0, 0,               // halves, stored
        0x9d, 0x86, 0x72, 0xc1,   // layout: crc32(0a000000 02000000 03000000)
        27, 0, 0, 0, 5, 0, 0, 0,  // body, its highs
        27, 0, 0, 0,              // stored
        0x00, 0x00, 0x00,         // low bytes: -3, 1; -4
        0xf3, 0xf6, 0x70,         // 2^-13, high bytes of -1.5 * 2^14 and 2^13
        0xf4, 0xf4,               // 2^-12, -2^14
        2, 2, 0, 0, 0, 2, 0, 0, 0, 0, 2, 1, 0, 0, 0, 1, 0, 0, 0, // two entries, nothing, one entry
        3, 3, 2,                  // gaps: 3 and 7; 2
    ]);
    assert_eq!(
        residual,
        [
            0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 0.0
        ]
    );
}

#[test]
fn everything_sent_as_f32_leaves_nothing_and_arrives_bit_for_bit() {
    let layout = Layout::new(&LENGTHS).unwrap();
    let gradient = heavy_tailed(layout.n_values(), 1);
    let mut residual = gradient.clone();
    let packet = packed(&layout, &mut residual, 1.0, Values::F32);
    assert!(residual.iter().all(|value| *value == 0.0));
    let (inbox, unpacked) = unpacked(&layout, &packet);
    assert!(
        inbox
            .iter()
            .zip(&gradient)
            .all(|(a, b)| a.to_bits() == b.to_bits())
    );
    assert_eq!(unpacked.n_entries, layout.n_values());

    // And with a weight: one product, one sum, both in f32.
    let mut inbox = heavy_tailed(layout.n_values(), 2);
    let expected: Vec<f32> = inbox
        .iter()
        .zip(&gradient)
        .map(|(inbox, value)| inbox + 0.3 * value)
        .collect();
    Unpacker::new(&layout)
        .unwrap()
        .check_and_add(&packet, 0.3, &mut inbox)
        .unwrap();
    assert!(
        inbox
            .iter()
            .zip(&expected)
            .all(|(a, b)| a.to_bits() == b.to_bits())
    );
}

#[test]
fn what_is_small_goes_out_once_enough_of_it_has_gathered() {
    let layout = Layout::new(&[100]).unwrap();
    let gradient: Vec<f32> = (1..=100).map(|i| i as f32 / 100.0).collect();
    let (mut residual, mut sent) = (vec![0.0; 100], vec![0.0; 100]);
    let (mut packer, mut unpacker) = (
        Packer::new(&layout).unwrap(),
        Unpacker::new(&layout).unwrap(),
    );
    for _ in 0..1000 {
        residual
            .iter_mut()
            .zip(&gradient)
            .for_each(|(residual, value)| *residual += value);
        let mut packet = vec![];
        packer
            .pack(&mut residual, top(0.1, Values::F16), &mut packet)
            .unwrap();
        unpacker.check_and_add(&packet, 1.0, &mut sent).unwrap();
    }
    assert!(sent.iter().all(|value| *value > 0.0));
    for ((sent, rest), value) in sent.iter().zip(&residual).zip(&gradient) {
        assert!((sent + rest - 1000.0 * value).abs() < 2e-2);
    }
}

#[test]
fn each_variable_sends_its_share_and_a_packet_is_as_small_as_that() {
    let layout = Layout::new(&[100_000, 400, 3]).unwrap();
    let gradient = heavy_tailed(layout.n_values(), 3);
    for (fraction, n_entries, bits) in [
        (0.001, 100 + 1 + 1, 34),
        (0.01, 1000 + 4 + 1, 25),
        (0.1, 10_000 + 40 + 1, 20),
    ] {
        let mut residual = gradient.clone();
        let packet = packed(&layout, &mut residual, fraction, Values::F16);
        let (inbox, unpacked) = unpacked(&layout, &packet);
        assert_eq!(unpacked.n_entries, n_entries);
        assert!(
            packet.len() < 60 + n_entries * bits / 8,
            "{} bytes",
            packet.len()
        );
        let norm = inbox
            .iter()
            .map(|value| f64::from(*value).powi(2))
            .sum::<f64>()
            .sqrt();
        assert!((f64::from(unpacked.norm) - norm).abs() < 1e-4 * norm);
    }
}

#[test]
fn a_variable_of_zeros_and_one_with_few_others_cost_next_to_nothing() {
    let layout = Layout::new(&[50_000, 50_000]).unwrap();
    for values in Values::ALL {
        let mut residual = vec![0.0; 100_000];
        residual[70_000] = 1.0;
        let packet = packed(&layout, &mut residual, 1.0, values);
        assert!(packet.len() < 60, "{} bytes", packet.len());
        let (inbox, unpacked) = unpacked(&layout, &packet);
        assert_eq!((inbox[70_000], unpacked.n_entries), (1.0, 1));
    }
}

#[test]
fn a_gradient_that_is_not_finite_is_not_sent_and_not_touched() {
    let layout = Layout::new(&LENGTHS).unwrap();
    let mut packer = Packer::new(&layout).unwrap();
    let weights = heavy_tailed(layout.n_values(), 9);
    for values in Values::ALL {
        for selection in selections(1) {
            for (at, variable, entry) in [(7317, 4, 1999), (300, 1, 0), (318, 3, 0)] {
                let mut residual = heavy_tailed(layout.n_values(), 4);
                residual[at] = f32::NEG_INFINITY;
                let (before, mut out) = (residual.clone(), vec![1, 2]);
                let weights = Some(&weights[..]);
                let order = Order {
                    selection,
                    values,
                    weights,
                };
                match packer.pack(&mut residual, order, &mut out) {
                    Err(PackError::NotFinite {
                        variable: v,
                        entry: e,
                        ..
                    }) => assert_eq!((v, e), (variable, entry)),
                    other => panic!("{other:?}"),
                }
                assert_eq!((residual, out), (before, vec![1, 2]));
            }
        }
    }
}

#[test]
fn a_wrong_arena_or_order_is_named() {
    let layout = Layout::new(&[4]).unwrap();
    let mut packer = Packer::new(&layout).unwrap();
    let mut pack = |n, selection, weights| {
        let values = Values::F16;
        let order = Order {
            selection,
            values,
            weights,
        };
        let (mut residual, mut out) = (vec![1.0; n], vec![7]);
        let error = packer.pack(&mut residual, order, &mut out).unwrap_err();
        assert_eq!((residual, out), (vec![1.0; n], vec![7]));
        error
    };
    assert!(matches!(
        pack(3, Selection::Dense, None),
        PackError::Arena {
            expected: 4,
            got: 3
        }
    ));
    let mut wrong = vec![
        Selection::Part { index: 0, of: 0 },
        Selection::Part { index: 2, of: 2 },
    ];
    for bad in [0.0, -1.0, 100.1, f32::INFINITY, f32::NAN] {
        wrong.extend([
            Selection::TopK { fraction: bad },
            Selection::RandomK {
                fraction: bad,
                seed: 1,
            },
            Selection::MaxN { n: bad },
        ]);
        if bad != 100.1 {
            wrong.push(Selection::Significant { threshold: bad });
        }
    }
    for selection in wrong {
        let error = pack(4, selection, Some(&[1.0; 4]));
        assert!(
            matches!(error, PackError::Selection { .. }),
            "{selection:?}: {error}"
        );
    }
    let significant = Selection::Significant { threshold: 0.01 };
    for (weights, n) in [(None, 0), (Some(&[1.0; 5][..]), 5)] {
        match pack(4, significant, weights) {
            PackError::Weights { expected: 4, got } => assert_eq!(got, n),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn each_rule_sends_what_it_says() {
    let layout = Layout::new(&[10, 4]).unwrap();
    let residual = [
        0.5, 0.0, 8.0, -3.0, 0.0, 7.5, 0.0, 0.0, 0.0, 0.25, 1.0, -2.0, 0.0, 0.5,
    ];
    let mut weights = [100.0; 14];
    (weights[0], weights[4], weights[9], weights[11]) = (40.0, 0.0, 0.0, 1.0);
    for (selection, sent) in [
        (Selection::TopK { fraction: 0.2 }, &[2, 5, 11][..]),
        (Selection::MaxN { n: 7.0 }, &[2, 5, 11]),
        (Selection::MaxN { n: 5.0 }, &[2, 11]),
        (Selection::MaxN { n: 63.0 }, &[2, 3, 5, 10, 11]),
        (Selection::Significant { threshold: 0.05 }, &[2, 5, 9, 11]),
        (Selection::Part { index: 0, of: 7 }, &[0, 1]),
        (Selection::Part { index: 4, of: 5 }, &[11, 12, 13]),
        (
            Selection::Part { index: 1, of: 2 },
            &[7, 8, 9, 10, 11, 12, 13],
        ),
        (Selection::Part { index: 0, of: 100 }, &[]),
    ] {
        let mut rest = residual;
        let order = Order {
            selection,
            values: Values::F32,
            weights: Some(&weights),
        };
        let packet = packed_as(&layout, &mut rest, order);
        let (inbox, _) = unpacked(&layout, &packet);
        for at in 0..14 {
            let expected = if sent.contains(&at) {
                residual[at]
            } else {
                0.0
            };
            assert_eq!(inbox[at], expected, "{selection:?} at {at}");
            assert_eq!(rest[at], residual[at] - expected);
        }
    }
}

#[test]
fn all_parts_together_are_the_gradient() {
    let layout = Layout::new(&LENGTHS).unwrap();
    let gradient = heavy_tailed(layout.n_values(), 6);
    for of in [1, 2, 7, 1000] {
        let (mut residual, mut sent) = (gradient.clone(), vec![0.0; layout.n_values()]);
        let (mut packer, mut unpacker) = (
            Packer::new(&layout).unwrap(),
            Unpacker::new(&layout).unwrap(),
        );
        for index in 0..of {
            let mut packet = vec![];
            let order = Order {
                selection: Selection::Part { index, of },
                values: Values::F32,
                weights: None,
            };
            packer.pack(&mut residual, order, &mut packet).unwrap();
            assert!(packet.len() < 40 + 4 * (layout.n_values() / of as usize + 1) + 20);
            unpacker.check_and_add(&packet, 1.0, &mut sent).unwrap();
        }
        assert!(residual.iter().all(|value| *value == 0.0));
        assert_eq!(sent, gradient);
    }
}

#[test]
fn a_small_run_of_int8_has_exactly_these_bytes() {
    let layout = Layout::new(&[4, 6]).unwrap();
    let mut residual = [9.0, 9.0, 9.0, 9.0, 0.0, -1.0, 0.26, 100.0, 0.5, 9.0];
    let order = Order {
        selection: Selection::Part { index: 1, of: 2 },
        values: Values::Int8,
        weights: None,
    };
    let packet = packed_as(&layout, &mut residual, order);
    #[rustfmt::skip]
    assert_eq!(packet[..4], [3, 0, 0, 0]); // int8, stored
    #[rustfmt::skip]
    assert_eq!(packet[8..], [
        16, 0, 0, 0, 6, 0, 0, 0, 16, 0, 0, 0, // body, its highs, stored
        0, 0xff, 0, 100, 0, 9,                // 2^0, -1, 0 (0.26), 100, 0 (a half to the even), 9
        0, 4, 1, 0, 0, 0, 5, 0, 0, 0,         // nothing; a run of five from 1
    ]);
    assert_eq!(
        residual,
        [9.0, 9.0, 9.0, 9.0, 0.0, 0.0, 0.26, 0.0, 0.5, 0.0]
    );
}

#[test]
fn a_small_packet_of_bf16_has_exactly_these_bytes() {
    let layout = Layout::new(&[2]).unwrap();
    let mut residual = [-1.5, 3.015625];
    let packet = packed(&layout, &mut residual, 1.0, Values::BF16);
    #[rustfmt::skip]
    assert_eq!(packet[8..], [
        3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, // body, its highs, stored
        0xc0, 0x41,                         // sign and mantissa; 3.015625 rounds up to 3.015625 = 0b1.1000001
        0x7f, 0x80,                         // exponents
        1,                                  // dense
    ]);
    assert_eq!(packet[0], 2);
    assert_eq!(residual, [0.0, 0.0]);
}

#[test]
fn runs_that_an_encoder_does_not_make_are_refused() {
    let layout = Layout::new(&[4, 6]).unwrap();
    let order = Order {
        selection: Selection::Part { index: 1, of: 2 },
        values: Values::Int8,
        weights: None,
    };
    let good = packed_as(&layout, &mut [1.0; 10], order);
    for (first, n) in [
        (2, 5),
        (u32::MAX, 5),
        (1, u32::MAX),
        (0, 6),
        (0, 7),
        (1, 0),
        (1, 4),
    ] {
        let mut packet = good.clone();
        packet[28..32].copy_from_slice(&first.to_le_bytes());
        packet[32..].copy_from_slice(&n.to_le_bytes());
        refused(&layout, &packet);
    }
}

#[test]
fn a_packet_of_another_model_or_with_more_behind_it_is_refused() {
    let layout = Layout::new(&LENGTHS).unwrap();
    let mut packet = packed(
        &layout,
        &mut heavy_tailed(layout.n_values(), 5),
        0.1,
        Values::F16,
    );
    let other = Layout::new(&[layout.n_values()]).unwrap();
    assert!(matches!(
        refused(&other, &packet),
        UnpackError::Layout { .. }
    ));
    packet.push(0);
    refused(&layout, &packet);
    packet.truncate(packet.len() - 2);
    refused(&layout, &packet);
    assert!(matches!(
        refused(&layout, &packet[..15]),
        UnpackError::Header { n_bytes: 15 }
    ));
}

#[test]
fn values_from_a_peer_that_are_not_finite_are_refused_with_their_place() {
    let layout = Layout::new(&[3, 8]).unwrap();
    // f32: the third value of the second variable; halves: the exponent of the second variable.
    let mut packet = packed(&layout, &mut [1.0; 11], 1.0, Values::F32);
    packet[20 + 5 * 4..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    assert!(matches!(
        refused(&layout, &packet),
        UnpackError::NotFinite {
            variable: 1,
            entry: 2
        }
    ));
    let mut packet = packed(&layout, &mut [1.0; 11], 1.0, Values::F16);
    assert_eq!(packet[1], 0, "so short a body is stored");
    packet[20 + 11 + 4] = 114;
    assert!(matches!(
        refused(&layout, &packet),
        UnpackError::NotFinite { variable: 1, .. }
    ));
}

proptest! {
    #[test]
    fn sent_and_residual_are_the_gradient_exactly(
        bits in proptest::collection::vec(any::<u32>(), 600),
        narrow: bool,
        selection in (0usize..8, any::<u64>()).prop_map(|(at, seed)| selections(seed)[at]),
        values in prop::sample::select(&Values::ALL),
    ) {
        // Finite floats of every exponent, or of a range as gradients have.
        let finite = |bits: u32| if narrow { (bits & 0x80ff_ffff) | 0x3800_0000 } else { bits & 0xbfff_ffff };
        let gradient: Vec<f32> = bits.into_iter().map(|bits| f32::from_bits(finite(bits))).collect();
        let weights = heavy_tailed(600, 1);
        let layout = Layout::new(&[1, 299, 300]).unwrap();
        let mut residual = gradient.clone();
        let order = Order { selection, values, weights: Some(&weights) };
        let packet = packed_as(&layout, &mut residual, order);
        let (sent, _) = unpacked(&layout, &packet);
        for ((sent, rest), value) in sent.iter().zip(&residual).zip(&gradient) {
            prop_assert_eq!(sent + rest, *value);
            prop_assert_eq!(f64::from(*sent) + f64::from(*rest), f64::from(*value));
            if values == Values::F32 {
                prop_assert!(*sent == 0.0 || *rest == 0.0);
            }
        }
    }

    #[test]
    fn the_same_residual_makes_the_same_packet(
        seed: u64,
        selection in (0usize..8, any::<u64>()).prop_map(|(at, seed)| selections(seed)[at]),
        values in prop::sample::select(&Values::ALL),
    ) {
        let layout = Layout::new(&LENGTHS).unwrap();
        let gradient = heavy_tailed(layout.n_values(), seed);
        let order = Order { selection, values, weights: Some(&gradient) };
        let mut used = Packer::new(&layout).unwrap();
        used.pack(&mut heavy_tailed(layout.n_values(), !seed), top(0.3, Values::F32), &mut vec![]).unwrap();
        let mut again = vec![];
        used.pack(&mut gradient.clone(), order, &mut again).unwrap();
        prop_assert_eq!(packed_as(&layout, &mut gradient.clone(), order), again);
    }
}
