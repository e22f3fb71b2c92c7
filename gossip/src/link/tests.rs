//! A meter against a simulated link: a bottleneck with a rate that changes, a delay with jitter, a bounded queue,
//! traffic of others, and a receiver that acknowledges late, seldom or wrongly.

use proptest::prelude::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::*;

const MS: u64 = 1_000;
const S: u64 = 1_000_000;
const HORIZON: Duration = Duration::from_millis(100);

/// A link and what its sender has to send.
#[derive(Clone)]
struct Line {
    seed: u64,
    /// From when on the bottleneck carries how many bytes per second.
    rates: Vec<(u64, f64)>,
    delay_us: u64,
    /// Way out, uniform; packets stay in order.
    jitter_us: u64,
    /// From arrival to acknowledgement beside the delay, uniform.
    answer_us: u64,
    queue_bytes: f64,
    ack_loss: f64,
    /// Part of the rate that others take, every other second.
    others: f64,
    /// Packet sizes are drawn from here, and one takes all that is left if this is empty.
    sizes: std::ops::Range<usize>,
    /// Bytes to send per packet's time at most.
    demand: usize,
    /// When the delay changes, and to what.
    reroute: Option<(u64, u64)>,
    claim: fn(u64, u64) -> u64,
    /// Whether a packet of 200 bytes goes before the others.
    is_led: bool,
    /// Time between two packets.
    horizon: Duration,
}

fn mbit(rate: f64) -> f64 {
    rate * 1e6 / 8.0
}

impl Line {
    fn of(rate: f64) -> Self {
        Self {
            seed: 1,
            rates: vec![(0, rate)],
            delay_us: 20 * MS,
            jitter_us: 2 * MS,
            answer_us: 2 * MS,
            queue_bytes: 1e12,
            ack_loss: 0.0,
            others: 0.0,
            sizes: 1_000..300_000,
            demand: usize::MAX,
            reroute: None,
            claim: |arrived, _| arrived,
            is_led: false,
            horizon: HORIZON,
        }
    }

    fn rate_at(&self, us: f64) -> f64 {
        let past = self.rates.iter().take_while(|(from, _)| *from as f64 <= us);
        past.last().unwrap().1
    }

    /// When the bottleneck that starts at `us` has carried `bytes`.
    fn carried(&self, us: f64, bytes: f64) -> f64 {
        let (mut at, mut left) = (us, bytes);
        for (from, _) in &self.rates {
            let from = *from as f64;
            let could = (from - at) / 1e6 * self.rate_at(at);
            if from > at && could < left {
                (at, left) = (from, left - could);
            }
        }
        at + left / self.rate_at(at) * 1e6
    }

    fn run(&self, until: u64) -> Run {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        let mut meter = Meter::new();
        let mut run = Run::default();
        let mut acks: Vec<(u64, u64, Option<u64>)> = Vec::new();
        let (mut seq, mut free, mut others, mut last) = (0u64, 0f64, 0f64, 0u64);
        for now in (0..until).step_by(self.horizon.as_micros() as usize) {
            acks.sort_unstable();
            let due = acks.partition_point(|(at, _, _)| *at <= now);
            for (at, seq, arrived) in acks.drain(..due) {
                match arrived {
                    Some(arrived) => meter.acknowledged(Tick(at), seq, arrived),
                    None => meter.forgotten(seq),
                }
            }
            let budget = meter.budget(Tick(now), self.horizon).min(self.demand);
            let mut left = budget;
            while left > 0 {
                let draw = (u64::from(rng.next_u32()) * self.sizes.len() as u64) >> 32;
                let size = self.sizes.start + draw as usize;
                let is_lead = self.is_led && left == budget;
                let size = if is_lead {
                    left.min(200)
                } else if self.sizes.is_empty() {
                    left
                } else {
                    size.min(left)
                };
                left -= size;
                seq += 1;
                meter.sent(Tick(now), seq, size);
                // Others' frames that came before.
                while others < now as f64 {
                    others += 10_000.0;
                    if (others / 1e6) as u64 % 2 == 1 {
                        let theirs = self.rate_at(others) * self.others * 0.01;
                        free = self.carried(free.max(others), theirs);
                    }
                }
                let start = free.max(now as f64);
                if (start - now as f64) / 1e6 * self.rate_at(start) > self.queue_bytes {
                    acks.push((now + S, seq, None));
                    continue;
                }
                free = self.carried(start, size as f64);
                run.queued.push((now, start - now as f64));
                let mut uniform = |to: u64| (u64::from(rng.next_u32()) * to) >> 32;
                let delay = match self.reroute {
                    Some((from, delay)) if now >= from => delay,
                    _ => self.delay_us,
                };
                last = last.max(free as u64 + delay + uniform(self.jitter_us));
                let heard = last + self.delay_us + uniform(self.answer_us);
                // The receiver's clock runs 50 millionths fast.
                let arrived = 7_777_777_777 + last + last / 20_000;
                if uniform(1_000) as f64 >= self.ack_loss * 1_000.0 {
                    acks.push((heard, seq, Some((self.claim)(arrived, seq))));
                }
                run.moved.push((start, free, size as f64));
            }
            run.estimates.push((now, meter.estimate()));
        }
        run
    }
}

