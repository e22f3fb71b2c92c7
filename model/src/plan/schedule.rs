//! The one-forward-one-backward schedule, run event by event with times instead of tensors: synchronous (Narayanan et al.
//! 2021, "PipeDream-2BW", arXiv:2006.09503, section 2.2: 1F1B with a flush per step) or asynchronous (PipeDream, FTPipeHD: an
//! update with every backward pass, no flush). There a step is what the full pipeline takes per micro-batch, which is the
//! time of the slowest stage or link, or of the way there and back shared by those in flight.
//!
//! A stage makes a backward pass where one is due, else a forward pass if it may have one more micro-batch in flight, where
//! steps overlap the other way round; the last stage makes both at once. Sending overlaps computing; a link carries one message at a time (in each direction,
//! unless both share its rate).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::{Deserialize, Serialize};

use super::work::{Device, Links, Placement, PlanError, Stashing, Sums, Work};

/// Micro-batches per stage that fill an asynchronous pipeline, and then are timed; and the least of them.
const TIMED: usize = 4;
const LEAST_TIMED: usize = 8;

/// What a plan promises.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Seconds of a step, from its first forward pass to the last update; where steps overlap, from update to update.
    pub step_seconds: f64,
    /// Samples per second.
    pub samples_per_second: f64,
    /// Share of the step that each stage computes, 0 to 1; the rest are bubbles.
    pub busy: Vec<f64>,
    /// Bytes each stage takes at most.
    pub memory_bytes: Vec<u64>,
}

/// Predicts a step of `work` with the blocks placed so.
///
/// # Errors
/// Figures that cannot be, or placements that are not all blocks in order on devices that there are.
pub fn predict(
    work: &Work,
    devices: &[Device],
    links: &Links,
    placements: &[Placement],
) -> Result<Prediction, PlanError> {
    work.check(devices, links)?;
    let mut next = 0;
    for (position, placement) in placements.iter().enumerate() {
        let device = placement.device;
        let repeated = placements[..position]
            .iter()
            .any(|other| other.device == device);
        if device >= devices.len() || repeated {
            let what = "it is none of the devices, or has two stages";
            return Err(PlanError::Device { device, what });
        }
        if placement.blocks.start != next || placement.blocks.is_empty() {
            let what = "its blocks do not follow those before";
            return Err(PlanError::Device { device, what });
        }
        next = placement.blocks.end;
    }
    let n_blocks = work.profile.blocks.len();
    if next != n_blocks {
        return Err(PlanError::Blocks {
            n_devices: placements.len(),
            n_blocks,
        });
    }
    Ok(run(work, devices, links, placements))
}

/// As [`predict`], of placements that are known to fit.
pub(crate) fn run(
    work: &Work,
    devices: &[Device],
    links: &Links,
    placements: &[Placement],
) -> Prediction {
    let sums = work.sums();
    let stages: Vec<Stage> = stages((work, &sums), devices, links, placements);
    let mut busy: Vec<f64> = vec![0.0; stages.len()];
    let end = match work.stashing {
        Stashing::None => Run::new(stages, work.n_micro, links).finish(&mut busy),
        _ => overlapping(stages, links, &mut busy),
    };
    let memory = |(position, placement): (usize, &Placement)| {
        let held = work.held(position, placements.len());
        work.memory(&sums, &placement.blocks, held)
    };
    let samples = (work.n_micro * work.micro_batch) as f64;
    let share = |seconds: f64| if end > 0.0 { seconds / end } else { 0.0 };
    Prediction {
        step_seconds: end,
        samples_per_second: if end > 0.0 { samples / end } else { 0.0 },
        busy: busy.into_iter().map(share).collect(),
        memory_bytes: placements.iter().enumerate().map(memory).collect(),
    }
}

/// Seconds per micro-batch of a full pipeline whose steps overlap; `busy` are those that each stage computes.
fn overlapping(mut stages: Vec<Stage>, links: &Links, busy: &mut [f64]) -> f64 {
    for (stage, busy) in stages.iter_mut().zip(&mut *busy) {
        stage.backward += std::mem::take(&mut stage.update);
        *busy = stage.forward + stage.backward;
    }
    let n = LEAST_TIMED.max(TIMED * stages.len());
    // It is still full when the last one that is timed comes back.
    let behind = stages.first().map_or(0, |first| first.depth);
    let mut run = Run::new(stages, 2 * n + behind, links);
    run.overlaps = true;
    let mut computed = vec![0.0; busy.len()];
    run.begin(&mut computed);
    let mut half = 0.0;
    loop {
        let is_half = run.states[0].backwards < n;
        let Some(now) = run.proceed(&mut computed) else {
            return 0.0;
        };
        let made = run.states[0].backwards;
        if is_half && made == n {
            half = now;
        }
        if made == 2 * n {
            return (now - half) / n as f64;
        }
    }
}

