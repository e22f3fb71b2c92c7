//! Round trips and losses of single datagrams.

use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{PATIENCE, TRY_EVERY};
use crate::priority;

/// First byte of a datagram that asks whether somebody is there, of one that counts, and of the last one.
const HELLO: u8 = b'?';
const NUMBERED: u8 = b'#';
const END: u8 = b'.';
/// Bytes of a datagram: a small message.
const LENGTH: usize = 64;
/// An answer that takes longer is lost. Longest delay of a line, there and back, is longer; no probe is for that.
const LOST_AFTER: Duration = Duration::from_secs(3);
/// The end is said so often, since any may be lost.
const ENDS: u32 = 20;

fn datagram(kind: u8, number: u32) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    bytes[0] = kind;
    bytes[1..5].copy_from_slice(&number.to_be_bytes());
    bytes
}

fn parse(bytes: &[u8]) -> Option<(u8, u32)> {
    let (kind, rest) = bytes.split_first()?;
    Some((*kind, u32::from_be_bytes(*rest.first_chunk()?)))
}

/// Sends everything back until the last datagram.
pub(super) fn echo(port: u16) -> io::Result<()> {
    // Where it is not permitted, answers are as late as those of any program.
    priority::go_first();
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut buffer = [0; LENGTH];
    loop {
        let (length, from) = socket.recv_from(&mut buffer)?;
        match parse(&buffer[..length]) {
            Some((END, _)) => return Ok(()),
            _ => socket.send_to(&buffer[..length], from)?,
        };
    }
}

/// A socket whose other end is there and answers.
fn reach(to: (Ipv4Addr, u16)) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(to)?;
    let deadline = Instant::now() + PATIENCE;
    let mut buffer = [0; LENGTH];
    socket.set_read_timeout(Some(LOST_AFTER / 3))?;
    while Instant::now() < deadline {
        // Refused as long as nobody listens.
        let answered = socket
            .send(&datagram(HELLO, 0))
            .and_then(|_| socket.recv(&mut buffer));
        if answered.is_ok() {
            return Ok(socket);
        }
        thread::sleep(TRY_EVERY);
    }
    Err(io::Error::other(format!("{} does not answer", to.0)))
}

/// Sends one datagram per `interval` and waits for each.
pub(super) fn round_trips(
    to: (Ipv4Addr, u16),
    count: u32,
    interval: Duration,
    expect_ms: Option<f64>,
) -> io::Result<Value> {
    // The link is measured, not how long this program waits for a core.
    let prompt = priority::go_first();
    let socket = reach(to)?;
    socket.set_read_timeout(Some(LOST_AFTER))?;
    let mut took = Vec::new();
    let mut next = Instant::now();
    for number in 0..count {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        let sent = Instant::now();
        next = sent + interval;
        socket.send(&datagram(NUMBERED, number))?;
        let mut buffer = [0; LENGTH];
        // An answer to an earlier one is not what we wait for.
        while let Ok(length) = socket.recv(&mut buffer) {
            if parse(&buffer[..length]) == Some((NUMBERED, number)) {
                took.push(sent.elapsed().as_secs_f64() * 1000.0);
                break;
            }
        }
    }
    for _ in 0..ENDS {
        // The other side may have ended at an earlier one.
        let _ = socket.send(&datagram(END, count));
    }
    took.sort_by(f64::total_cmp);
    let (p50, p99) = (quantile(&took, 0.5), quantile(&took, 0.99));
    let off = |value: Option<f64>| Some((value? - expect_ms?).abs());
    Ok(json!({
        "sent": count,
        "received": took.len(),
        "prompt": prompt,
        "min_ms": took.first(),
        "p50_ms": p50,
        "p99_ms": p99,
        "max_ms": took.last(),
        "expect_ms": expect_ms,
        "p50_off_ms": off(p50),
        "p99_off_ms": off(p99),
    }))
}

/// The value that the share `q` of an ascending list does not exceed.
fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

/// Sends numbered datagrams evenly.
pub(super) fn send(to: (Ipv4Addr, u16), count: u32, interval: Duration) -> io::Result<()> {
    let socket = reach(to)?;
    let begin = Instant::now();
    for number in 0..count {
        let at = begin + interval * number;
        thread::sleep(at.saturating_duration_since(Instant::now()));
        socket.send(&datagram(NUMBERED, number))?;
    }
    // Behind the last of them, also where frames overtake.
    thread::sleep(LOST_AFTER / 3);
    for _ in 0..ENDS {
        // The other side may have ended at an earlier one.
        let _ = socket.send(&datagram(END, count));
    }
    Ok(())
}

/// Counts what [`send`] sends.
pub(super) fn count(port: u16, expect: Option<f64>) -> io::Result<Value> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut buffer = [0; LENGTH];
    let mut received = 0u32;
    loop {
        let (length, from) = socket.recv_from(&mut buffer)?;
        match parse(&buffer[..length]) {
            Some((HELLO, _)) => {
                socket.send_to(&buffer[..length], from)?;
            }
            Some((NUMBERED, _)) => received += 1,
            Some((END, sent)) => return Ok(loss(sent, received, expect)),
            _ => {}
        }
    }
}

fn loss(sent: u32, received: u32, expect: Option<f64>) -> Value {
    let n = f64::from(sent.max(1));
    let share = f64::from(sent.saturating_sub(received)) / n;
    // How many standard deviations of a binomial share it is off: below 2.576 in 99 % of all cases.
    let off = expect.map(|p| (share - p).abs() / (p * (1.0 - p) / n).sqrt());
    json!({
        "sent": sent,
        "received": received,
        "share": share,
        "expect": expect,
        "deviations": off,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free_port() -> u16 {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.local_addr().unwrap().port()
    }

    #[test]
    fn round_trips_on_loopback_are_measured_and_the_echo_ends() {
        let port = free_port();
        let echoes = thread::spawn(move || echo(port));
        let to = (Ipv4Addr::LOCALHOST, port);
        let found = round_trips(to, 20, Duration::from_millis(1), Some(0.0)).unwrap();
        echoes.join().unwrap().unwrap();
        assert_eq!(found["received"], 20);
        assert_eq!(found["p50_ms"], found["p50_off_ms"]);
    }

    #[test]
    fn datagrams_are_counted() {
        let port = free_port();
        let counts = thread::spawn(move || count(port, Some(0.5)));
        send((Ipv4Addr::LOCALHOST, port), 100, Duration::from_millis(1)).unwrap();
        let found = counts.join().unwrap().unwrap();
        assert_eq!(
            (&found["sent"], &found["received"]),
            (&json!(100), &json!(100))
        );
        // Nothing is lost where half should be: 0.5 / sqrt(0.25 / 100).
        assert_eq!(found["deviations"], 10.0);
    }

    #[test]
    fn a_quantile_is_a_value_of_the_list() {
        let list: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(quantile(&list, 0.5), Some(50.0));
        assert_eq!(quantile(&list, 0.99), Some(99.0));
        assert_eq!(quantile(&[7.0], 0.01), Some(7.0));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