#[derive(Default)]
struct Run {
    /// When the bottleneck began and ended with a packet of so many bytes.
    moved: Vec<(f64, f64, f64)>,
    /// How long a packet handed over then stood behind others.
    queued: Vec<(u64, f64)>,
    estimates: Vec<(u64, Estimate)>,
}

impl Run {
    /// Bytes per second that went through the bottleneck.
    fn used(&self, from: u64, to: u64) -> f64 {
        let within = |at: f64| at.clamp(from as f64, to as f64);
        let bytes: f64 = (self.moved.iter())
            .map(|(start, end, bytes)| bytes * (within(*end) - within(*start)) / (end - start))
            .sum();
        bytes / (to - from) as f64 * 1e6
    }

    /// The 95th percentile of how long packets stood behind others.
    fn p95_queueing(&self, from: u64) -> Duration {
        let late = self.queued.iter().filter(|(at, _)| *at >= from);
        let mut waits: Vec<u64> = late.map(|(_, wait)| *wait as u64).collect();
        waits.sort_unstable();
        Duration::from_micros(waits[waits.len() * 95 / 100])
    }

    /// The median of the estimated rate.
    fn rate(&self, from: u64, to: u64) -> f64 {
        let within = self
            .estimates
            .iter()
            .filter(|(at, _)| (from..to).contains(at));
        let mut rates: Vec<f64> = within.map(|(_, e)| e.rate.unwrap_or(0.0)).collect();
        rates.sort_unstable_by(f64::total_cmp);
        rates[rates.len() / 2]
    }

    fn last(&self) -> Estimate {
        self.estimates.last().unwrap().1
    }
}

/// Every packet takes all that the budget has left.
fn whole(line: Line) -> Line {
    Line {
        sizes: 0..0,
        ..line
    }
}

/// As [`whole`], after a small one.
fn led(line: Line) -> Line {
    Line {
        is_led: true,
        ..whole(line)
    }
}

fn within(value: f64, truth: f64, off: f64) -> bool {
    (value / truth - 1.0).abs() <= off
}

#[test]
fn the_estimate_converges_and_the_link_is_full_without_a_queue() {
    for rate in [1.0, 5.0, 20.0, 50.0, 200.0] {
        let line = Line::of(mbit(rate));
        for (kind, line) in [("mixed", line.clone()), ("whole", whole(line))] {
            let run = line.run(30 * S);
            let (used, estimated) = (run.used(5 * S, 30 * S), run.rate(5 * S, 30 * S));
            let queueing = run.p95_queueing(5 * S);
            let what = format!("{kind} {rate} Mbit/s: {used} used, {estimated}, {queueing:?}");
            assert!(within(estimated, mbit(rate), 0.12), "{what}");
            assert!(used >= 0.9 * mbit(rate), "{what}");
            assert!(queueing < HORIZON, "{what}");
        }
    }
}

