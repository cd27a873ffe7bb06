//! Speech of a window that its text leaves out. Where only speech is transcribed, a stretch of audio with little or no text is
//! one whose words the model lost: it ends some windows after a sentence, or gives a few words all of the time.
//!
//! ```text
//! window   |──text──|──text──|─────── few words ──────|    next window starts at the second bar
//! window   |───────────── few words ──────────────────|    decoded again in two parts, cut in a pause
//! ```

use super::{Chunk, WindowSegments};
use crate::times::frames;
use crate::{HOP_LENGTH, SAMPLE_RATE, chunking};

/// Bytes of text in a second of slow speech; a language with more bytes a character has fewer characters a second.
const BYTES_PER_SECOND: f64 = 5.0;
/// Seconds that may pass without text, such as a pause that is too short to be cut out.
const MAX_SECONDS: f64 = 3.0;
/// Least seconds between the starts of two windows.
const MIN_ADVANCE: f64 = 1.0;
/// A shorter window is not cut.
const MIN_CUT_FRAMES: usize = 800;

impl Chunk {
    /// Checks the segments of the current window for speech without text. Returns those before it, and the next window starts
    /// there; `None` if the window was cut and is to be decoded again.
    pub(crate) fn hear_all(
        &mut self,
        mut new: WindowSegments,
        samples: &[f32],
    ) -> Option<WindowSegments> {
        if !self.is_speech {
            return Some(new);
        }
        let Some((index, start)) = first_unheard(&new, self.window_start_seconds()) else {
            return Some(new);
        };
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

/// Index of the first segment with too little text for its time, or the number of segments if the time after them is it; with the
/// end of the segment before, in seconds of the window that starts at `offset`.
fn first_unheard(new: &WindowSegments, offset: f64) -> Option<(usize, f64)> {
    let window_end = (new.advance * HOP_LENGTH) as f64 / SAMPLE_RATE as f64;
    let spans = new.segments.iter().map(|s| (s.end - offset, s.text.trim().len()));
    let mut spans: Vec<_> = spans.collect();
    spans.push((window_end, 0));
    let mut start = 0.0;
    for (index, (end, n_bytes)) in spans.into_iter().enumerate() {
        if end - start - n_bytes as f64 / BYTES_PER_SECOND > MAX_SECONDS {
            return Some((index, start));
        }
        start = end.max(start);
    }
    None
}
