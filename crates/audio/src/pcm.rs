//! Raw PCM in buffers of any length to 16 kHz mono samples.

use crate::resample::Resampler;
use crate::{Error, SAMPLE_RATE};

/// Maximum interleaved channels.
const MAX_CHANNELS: usize = 64;

/// Sample formats, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PcmFormat {
    /// Unsigned 8 bits.
    U8,
    /// Signed 16 bits.
    S16,
    /// Signed 24 bits.
    S24,
    /// Signed 32 bits.
    S32,
    /// Floats from -1 to 1.
    F32,
    /// Floats of 64 bits from -1 to 1.
    F64,
    /// ITU-T G.711 A-law.
    ALaw,
    /// ITU-T G.711 µ-law.
    MuLaw,
}

impl PcmFormat {
    /// Bytes per sample.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 | Self::ALaw | Self::MuLaw => 1,
            Self::S16 => 2,
            Self::S24 => 3,
            Self::S32 | Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// Appends whole samples as f32; integers are divided by 2^(bits - 1).
    pub fn append(self, bytes: &[u8], out: &mut Vec<f32>) {
        fn extend<const N: usize>(
            out: &mut Vec<f32>,
            bytes: &[u8],
            sample: impl Fn([u8; N]) -> f32,
        ) {
            out.extend(bytes.as_chunks::<N>().0.iter().map(|&bytes| sample(bytes)));
        }
        match self {
            Self::U8 => extend(out, bytes, |[b]| (f32::from(b) - 128.0) / 128.0),
            Self::S16 => extend(out, bytes, |b| f32::from(i16::from_le_bytes(b)) / 32_768.0),
            Self::S24 => extend(out, bytes, |[low, middle, high]| {
                i32::from_le_bytes([0, low, middle, high]) as f32 / 2_147_483_648.0
            }),
            Self::S32 => {
                extend(out, bytes, |b| i32::from_le_bytes(b) as f32 / 2_147_483_648.0);
            }
            Self::F32 => extend(out, bytes, f32::from_le_bytes),
            Self::F64 => extend(out, bytes, |b| f64::from_le_bytes(b) as f32),
            Self::ALaw => extend(out, bytes, |[b]| f32::from(a_law(b)) / 32_768.0),
            Self::MuLaw => extend(out, bytes, |[b]| f32::from(mu_law(b)) / 32_768.0),
        }
    }
}

/// ITU-T G.711 A-law to 16 bits.
fn a_law(code: u8) -> i16 {
    let code = code ^ 0x55;
    let exponent = (code >> 4) & 7;
    let mantissa = i16::from(code & 0x0F) << 4;
    let magnitude = match exponent {
        0 => mantissa + 8,
        _ => (mantissa + 0x108) << (exponent - 1),
    };
    if code & 0x80 != 0 { magnitude } else { -magnitude }
}

/// ITU-T G.711 µ-law to 16 bits.
fn mu_law(code: u8) -> i16 {
    let code = !code;
    let exponent = (code >> 4) & 7;
    let magnitude = (((i16::from(code & 0x0F) << 3) + 0x84) << exponent) - 0x84;
    if code & 0x80 != 0 { -magnitude } else { magnitude }
}

/// Streaming converter of interleaved PCM: the mean of the channels, resampled to 16 kHz.
#[derive(Debug)]
pub struct PcmStream {
    format: PcmFormat,
    n_channels: usize,
    rate: u32,
    resampler: Resampler,
    /// Incomplete frame.
    partial: Vec<u8>,
    values: Vec<f32>,
}

impl PcmStream {
    /// Makes a converter from `rate` Hz and 1 to 64 channels.
    ///
    /// # Errors
    /// [`Error::SampleRate`] or [`Error::Channels`].
    pub fn new(format: PcmFormat, rate: u32, n_channels: usize) -> Result<Self, Error> {
        if !(1..=MAX_CHANNELS).contains(&n_channels) {
            return Err(Error::Channels { got: n_channels });
        }
        let resampler = Resampler::new(rate)?;
        Ok(Self { format, n_channels, rate, resampler, partial: Vec::new(), values: Vec::new() })
    }

    /// Bytes of a frame, a sample of each channel.
    #[must_use]
    pub fn frame_bytes(&self) -> usize {
        self.format.bytes() * self.n_channels
    }

    /// 16 kHz samples of `n_bytes` bytes, rounded up.
    #[must_use]
    pub fn n_samples(&self, n_bytes: usize) -> u64 {
        let n_frames = n_bytes.div_ceil(self.frame_bytes()) as u64;
        (n_frames * u64::from(SAMPLE_RATE)).div_ceil(u64::from(self.rate))
    }

