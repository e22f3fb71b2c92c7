//! A frame whose only use is that it is sent: where nothing was sent to a peer yet, one of them shows what the link carries.
//!
//! It goes by the update lane like any other large frame, so the window keeps its queue short, and the receiver drops it.

/// Bytes of the frame: about 8 ms of 100 Mbit/s.
pub const BYTES: usize = 100_000;
const MAGIC: &[u8; 4] = b"SKPR";

/// Fills `out` with such a frame.
pub fn write(out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(MAGIC);
    out.resize(BYTES, 0);
}

/// Whether `body` is one.
pub fn is_one(body: &[u8]) -> bool {
    body.starts_with(MAGIC)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::frame;

    #[test]
    fn a_probe_is_taken_for_nothing_else() {
        let mut body = vec![1; 3];
        write(&mut body);
        assert!(body.len() == BYTES && is_one(&body) && !frame::is_one(&body));
        assert!(crate::exchange::split(&body).is_err());
        assert!(!is_one(b"SKPL") && !is_one(b"SK"));
    }
}
