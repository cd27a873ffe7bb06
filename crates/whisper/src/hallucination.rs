//! Hallucinated text between silences, recognised by improbable, short or long words.
//!
//! Source: openai/whisper 20250625 `transcribe.py`, `hallucination_silence_threshold`.

use crate::times::{frames, seconds};
use crate::transcript::{Segment, Word};
use crate::{HOP_LENGTH, WINDOW_FRAMES};

/// Punctuation that does not count as a word.
const PUNCTUATION: &str = "\"'“¿([{-\"'.。,，!！?？:：”)]}、";
/// First words of a segment that are scored.
const MAX_WORDS: usize = 8;

/// Window that segments were decoded from; times in seconds, frames of 10 ms.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// Start of the window.
    pub(crate) offset: f64,
    /// Frames without padding.
    pub(crate) n_frames: usize,
    /// Frames from its start to the end of the chunk.
    pub(crate) n_left: usize,
    /// End of the last speech before the window.
    pub(crate) last_speech: f64,
}

/// Removes the first hallucinated segment with more than `threshold` seconds of silence around it, and
/// all segments after it. Returns the frames to advance by; `None` if nothing was removed.
pub(crate) fn remove(segments: &mut Vec<Segment>, window: Window, threshold: f64) -> Option<usize> {
    let offset = window.offset;
    let window_end = offset + seconds(WINDOW_FRAMES * HOP_LENGTH);
    let content_end = offset + seconds(window.n_left * HOP_LENGTH);
    // Silence before a hallucinated first segment is skipped, and the rest decoded again.
    let first = segments.iter().find(|segment| !words(segment).is_empty())?;
    let gap = first.start - offset;
    if is_anomalous(first) && gap > threshold {
        segments.clear();
        return Some(frames(gap).max(1));
    }
    let mut last_end = window.last_speech;
    for i in 0..segments.len() {
        let segment = &segments[i];
        if words(segment).is_empty() {
            continue;
        }
        if is_anomalous(segment) {
            let next = segments[i + 1..].iter().find(|segment| !words(segment).is_empty());
            let next_start = next.map_or(offset + seconds(window.n_frames * HOP_LENGTH), |next| {
                words(next)[0].start
            });
            let silence_before = segment.start - last_end > threshold
                || segment.start < threshold
                || segment.start - offset < 2.0;
            let silence_after = next_start - segment.end > threshold
                || next.is_some_and(is_anomalous)
                || window_end - segment.end < 2.0;
            if silence_before && silence_after {
                let advance = if content_end - segment.end < threshold {
                    window.n_left
                } else {
                    frames((segment.start - offset).max(1.0))
                };
                segments.truncate(i);
                return Some(advance);
            }
        }
        last_end = segment.end;
    }
    None
}

/// Whether the first words have a total anomaly score of 3 or more, or about 1 per word.
fn is_anomalous(segment: &Segment) -> bool {
    let spoken = words(segment).iter().filter(|word| !PUNCTUATION.contains(word.word.as_str()));
    let scores: Vec<f64> = spoken.take(MAX_WORDS).map(anomaly).collect();
    let score: f64 = scores.iter().sum();
    !words(segment).is_empty() && (score >= 3.0 || score + 0.01 >= scores.len() as f64)
}

/// Anomaly score of a word (openai/whisper `word_anomaly_score`).
fn anomaly(word: &Word) -> f64 {
    let duration = word.end - word.start;
    let improbable = if word.probability < 0.15 { 1.0 } else { 0.0 };
    let short = if duration < 0.133 { (0.133 - duration) * 15.0 } else { 0.0 };
    improbable + short + (duration - 2.0).max(0.0)
}

fn words(segment: &Segment) -> &[Word] {
    segment.words.as_deref().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{Window, remove};
    use crate::transcript::{Segment, Word};

    const WINDOW: Window = Window { offset: 10.0, n_frames: 3000, n_left: 9000, last_speech: 9.9 };

    /// Consecutive words from `start` on, each with its length and probability.
    fn segment(start: f64, lengths: &[(f64, f64)]) -> Segment {
        let mut end = start;
        let mut words = Vec::new();
        for &(length, probability) in lengths {
            let start = end;
            end += length;
            words.push(Word { word: " word".to_owned(), start, end, probability });
        }
        Segment { start, end, words: Some(words), ..Segment::default() }
    }

    fn speech(start: f64) -> Segment {
        segment(start, &[(0.3, 0.9); 5])
    }

    fn hallucinated(start: f64) -> Segment {
        segment(start, &[(0.02, 0.05); 4])
    }

    #[track_caller]
    fn check(segments: &[Segment], threshold: f64, kept: usize, advance: Option<usize>) {
        let mut segments = segments.to_vec();
        assert_eq!(remove(&mut segments, WINDOW, threshold), advance);
        assert_eq!(segments.len(), kept);
    }

    #[test]
    fn speech_stays() {
        check(&[], 2.0, 0, None);
        check(&[speech(10.5), speech(20.0)], 2.0, 2, None);
        check(&[speech(15.0)], 2.0, 1, None);
    }

    #[test]
    fn silence_before_a_hallucinated_first_segment_is_skipped() {
        check(&[hallucinated(16.0), speech(20.0)], 2.0, 0, Some(600));
    }

    #[test]
    fn hallucinations_between_silences_are_removed_with_what_follows() {
        check(&[speech(10.5), hallucinated(20.0), speech(30.0)], 2.0, 1, Some(1000));
        // Without silence after it, it may be a mumble.
        check(&[speech(10.5), hallucinated(20.0), speech(20.2)], 2.0, 3, None);
        // Two in a row.
        check(&[speech(10.5), hallucinated(20.0), hallucinated(20.2)], 2.0, 1, Some(1000));
    }

    #[test]
    fn near_the_end_the_rest_is_skipped() {
        let window = Window { n_left: 1100, ..WINDOW };
        let mut segments = vec![speech(10.5), hallucinated(20.0)];
        assert_eq!(remove(&mut segments, window, 2.0), Some(1100));
    }
}
