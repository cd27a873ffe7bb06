//! Sample ranges to transcribe: speech, clips, and chunks cut for batched decoding.

use std::array;
use std::ops::Range;

use stonechat_audio::Vad;

use crate::error::Error;
use crate::options::{Options, VadMode};
use crate::times::samples;
use crate::{SAMPLE_RATE, WINDOW_SAMPLES};

/// Largest distance of a cut from its ideal position, in samples: cuts are made at the quietest place.
const MARGIN_SAMPLES: usize = 3 * SAMPLE_RATE;
/// Samples of a window that leave room for that margin.
const STEP_SAMPLES: usize = WINDOW_SAMPLES - MARGIN_SAMPLES;
/// Maximum windows of a chunk. The first window of a chunk has no earlier text in its prompt, which
/// costs accuracy; a long chunk delays the segments of the chunks after it.
const MAX_WINDOWS: usize = 4;
/// Samples whose energy is compared to find a quiet place: a pause between sentences, not words.
const QUIET_SAMPLES: usize = SAMPLE_RATE / 2;

/// Fraction of the speech threshold. A short recording without a step above it has no speech.
const FAINT: f32 = 0.4;

impl Options {
    /// Detects the sample ranges of 16 kHz mono `samples` that hold speech, within the clips if there are any; `None` if all
    /// is to be transcribed. Uses `n_threads` threads, 0 for one per physical core.
    ///
    /// # Errors
    /// If an option is out of its range or threads cannot be started.
    pub fn find_speech(
        &self,
        samples: &[f32],
        n_threads: usize,
    ) -> Result<Option<Vec<Range<usize>>>, Error> {
        if !self.needs_vad() {
            return Ok(None);
        }
        self.find_speech_with(&Vad::with_threads(n_threads)?, samples)
    }

    /// Whether [`find_speech_with`](Self::find_speech_with) detects anything.
    pub(crate) fn needs_vad(&self) -> bool {
        match self.vad {
            VadMode::Off => false,
            VadMode::On => true,
            VadMode::Auto => self.clip_timestamps.is_empty(),
        }
    }

    /// As [`find_speech`](Self::find_speech), with the network `vad`.
    pub(crate) fn find_speech_with(
        &self,
        vad: &Vad,
        samples: &[f32],
    ) -> Result<Option<Vec<Range<usize>>>, Error> {
        self.vad_options.validate()?;
        if self.vad == VadMode::Auto && samples.len() <= WINDOW_SAMPLES {
            let is_faint = |&p: &f32| p < self.vad_options.threshold * FAINT;
            return Ok(vad.probabilities(samples).iter().all(is_faint).then(Vec::new));
        }
        let speech = vad.detect(samples, &self.vad_options)?;
        let speech = self.keep_short_silence(speech, samples.len());
        if self.clip_timestamps.is_empty() {
            return Ok(Some(speech));
        }
        Ok(Some(within(&speech, &self.clips(samples.len()))))
    }

    /// Joins the segments of speech of a recording of `n_samples`, and extends them to its ends, where less than
    /// `min_silence_ms` would be cut out: a short pause cut shorter is not what the model knows, and gains nothing.
    fn keep_short_silence(&self, speech: Vec<Range<usize>>, n_samples: usize) -> Vec<Range<usize>> {
        let min_cut = self.vad_options.min_silence();
        let mut kept: Vec<Range<usize>> = Vec::with_capacity(speech.len());
        for range in speech {
            match kept.last_mut() {
                Some(last) if range.start - last.end < min_cut => last.end = range.end,
                None if range.start < min_cut => kept.push(0..range.end),
                _ => kept.push(range),
            }
        }
        if let Some(last) = kept.last_mut().filter(|last| n_samples - last.end < min_cut) {
            last.end = n_samples;
        }
        kept
    }

    /// Longest pause in what [`find_speech`](Self::find_speech) finds, in samples.
    pub(crate) fn max_pause(&self) -> usize {
        self.vad_options.min_silence() + 2 * self.vad_options.speech_pad()
    }

    /// Sample ranges of the clips, within a recording of `n_samples`.
    pub(crate) fn clips(&self, n_samples: usize) -> Vec<Range<usize>> {
        let at = |seconds: f64| samples(seconds).min(n_samples);
        let clip = |times: &[f64]| at(times[0])..times.get(1).map_or(n_samples, |&end| at(end));
        let clips = self.clip_timestamps.chunks(2).map(clip);
        clips.filter(|clip| !clip.is_empty()).collect()
    }
}