#[test]
fn a_small_packet_before_each_large_one_makes_the_estimate_exact() {
    for (rate, millis) in [
        (1.0, 100),
        (5.0, 20),
        (20.0, 100),
        (50.0, 500),
        (200.0, 100),
    ] {
        let horizon = Duration::from_millis(millis);
        let line = Line {
            horizon,
            ..led(Line::of(mbit(rate)))
        };
        let run = line.run(60 * S);
        let (used, estimated) = (run.used(20 * S, 60 * S), run.rate(20 * S, 60 * S));
        let queueing = run.p95_queueing(20 * S);
        let what = format!("{rate} Mbit/s: {used}, {estimated}, {queueing:?}");
        assert!(within(estimated, mbit(rate), 0.03), "{what}");
        assert!(used >= 0.9 * mbit(rate), "{what}");
        assert!(queueing < horizon / 3, "{what}");
    }
}

#[test]
fn short_and_long_steps_fill_a_link_alike() {
    for millis in [20, 500, 2_000] {
        for rate in [5.0, 20.0, 50.0] {
            let horizon = Duration::from_millis(millis);
            let line = Line {
                horizon,
                ..Line::of(mbit(rate))
            };
            let run = line.run(60 * S);
            let (used, queueing) = (run.used(20 * S, 60 * S), run.p95_queueing(20 * S));
            let what = format!("{rate} Mbit/s, {horizon:?}: {used}, {queueing:?}");
            assert!(used >= 0.9 * mbit(rate), "{what}");
            assert!(queueing < horizon, "{what}");
        }
    }
}

#[test]
fn a_gigabit_does_not_collapse() {
    for jitter_us in [50, 2 * MS, 10 * MS] {
        let line = Line {
            jitter_us,
            ..Line::of(mbit(1000.0))
        };
        for line in [line.clone(), whole(line)] {
            let run = line.run(20 * S);
            assert!(run.used(5 * S, 20 * S) > 0.8 * mbit(1000.0), "{jitter_us}");
            assert!(
                within(run.rate(5 * S, 20 * S), mbit(1000.0), 0.3),
                "{jitter_us}"
            );
        }
    }
}

#[test]
fn a_tenth_and_the_tenfold_rate_are_followed_in_three_seconds() {
    for (rate, factor) in [1.0, 5.0, 20.0, 50.0]
        .map(|rate| [(rate, 0.1), (rate, 10.0)])
        .concat()
    {
        let mut line = Line::of(mbit(rate));
        line.rates.push((10 * S, mbit(rate * factor)));
        for line in [line.clone(), whole(line.clone()), led(line)] {
            let run = line.run(20 * S);
            let estimated = run.rate(13 * S, 15 * S) / mbit(rate * factor);
            assert!(within(estimated, 1.0, 0.2), "{rate} x{factor}: {estimated}");
            let used = run.used(13 * S, 20 * S) / mbit(rate * factor);
            assert!(used > 0.8, "{rate} x{factor}: {used}");
        }
    }
}

#[test]
fn links_of_ten_to_one_are_both_full() {
    let (fast, slow) = (Line::of(mbit(50.0)), Line::of(mbit(5.0)));
    for line in [fast, slow] {
        let rate = line.rates[0].1;
        let run = line.run(60 * S);
        assert!(run.used(5 * S, 60 * S) > 0.9 * rate);
        assert!(run.p95_queueing(5 * S) < HORIZON);
    }
}

#[test]
fn what_others_take_is_left_to_them_and_the_rest_is_used() {
    let line = Line {
        others: 0.5,
        ..Line::of(mbit(20.0))
    };
    for line in [line.clone(), whole(line)] {
        let run = line.run(30 * S);
        assert!(run.used(5 * S, 30 * S) > 0.45 * mbit(20.0));
        assert!(run.p95_queueing(5 * S) < 2 * HORIZON);
    }
}

