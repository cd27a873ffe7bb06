//! Weights in this crate.

use super::N_BYTES;

static BYTES: &[u8; N_BYTES] = include_bytes!("../silero_vad_v6.bin");

pub(super) const EMBEDDED: Option<&'static [u8]> = Some(BYTES);
