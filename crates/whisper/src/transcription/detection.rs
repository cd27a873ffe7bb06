//! Audio from which the language is detected.

use std::ops::Range;

use stonechat_audio::Vad;
use stonechat_audio::vad::STEP;
use web_time::Instant;

use super::Transcription;
use crate::WINDOW_SAMPLES;
use crate::chunk::Chunk;
use crate::error::Error;
use crate::window_decoder::WindowDecoder;

impl Transcription<'_> {
    /// Spectrogram for language detection: 30 s from the first speech on. Also their first sample, if they are the current
    /// window of the first chunk.
    pub(super) fn detection_window(
        &mut self,
        decoder: &mut WindowDecoder,
    ) -> Result<(Vec<f32>, Option<usize>), Error> {
        let n_silent = match self.audio.map {
            // Silence was cut out.
            Some(_) => 0,
            None => {
                let threshold = self.options.vad_options.threshold;
                let ranges = self.pending.make_contiguous();
                silent_samples(&self.audio.samples, ranges, self.model.vad()?, threshold)
            }
        };
        // A chunk of less than half a window holds too little speech if there is more.
        let is_enough = self.pending.len() == 1
            || self.pending.front().is_some_and(|range| 2 * range.len() > WINDOW_SAMPLES);
        if is_enough && n_silent == 0 {
            self.prepare_chunks(1, &mut decoder.timings)?;
            if let Some(chunk) = self.prepared.front() {
                return Ok((chunk.window_mel(), Some(chunk.window_start())));
            }
        }
        let samples = &self.audio.samples;
        let speech = self.pending.iter().flat_map(|range| &samples[range.clone()]);
        let speech: Vec<f32> = speech.skip(n_silent).take(WINDOW_SAMPLES).copied().collect();
        let started = Instant::now();
        let mel = self.model.mel(&speech, WINDOW_SAMPLES);
        decoder.timings.mel += started.elapsed();
        Ok((Chunk::new(0..speech.len(), mel, false).window_mel(), None))
    }
}

/// Samples of `ranges` before the first speech; 0 if that lies in the first half of a window, or there is none.
fn silent_samples(samples: &[f32], ranges: &[Range<usize>], vad: &Vad, threshold: f32) -> usize {
    let mut n_before = 0;
    for range in ranges {
        for start in range.clone().step_by(WINDOW_SAMPLES) {
            let window = &samples[start..range.end.min(start + WINDOW_SAMPLES)];
            if let Some(step) = vad.probabilities(window).iter().position(|&p| p >= threshold) {
                let n_silent = n_before + step * STEP;
                return if 2 * n_silent > WINDOW_SAMPLES { n_silent } else { 0 };
            }
            n_before += window.len();
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use stonechat_audio::{Vad, decode_file};

    use super::silent_samples;
    use crate::{SAMPLE_RATE, WINDOW_SAMPLES};

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "one range is a case")]
    fn silence_before_the_first_speech_is_passed_over() {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/audio/quick_brown_fox.wav");
        let spoken = decode_file(path).unwrap().samples;
        let vad = Vad::new().unwrap();
        for (seconds, is_passed) in [(0, false), (10, false), (20, true), (70, true)] {
            let n = seconds * SAMPLE_RATE;
            let mut samples = vec![0.0; n];
            samples.extend(&spoken);
            let whole = [0..samples.len()];
            let parts = [0..n / 2, n / 2..samples.len()];
            for ranges in [&whole[..], &parts] {
                let got = silent_samples(&samples, ranges, &vad, 0.5);
                let expected = if is_passed { n..n + spoken.len() } else { 0..1 };
                assert!(expected.contains(&got), "{seconds} s: {got}");
            }
        }
        let silence = vec![0.0; 2 * WINDOW_SAMPLES];
        assert_eq!(silent_samples(&silence, &[0..silence.len()], &vad, 0.5), 0);
        assert_eq!(silent_samples(&[], &[], &vad, 0.5), 0);
    }
}
