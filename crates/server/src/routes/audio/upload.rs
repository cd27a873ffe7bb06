//! Decoding of a file while it arrives.

use std::io::{self, Read};

use axum::body::Bytes;
use stonechat::audio::{Audio, Decoder, Error};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};

use crate::{ApiError, ApiResult};

/// Blocks of a body that wait for the decoder.
const N_BLOCKS: usize = 8;

/// Decoder of a file, on a thread that may block.
#[derive(Debug)]
pub(super) struct Upload {
    /// `None` once the decoder needs no more bytes.
    blocks: Option<mpsc::Sender<io::Result<Bytes>>>,
    decoding: JoinHandle<Result<Audio, Error>>,
}

impl Upload {
    pub(super) fn new(max_seconds: u64) -> Self {
        let (sender, blocks) = mpsc::channel(N_BLOCKS);
        let reader = BlockReader { blocks, block: Bytes::new() };
        let decode = move || Decoder::new().max_seconds(max_seconds).reader(reader);
        Self { blocks: Some(sender), decoding: spawn_blocking(decode) }
    }

    /// Passes bytes to the decoder, or drops them if it has ended: the client sees the answer only after it has sent all.
    pub(super) async fn push(&mut self, bytes: Bytes) {
        self.send(Ok(bytes)).await;
    }

    /// Ends the decoder with an error of the connection.
    pub(super) async fn fail(&mut self, message: &str) {
        self.send(Err(io::Error::other(message.to_owned()))).await;
    }

    async fn send(&mut self, block: io::Result<Bytes>) {
        if let Some(blocks) = &self.blocks
            && blocks.send(block).await.is_err()
        {
            self.blocks = None;
        }
    }

    /// Samples of the whole file.
    pub(super) async fn finish(self) -> ApiResult<Vec<f32>> {
        let Self { blocks, decoding } = self;
        drop(blocks);
        let decoded = decoding.await.map_err(|error| {
            tracing::error!("decoding an upload failed: {error}");
            ApiError::server("internal error: see the log of the server")
        })?;
        let audio = decoded.map_err(|error| {
            ApiError::bad_request(format!("`file`: {error}")).with_field("param", "file".into())
        })?;
        Ok(audio.samples)
    }
}

/// Blocks of a channel as a reader.
struct BlockReader {
    blocks: mpsc::Receiver<io::Result<Bytes>>,
    block: Bytes,
}

impl Read for BlockReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.block.is_empty() {
            match self.blocks.blocking_recv() {
                Some(block) => self.block = block?,
                None => return Ok(0),
            }
        }
        let n = self.block.len().min(out.len());
        out[..n].copy_from_slice(&self.block.split_to(n));
        Ok(n)
    }
}
