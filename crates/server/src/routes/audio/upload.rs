//! The file of an upload: its bytes, and then its samples.
//!
//! The bytes are collected first: a client that stalls holds no thread. Both are charged to one budget of all uploads.

use std::sync::Arc;

use axum::http::StatusCode;
use stonechat::audio::{Decoder, Error, SAMPLE_RATE};
use tokio::task::spawn_blocking;

use crate::audio_memory::{AudioMemory, Charge};
use crate::{ApiError, ApiResult};

/// Bytes of a second of samples.
const SECOND_BYTES: f64 = (SAMPLE_RATE as usize * size_of::<f32>()) as f64;

/// Bytes of a file.
#[derive(Debug)]
pub(super) struct Upload {
    memory: AudioMemory,
    bytes: Vec<u8>,
    charge: Charge,
    max_bytes: usize,
}

impl Upload {
    pub(super) fn new(memory: &AudioMemory, max_bytes: usize) -> Self {
        Self { memory: memory.clone(), bytes: Vec::new(), charge: memory.charge(), max_bytes }
    }

    /// Adds bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) -> ApiResult<()> {
        let n_bytes = self.bytes.len() + bytes.len();
        if n_bytes > self.max_bytes {
            return Err(ApiError::too_large(self.max_bytes));
        }
        self.charge.try_raise(n_bytes as u64)?;
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Decodes the whole file on a thread that may block: samples of 16 kHz mono, and their charge to the budget. Dropping
    /// the future ends the decoder.
    pub(super) async fn decode(self, max_seconds: u64) -> ApiResult<(Vec<f32>, Charge)> {
        let turn = self.memory.decoder().await;
        let waiting = Arc::new(());
        let waits = Arc::downgrade(&waiting);
        let decode = move || {
            let _turn = turn;
            self.decode_while(|| waits.strong_count() > 0, max_seconds)
        };
        spawn_blocking(decode).await.map_err(|error| {
            tracing::error!("decoding an upload failed: {error}");
            ApiError::server("internal error: see the log of the server")
        })?
    }

    fn decode_while(
        self,
        is_wanted: impl Fn() -> bool,
        max_seconds: u64,
    ) -> ApiResult<(Vec<f32>, Charge)> {
        let Self { memory, bytes, charge: file_charge, .. } = self;
        // Bytes of the samples, of all of them where the container tells their length.
        let (charge, mut needed) = (memory.charge(), 0.0);
        let decoded = Decoder::new()
            .max_seconds(max_seconds)
            .on_progress(|progress| {
                needed =
                    progress.total_s.unwrap_or_default().max(progress.decoded_s) * SECOND_BYTES;
                charge.raise((progress.decoded_s * SECOND_BYTES) as u64);
            })
            .cancelled_by(|| charge.is_full() || !is_wanted())
            .bytes(bytes);
        if charge.is_full() {
            return Err(charge.error(file_charge.n_bytes().saturating_add(needed as u64)));
        }
        drop(file_charge);
        let samples = decoded.map(|audio| audio.samples).map_err(|error| {
            let status = match error {
                Error::TooLong { .. } => StatusCode::PAYLOAD_TOO_LARGE,
                _ => StatusCode::BAD_REQUEST,
            };
            let error = ApiError::of_status(status, format!("`file`: {error}"));
            error.with_field("param", "file".into())
        })?;
        charge.try_raise(size_of_val(&samples[..]) as u64)?;
        Ok((samples, charge))
    }
}
