//! Probabilities to speech segments (faster-whisper 1.2.1 `vad.py`, `get_speech_timestamps`).

use std::ops::Range;

use super::STEP;
use crate::{Error, SAMPLE_RATE};

/// Options of voice activity detection; the defaults are faster-whisper's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VadOptions {
    /// Speech begins at this probability.
    pub threshold: f32,
    /// Speech may end below this one; by default 0.15 below `threshold`, at least 0.01.
    pub neg_threshold: Option<f32>,
    /// Speech segments of this length or less are dropped.
    pub min_speech_ms: u32,
    /// Maximum length of a speech segment; longer ones are split, if possible at a silence of over 98 ms.
    pub max_speech_s: Option<f32>,
    /// Silence that ends a speech segment.
    pub min_silence_ms: u32,
    /// Padding before and after a speech segment; neighbours share a shorter gap.
    pub speech_pad_ms: u32,
}

impl Default for VadOptions {
    fn default() -> Self {
        Self {
            threshold: 0.5,
            neg_threshold: None,
            min_speech_ms: 0,
            max_speech_s: None,
            min_silence_ms: 2000,
            speech_pad_ms: 400,
        }
    }
}

/// Longest duration that an option takes.
const MAX_MS: u32 = 3_600_000;

impl VadOptions {
    /// Checks ranges.
    ///
    /// # Errors
    /// Names the option, the range and the value.
    pub fn validate(&self) -> Result<(), Error> {
        let wrong = |option, expected, got| Err(Error::VadOption { option, expected, got });
        let thresholds =
            [("threshold", Some(self.threshold)), ("neg-threshold", self.neg_threshold)];
        for (option, value) in thresholds {
            if let Some(p) = value.filter(|p| !(0.0..=1.0).contains(p)) {
                return wrong(option, "0 to 1", p.to_string());
            }
        }
        for (option, ms) in [
            ("min-speech-ms", self.min_speech_ms),
            ("min-silence-ms", self.min_silence_ms),
            ("speech-pad-ms", self.speech_pad_ms),
        ] {
            if ms > MAX_MS {
                return wrong(option, "0 to 3600000", ms.to_string());
            }
        }
        // Below this, a segment is nothing but its padding.
        let least =
            2.0 * self.speech_pad_ms as f32 / 1000.0 + 2.0 * STEP as f32 / SAMPLE_RATE as f32;
        if let Some(s) = self.max_speech_s.filter(|s| s.is_nan() || *s < least) {
            return wrong("max-speech-s", "twice the padding and 0.064 s or more", s.to_string());
        }
        Ok(())
    }

    /// Silence that ends a speech segment, in samples.
    #[must_use]
    pub fn min_silence(&self) -> usize {
        samples(self.min_silence_ms)
    }

    /// Padding before and after a speech segment, in samples.
    #[must_use]
    pub fn speech_pad(&self) -> usize {
        samples(self.speech_pad_ms)
    }

    /// Speech may end below this probability.
    pub(super) fn lower_threshold(&self) -> f32 {
        self.neg_threshold.unwrap_or((self.threshold - 0.15).max(0.01))
    }

    /// The speech segments of a recording of `n_samples` whose steps have these `probabilities`,
    /// ascending and disjoint.
    #[must_use]
    pub fn ranges(&self, probabilities: &[f32], n_samples: usize) -> Vec<Range<usize>> {
        let mut ranges = self.unpadded(probabilities, n_samples);
        self.pad(&mut ranges, n_samples);
        ranges
    }

    /// The stretches of a recording of `n_samples` between the speech segments, without their padding.
    pub(super) fn gaps(&self, probabilities: &[f32], n_samples: usize) -> Vec<Range<usize>> {
        let mut gaps = Vec::new();
        let mut end = 0;
        for speech in self.unpadded(probabilities, n_samples) {
            gaps.push(end..speech.start);
            end = speech.end;
        }
        gaps.push(end..n_samples);
        gaps
    }

    /// The speech segments of a recording of `n_samples` before they are padded.
    pub(super) fn unpadded(&self, probabilities: &[f32], n_samples: usize) -> Vec<Range<usize>> {
        let neg_threshold = self.lower_threshold();
        let (min_speech, min_silence) = (samples(self.min_speech_ms), samples(self.min_silence_ms));
        let max_speech = self.max_speech_s.map_or(f64::INFINITY, |s| {
            let pad = 2 * samples(self.speech_pad_ms);
            f64::from(SAMPLE_RATE) * f64::from(s) - (STEP + pad) as f64
        });
        let min_silence_of_split = samples(98);

        let mut ranges = Vec::new();
        // Start of the current segment, start of a silence in it, the last silence that it may be
        // split at, and the start of speech after that.
        let mut start = None;
        let mut silence = None;
        let mut split: Option<usize> = None;
        let mut resumed = None;
        for (i, &probability) in probabilities.iter().enumerate() {
            let at = STEP * i;
            let is_speech = probability >= self.threshold;
            if is_speech {
                if silence.take().is_some() && resumed.is_none_or(|r| split.is_none_or(|s| r < s)) {
                    resumed = Some(at);
                }
                if start.is_none() {
                    start = Some(at);
                    continue;
                }
            }
            if let Some(begin) = start
                && (at - begin) as f64 > max_speech
            {
                let end = split.unwrap_or(at);
                // With the lower threshold above the other one, a segment may begin with the silence that it is split at.
                if begin < end {
                    ranges.push(begin..end);
                }
                let goes_on = split.and_then(|split| resumed.filter(|&r| r >= split));
                let was_split = split.is_some();
                (start, silence, split, resumed) = (goes_on, None, None, None);
                if !was_split {
                    continue;
                }
            }
            if let Some(begin) = start
                && probability < neg_threshold
            {
                let quiet = *silence.get_or_insert(at);
                if at - quiet > min_silence_of_split {
                    split = Some(quiet);
                }
                if at - quiet >= min_silence {
                    if quiet - begin > min_speech {
                        ranges.push(begin..quiet);
                    }
                    (start, silence, split, resumed) = (None, None, None, None);
                }
            }
        }
        if let Some(begin) = start
            && n_samples > begin + min_speech
        {
            ranges.push(begin..n_samples);
        }
        ranges
    }

    fn pad(&self, ranges: &mut [Range<usize>], n_samples: usize) {
        let pad = samples(self.speech_pad_ms);
        if let Some(first) = ranges.first_mut() {
            first.start = first.start.saturating_sub(pad);
        }
        for i in 1..ranges.len() {
            let gap = ranges[i].start - ranges[i - 1].end;
            if gap < 2 * pad {
                ranges[i - 1].end += gap / 2;
                ranges[i].start -= gap / 2;
            } else {
                ranges[i - 1].end = (ranges[i - 1].end + pad).min(n_samples);
                ranges[i].start -= pad;
            }
        }
        if let Some(last) = ranges.last_mut() {
            last.end = (last.end + pad).min(n_samples);
        }
    }
}

pub(super) fn samples(ms: u32) -> usize {
    ms as usize * SAMPLE_RATE as usize / 1000
}