    /// Converts `bytes` and appends the samples to `out`. The end of a frame may follow in the next buffer.
    ///
    /// # Errors
    /// [`Error::NotFinite`]: the bytes are of another format.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<f32>) -> Result<(), Error> {
        self.partial.extend_from_slice(bytes);
        let n_whole = self.partial.len() / self.frame_bytes() * self.frame_bytes();
        self.values.clear();
        self.format.append(&self.partial[..n_whole], &mut self.values);
        self.partial.drain(..n_whole);
        if self.n_channels > 1 {
            let n_frames = self.values.len() / self.n_channels;
            for frame in 0..n_frames {
                let channels = &self.values[frame * self.n_channels..][..self.n_channels];
                self.values[frame] = channels.iter().sum::<f32>() / self.n_channels as f32;
            }
            self.values.truncate(n_frames);
        }
        if let Some(&got) = self.values.iter().find(|value| !value.is_finite()) {
            return Err(Error::NotFinite { got });
        }
        self.resampler.push(&self.values, out);
        Ok(())
    }

    /// Appends the last samples; returns the number of bytes of an incomplete frame.
    pub fn finish(self, out: &mut Vec<f32>) -> usize {
        self.resampler.finish(out);
        self.partial.len()
    }
}

#[cfg(test)]
mod tests {
    use super::{PcmFormat, PcmStream};

    #[track_caller]
    fn check(format: PcmFormat, n_channels: usize, bytes: &[u8], expected: &[f32], n_left: usize) {
        for n_bytes in 1..=bytes.len().max(1) {
            let mut pcm = PcmStream::new(format, 16_000, n_channels).unwrap();
            let mut samples = Vec::new();
            for bytes in bytes.chunks(n_bytes) {
                pcm.push(bytes, &mut samples).unwrap();
            }
            assert_eq!(pcm.finish(&mut samples), n_left);
            assert_eq!(samples, expected, "in buffers of {n_bytes}");
        }
    }

    #[test]
    fn samples_are_read_wherever_the_bytes_are_cut() {
        let bytes = [0, 64, 0, 192, 255, 127, 1];
        check(PcmFormat::S16, 1, &bytes, &[0.5, -0.5, 32767.0 / 32768.0], 1);
        check(PcmFormat::S16, 2, &bytes, &[0.0], 3);
        check(PcmFormat::U8, 1, &[128, 0, 192], &[0.0, -1.0, 0.5], 0);
        check(PcmFormat::S24, 1, &[0, 0, 64, 9], &[0.5], 1);
        check(PcmFormat::S32, 1, &[0, 0, 0, 192], &[-0.5], 0);
        let floats: Vec<u8> = [0.25f32, -1.0, 0.5].iter().flat_map(|x| x.to_le_bytes()).collect();
        check(PcmFormat::F32, 1, &floats, &[0.25, -1.0, 0.5], 0);
        check(PcmFormat::F32, 3, &floats, &[-0.25 / 3.0], 0);
        check(PcmFormat::F32, 1, &[], &[], 0);
    }

    #[test]
    fn companded_samples_are_those_of_g711() {
        // Silence, and the largest value of either sign.
        check(PcmFormat::MuLaw, 1, &[0xff, 0x80, 0x00], &[0.0, 0.980_346_7, -0.980_346_7], 0);
        check(PcmFormat::ALaw, 1, &[0xd5, 0xaa, 0x2a], &[8.0 / 32_768.0, 0.984_375, -0.984_375], 0);
    }

    #[test]
    fn other_rates_are_resampled() {
        let mut pcm = PcmStream::new(PcmFormat::S16, 48_000, 1).unwrap();
        assert_eq!((pcm.n_samples(96_000), pcm.n_samples(1)), (16_000, 1));
        let mut samples = Vec::new();
        pcm.push(&[0; 96_000], &mut samples).unwrap();
        assert_eq!(pcm.finish(&mut samples), 0);
        assert_eq!(samples.len(), 16_000);
    }

    #[test]
    fn invalid_pcm_is_refused() {
        assert!(PcmStream::new(PcmFormat::S16, 0, 1).is_err());
        for n_channels in [0, 65] {
            let error = PcmStream::new(PcmFormat::S16, 16_000, n_channels).unwrap_err();
            assert!(error.to_string().contains("expected 1 to 64 channels"), "{error}");
        }
        let mut pcm = PcmStream::new(PcmFormat::F32, 16_000, 1).unwrap();
        let error = pcm.push(&f32::NAN.to_le_bytes(), &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "expected finite samples, got NaN");
    }
}
