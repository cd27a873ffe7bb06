//! Opus packets to 48 kHz frames, set up from the `OpusHead` of every container.

use opus_decoder::OpusMultistreamDecoder;

/// Opus always decodes at this rate here.
pub(super) const RATE: u32 = 48_000;
/// 120 ms, the longest packet.
const MAX_PACKET_FRAMES: usize = 5760;

/// Decodes one track.
pub(super) struct OpusTrack {
    decoder: OpusMultistreamDecoder,
    n_channels: usize,
    pre_skip: u64,
    gain: f32,
    frames: Vec<f32>,
}

impl OpusTrack {
    /// From `OpusHead` (RFC 7845 §5.1); `None` if it is broken. `big_endian` for MP4's `dOps`.
    pub(super) fn new(head: &[u8], big_endian: bool) -> Option<Self> {
        let body = head.strip_prefix(b"OpusHead")?;
        let u16_at = |at: usize| -> Option<u16> {
            let pair = [*body.get(at)?, *body.get(at + 1)?];
            Some(if big_endian { u16::from_be_bytes(pair) } else { u16::from_le_bytes(pair) })
        };
        let n_channels = usize::from(*body.get(1)?);
        let pre_skip = u64::from(u16_at(2)?);
        let gain_db = f32::from(u16_at(8)?.cast_signed()) / 256.0;
        let mapping_family = *body.get(10)?;
        let (n_streams, n_coupled, mapping) = if mapping_family == 0 {
            let n_coupled = n_channels.checked_sub(1).filter(|&n| n <= 1)?;
            (1, n_coupled, vec![0, 1][..n_channels].to_vec())
        } else {
            let mapping = body.get(13..13 + n_channels)?.to_vec();
            (usize::from(*body.get(11)?), usize::from(*body.get(12)?), mapping)
        };
        let decoder = OpusMultistreamDecoder::new(
            RATE as usize as u32,
            n_channels,
            n_streams,
            n_coupled,
            &mapping,
        )
        .ok()?;
        let gain = 10f32.powf(gain_db / 20.0);
        let frames = vec![0.0; MAX_PACKET_FRAMES * n_channels];
        Some(Self { decoder, n_channels, pre_skip, gain, frames })
    }

    pub(super) fn n_channels(&self) -> usize {
        self.n_channels
    }

    /// Frames to drop at the start of the stream.
    pub(super) fn pre_skip(&self) -> u64 {
        self.pre_skip
    }

    /// Interleaved frames of one packet.
    pub(super) fn decode(&mut self, packet: &[u8]) -> Result<&[f32], String> {
        let n_frames = self
            .decoder
            .decode_float(packet, &mut self.frames, false)
            .map_err(|error| error.to_string())?;
        let frames = &mut self.frames[..n_frames * self.n_channels];
        if self.gain != 1.0 {
            frames.iter_mut().for_each(|x| *x *= self.gain);
        }
        Ok(frames)
    }
}