/// Times of one stage.
struct Stage {
    /// Most micro-batches in flight.
    depth: usize,
    forward: f64,
    backward: f64,
    update: f64,
    /// Sending a micro-batch on, and its gradient back: how long the link is busy, and the way after that.
    send: [f64; 2],
    send_back: [f64; 2],
}

fn stages(
    (work, sums): (&Work, &Sums),
    devices: &[Device],
    links: &Links,
    placements: &[Placement],
) -> Vec<Stage> {
    let stage = |(position, placement): (usize, &Placement)| {
        let factor = devices[placement.device].capacity;
        let [forward, backward, update] = work.seconds(sums, &placement.blocks).map(|s| s * factor);
        let seconds = |other: Option<&Placement>, block: usize| {
            let bytes = work.micro_bytes_into(block);
            other.map_or([0.0; 2], |other| {
                links.message(placement.device, other.device, bytes)
            })
        };
        let before = position
            .checked_sub(1)
            .and_then(|before| placements.get(before));
        Stage {
            depth: work.in_flight(position, placements.len()),
            forward,
            backward,
            update,
            send: seconds(placements.get(position + 1), placement.blocks.end),
            send_back: seconds(before, placement.blocks.start),
        }
    };
    placements.iter().enumerate().map(stage).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The stage has made its next operation.
    Done { stage: usize },
    /// A micro-batch has come to the stage.
    Activation { stage: usize },
    /// A gradient has come to the stage.
    Gradient { stage: usize },
}

/// A moment that orders as numbers do; times are finite and not negative.
#[derive(Clone, Copy, PartialEq)]
struct Moment(f64);

impl Eq for Moment {}

impl PartialOrd for Moment {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Moment {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Doing {
    Nothing,
    Forward,
    Backward,
    /// Forward and backward pass of the last stage.
    Both,
    Update,
    Finished,
}

/// Where one stage is.
struct State {
    doing: Doing,
    /// Micro-batches and gradients that have come, passes made.
    activations: usize,
    gradients: usize,
    forwards: usize,
    backwards: usize,
}

struct Run {
    /// Whether forward passes go first.
    overlaps: bool,
    stages: Vec<Stage>,
    states: Vec<State>,
    n_micro: usize,
    shared: bool,
    /// When the link behind each stage is free again, onwards and backwards.
    free: Vec<[f64; 2]>,
    events: BinaryHeap<Reverse<(Moment, u64, Event)>>,
    n_events: u64,
}

impl Run {
    fn new(stages: Vec<Stage>, n_micro: usize, links: &Links) -> Self {
        let state = |position: usize| State {
            doing: Doing::Nothing,
            activations: if position == 0 { n_micro } else { 0 },
            gradients: 0,
            forwards: 0,
            backwards: 0,
        };
        Self {
            overlaps: false,
            states: (0..stages.len()).map(state).collect(),
            free: vec![[0.0; 2]; stages.len()],
            n_micro,
            shared: links.shared,
            events: BinaryHeap::new(),
            n_events: 0,
            stages,
        }
    }

    /// The moment at which the last update is made; adds the seconds each stage computes to `busy`.
    fn finish(mut self, busy: &mut [f64]) -> f64 {
        self.begin(busy);
        let mut end = 0.0;
        while let Some(now) = self.proceed(busy) {
            end = now;
        }
        end
    }

    fn begin(&mut self, busy: &mut [f64]) {
        for stage in 0..self.stages.len() {
            self.start(0.0, stage, busy);
        }
    }

    /// Lets the next event happen and returns its moment; none once all is made.
    fn proceed(&mut self, busy: &mut [f64]) -> Option<f64> {
        let Reverse((Moment(now), _, event)) = self.events.pop()?;
        let stage = match event {
            Event::Activation { stage } => {
                self.states[stage].activations += 1;
                stage
            }
            Event::Gradient { stage } => {
                self.states[stage].gradients += 1;
                stage
            }
            Event::Done { stage } => {
                self.done(now, stage);
                stage
            }
        };
        self.start(now, stage, busy);
        Some(now)
    }

