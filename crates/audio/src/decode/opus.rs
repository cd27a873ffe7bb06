//! Opus packets to 48 kHz frames, set up from the `OpusHead` of every container.

use ropus::OpusMSDecoder;

/// Opus always decodes at this rate here.
pub(super) const RATE: u32 = 48_000;
/// 120 ms, the longest packet.
const MAX_PACKET_FRAMES: usize = 5760;
/// Full scale of the decoder's samples.
const FULL_SCALE: f32 = 32_768.0;

/// Decodes one track.
pub(super) struct OpusTrack {
    decoder: OpusMSDecoder,
    n_channels: usize,
    pre_skip: u64,
    /// Factor from the decoder's samples to floats: the header's gain over full scale.
    gain: f32,
    samples: Vec<i16>,
    frames: Vec<f32>,
}

/// An `OpusHead` for a container without one.
pub(super) fn plain_head(n_channels: usize, pre_skip: u32) -> Vec<u8> {
    let mut head = b"OpusHead\x01".to_vec();
    head.push(u8::try_from(n_channels).unwrap_or(u8::MAX));
    head.extend(u16::try_from(pre_skip).unwrap_or(u16::MAX).to_le_bytes());
    head.extend(RATE.to_le_bytes());
    head.extend([0; 3]);
    head
}

impl OpusTrack {
    /// Parses `OpusHead` (RFC 7845 §5.1); `None` if it is malformed. `big_endian` for MP4's `dOps`.
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
            let n_coupled = body[1].checked_sub(1).filter(|&n| n <= 1)?;
            (1, i32::from(n_coupled), vec![0, 1][..n_channels].to_vec())
        } else {
            let mapping = body.get(13..13 + n_channels)?.to_vec();
            (i32::from(*body.get(11)?), i32::from(*body.get(12)?), mapping)
        };
        let decoder = OpusMSDecoder::new(
            RATE.cast_signed(),
            i32::try_from(n_channels).ok()?,
            n_streams,
            n_coupled,
            &mapping,
        )
        .ok()?;
        let gain = 10f32.powf(gain_db / 20.0) / FULL_SCALE;
        let samples = vec![0; MAX_PACKET_FRAMES * n_channels];
        let frames = Vec::with_capacity(samples.len());
        Some(Self { decoder, n_channels, pre_skip, gain, samples, frames })
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
        // Without data the decoder conceals a loss.
        if packet.is_empty() {
            return Err("expected an Opus packet, got an empty one".to_owned());
        }
        let len =
            i32::try_from(packet.len()).map_err(|_| "expected a packet below 2 GB, got more")?;
        let n_frames = self
            .decoder
            .decode(Some(packet), len, &mut self.samples, MAX_PACKET_FRAMES as i32, false)
            .map_err(|code| format!("expected an Opus packet, got one with error {code}"))?;
        let n_frames = usize::try_from(n_frames)
            .map_err(|_| format!("expected a number of frames, got {n_frames}"))?;
        let n_samples = n_frames * self.n_channels;
        self.frames.clear();
        self.frames.extend(self.samples[..n_samples].iter().map(|&x| f32::from(x) * self.gain));
        Ok(&self.frames)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Noise bursts, 20 ms of CELT at 12 kbit/s by libopus, split into 16 short blocks in a band.
    const SHORT_BLOCKS: [u8; 31] = [
        216, 126, 180, 152, 186, 147, 74, 194, 200, 221, 208, 203, 188, 166, 254, 65, 68, 181, 223,
        48, 147, 57, 68, 95, 57, 195, 237, 82, 76, 236, 179,
    ];
    /// `OpusHead` of one channel.
    const MONO: &[u8] = b"OpusHead\x01\x01\x38\x01\x80\xbb\0\0\0\0\0";

    #[test]
    fn a_packet_of_sixteen_short_blocks_has_the_energy_that_libopus_gives_it() {
        let mut track = OpusTrack::new(MONO, false).unwrap();
        let frames = track.decode(&SHORT_BLOCKS).unwrap();
        let energy: f32 = frames.iter().map(|x| x * x).sum();
        assert_eq!(frames.len(), 960);
        assert!((energy - 6.4606).abs() < 0.01, "{energy}");
    }

    #[test]
    fn an_empty_packet_is_an_error() {
        assert!(OpusTrack::new(MONO, false).unwrap().decode(&[]).is_err());
    }
}
