//! Standard input and output as asynchronous streams.

use std::io::{self, BufRead, Write};

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, spawn_blocking};

/// Bytes of a stream that are not taken yet.
const BUFFER: usize = 64 << 10;

/// Input, output, and the end of writing, once the output is dropped.
pub(super) fn open() -> (DuplexStream, DuplexStream, JoinHandle<io::Result<()>>) {
    let (input, mut to_input) = duplex(BUFFER);
    let (output, mut from_output) = duplex(BUFFER);
    let handle = Handle::current();
    spawn_blocking(move || {
        let mut stdin = io::stdin().lock();
        while let Ok(bytes @ [_, ..]) = stdin.fill_buf() {
            let n = bytes.len();
            if handle.block_on(to_input.write_all(bytes)).is_err() {
                return;
            }
            stdin.consume(n);
        }
    });
    let written = tokio::spawn(async move {
        let mut bytes = vec![0; BUFFER];
        loop {
            let n = from_output.read(&mut bytes).await?;
            if n == 0 {
                return Ok(());
            }
            let mut stdout = io::stdout().lock();
            stdout.write_all(&bytes[..n])?;
            stdout.flush()?;
        }
    });
    (input, output, written)
}
