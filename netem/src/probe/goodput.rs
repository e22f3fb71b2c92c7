//! How much of a line's rate one TCP flow gets.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{PATIENCE, TRY_EVERY};

/// Of a full frame of 1514 bytes (14 of Ethernet, 20 of IP, 32 of TCP with time stamps) so many are payload.
const PAYLOAD: f64 = 1448.0 / 1514.0;

/// Waits for one connection and reads it for `skip` and then `time`.
pub(super) fn receive(
    port: u16,
    skip: Duration,
    time: Duration,
    rate: Option<f64>,
) -> io::Result<Value> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    let mut stream = accept(&listener)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut buffer = vec![0; 256 << 10];
    let mut read = || match stream.read(&mut buffer)? {
        0 => Err(io::Error::other(
            "the sender ended before the time was over",
        )),
        n => Ok(n as u64),
    };
    read()?;
    let begin = Instant::now();
    let mut from = begin;
    while from - begin < skip {
        read()?;
        from = Instant::now();
    }
    // From the end of one read to the end of another: what lies between was received in that time.
    let (mut bytes, mut until) = (0, from);
    while until - from < time {
        bytes += read()?;
        until = Instant::now();
    }
    let seconds = (until - from).as_secs_f64();
    let bits_per_second = bytes as f64 * 8.0 / seconds;
    let share = rate.map(|rate| bits_per_second / (rate * PAYLOAD));
    Ok(json!({
        "bytes": bytes,
        "seconds": seconds,
        "bits_per_second": bits_per_second,
        "rate": rate,
        "share_of_bound": share,
    }))
}

fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) if Instant::now() > deadline => {
                return Err(io::Error::other("no sender came"));
            }
            Err(_) => thread::sleep(TRY_EVERY),
        }
    }
}

/// Connects and writes until the receiver closes.
pub(super) fn send(to: Ipv4Addr, port: u16) -> io::Result<()> {
    let mut stream = connect((to, port).into())?;
    let block = vec![0; 64 << 10];
    loop {
        match stream.write(&block) {
            Ok(_) => {}
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
                ) =>
            {
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
}

fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match TcpStream::connect_timeout(&to, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) if Instant::now() > deadline => {
                return Err(io::Error::other(format!("connecting to {to}: {error}")));
            }
            Err(_) => thread::sleep(TRY_EVERY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_on_loopback_is_measured_and_its_sender_ends() {
        // A free port, as far as one can know.
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let sender = thread::spawn(move || send(Ipv4Addr::LOCALHOST, port));
        let short = Duration::from_millis(50);
        let found = receive(port, short, short, Some(1e6)).unwrap();
        sender.join().unwrap().unwrap();
        assert!(found["seconds"].as_f64().unwrap() >= 0.05);
        let (bits, share) = (&found["bits_per_second"], &found["share_of_bound"]);
        let bound = 1e6 * 1448.0 / 1514.0;
        let expected = bits.as_f64().unwrap() / bound;
        assert!((share.as_f64().unwrap() / expected - 1.0).abs() < 1e-9);
    }
}
