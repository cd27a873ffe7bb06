//! Which stretches of a recording become windows, in samples.

use std::ops::Range;

use stonechat_audio::Vad;

use crate::times::samples;
use crate::{Error, Options, SAMPLE_RATE, VadMode, WINDOW_SAMPLES};

/// A recording is cut where it is quietest, so far from where the piece would end at most.
const MARGIN_SAMPLES: usize = 3 * SAMPLE_RATE;
/// How far a window gets that leaves room for that.
const STEP_SAMPLES: usize = WINDOW_SAMPLES - MARGIN_SAMPLES;
/// Most windows of a piece. The first of them does not know what was said before it, which costs words;
/// long pieces give the text of a long recording late.
const MAX_WINDOWS: usize = 4;
/// Length of what is compared to find that place: a pause between sentences rather than words.
const QUIET_SAMPLES: usize = SAMPLE_RATE / 2;

impl Options {
    /// The stretches of 16 kHz samples that hold speech, where only speech is to be heard; `None` where
    /// everything is, and where the clips are given. `n_threads` look for it; 0 means one a physical core.
    ///
    /// # Errors
    /// If an option is out of its range or threads cannot be started.
    pub fn find_speech(
        &self,
        samples: &[f32],
        n_threads: usize,
    ) -> Result<Option<Vec<Range<usize>>>, Error> {
        let leaves_out = match self.vad {
            VadMode::Off => false,
            VadMode::On => true,
            VadMode::Auto => samples.len() > WINDOW_SAMPLES,
        };
        if !leaves_out || !self.clip_timestamps.is_empty() {
            return Ok(None);
        }
        Ok(Some(Vad::with_threads(n_threads)?.detect(samples, &self.vad_options)?))
    }

    /// The stretches of a recording of `n_samples` that the clips name.
    pub(crate) fn clips(&self, n_samples: usize) -> Vec<Range<usize>> {
        let at = |seconds: f64| samples(seconds).min(n_samples);
        let clip = |times: &[f64]| at(times[0])..times.get(1).map_or(n_samples, |&end| at(end));
        let clips = self.clip_timestamps.chunks(2).map(clip);
        clips.filter(|clip| !clip.is_empty()).collect()
    }
}

/// `range` of `samples` in pieces of about one length, to be heard side by side, `n_tracks` at a time: of
/// one window where there are few, of several that follow each other where there would be more pieces.
pub(crate) fn cut(samples: &[f32], range: Range<usize>, n_tracks: usize) -> Vec<Range<usize>> {
    let len = range.len();
    let n_windows = if len <= WINDOW_SAMPLES { 1 } else { len.div_ceil(STEP_SAMPLES) };
    let per_piece = n_windows.div_ceil(n_tracks).min(MAX_WINDOWS);
    let n_pieces = n_windows.div_ceil(per_piece);
    // The last window of a piece may be a whole one.
    let longest = per_piece * STEP_SAMPLES + MARGIN_SAMPLES;
    let mut pieces = Vec::with_capacity(n_pieces);
    let mut start = range.start;
    for i in 1..n_pieces {
        // Products of a recording's samples and pieces are far below 2^64.
        let ideal = range.start + (len as u64 * i as u64 / n_pieces as u64) as usize;
        let last = (ideal + MARGIN_SAMPLES).min(start + longest);
        let end = quietest(samples, ideal - MARGIN_SAMPLES..last);
        pieces.push(start..end);
        start = end;
    }
    pieces.extend((!range.is_empty()).then_some(start..range.end));
    pieces
}

/// The middle of the quietest stretch in `range`.
fn quietest(samples: &[f32], range: Range<usize>) -> usize {
    let energy = |at: usize| samples[at..at + QUIET_SAMPLES].iter().map(|s| s * s).sum::<f32>();
    let places =
        range.clone().step_by(QUIET_SAMPLES / 2).take_while(|at| at + QUIET_SAMPLES <= range.end);
    let quietest = places.min_by(|&a, &b| energy(a).total_cmp(&energy(b)));
    quietest.map_or(range.end, |place| place + QUIET_SAMPLES / 2)
}

/// Checks that `ranges` are ascending stretches of `n_samples` samples.
///
/// # Errors
/// If they overlap, are out of order, empty or longer.
pub(crate) fn check(ranges: &[Range<usize>], n_samples: usize) -> Result<(), Error> {
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
    }
    Ok(())
}

/// Neighbours of `ranges` joined, with the gaps between them, as long as they fit a window.
///
/// # Errors
/// See [`check`].
pub(crate) fn pack(ranges: &[Range<usize>], n_samples: usize) -> Result<Vec<Range<usize>>, Error> {
    check(ranges, n_samples)?;
    let mut packed: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match packed.last_mut() {
            Some(last) if range.end - last.start <= WINDOW_SAMPLES => last.end = range.end,
            _ => packed.push(range.clone()),
        }
    }
    Ok(packed)
}

#[cfg(test)]
mod tests {
    use super::{cut, pack};
    use crate::{Options, SAMPLE_RATE, WINDOW_SAMPLES};

    #[test]
    fn cuts_are_made_in_pauses() {
        const S: usize = SAMPLE_RATE;
        let mut samples = vec![0.1f32; 65 * S];
        for (from, to) in [(20 * S, 22 * S), (28 * S, 29 * S), (31 * S, 31 * S + S / 10)] {
            samples[from..to].fill(0.0);
        }
        let [first, second] = &cut(&samples, 5 * S..57 * S, 8)[..] else { panic!("two windows") };
        assert!((28 * S..29 * S).contains(&first.end), "{first:?}");
        assert_eq!((first.start, second), (5 * S, &(first.end..57 * S)));
    }

    #[test]
    fn pieces_cover_the_range_and_fit_windows() {
        let samples: Vec<f32> = (0..1010 * SAMPLE_RATE).map(|i| (i % 7919) as f32).collect();
        for (seconds, n_tracks, n_pieces, n_windows) in [
            (0, 8, 0, 1),
            (1, 8, 1, 1),
            (30, 8, 1, 1),
            (31, 8, 2, 1),
            (54, 2, 2, 1),
            (55, 2, 2, 2),
            (55, 8, 3, 1),
            (120, 8, 5, 1),
            (120, 2, 2, 3),
            (406, 8, 8, 2),
            (1000, 8, 10, 4),
            (1000, 64, 38, 1),
        ] {
            let range = 5 * SAMPLE_RATE..(5 + seconds) * SAMPLE_RATE;
            let pieces = cut(&samples, range.clone(), n_tracks);
            assert_eq!(pieces.len(), n_pieces, "{seconds} s, {n_tracks} tracks");
            let longest = (27 * n_windows + 3) * SAMPLE_RATE;
            assert!(pieces.iter().all(|p| !p.is_empty() && p.len() <= longest));
            assert!(pieces.windows(2).all(|w| w[0].end == w[1].start));
            let ends = pieces.first().zip(pieces.last()).map(|(a, b)| a.start..b.end);
            assert_eq!(ends, (seconds > 0).then_some(range));
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
