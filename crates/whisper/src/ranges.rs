//! Which stretches of a recording become windows, in samples.

use std::ops::Range;

use stonechat_audio::Vad;

use crate::times::samples;
use crate::{Error, Options, SAMPLE_RATE, VadMode, WINDOW_SAMPLES};

/// A recording is cut where it is quietest, so far from where the piece would end at most.
const MARGIN_SAMPLES: usize = 3 * SAMPLE_RATE;
/// Length of what is compared to find that place: longer than the stop of a consonant.
const QUIET_SAMPLES: usize = SAMPLE_RATE / 5;
/// Longest piece. Each costs about half a window at its end, and text appears when the pieces before
/// it are done.
const MAX_PIECE_SAMPLES: usize = 300 * SAMPLE_RATE;

impl Options {
    /// The stretches of 16 kHz samples that hold speech, where only speech is to be heard; `None` where
    /// everything is, and where the clips are given.
    ///
    /// # Errors
    /// If an option is out of its range.
    pub fn find_speech(&self, samples: &[f32]) -> Result<Option<Vec<Range<usize>>>, Error> {
        let leaves_out = match self.vad {
            VadMode::Off => false,
            VadMode::On => true,
            VadMode::Auto => samples.len() > WINDOW_SAMPLES,
        };
        if !leaves_out || !self.clip_timestamps.is_empty() {
            return Ok(None);
        }
        Ok(Some(Vad::new()?.detect(samples, &self.vad_options)?))
    }

    /// The stretches of a recording of `n_samples` that the clips name.
    pub(crate) fn clips(&self, n_samples: usize) -> Vec<Range<usize>> {
        let at = |seconds: f64| samples(seconds).min(n_samples);
        let clip = |times: &[f64]| at(times[0])..times.get(1).map_or(n_samples, |&end| at(end));
        let clips = self.clip_timestamps.chunks(2).map(clip);
        clips.filter(|clip| !clip.is_empty()).collect()
    }
}

/// `samples` in pieces of about one length, for `batch_size` of them side by side: each holds a window
/// or more, and their number leaves no place empty.
pub(crate) fn cut(samples: &[f32], batch_size: usize) -> Vec<Range<usize>> {
    let len = samples.len();
    let n_pieces = if len <= batch_size * WINDOW_SAMPLES {
        len.div_ceil(WINDOW_SAMPLES)
    } else {
        len.div_ceil(MAX_PIECE_SAMPLES).next_multiple_of(batch_size)
    };
    into_pieces(samples, n_pieces)
}

/// Stretches of `samples`, of which those longer than a window are cut as [`cut`] does, so that each of
/// `batch_size` places has as much to do.
pub(crate) fn cut_each(
    samples: &[f32],
    ranges: Vec<Range<usize>>,
    batch_size: usize,
) -> Vec<Range<usize>> {
    let total: usize = ranges.iter().map(Range::len).sum();
    let len = total.div_ceil(batch_size).clamp(WINDOW_SAMPLES, MAX_PIECE_SAMPLES);
    let pieces = |range: Range<usize>| {
        let pieces = into_pieces(&samples[range.clone()], range.len().div_ceil(len));
        pieces.into_iter().map(move |piece| range.start + piece.start..range.start + piece.end)
    };
    ranges.into_iter().flat_map(pieces).collect()
}

/// `n_pieces` of about one length.
fn into_pieces(samples: &[f32], n_pieces: usize) -> Vec<Range<usize>> {
    let len = samples.len();
    let mut pieces = Vec::with_capacity(n_pieces);
    let mut start = 0;
    for i in 1..=n_pieces {
        // Products of a recording's samples and pieces are far below 2^64.
        let end = (len as u64 * i as u64 / n_pieces as u64) as usize;
        let end = if i == n_pieces { end } else { quietest(samples, end) };
        pieces.push(start..end);
        start = end;
    }
    pieces
}

/// The middle of the quietest stretch around `at`.
fn quietest(samples: &[f32], at: usize) -> usize {
    let energy = |at: usize| samples[at..at + QUIET_SAMPLES].iter().map(|s| s * s).sum::<f32>();
    let first = at.saturating_sub(MARGIN_SAMPLES);
    let last = (at + MARGIN_SAMPLES).min(samples.len()) - QUIET_SAMPLES;
    let places = (first..=last).step_by(QUIET_SAMPLES / 2);
    let quietest = places.min_by(|&a, &b| energy(a).total_cmp(&energy(b)));
    quietest.map_or(at, |place| place + QUIET_SAMPLES / 2)
}

