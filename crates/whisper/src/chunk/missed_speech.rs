//! Speech of a window that is missing in its text. Where only speech is transcribed, the model missed the words of a range with
//! little or no text: it ends some windows after a sentence, or gives a few words the time of all.
//!
//! ```text
//! window   |──text──|──text──|─────── few words ──────|    next window starts at the second bar
//! window   |───────────── few words ──────────────────|    decoded again in two parts, cut in a pause
//! ```

use std::cell::LazyCell;

use stonechat_audio::vad::STEP;

use super::{Chunk, WindowSegments};
use crate::times::{frames, samples, seconds};
use crate::{HOP_LENGTH, SAMPLE_RATE, chunking};

/// Bytes of text in a second of slow speech, without its pauses: 11.3 or more in 138 of 140 clips of 15 languages. A language with
/// more bytes per character has fewer characters per second.
const BYTES_PER_SECOND: f64 = 11.0;
/// Bytes of a digit as it is spoken.
const DIGIT_BYTES: usize = 5;
/// Maximum seconds of speech without text: timestamps of segments are not more exact.
const MAX_SECONDS: f64 = 2.0;
/// Minimum seconds between the starts of two windows.
const MIN_ADVANCE: f64 = 1.0;
/// A shorter window is not cut.
const MIN_CUT_FRAMES: usize = 800;

impl Chunk {
    /// Checks the segments of the current window for speech without text. Returns those before it, and the next window starts
    /// there; `None` if the window was cut and is to be decoded again. `is_speech` tells of each [`STEP`] of some samples
    /// whether it is speech.
    pub(crate) fn split_at_missed_speech(
        &mut self,
        mut new: WindowSegments,
        samples: &[f32],
        is_speech: impl FnOnce(&[f32]) -> Vec<bool>,
    ) -> Option<WindowSegments> {
        if !self.is_speech {
            return Some(new);
        }
        let window = self.window_start()..self.window_start() + self.window_frames() * HOP_LENGTH;
        let window = &samples[window.start..window.end.min(self.range.end)];
        let is_speech = LazyCell::new(|| is_speech(window));
        let missed = first_missed(&new, self.window_start_seconds(), |start, end| {
            let steps = |time: f64| (self::samples(time) / STEP).min(is_speech.len());
            let n_steps = is_speech[steps(start)..steps(end)].iter().filter(|&&is| is).count();
            seconds(n_steps * STEP)
        });
        let Some((index, start)) = missed else { return Some(new) };
        let n_frames = self.window_frames();
        if start >= MIN_ADVANCE {
            new.segments.truncate(index);
            (new.advance, new.is_open) = (frames(start), true);
        } else if n_frames >= MIN_CUT_FRAMES {
            let at = |frame: usize| self.range.start + (self.seek + frame) * HOP_LENGTH;
            let middle = at(n_frames / 3)..at(2 * n_frames / 3);
            let cut = chunking::quietest(samples, middle) - self.range.start;
            tracing::debug!(start_s = self.window_start_seconds(), "window cut");
            self.cuts.push(cut / HOP_LENGTH);
            return None;
        }
        Some(new)
    }
}

/// Index of the first segment with too little text for its speech, or the number of segments if the time after them is it; with
/// the end of the segment before, in seconds of the window that starts at `offset`. `speech_seconds` are those between two times
/// of the window.
fn first_missed(
    new: &WindowSegments,
    offset: f64,
    speech_seconds: impl Fn(f64, f64) -> f64,
) -> Option<(usize, f64)> {
    let window_end = (new.advance * HOP_LENGTH) as f64 / SAMPLE_RATE as f64;
    let spans = new.segments.iter().map(|s| (s.end - offset, spoken_bytes(&s.text)));
    let mut spans: Vec<_> = spans.collect();
    spans.push((window_end, 0));
    let mut start = 0.0;
    for (index, (end, n_bytes)) in spans.into_iter().enumerate() {
        let max_seconds = n_bytes as f64 / BYTES_PER_SECOND + MAX_SECONDS;
        if end - start > max_seconds && speech_seconds(start, end) > max_seconds {
            return Some((index, start));
        }
        start = end.max(start);
    }
    None
}

/// Bytes of a text with its digits spelled out.
fn spoken_bytes(text: &str) -> usize {
    let bytes = |c: char| if c.is_numeric() { DIGIT_BYTES.max(c.len_utf8()) } else { c.len_utf8() };
    text.trim().chars().map(bytes).sum()
}
