//! The file of an upload, from its bytes to samples: both are charged to one budget of all uploads.

use std::sync::Arc;

use stonechat::audio::decode::container_name;
use stonechat::audio::{Decoder, Error, PcmFormat, SAMPLE_RATE};
use tokio::task::spawn_blocking;

use super::form::FileField;
use crate::audio_memory::{AudioMemory, Charge};
use crate::{ApiError, ApiResult};

/// Bytes of a second of samples.
const SECOND_BYTES: f64 = (SAMPLE_RATE as usize * size_of::<f32>()) as f64;

/// Encoding of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    /// Any container, told by its first bytes.
    Container,
    /// 16-bit signed integers, little-endian, 16 kHz, mono.
    Raw,
}

/// Decodes a file on a thread that may block: samples of 16 kHz mono, and their charge to the budget. Dropping the future ends
/// the decoder.
pub(super) async fn decode(
    memory: &AudioMemory,
    file: (Vec<u8>, Charge),
    field: FileField,
    max_seconds: u64,
) -> ApiResult<(Vec<f32>, Charge)> {
    let turn = memory.decoder().await;
    let (charge, waiting) = (memory.charge(), Arc::new(()));
    let waits = Arc::downgrade(&waiting);
    let decode = move || {
        let _turn = turn;
        match field.encoding {
            Encoding::Container => {
                decode_while(|| waits.strong_count() > 0, file, charge, (field.name, max_seconds))
            }
            Encoding::Raw => convert(&file.0, charge, (field.name, max_seconds)),
        }
    };
    spawn_blocking(decode).await.map_err(|error| {
        tracing::error!("decoding an upload failed: {error}");
        ApiError::server("internal error: see the log of the server")
    })?
}

/// Decodes a file on this thread, as long as `is_wanted`.
fn decode_while(
    is_wanted: impl Fn() -> bool,
    (bytes, file_charge): (Vec<u8>, Charge),
    charge: Charge,
    (name, max_seconds): (&str, u64),
) -> ApiResult<(Vec<f32>, Charge)> {
    // Bytes of the samples, of all of them where the container tells their length.
    let mut needed = 0.0;
    let decoded = Decoder::new()
        .max_seconds(max_seconds)
        .on_progress(|progress| {
            needed = progress.total_s.unwrap_or_default().max(progress.decoded_s) * SECOND_BYTES;
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
            Error::TooLong { .. } => 413,
            _ => 400,
        };
        let error = ApiError::of_status(status, format!("`{name}`: {error}"));
        error.with_param(name)
    })?;
    charge.try_raise(size_of_val(&samples[..]) as u64)?;
    Ok((samples, charge))
}

/// Converts raw PCM.
fn convert(
    bytes: &[u8],
    charge: Charge,
    (name, max_seconds): (&str, u64),
) -> ApiResult<(Vec<f32>, Charge)> {
    let expected = "16-bit little-endian samples of 16 kHz";
    if let Some(container) = container_name(bytes) {
        return Err(ApiError::field(name, &format!("{expected} with encode=false"), container));
    }
    let format = PcmFormat::S16;
    if bytes.is_empty() || !bytes.len().is_multiple_of(format.bytes()) {
        let got = format!("{} bytes", bytes.len());
        return Err(ApiError::field(name, expected, got));
    }
    let n_samples = bytes.len() / format.bytes();
    if n_samples as u64 > max_seconds.saturating_mul(u64::from(SAMPLE_RATE)) {
        let error = Error::TooLong { max_s: max_seconds };
        let error = ApiError::of_status(413, format!("`{name}`: {error}"));
        return Err(error.with_param(name));
    }
    charge.try_raise((n_samples * size_of::<f32>()) as u64)?;
    let mut samples = Vec::with_capacity(n_samples);
    format.append(bytes, &mut samples);
    Ok((samples, charge))
}
