//! The file of an upload: its bytes, and then its samples.
//!
//! The bytes are collected first: a client that stalls holds no thread. Both are charged to one budget of all uploads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use axum::http::StatusCode;
use stonechat::audio::{Audio, Decoder, Error, SAMPLE_RATE};
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
        let Self { memory, bytes, charge: file_charge, .. } = self;
        let turn = memory.decoder().await;
        let charge = memory.charge();
        let gone = Gone::default();
        let is_gone = Arc::clone(&gone.0);
        let (raised, checked) = (charge.clone(), charge.clone());
        // Bytes of the file and of the samples, of all of them where the container tells their length.
        let (file_bytes, needed) = (file_charge.n_bytes(), Arc::<AtomicU64>::default());
        let noted = Arc::clone(&needed);
        let decode = move || -> Result<Audio, Error> {
            let (_turn, _file_charge) = (turn, file_charge);
            Decoder::new()
                .max_seconds(max_seconds)
                .on_progress(move |progress| {
                    let seconds = progress.total_s.unwrap_or_default().max(progress.decoded_s);
                    noted.store((seconds * SECOND_BYTES) as u64, Ordering::Release);
                    raised.raise((progress.decoded_s * SECOND_BYTES) as u64);
                })
                .cancelled_by(move || checked.is_full() || is_gone.load(Ordering::Acquire))
                .bytes(bytes)
        };
        let decoded = spawn_blocking(decode).await.map_err(|error| {
            tracing::error!("decoding an upload failed: {error}");
            ApiError::server("internal error: see the log of the server")
        })?;
        if charge.is_full() {
            let needed = needed.load(Ordering::Acquire);
            return Err(charge.error(file_bytes.saturating_add(needed)));
        }
        let audio = decoded.map_err(|error| {
            let status = match error {
                Error::TooLong { .. } => StatusCode::PAYLOAD_TOO_LARGE,
                _ => StatusCode::BAD_REQUEST,
            };
            let error = ApiError::of_status(status, format!("`file`: {error}"));
            error.with_field("param", "file".into())
        })?;
        let samples = audio.samples;
        charge.try_raise(size_of_val(&samples[..]) as u64)?;
        Ok((samples, charge))
    }
}

/// Tells a decoder on drop that nobody waits for it.
#[derive(Default)]
struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}
