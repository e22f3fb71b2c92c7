//! How much a node can compute.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use super::NAME;

/// Steps of the generator in a work unit: some microseconds, so that looking at the clock is little beside it.
const UNIT: u32 = 10_000;
/// Not counted at first: the caches fill, and the first period of a CPU quota is whole whenever it began.
const WARM_UP: Duration = Duration::from_millis(200);

/// The words of a spin of `time`, for a program that is started.
pub(crate) fn spin_args(time: Duration, threads: u32) -> Vec<String> {
    let (time, threads) = (time.as_secs_f64().to_string(), threads.to_string());
    [NAME, "spin", "--seconds", &time, "--threads", &threads]
        .map(str::to_owned)
        .into()
}

/// Units per second, out of the line that a spin wrote.
pub(crate) fn spin_speed(line: &str) -> Option<f64> {
    let line: Value = serde_json::from_str(line).ok()?;
    line.get("units_per_second")?.as_f64()
}

/// Computes for `time` on each of `threads`.
pub(super) fn spin(time: Duration, threads: u32, expect: Option<f64>) -> io::Result<Value> {
    units(WARM_UP);
    let (begin, cpu) = (Instant::now(), cpu_time()?);
    let threads: Vec<_> = (0..threads)
        .map(|_| thread::spawn(move || units(time)))
        .collect();
    let done: u64 = threads
        .into_iter()
        .map(|thread| thread.join().unwrap_or(0))
        .sum();
    let seconds = begin.elapsed().as_secs_f64();
    let share = (cpu_time()? - cpu).as_secs_f64() / seconds;
    Ok(json!({
        "units": done,
        "seconds": seconds,
        "units_per_second": done as f64 / seconds,
        "cpu_share": share,
        "expect": expect,
        "share_of_expected": expect.map(|expect| share / expect),
    }))
}

fn units(time: Duration) -> u64 {
    let begin = Instant::now();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut done = 0;
    while begin.elapsed() < time {
        for _ in 0..UNIT {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
        }
        std::hint::black_box(state);
        done += 1;
    }
    done
}

fn cpu_time() -> io::Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spin_says_its_speed_in_the_form_that_is_read() {
        let found = spin(Duration::from_millis(50), 1, Some(2.0)).unwrap();
        let speed = spin_speed(&found.to_string()).unwrap();
        assert!(speed > 0.0);
        let share = found["cpu_share"].as_f64().unwrap();
        assert_eq!(found["share_of_expected"], share / 2.0);
        assert_eq!(spin_speed("no line"), None);
    }
}