#[test]
fn lost_acknowledgements_neither_stop_a_link_nor_deceive_it() {
    let line = Line {
        ack_loss: 0.1,
        ..Line::of(mbit(20.0))
    };
    for line in [line.clone(), whole(line)] {
        let run = line.run(30 * S);
        assert!(run.used(5 * S, 30 * S) > 0.75 * mbit(20.0));
        assert!(within(run.rate(5 * S, 30 * S), mbit(20.0), 0.15));
    }
    let silent = Line {
        ack_loss: 1.0,
        ..Line::of(mbit(20.0))
    };
    let run = silent.run(60 * S);
    assert_eq!(run.last().rate, None);
    assert!(run.used(0, 60 * S) < 40_000.0, "a first window a second");
}

#[test]
fn a_throttled_receiver_delays_round_trips_and_not_the_rate() {
    let line = Line {
        answer_us: 300 * MS,
        ..Line::of(mbit(20.0))
    };
    let run = line.run(30 * S);
    assert!(run.used(5 * S, 30 * S) > 0.9 * mbit(20.0));
    assert!(within(run.rate(5 * S, 30 * S), mbit(20.0), 0.12));
    assert!(run.last().round_trip.unwrap() > Duration::from_millis(150));
    assert!(run.last().least_round_trip.unwrap() < Duration::from_millis(120));
}

/// Where nothing queues, packets of one size do not tell what the link carries: the estimate of a bad moment must not last.
#[test]
fn a_link_that_collapsed_recovers_also_with_packets_of_one_size() {
    let mut meter = Meter::new();
    let (mut free_us, mut answers) = (0, Vec::new());
    for step in 0..300u64 {
        let now = step * 100_000;
        answers.retain(|(at, seq, arrived)| {
            let is_here = *at <= now;
            if is_here {
                meter.acknowledged(Tick(*at), *seq, *arrived);
            }
            !is_here
        });
        if meter.estimate().in_flight >= 2 {
            continue;
        }
        let bytes_per_us = if step < 60 { 0.003 } else { 10.0 };
        let bytes = if step % 7 == 0 && step < 60 { 488 } else { 486 };
        meter.sent(Tick(now), step, bytes);
        free_us = now.max(free_us) + (bytes as f64 / bytes_per_us) as u64;
        answers.push((free_us + 10_000, step, free_us + 5_000));
    }
    let rate = meter.estimate().rate.unwrap();
    // No less than a packet in a round trip.
    assert!(rate > 40_000.0, "{rate}");
}

#[test]
fn a_longer_route_is_followed() {
    let line = Line {
        reroute: Some((8 * S, 100 * MS)),
        ..Line::of(mbit(20.0))
    };
    for line in [line.clone(), whole(line.clone()), led(line)] {
        let run = line.run(30 * S);
        let used = run.used(15 * S, 30 * S) / mbit(20.0);
        assert!(used > 0.85, "{used}");
        assert!(within(run.rate(15 * S, 30 * S), mbit(20.0), 0.15));
    }
}

#[test]
fn a_short_queue_that_drops_does_not_stop_a_link() {
    let line = Line {
        queue_bytes: 1e5,
        ..Line::of(mbit(20.0))
    };
    assert!(line.run(30 * S).used(5 * S, 30 * S) > 0.4 * mbit(20.0));
}

#[test]
fn a_link_that_is_not_filled_is_measured_and_an_idle_one_remembered() {
    let line = Line {
        demand: 100_000,
        ..Line::of(mbit(20.0))
    };
    let run = line.run(10 * S);
    assert!(within(run.rate(5 * S, 10 * S), mbit(20.0), 0.12));

    let mut meter = Meter::new();
    let way = |bytes: u64| Duration::from_micros(10_000 + bytes);
    for i in 0..50u64 {
        let (now, bytes) = (Tick(i * 100_000), 1_000 + i % 7 * 5_000);
        meter.sent(now, i, bytes as usize);
        meter.acknowledged(now + way(bytes) * 2, i, (now + way(bytes)).0);
    }
    let before = meter.estimate().rate.unwrap();
    assert!(within(before, 1e6, 0.2), "{before}");
    let hour_later = Tick(3_600 * S);
    assert_eq!(
        meter.budget(hour_later, HORIZON),
        2 * 31_000,
        "no more than twice of what was in flight"
    );
    meter.sent(hour_later, 50, 31_000);
    let answer = hour_later + way(31_000);
    meter.acknowledged(answer + way(0), 50, answer.0);
    assert!(within(meter.estimate().rate.unwrap(), before, 0.2));
}