    /// What follows from an operation that is made.
    fn done(&mut self, now: f64, stage: usize) {
        let state = &mut self.states[stage];
        let made = std::mem::replace(&mut state.doing, Doing::Nothing);
        let (forward, backward) = match made {
            Doing::Forward => (true, false),
            Doing::Backward => (false, true),
            Doing::Both => (true, true),
            Doing::Update => {
                state.doing = Doing::Finished;
                (false, false)
            }
            Doing::Nothing | Doing::Finished => (false, false),
        };
        state.forwards += usize::from(forward);
        state.backwards += usize::from(backward);
        if forward && stage + 1 < self.stages.len() {
            let seconds = self.stages[stage].send;
            self.send(
                now,
                (stage, 0),
                seconds,
                Event::Activation { stage: stage + 1 },
            );
        }
        if backward && let Some(before) = stage.checked_sub(1) {
            let seconds = self.stages[stage].send_back;
            self.send(now, (before, 1), seconds, Event::Gradient { stage: before });
        }
    }

    /// Hands a message to the link behind stage `link`.
    fn send(
        &mut self,
        now: f64,
        (link, direction): (usize, usize),
        [seconds, delay]: [f64; 2],
        event: Event,
    ) {
        let lane = if self.shared { 0 } else { direction };
        let free = &mut self.free[link][lane];
        *free = free.max(now) + seconds;
        let at = *free + delay;
        self.push(at, event);
    }

    /// Begins the stage's next operation, if it is free and has what that needs.
    fn start(&mut self, now: f64, stage: usize, busy: &mut [f64]) {
        let is_last = stage + 1 == self.stages.len();
        let (state, times) = (&mut self.states[stage], &self.stages[stage]);
        if state.doing != Doing::Nothing {
            return;
        }
        let has_come = state.activations > state.forwards;
        let may_go = !is_last && has_come && state.forwards - state.backwards < times.depth;
        let (doing, seconds) = if state.backwards == self.n_micro {
            (Doing::Update, times.update)
        } else if is_last && has_come {
            (Doing::Both, times.forward + times.backward)
        } else if may_go && self.overlaps {
            (Doing::Forward, times.forward)
        } else if state.gradients > state.backwards {
            (Doing::Backward, times.backward)
        } else if may_go {
            (Doing::Forward, times.forward)
        } else {
            return;
        };
        state.doing = doing;
        busy[stage] += seconds;
        self.push(now + seconds, Event::Done { stage });
    }

