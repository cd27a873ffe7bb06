//! Any sample rate to 16 kHz, streaming, without a shift in time.

use std::fmt;

use rubato::audioadapter_buffers::direct::InterleavedSlice;
use rubato::{Fft, FixedSync, Resampler as _};

use crate::{Error, SAMPLE_RATE};

const MIN_RATE: u32 = 1000;
const MAX_RATE: u32 = 768_000;

/// Output samples per transform: long enough for a filter that is flat to 7.5 kHz.
const BLOCK_OUT: u32 = 1024;

/// Streaming resampler of one mono signal to 16 kHz.
///
/// The filter's delay is removed and the end is flushed, so that `n` samples at `rate` give
/// `round(n * 16000 / rate)` samples and output `k` lies at time `k / 16000`. How the input is cut
/// into pushes does not change the output.
///
/// Filter: rubato's FFT resampler (overlap-add of whole blocks, Blackman-Harris² window).
pub struct Resampler {
    from_hz: u32,
    /// `None` at 16 kHz.
    fft: Option<Fft<f32>>,
    pending: Vec<f32>,
    block: Vec<f32>,
    delay_left: usize,
    n_in: u64,
    n_out: u64,
}

impl fmt::Debug for Resampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resampler").field("from_hz", &self.from_hz).finish_non_exhaustive()
    }
}

impl Resampler {
    /// A resampler from `from_hz` to 16 kHz.
    ///
    /// # Errors
    /// [`Error::SampleRate`] outside 1000 to 768000 Hz.
    pub fn new(from_hz: u32) -> Result<Self, Error> {
        if !(MIN_RATE..=MAX_RATE).contains(&from_hz) {
            return Err(Error::SampleRate { got: from_hz });
        }
        let fft = if from_hz == SAMPLE_RATE {
            None
        } else {
            let made = Fft::new(
                from_hz as usize,
                SAMPLE_RATE as usize,
                block_frames(from_hz),
                1,
                FixedSync::Both,
            );
            Some(made.map_err(|_| Error::SampleRate { got: from_hz })?)
        };
        let delay_left = fft.as_ref().map_or(0, |fft| fft.output_delay());
        let block = vec![0.0; fft.as_ref().map_or(0, |fft| fft.output_frames_max())];
        Ok(Self { from_hz, fft, pending: Vec::new(), block, delay_left, n_in: 0, n_out: 0 })
    }

    /// Takes `samples` at the source rate and appends the finished output blocks to `out`.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        self.n_in += samples.len() as u64;
        let Some(fft) = &mut self.fft else {
            out.extend_from_slice(samples);
            return;
        };
        self.pending.extend_from_slice(samples);
        let n = fft.input_frames_next();
        let n_whole = self.pending.len() / n * n;
        for block_in in self.pending[..n_whole].chunks_exact(n) {
            let Some(written) = run_block(fft, block_in, &mut self.block) else { continue };
            let skip = self.delay_left.min(written);
            self.delay_left -= skip;
            out.extend_from_slice(&self.block[skip..written]);
            self.n_out += (written - skip) as u64;
        }
        self.pending.drain(..n_whole);
    }

    /// Appends the rest: `round(n * 16000 / rate)` samples in total.
    pub fn finish(mut self, out: &mut Vec<f32>) {
        let Some(fft) = &self.fft else { return };
        let block_in = fft.input_frames_next();
        let rate = u64::from(self.from_hz);
        let wanted = (self.n_in * u64::from(SAMPLE_RATE) + rate / 2) / rate;
        while self.n_out < wanted {
            let zeros = vec![0.0; block_in];
            let before = self.n_out;
            let delay_before = self.delay_left;
            self.push(&zeros, out);
            if self.n_out == before && self.delay_left == delay_before {
                break;
            }
        }
        let surplus = self.n_out.saturating_sub(wanted) as usize;
        out.truncate(out.len().saturating_sub(surplus));
    }
}

/// Input samples per transform. An even number: the filter's centre is then a whole sample, as
/// the output delay assumes (an odd length is half a sample off).
fn block_frames(from_hz: u32) -> usize {
    let gcd = greatest_common_divisor(from_hz, SAMPLE_RATE);
    let (least_in, least_out) = (from_hz / gcd, SAMPLE_RATE / gcd);
    let n_units = BLOCK_OUT.div_ceil(least_out);
    let n_units = if least_in % 2 == 1 { n_units.next_multiple_of(2) } else { n_units };
    (n_units * least_in) as usize
}

fn greatest_common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// Transforms one block. The sizes are those of the plan, so that it cannot fail.
fn run_block(fft: &mut Fft<f32>, block_in: &[f32], block_out: &mut [f32]) -> Option<usize> {
    let n_out = block_out.len();
    let input = InterleavedSlice::new(block_in, 1, block_in.len()).ok()?;
    let mut output = InterleavedSlice::new_mut(block_out, 1, n_out).ok()?;
    let (_, written) = fft.process_into_buffer(&input, &mut output, None).ok()?;
    Some(written)
}

/// One-shot form of [`Resampler`].
///
/// # Errors
/// As [`Resampler::new`].
pub fn resample(samples: &[f32], from_hz: u32) -> Result<Vec<f32>, Error> {
    let mut resampler = Resampler::new(from_hz)?;
    let mut out = Vec::with_capacity(
        (samples.len() as u64 * u64::from(SAMPLE_RATE) / u64::from(from_hz)) as usize + 1,
    );
    resampler.push(samples, &mut out);
    resampler.finish(&mut out);
    Ok(out)
}

#[cfg(test)]
mod tests;
