//! One exchange with a thousand links and a small problem: what it takes per link and per packet.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod counting;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use counting::count;
use skein_gossip::exchange::{Config, Exchange, Gradient, Mode, Output};
use skein_gossip::gradient::layout::Layout;
use skein_gossip::gradient::values::Values;
use skein_gossip::ids::{Digest, JobId, PeerId};
use skein_gossip::time::Tick;
use skein_gossip::view::{Holding, Joiner, View};

const N_PEERS: u16 = 1000;
const N_VALUES: usize = 16;
/// The residual, the link, its counters and room for two packets in flight, and as much again for the maps.
const MOST_BYTES_PER_LINK: isize = 400;

fn id(n: u16) -> PeerId {
    let [high, low] = n.to_be_bytes();
    PeerId(std::array::from_fn(|i| if i % 2 == 0 { high } else { low }))
}

fn joiner(n: u16) -> Joiner {
    let holds = Holding {
        samples: 0,
        step: 0,
        digest: Digest([1; 32]),
    };
    Joiner {
        peer: id(n),
        instance: 1,
        batch: 8,
        holds,
    }
}

fn exchange(n: u16, view: &Arc<View>) -> Exchange {
    let config = Config {
        mode: Mode::Asynchronous,
        fraction: 1.0,
        values: Values::F32,
        level: 1,
    };
    let layout = Layout::new(&[N_VALUES]).unwrap();
    let mut exchange = Exchange::new(JobId([9; 32]), id(n), config, &layout).unwrap();
    exchange.set_view(Tick(0), Some(view.clone()), true);
    exchange
}

fn step(exchange: &mut Exchange, step: u64) -> BTreeMap<PeerId, (u64, Vec<u8>)> {
    let gradient = Gradient {
        step,
        n_steps: 1,
        samples: 8,
        values: &[0.5; N_VALUES],
    };
    exchange.gradient(Tick(step), gradient).unwrap();
    let outputs = std::iter::from_fn(|| exchange.poll());
    let sent = outputs.filter_map(|output| match output {
        Output::Send { to, seq, packet } => Some((to, (seq, packet))),
        _ => None,
    });
    sent.collect()
}

/// Prints the times: `cargo test -p skein-gossip --test many_links -- --nocapture`.
#[test]
fn a_thousand_links_take_little_memory_each_and_a_packet_allocates_the_same_among_few_and_many() {
    let of = |n_peers: u16| {
        let joiners: Vec<Joiner> = (0..n_peers).map(joiner).collect();
        Arc::new(View::first(id(0), &joiners).unwrap())
    };
    let (few, many) = (of(3), of(N_PEERS));
    let begun = Instant::now();
    let (mut first, counts) = count(|| exchange(0, &many));
    println!("set up: {:?} in {:?}", counts, begun.elapsed());
    let (_, alone) = count(|| exchange(0, &few));
    let n_links = isize::try_from(many.members.len() - 1).unwrap();
    let per_link = (counts.peak_bytes - alone.peak_bytes) / n_links;
    assert!(per_link <= MOST_BYTES_PER_LINK, "{per_link} bytes per link");

    let begun = Instant::now();
    let sent = step(&mut first, 0);
    println!("a step: {} packets in {:?}", sent.len(), begun.elapsed());
    assert_eq!(sent.len(), usize::from(N_PEERS) - 1);

    let (seq, packet) = sent[&id(1)].clone();
    let receive = |view| {
        let mut second = exchange(1, view);
        // What the first packet sets up stays.
        second.packet(Tick(1), id(0), &packet);
        let begun = Instant::now();
        let (_, counts) = count(|| second.packet(Tick(1), id(0), &packet));
        println!(
            "a packet of {} bytes in {:?}",
            packet.len(),
            begun.elapsed()
        );
        let mut sum = Vec::new();
        assert!(second.take(&mut sum));
        (counts, sum[0] * view.members.len() as f32)
    };
    let (among_few, few_sum) = receive(&few);
    let (among_many, many_sum) = receive(&many);
    assert_eq!(among_few, among_many);
    assert!((few_sum - many_sum).abs() < 1e-3, "{few_sum} {many_sum}");

    first.applied(id(1), seq);
    assert!(step(&mut first, 1).contains_key(&id(1)));
    // Two packets are in flight on all links but that one.
    assert_eq!(step(&mut first, 2).into_keys().collect::<Vec<_>>(), [id(1)]);
}