    fn push(&mut self, at: f64, event: Event) {
        self.n_events += 1;
        self.events
            .push(Reverse((Moment(at), self.n_events, event)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::work::tests::{even, work};

    fn place(cuts: &[usize]) -> Vec<Placement> {
        let placement = |(device, pair): (usize, &[usize])| Placement {
            device,
            blocks: pair[0]..pair[1],
        };
        cuts.windows(2).enumerate().map(placement).collect()
    }

    #[test]
    fn one_stage_takes_the_sum_of_all_passes() {
        // Four blocks, each 1 s forward and 2 s backward.
        let work = work(&[1.0; 4], 3);
        let (devices, links) = even(1);
        let got = predict(&work, &devices, &links, &place(&[0, 4])).unwrap();
        assert!((got.step_seconds - 36.0).abs() < 1e-9);
        assert!((got.busy[0] - 1.0).abs() < 1e-9);
    }

    #[test]
    fn even_stages_without_transfer_lose_the_filling_of_the_pipeline() {
        // n stages of time t, M micro-batches: (M + n - 1) t.
        for (n, n_micro) in [(2, 1), (2, 4), (4, 1), (4, 8)] {
            let work = Work {
                profile: crate::plan::Profile {
                    input_bytes: 0,
                    ..work(&[1.0; 4], 1).profile
                },
                ..work(&[1.0; 4], n_micro)
            };
            let (devices, mut links) = even(n);
            links.rate = vec![vec![1e18; n]; n];
            let cuts: Vec<usize> = (0..=n).map(|i| i * 4 / n).collect();
            let got = predict(&work, &devices, &links, &place(&cuts)).unwrap();
            let expected = (n_micro + n - 1) as f64 * 12.0 / n as f64;
            assert!(
                (got.step_seconds - expected).abs() < 1e-6,
                "{n} {n_micro} {got:?}"
            );
            let busy = n_micro as f64 / (n_micro + n - 1) as f64;
            assert!(got.busy.iter().all(|share| (share - busy).abs() < 1e-6));
        }
    }

    #[test]
    fn a_slow_link_sets_the_pace_and_a_shared_one_more_so() {
        // 8 bytes per sample and border; 1 byte per second: 8 s per message, 3 s per stage.
        let work = work(&[1.0; 2], 20);
        let (devices, mut links) = even(2);
        links.rate = vec![vec![1.0; 2]; 2];
        let rate = |links: &Links, n_micro: usize| {
            let work = Work {
                n_micro,
                ..work.clone()
            };
            predict(&work, &devices, links, &place(&[0, 1, 2]))
                .unwrap()
                .step_seconds
        };
        let per_micro = |links: &Links| (rate(links, 220) - rate(links, 20)) / 200.0;
        // Two in flight share a way there and back of 1 + 8 + 3 + 8 + 2 s.
        assert!(
            (per_micro(&links) - 11.0).abs() < 0.1,
            "{}",
            per_micro(&links)
        );
        links.shared = true;
        assert!(per_micro(&links) >= 16.0 - 0.1, "{}", per_micro(&links));
        links.shared = false;
        // Three in flight hide all but the link itself.
        let work = Work {
            hides_transfers: true,
            ..work.clone()
        };
        let step = |n_micro| {
            let work = Work {
                n_micro,
                ..work.clone()
            };
            predict(&work, &devices, &links, &place(&[0, 1, 2]))
                .unwrap()
                .step_seconds
        };
        let hidden = (step(220) - step(20)) / 200.0;
        assert!((hidden - 8.0).abs() < 0.1, "{hidden}");
    }

    #[test]
    fn the_way_counts_for_each_link_by_itself() {
        // One micro-batch: forward, way, both passes of the last stage, way back, backward.
        let work = work(&[1.0; 2], 1);
        let (devices, mut links) = even(2);
        let step = |links: &Links| {
            predict(&work, &devices, links, &place(&[0, 1, 2]))
                .unwrap()
                .step_seconds
        };
        let near = step(&links);
        links.latency = vec![vec![0.0, 0.5], vec![0.25, 0.0]];
        assert!((step(&links) - near - 0.75).abs() < 1e-6);
    }

    #[test]
    fn where_steps_overlap_a_step_takes_what_the_slowest_stage_takes() {
        let asynchronous = |seconds: &[f64]| Work {
            stashing: Stashing::Own,
            ..work(seconds, 1)
        };
        // Three stages of 3, 6 and 3 s per micro-batch, with an update of a quarter each.
        let mut work = asynchronous(&[1.0, 2.0, 1.0]);
        for block in &mut work.profile.blocks {
            block.update = 0.25;
        }
        let (mut devices, links) = even(3);
        let got = predict(&work, &devices, &links, &place(&[0, 1, 2, 3])).unwrap();
        assert!((got.step_seconds - 6.25).abs() < 1e-6, "{got:?}");
        assert!((got.busy[1] - 1.0).abs() < 1e-6 && (got.busy[0] - 3.25 / 6.25).abs() < 1e-6);
        assert!((got.samples_per_second - 1.0 / 6.25).abs() < 1e-6);
        let synchronous = Work {
            stashing: Stashing::None,
            ..work.clone()
        };
        let flushed = predict(&synchronous, &devices, &links, &place(&[0, 1, 2, 3])).unwrap();
        assert!(flushed.step_seconds > 12.0, "{flushed:?}");
        devices[2].capacity = 3.0;
        let got = predict(&work, &devices, &links, &place(&[0, 1, 2, 3])).unwrap();
        assert!((got.step_seconds - 9.75).abs() < 1e-6, "{got:?}");
        let alone = predict(&work, &even(1).0, &even(1).1, &place(&[0, 3])).unwrap();
        assert!((alone.step_seconds - 12.75).abs() < 1e-6, "{alone:?}");
    }

    #[test]
    fn links_set_the_pace_of_steps_that_overlap_or_the_way_there_and_back_does() {
        // 8 bytes per border at 1 byte per second: 8 s per message, 3 s per stage.
        let mut work = Work {
            stashing: Stashing::Own,
            ..work(&[1.0; 2], 1)
        };
        let (devices, mut links) = even(2);
        links.rate = vec![vec![1.0; 2]; 2];
        let step = |work: &Work| {
            let got = predict(work, &devices, &links, &place(&[0, 1, 2]));
            got.unwrap().step_seconds
        };
        // Two in flight share a way there and back of 1 + 8 + 3 + 8 + 2 s.
        assert!((step(&work) - 11.0).abs() < 1e-6, "{}", step(&work));
        // Three hide all but the link itself.
        work.hides_transfers = true;
        assert!((step(&work) - 8.0).abs() < 0.1, "{}", step(&work));
    }

    #[test]
    fn placements_that_leave_a_block_out_are_refused() {
        let work = work(&[1.0; 3], 2);
        let (devices, links) = even(2);
        for cuts in [&[0, 1, 2][..], &[1, 2, 3], &[0, 1, 1, 3]] {
            assert!(predict(&work, &devices, &links, &place(cuts)).is_err());
        }
        let mut twice = place(&[0, 1, 3]);
        twice[1].device = 0;
        assert!(predict(&work, &devices, &links, &twice).is_err());
    }
}