/// Parts of the ranges `speech` in `clips`; both are ascending and disjoint.
fn within(speech: &[Range<usize>], clips: &[Range<usize>]) -> Vec<Range<usize>> {
    let part = |clip: &Range<usize>, range: &Range<usize>| {
        range.start.max(clip.start)..range.end.min(clip.end)
    };
    let parts = clips.iter().flat_map(|clip| speech.iter().map(move |range| part(clip, range)));
    parts.filter(|part| !part.is_empty()).collect()
}

/// Cuts the sample range `range` into chunks of about equal length, to decode `n_windows` at a time.
/// Chunks have one window if `n_windows` of them suffice, else up to [`MAX_WINDOWS`].
pub(crate) fn cut(samples: &[f32], range: Range<usize>, n_windows: usize) -> Vec<Range<usize>> {
    let len = range.len();
    let n_steps = if len <= WINDOW_SAMPLES { 1 } else { len.div_ceil(STEP_SAMPLES) };
    let per_chunk = n_steps.div_ceil(n_windows).min(MAX_WINDOWS);
    let n_chunks = n_steps.div_ceil(per_chunk);
    // The last window of a chunk may use the margin.
    let max_len = per_chunk * STEP_SAMPLES + MARGIN_SAMPLES;
    let mut chunks = Vec::with_capacity(n_chunks);
    let mut start = range.start;
    for i in 1..n_chunks {
        // Samples times chunks of a recording is far below 2^64.
        let ideal = range.start + (len as u64 * i as u64 / n_chunks as u64) as usize;
        let last = (ideal + MARGIN_SAMPLES).min(start + max_len);
        let end = quietest(samples, ideal - MARGIN_SAMPLES..last);
        chunks.push(start..end);
        start = end;
    }
    chunks.extend((!range.is_empty()).then_some(start..range.end));
    chunks
}

/// Middle of the [`QUIET_SAMPLES`] samples in `range` with the least energy.
pub(crate) fn quietest(samples: &[f32], range: Range<usize>) -> usize {
    let places =
        range.clone().step_by(QUIET_SAMPLES / 2).take_while(|at| at + QUIET_SAMPLES <= range.end);
    let places: Vec<usize> = places.collect();
    let energies = places.iter().zip(energies(samples, &places));
    let quietest = energies.min_by(|(_, a), (_, b)| a.total_cmp(b));
    quietest.map_or(range.end, |(place, _)| place + QUIET_SAMPLES / 2)
}

/// Energy of [`QUIET_SAMPLES`] samples from each of `places` on, summed in order. The sums of several places at once hide
/// the latency of an addition.
fn energies(samples: &[f32], places: &[usize]) -> Vec<f32> {
    const N_SUMS: usize = 8;
    let mut energies = Vec::with_capacity(places.len());
    for places in places.chunks(N_SUMS) {
        let windows: [&[f32; QUIET_SAMPLES]; N_SUMS] = array::from_fn(|i| {
            let place = *places.get(i).unwrap_or(&places[0]);
            samples[place..].first_chunk().expect("a place with as many samples")
        });
        let mut sums = [0.0; N_SUMS];
        for i in 0..QUIET_SAMPLES {
            for (sum, window) in sums.iter_mut().zip(windows) {
                *sum += window[i] * window[i];
            }
        }
        energies.extend(&sums[..places.len()]);
    }
    energies
}

#[cfg(test)]
mod tests {
    use stonechat_audio::{VadOptions, decode_file};

