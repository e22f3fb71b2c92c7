//! One exchange among a thousand members and a small problem: what it takes per member and per packet.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod counting;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use counting::count;
use skein_gossip::exchange::{Amount, Config, Exchange, Gradient, Output, ValueChoice, Waiting};
use skein_gossip::gradient::layout::Layout;
use skein_gossip::gradient::values::Values;
use skein_gossip::ids::{Digest, JobId, PeerId};
use skein_gossip::time::Tick;
use skein_gossip::view::{Holding, Joiner, View};

const N_PEERS: u16 = 1000;
const FEW_PEERS: u16 = 20;
const N_VALUES: usize = 16;
/// Most links that a tree over so many gives one member.
const MOST_LINKS: usize = 14;
/// The graph while it is computed, and what is kept: the step that was heard, and where it is in the tree.
const MOST_BYTES_PER_MEMBER: isize = 400;

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
        waiting: Waiting::Never,
        amount: Amount::Dense,
        values: ValueChoice::Fixed(Values::F32),
        full: false,
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
        weights: &[],
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
fn a_thousand_members_take_little_memory_each_and_a_packet_allocates_the_same_among_few_and_many() {
    let of = |n_peers: u16| {
        let joiners: Vec<Joiner> = (0..n_peers).map(joiner).collect();
        Arc::new(View::first(id(0), &joiners).unwrap())
    };
    let (few, many) = (of(FEW_PEERS), of(N_PEERS));
    let begun = Instant::now();
    let (mut first, counts) = count(|| exchange(0, &many));
    println!("set up: {:?} in {:?}", counts, begun.elapsed());
    let (_, alone) = count(|| exchange(0, &few));
    let n_more = isize::try_from(many.members.len() - few.members.len()).unwrap();
    let per_member = (counts.peak_bytes - alone.peak_bytes) / n_more;
    assert!(
        per_member <= MOST_BYTES_PER_MEMBER,
        "{per_member} bytes per member"
    );

    let begun = Instant::now();
    let sent = step(&mut first, 0);
    println!("a step: {} packets in {:?}", sent.len(), begun.elapsed());
    assert!((1..=MOST_LINKS).contains(&sent.len()), "{}", sent.len());

    // Whoever hears passes on what it heard, to a few as well.
    let mut most_links = 0;
    for n in 1..N_PEERS {
        let mut other = exchange(n, &many);
        most_links = most_links.max(step(&mut other, 0).len());
        if n > 20 {
            break;
        }
    }
    assert!((2..=MOST_LINKS).contains(&most_links), "{most_links}");

    let receive = |view: &Arc<View>| {
        let mut sender = exchange(0, view);
        let links = step(&mut sender, 0);
        let (to, (_, packet)) = links.first_key_value().unwrap();
        let n = u16::from_be_bytes([to.0[0], to.0[1]]);
        let mut receiver = exchange(n, view);
        // What the first packet sets up stays.
        receiver.packet(Tick(1), Tick(1), id(0), packet);
        let next = &step(&mut sender, 1)[to].1;
        let begun = Instant::now();
        let (_, counts) = count(|| receiver.packet(Tick(1), Tick(1), id(0), next));
        println!("a packet of {} bytes in {:?}", next.len(), begun.elapsed());
        let mut sum = Vec::new();
        assert!(receiver.take(&mut sum));
        (counts, sum[0] * view.members.len() as f32)
    };
    let (among_few, few_sum) = receive(&few);
    let (among_many, many_sum) = receive(&many);
    assert_eq!(among_few, among_many);
    assert!((few_sum - many_sum).abs() < 1e-3, "{few_sum} {many_sum}");

    let (to, (seq, _)) = sent.first_key_value().unwrap();
    first.applied(Tick(1), *to, *seq, 1);
    assert!(step(&mut first, 1).contains_key(to));
    // Two packets are in flight on all links but that one.
    let still: Vec<PeerId> = step(&mut first, 2).into_keys().collect();
    assert_eq!(still, [*to]);
}
