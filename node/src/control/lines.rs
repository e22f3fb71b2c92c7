//! Lines of bounded length and with a deadline on an asynchronous stream.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Reads one line of at most `max_bytes` without its newline; none at the end of the stream.
///
/// # Errors
/// `InvalidData` for a longer line or one cut off by the end of the stream, else what the stream says.
///
/// # Cancel safety
/// Not cancel safe: what was read of a line is lost.
pub(super) async fn read_line(
    stream: &mut (impl AsyncBufRead + Unpin),
    max_bytes: usize,
) -> io::Result<Option<Vec<u8>>> {
    let mut line = vec![];
    stream
        .take(max_bytes as u64 + 1)
        .read_until(b'\n', &mut line)
        .await?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        Some(_) if line.len() >= max_bytes => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a line has more than {max_bytes} bytes"),
        )),
        Some(_) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the last line has no end",
        )),
    }
}

/// Writes `line` and a newline within `deadline`.
///
/// # Errors
/// `TimedOut` past the deadline, else what the stream says.
///
/// # Cancel safety
/// Not cancel safe: a part of the line may have been written.
pub(super) async fn write_line(
    stream: &mut (impl AsyncWrite + Unpin),
    line: String,
    deadline: Duration,
) -> io::Result<()> {
    let mut bytes = line.into_bytes();
    bytes.push(b'\n');
    let write = async {
        stream.write_all(&bytes).await?;
        stream.flush().await
    };
    tokio::time::timeout(deadline, write)
        .await
        .map_err(|_| io::ErrorKind::TimedOut)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_are_read_up_to_the_bound_and_no_further() {
        let mut stream: &[u8] = b"one\n\n12345\n123456\n";
        assert_eq!(
            read_line(&mut stream, 5).await.unwrap(),
            Some(b"one".to_vec())
        );
        assert_eq!(read_line(&mut stream, 5).await.unwrap(), Some(vec![]));
        assert_eq!(
            read_line(&mut stream, 5).await.unwrap(),
            Some(b"12345".to_vec())
        );
        assert_eq!(
            read_line(&mut stream, 5).await.unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
        assert_eq!(read_line(&mut &b""[..], 5).await.unwrap(), None);
        assert_eq!(
            read_line(&mut &b"cut"[..], 5).await.unwrap_err().kind(),
            io::ErrorKind::InvalidData
        );
    }
}