    use super::{QUIET_SAMPLES, cut, energies, within};
    use crate::SAMPLE_RATE;
    use crate::options::{Options, VadMode};

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "one range is a case")]
    fn speech_is_that_of_the_clips() {
        let speech = [10..20, 30..40, 50..60];
        assert_eq!(within(&speech, &[15..35, 40..55]), [15..20, 30..35, 50..55]);
        assert_eq!(within(&speech, &[0..100]), speech);
        assert_eq!(within(&speech, &[20..30, 60..70]), [0..0; 0]);
        assert_eq!(within(&[0..100], &[5..6]), [5..6]);
    }

    /// A clip of speech, a clip of none, and the modes of detection.
    #[test]
    fn detection_honours_clips_and_tells_short_silence() {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/audio/quick_brown_fox.wav");
        let spoken = decode_file(path).unwrap().samples;
        let speech = |vad, clips: &[f64], samples: &[f32]| {
            let options = Options { vad, clip_timestamps: clips.to_vec(), ..Options::default() };
            options.find_speech(samples, 1).unwrap()
        };
        let part = speech(VadMode::On, &[1.0, 2.0], &spoken).unwrap();
        assert!(!part.is_empty(), "speech of a clip");
        assert!(part.iter().all(|r| SAMPLE_RATE <= r.start && r.end <= 2 * SAMPLE_RATE));
        assert_eq!(speech(VadMode::Auto, &[1.0, 2.0], &spoken), None);
        assert_eq!(speech(VadMode::Auto, &[], &spoken), None, "short speech is not cut");
        assert_eq!(speech(VadMode::Off, &[], &vec![0.0; 400]), None);
        let mut seed = 1u32;
        let mut noise = |level: f32| {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            level * ((seed >> 8) as f32 / (1 << 23) as f32 - 1.0)
        };
        let n = 20 * SAMPLE_RATE;
        for (name, samples) in [
            ("zeros", vec![0.0; 400]),
            ("noise", (0..n).map(|_| noise(0.002)).collect()),
            ("hum", (0..n).map(|i| 0.1 * (i as f32 * 0.0196).sin()).collect()),
            ("offset", vec![0.2; n]),
            ("clicks", (0..n).map(|i| if i % 16_000 == 0 { 0.5 } else { 0.0 }).collect()),
        ] {
            assert_eq!(speech(VadMode::Auto, &[], &samples), Some(Vec::new()), "{name}");
        }
    }

    #[test]
    fn only_long_silence_is_cut_out() {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/audio/quick_brown_fox.wav");
        let spoken = decode_file(path).unwrap().samples;
        let speech = |seconds: f64, min_silence_ms| {
            let silence = vec![0.0; (seconds * SAMPLE_RATE as f64) as usize];
            let samples = [&silence[..], &spoken, &silence, &spoken, &silence].concat();
            let vad_options = VadOptions { min_silence_ms, ..VadOptions::default() };
            let options = Options { vad: VadMode::On, vad_options, ..Options::default() };
            (options.find_speech(&samples, 1).unwrap().unwrap(), samples.len())
        };
        for (seconds, min_silence_ms, is_kept) in
            [(0.0, 2000, true), (1.5, 2000, true), (1.5, 500, false), (4.0, 2000, false)]
        {
            let (speech, n_samples) = speech(seconds, min_silence_ms);
            if is_kept {
                assert_eq!((speech.len(), &speech[0]), (1, &(0..n_samples)), "{seconds} s");
            } else {
                let [first, second] = &speech[..] else { panic!("{seconds} s: {speech:?}") };
                let n = (seconds * SAMPLE_RATE as f64) as usize;
                assert!(0 < first.start && first.start <= n && n < first.end);
                assert!(first.end < second.start && second.end < n_samples);
            }
        }
    }

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
    fn energies_are_sums_in_order() {
        let samples: Vec<f32> = (0..100_000).map(|i| (i as f32 * 0.37).sin() * 0.3).collect();
        for n_places in [0, 1, 7, 8, 22] {
            let places: Vec<usize> = (0..n_places).map(|i| 11 + i * QUIET_SAMPLES / 2).collect();
            let sum = |&at: &usize| {
                samples[at..at + QUIET_SAMPLES]
                    .iter()
                    .fold(0.0, |sum, sample| sum + sample * sample)
            };
            let expected: Vec<f32> = places.iter().map(sum).collect();
            assert_eq!(energies(&samples, &places), expected, "{n_places} places");
        }
    }

    #[test]
    fn chunks_cover_the_range_and_fit_windows() {
        let samples: Vec<f32> = (0..1010 * SAMPLE_RATE).map(|i| (i % 7919) as f32).collect();
        for (seconds, batch_size, n_chunks, n_windows) in [
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
            let chunks = cut(&samples, range.clone(), batch_size);
            assert_eq!(chunks.len(), n_chunks, "{seconds} s, batches of {batch_size}");
            let max_len = (27 * n_windows + 3) * SAMPLE_RATE;
            assert!(chunks.iter().all(|chunk| !chunk.is_empty() && chunk.len() <= max_len));
            assert!(chunks.windows(2).all(|pair| pair[0].end == pair[1].start));
            let ends = chunks.first().zip(chunks.last()).map(|(a, b)| a.start..b.end);
            assert_eq!(ends, (seconds > 0).then_some(range));
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