#[test]
fn nonsense_from_the_receiver_is_contained() {
    let line = Line::of(mbit(20.0));
    let claims: [fn(u64, u64) -> u64; 5] = [
        |_, _| 0,
        |_, _| u64::MAX,
        |_, seq| (1 << 40) - seq * 1_000,
        |arrived, _| 7_777_777_777 + (arrived - 7_777_777_777) / 100,
        |arrived, seq| arrived.wrapping_mul(seq | 1),
    ];
    for claim in claims {
        let liar = Line {
            claim,
            ..line.clone()
        };
        let run = liar.run(60 * S);
        let last = run.last();
        assert!(last.in_flight_bytes < 4_000_000, "{last:?}");
        assert!(last.rate.is_none_or(|rate| rate.is_finite() && rate > 0.0));
    }
    let seldom = Line {
        claim: |arrived, seq| match seq % 30 {
            0 => 0,
            10 => u64::MAX,
            20 => arrived - 5 * S,
            _ => arrived,
        },
        ..line
    };
    let run = seldom.run(30 * S);
    assert!(run.used(5 * S, 30 * S) > 0.9 * mbit(20.0));
    assert!(within(run.rate(5 * S, 30 * S), mbit(20.0), 0.12));
}

#[test]
fn tracking_is_bounded_and_a_new_connection_starts_with_a_guess() {
    let mut meter = Meter::new();
    for seq in 0..3 * MAX_TRACKED as u64 {
        meter.sent(Tick(seq), seq, 10);
    }
    assert_eq!(meter.estimate().in_flight, MAX_TRACKED);
    assert_eq!(meter.estimate().oldest, Some(Tick(2 * MAX_TRACKED as u64)));
    meter.forgotten(2 * MAX_TRACKED as u64);
    assert_eq!(meter.estimate().in_flight_bytes, 10 * (MAX_TRACKED - 1));
    meter.reset();
    assert_eq!(meter.estimate(), Estimate::default());
}

#[derive(Clone, Debug)]
enum Event {
    Sent(u64, usize),
    Acknowledged(u64, u64),
    Forgotten(u64),
    Reset,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (0..40u64, any::<usize>()).prop_map(|(seq, bytes)| Event::Sent(seq, bytes)),
        (0..40u64, 1..100_000usize).prop_map(|(seq, bytes)| Event::Sent(seq, bytes)),
        (0..40u64, any::<u64>()).prop_map(|(seq, at)| Event::Acknowledged(seq, at)),
        (0..40u64, 0..10_000_000u64).prop_map(|(seq, at)| Event::Acknowledged(seq, at)),
        (0..40u64).prop_map(Event::Forgotten),
        Just(Event::Reset),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_numbers_stay_finite_and_memory_bounded(
        events in proptest::collection::vec((event(), 0..500_000u64), 0..300),
        horizon in 0..10_000_000u64,
    ) {
        let (mut meter, mut now) = (Meter::new(), Tick(0));
        for (event, pause) in events {
            now = now + Duration::from_micros(pause);
            match event {
                Event::Sent(seq, bytes) => meter.sent(now, seq, bytes),
                Event::Acknowledged(seq, at) => meter.acknowledged(now, seq, at),
                Event::Forgotten(seq) => meter.forgotten(seq),
                Event::Reset => meter.reset(),
            }
            let estimate = meter.estimate();
            prop_assert!(estimate.rate.is_none_or(|rate| rate.is_finite() && rate >= 0.0));
            prop_assert!(estimate.in_flight <= 40);
            prop_assert!(meter.budget(now, Duration::from_micros(horizon)) <= 1 << 30);
        }
    }
}
