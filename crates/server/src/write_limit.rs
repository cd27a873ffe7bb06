//! A connection whose client must read: a write that makes no progress for too long ends it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A stream with a time limit for each write.
pub(crate) struct WriteLimit<S> {
    stream: S,
    limit: Duration,
    /// Timer that runs while a write waits for the client.
    timer: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteLimit<S> {
    pub(crate) fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, timer: None }
    }

    /// The result of a write, or an error once it has waited for too long.
    fn limited<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.timer = None;
            return written;
        }
        let limit = self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(limit)));
        timer.as_mut().poll(context).map(|()| {
            Err(io::Error::new(io::ErrorKind::TimedOut, "the client did not read in time"))
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteLimit<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteLimit<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.limited(context, written)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(context);
        this.limited(context, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let closed = Pin::new(&mut this.stream).poll_shutdown(context);
        this.limited(context, closed)
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::WriteLimit;

    #[tokio::test]
    async fn a_client_that_does_not_read_is_given_up() {
        let (server, client) = duplex(8);
        let mut limited = WriteLimit::new(server, Duration::from_millis(10));
        limited.write_all(b"12345678").await.unwrap();
        let error = limited.write_all(b"9").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        drop(client);
    }

    #[tokio::test]
    async fn a_client_that_reads_gets_all() {
        let (server, mut client) = duplex(8);
        let mut limited = WriteLimit::new(server, Duration::from_secs(3600));
        let written = tokio::spawn(async move { limited.write_all(&[7; 1000]).await });
        let mut bytes = Vec::new();
        client.read_to_end(&mut bytes).await.unwrap();
        assert_eq!(bytes, [7; 1000]);
        written.await.unwrap().unwrap();
    }
}