/// Neighbours of `ranges` joined, with the gaps between them, as long as they fit a window.
///
/// # Errors
/// If the ranges overlap, are out of order, empty or not of `n_samples` samples.
pub(crate) fn pack(ranges: &[Range<usize>], n_samples: usize) -> Result<Vec<Range<usize>>, Error> {
    let mut packed: Vec<Range<usize>> = Vec::new();
    let mut done = 0;
    for range in ranges {
        if range.start < done || range.is_empty() || range.end > n_samples {
            return Err(Error::Option {
                option: "ranges",
                expected: "ascending stretches of the recording",
                got: format!("{range:?} after {done}, of {n_samples} samples"),
            });
        }
        done = range.end;
        match packed.last_mut() {
            Some(last) if range.end - last.start <= WINDOW_SAMPLES => last.end = range.end,
            _ => packed.push(range.clone()),
        }
    }
    Ok(packed)
}

#[cfg(test)]
mod tests {
    use super::{cut, cut_each, pack};
    use crate::{Options, SAMPLE_RATE, WINDOW_SAMPLES};

    #[test]
    fn long_stretches_are_shared_out() {
        const S: usize = SAMPLE_RATE;
        let samples = vec![0.1f32; 500 * S];
        let ranges = vec![0..10 * S, 20 * S..320 * S, 330 * S..420 * S];
        let pieces = cut_each(&samples, ranges.clone(), 4);
        assert_eq!(pieces.len(), 1 + 3 + 1);
        let total =
            |ranges: &[std::ops::Range<usize>]| ranges.iter().map(|r| r.len()).sum::<usize>();
        assert_eq!(total(&pieces), total(&ranges));
        assert!(pieces.windows(2).all(|pair| pair[0].end <= pair[1].start));
        assert_eq!(cut_each(&samples, ranges, 1).len(), 1 + 1 + 1);
        // A remainder is no piece of its own.
        #[expect(clippy::single_range_in_vec_init, reason = "one stretch is a case")]
        let uneven = vec![0..401 * S + 1];
        assert_eq!(cut_each(&samples, uneven, 4).len(), 4);
    }

    #[test]
    fn cuts_are_made_in_pauses() {
        const S: usize = SAMPLE_RATE;
        let mut samples = vec![0.1f32; 60 * S];
        for (from, to) in [(20 * S, 22 * S), (28 * S, 29 * S), (31 * S, 31 * S + S / 10)] {
            samples[from..to].fill(0.0);
        }
        let [first, second] = &cut(&samples, 4)[..] else { panic!("two windows") };
        assert!((28 * S..29 * S).contains(&first.end), "{first:?}");
        assert_eq!((first.start, second), (0, &(first.end..60 * S)));
    }

    #[test]
    fn pieces_cover_the_recording_and_fill_the_batch() {
        for (seconds, batch_size, n_pieces) in [
            (0, 4, 0),
            (1, 4, 1),
            (30, 4, 1),
            (31, 4, 2),
            (120, 4, 4),
            (1000, 4, 4),
            (1201, 4, 8),
            (100, 1, 1),
            (601, 1, 3),
        ] {
            let samples = vec![0.0; seconds * SAMPLE_RATE];
            let pieces = cut(&samples, batch_size);
            assert_eq!(pieces.len(), n_pieces, "{seconds} s in {batch_size}");
            assert!(pieces.iter().all(|p| !p.is_empty()));
            assert!(pieces.windows(2).all(|w| w[0].end == w[1].start));
            let ends = pieces.first().zip(pieces.last()).map(|(a, b)| a.start..b.end);
            assert_eq!(ends, (seconds > 0).then_some(0..samples.len()));
        }
    }

    #[test]
    fn neighbours_share_a_window() {
        const W: usize = WINDOW_SAMPLES;
        #[expect(clippy::single_range_in_vec_init, reason = "one range is a case")]
        let joined = [10..W + 10];
        assert_eq!(pack(&[10..20, 30..W, W + 2..W + 10], 3 * W).unwrap(), joined);
        assert_eq!(pack(&[0..20, 30..W + 1], 3 * W).unwrap(), [0..20, 30..W + 1]);
        assert_eq!(pack(&[0..2 * W, 2 * W..3 * W], 3 * W).unwrap(), [0..2 * W, 2 * W..3 * W]);
        assert!(pack(&[], 0).unwrap().is_empty());
        for wrong in [[0..5, 5..11], [1..2, 5..5], [4..8, 7..9], [6..9, 1..3]] {
            assert!(pack(&wrong, 10).is_err(), "{wrong:?}");
        }
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "one clip is a case")]
    fn clips_are_cut_to_the_recording() {
        let clips = |times: &[f64], n_samples| {
            let options = Options { clip_timestamps: times.to_vec(), ..Options::default() };
            options.clips(n_samples)
        };
        assert_eq!(clips(&[0.5, 1.0, 2.0], 48_000), [8000..16_000, 32_000..48_000]);
        assert_eq!(clips(&[0.5, 9.0, 10.0, 11.0], 48_000), [8000..48_000]);
        assert!(clips(&[3.0], 48_000).is_empty());
    }
}
