//! Hostile bytes are refused without allocating more than the bound beside their decoder says.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod counting;
mod gradients;

use counting::count;
use gradients::heavy_tailed;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use skein_gossip::{
    gradient::{
        layout::Layout,
        pack::Packer,
        selection::{Order, Selection},
        unpack::{UnpackError, Unpacker},
        values::Values,
    },
    wire::{codec, zstd},
};

/// Error values and zstd's messages.
const SLACK: isize = 4096;

/// Every way to lay out a packet: dense, sparse by both widths of gaps, a run.
const SELECTIONS: [Selection; 5] = [
    Selection::Dense,
    Selection::TopK { fraction: 0.002 },
    Selection::TopK { fraction: 0.2 },
    Selection::MaxN { n: 60.0 },
    Selection::Part { index: 1, of: 3 },
];

fn order(selection: Selection, values: Values) -> Order<'static> {
    Order {
        selection,
        values,
        weights: None,
    }
}

fn bomb(n_bytes: usize) -> Vec<u8> {
    let mut out = vec![];
    zstd::Compressor::new(19)
        .unwrap()
        .append(&vec![0; n_bytes], &mut out)
        .unwrap();
    out
}

#[test]
fn a_bomb_allocates_no_more_than_its_cap() {
    let bomb = bomb(64 << 20);
    assert!(bomb.len() < 10_000);
    let mut decompressor = zstd::Decompressor::new().unwrap();
    let mut out = vec![];
    let (result, counts) = count(|| decompressor.decompress(&bomb, 1 << 20, &mut out));
    assert!(matches!(result, Err(zstd::ZstdError::OverCap { .. })));
    assert!(counts.peak_bytes <= (1 << 20) + SLACK, "{counts:?}");
}

#[test]
fn a_packet_with_a_bomb_allocates_nothing_and_leaves_the_arena_alone() {
    let layout = Layout::new(&[100, 5000]).unwrap();
    let mut unpacker = Unpacker::new(&layout).unwrap();
    let mut packet = vec![];
    Packer::new(&layout)
        .unwrap()
        .pack(
            &mut vec![1.0; 5100],
            order(Selection::Dense, Values::F32),
            &mut packet,
        )
        .unwrap();
    let bomb = bomb(64 << 20);
    packet.truncate(20);
    packet[1] = 1;
    packet[16..20].copy_from_slice(&(bomb.len() as u32).to_le_bytes());
    packet.extend_from_slice(&bomb);
    for stated in [0u32, 1000, 7500, u32::MAX] {
        packet[8..12].copy_from_slice(&stated.to_le_bytes());
        let mut inbox = vec![0.5; 5100];
        let (result, counts) = count(|| unpacker.check_and_add(&packet, 1.0, &mut inbox));
        assert!(
            matches!(
                result,
                Err(UnpackError::Zstd(_) | UnpackError::TooLong { .. })
            ),
            "{result:?}"
        );
        assert!(counts.peak_bytes <= SLACK, "{stated}: {counts:?}");
        assert!(inbox.iter().all(|value| *value == 0.5));
    }
}

#[derive(Debug, Serialize, Deserialize)]
enum Message {
    Text(String),
    Blobs(Vec<Vec<u8>>),
    Numbers(Vec<u64>),
}

#[test]
fn hostile_lengths_in_messages_allocate_no_more_than_the_bound() {
    // Each variant, with a length that is not there: 60 KiB, 1 GiB, 2^56.
    let lengths: [&[u8]; 3] = [
        &[251, 0, 0xf0],
        &[252, 0, 0, 0, 0x40],
        &[253, 0, 0, 0, 0, 0, 0, 0, 1],
    ];
    for variant in 0..3 {
        for length in lengths {
            let bytes = [&[variant], length, &[1, 1], length].concat();
            let (result, counts) = count(|| codec::decode::<Message>(&bytes).is_err());
            assert!(result);
            // Text by the codec's limit; lists by the 1 MiB that serde sets aside, here twice for lists in a list.
            let bound = codec::allocation_bound(bytes.len()).unwrap() + (2 << 20);
            assert!(
                counts.peak_bytes <= bound as isize + SLACK,
                "{bytes:?}: {counts:?}"
            );
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_and_mutated_packets_stay_within_bounds_and_leave_the_arena_alone_when_refused(
        seed: u64,
        selection in prop::sample::select(&SELECTIONS),
        values in prop::sample::select(&Values::ALL),
        level in prop_oneof![Just(1i32), Just(-100)],
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
        cut in proptest::option::of(any::<proptest::sample::Index>()),
        tail in proptest::collection::vec(any::<u8>(), 0..3),
    ) {
        let layout = Layout::new(&[40, 1, 700, 300]).unwrap();
        let mut residual = heavy_tailed(layout.n_values(), seed);
        let mut packet = vec![];
        Packer::with_level(&layout, level).unwrap().pack(&mut residual, order(selection, values), &mut packet).unwrap();
        for (at, byte) in edits {
            let at = at.index(packet.len());
            packet[at] = byte;
        }
        if let Some(cut) = cut {
            packet.truncate(cut.index(packet.len()));
        }
        packet.extend_from_slice(&tail);

        let mut unpacker = Unpacker::new(&layout).unwrap();
        let mut inbox = vec![0.5; layout.n_values()];
        let (result, counts) = count(|| unpacker.check_and_add(&packet, 1.0, &mut inbox));
        prop_assert!(counts.peak_bytes <= SLACK, "{:?}", counts);
        match result {
            Ok(unpacked) => {
                prop_assert!(unpacked.n_entries <= layout.n_values());
                prop_assert!(inbox.iter().all(|value| value.is_finite()));
            }
            Err(_) => prop_assert!(inbox.iter().all(|value| *value == 0.5)),
        }
    }

    #[test]
    fn arbitrary_bodies_behind_a_valid_header_never_panic(
        kind in 0u8..5,
        body in proptest::collection::vec(prop_oneof![0u8..5, any::<u8>()], 0..90),
        n_highs in 0u32..40,
        raw in 0usize..90,
    ) {
        let layout = Layout::new(&[4, 30]).unwrap();
        let mut unpacker = Unpacker::new(&layout).unwrap();
        let mut packet = vec![kind, 0, 0, 0];
        packet.extend_from_slice(&layout.digest().to_le_bytes());
        for word in [body.len() as u32, n_highs, body.len() as u32] {
            packet.extend_from_slice(&word.to_le_bytes());
        }
        packet.resize(20 + raw, 7);
        packet.extend_from_slice(&body);
        let mut inbox = vec![0.5; 34];
        if unpacker.check_and_add(&packet, 1.0, &mut inbox).is_err() {
            prop_assert!(inbox.iter().all(|value| *value == 0.5));
        }
    }

    #[test]
    fn arbitrary_bytes_are_no_packet(packet: Vec<u8>) {
        let layout = Layout::new(&[4, 30]).unwrap();
        let mut unpacker = Unpacker::new(&layout).unwrap();
        let mut inbox = vec![0.5; 34];
        prop_assert!(unpacker.check_and_add(&packet, 1.0, &mut inbox).is_err());
        prop_assert!(inbox.iter().all(|value| *value == 0.5));
    }
}
