//! Temperature fallback: a window whose result fails a threshold is decoded again at the next
//! temperature.
//!
//! ```text
//! for temperature in temperatures:
//!     decode the window
//!     it passes unless it repeats itself (compression ratio, loop)
//!         or its log-probability is low; low and no speech passes as silence
//!     a failed result is kept if it is better than the one kept before
//! ```
//!
//! Source: openai/whisper `transcribe.py`.

use std::sync::Arc;

use crate::options::Options;
use crate::search::FinishReason;
use crate::window::WindowResult;

/// Result of one window after all attempts.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodedWindow {
    /// Result of the best attempt.
    pub result: WindowResult,
    /// Temperature of the last attempt.
    pub temperature: f32,
    /// Whether the last attempt failed too.
    pub has_failed: bool,
}

/// Attempts at one window.
#[derive(Debug)]
pub(crate) struct Fallback {
    options: Arc<Options>,
    /// Index of the current attempt.
    attempt: usize,
    /// Best failed result.
    kept: Option<WindowResult>,
}

impl Fallback {
    /// Starts with the first of the temperatures, of which there is at least one.
    pub(crate) fn new(options: Arc<Options>) -> Self {
        Self { options, attempt: 0, kept: None }
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// Index of the current attempt.
    pub(crate) fn attempt(&self) -> usize {
        self.attempt
    }

    /// Temperature of the current attempt.
    pub(crate) fn temperature(&self) -> f32 {
        self.options.temperatures[self.attempt]
    }

    /// Whether a result of the current attempt fails a threshold.
    pub(crate) fn fails(&self, result: &WindowResult) -> bool {
        needs_fallback(result, &self.options)
    }

    /// Takes the result of the current attempt; `None` if there is a next attempt.
    pub(crate) fn accept(&mut self, result: WindowResult) -> Option<DecodedWindow> {
        let has_failed = self.fails(&result);
        let result = match self.kept.take() {
            Some(kept) if has_failed && !is_better(&result, &kept, &self.options) => kept,
            _ => result,
        };
        if has_failed && self.attempt + 1 < self.options.temperatures.len() {
            self.attempt += 1;
            self.kept = Some(result);
            return None;
        }
        Some(DecodedWindow { result, temperature: self.temperature(), has_failed })
    }
}

/// Whether the failed result `a` is better than `b`: one without repetition, then the more probable
/// one, as in faster-whisper. The reference keeps the last, which is the most random.
fn is_better(a: &WindowResult, b: &WindowResult, options: &Options) -> bool {
    (!repeats(a, options), a.avg_logprob) > (!repeats(b, options), b.avg_logprob)
}

fn repeats(result: &WindowResult, options: &Options) -> bool {
    let limit = options.compression_ratio_threshold;
    result.finish == FinishReason::Loop
        || limit.is_some_and(|limit| result.compression_ratio > limit)
}

fn needs_fallback(result: &WindowResult, options: &Options) -> bool {
    let unlikely = options.logprob_threshold.is_some_and(|limit| result.avg_logprob < limit);
    let silent =
        unlikely && options.no_speech_threshold.is_some_and(|limit| result.no_speech_prob > limit);
    (repeats(result, options) || unlikely) && !silent
}

/// Whether the window holds no speech: `<|nospeech|>` is probable and the text is not.
pub(crate) fn is_silent(result: &WindowResult, options: &Options) -> bool {
    let sure = options.logprob_threshold.is_some_and(|limit| result.avg_logprob > limit);
    options.no_speech_threshold.is_some_and(|limit| result.no_speech_prob > limit) && !sure
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A result with the figures that decide: mean log-probability, compression ratio, probability of no speech.
    fn result(avg_logprob: f64, compression_ratio: f64, no_speech_prob: f64) -> WindowResult {
        WindowResult {
            tokens: Vec::new(),
            logprobs: Vec::new(),
            text: String::new(),
            temperature: 0.0,
            avg_logprob,
            compression_ratio,
            no_speech_prob,
            finish: FinishReason::Eot,
        }
    }

    fn looped(avg_logprob: f64) -> WindowResult {
        WindowResult { finish: FinishReason::Loop, ..result(avg_logprob, 1.0, 0.0) }
    }

    /// Cases of `decode_with_fallback` and of the skip of silence in openai/whisper's `transcribe.py`; defaults: -1.0,
    /// 2.4, 0.6.
    #[test]
    fn thresholds_are_those_of_the_reference() {
        let options = Options::default();
        for (figures, fails, silent) in [
            ((-0.3, 1.2, 0.1), false, false),
            // Values at a threshold pass.
            ((-1.0, 2.4, 0.6), false, false),
            ((-1.001, 1.2, 0.1), true, false),
            ((-0.3, 2.401, 0.1), true, false),
            // No speech and an improbable text: silence, not a failure, even if the text repeats itself.
            ((-1.001, 1.2, 0.601), false, true),
            ((-1.001, 9.9, 0.601), false, true),
            // A probability of no speech at its threshold does not count.
            ((-1.001, 1.2, 0.6), true, false),
            // No speech, but a probable text.
            ((-0.3, 1.2, 0.99), false, false),
            ((-0.3, 9.9, 0.99), true, false),
            // At the threshold a text is neither failed nor sure.
            ((-1.0, 1.2, 0.99), false, true),
            ((-1.0, 9.9, 0.99), true, true),
        ] {
            let result = result(figures.0, figures.1, figures.2);
            assert_eq!(needs_fallback(&result, &options), fails, "{figures:?}");
            assert_eq!(is_silent(&result, &options), silent, "{figures:?}");
        }
        assert!(needs_fallback(&looped(-0.1), &options));
    }

    #[test]
    fn a_threshold_that_is_off_decides_nothing() {
        let off = |change: fn(&mut Options)| {
            let mut options = Options::default();
            change(&mut options);
            options
        };
        let no_ratio = off(|o| o.compression_ratio_threshold = None);
        assert!(!needs_fallback(&result(-0.3, 99.0, 0.0), &no_ratio));
        assert!(needs_fallback(&looped(-0.3), &no_ratio));
        let no_logprob = off(|o| o.logprob_threshold = None);
        assert!(!needs_fallback(&result(-9.0, 1.0, 0.0), &no_logprob));
        // Without it, no speech alone makes a window silent, but excuses no repetition.
        assert!(is_silent(&result(-0.1, 1.0, 0.7), &no_logprob));
        assert!(needs_fallback(&result(-9.0, 9.0, 0.7), &no_logprob));
        let no_silence = off(|o| o.no_speech_threshold = None);
        assert!(needs_fallback(&result(-9.0, 1.0, 1.0), &no_silence));
        assert!(!is_silent(&result(-9.0, 1.0, 1.0), &no_silence));
    }

    /// faster-whisper keeps the most probable attempt among those that do not repeat themselves, if there are any.
    #[test]
    fn the_better_of_failed_attempts_is_kept() {
        let options = Options::default();
        let (plain, worse) = (result(-1.5, 1.0, 0.0), result(-2.0, 1.0, 0.0));
        let repeated = result(-0.1, 3.0, 0.0);
        assert!(is_better(&plain, &worse, &options) && !is_better(&worse, &plain, &options));
        for repeats in [&repeated, &looped(-0.1)] {
            assert!(is_better(&worse, repeats, &options), "{repeats:?}");
            assert!(!is_better(repeats, &worse, &options), "{repeats:?}");
        }
        assert!(is_better(&repeated, &looped(-0.2), &options));
        // The first of equal results is kept.
        assert!(!is_better(&plain, &plain, &options));
    }

    /// Runs attempts with these mean log-probabilities; each but the last must not end the window.
    #[track_caller]
    fn attempts(temperatures: &[f32], logprobs: &[f64]) -> DecodedWindow {
        let options = Options { temperatures: temperatures.to_vec(), ..Options::default() };
        let mut fallback = Fallback::new(options.into());
        let (last, earlier) = logprobs.split_last().unwrap();
        for (attempt, &logprob) in earlier.iter().enumerate() {
            assert_eq!(
                (fallback.attempt(), fallback.temperature()),
                (attempt, temperatures[attempt])
            );
            let result = result(logprob, 1.0, 0.0);
            assert!(fallback.fails(&result));
            assert_eq!(fallback.accept(result), None);
        }
        assert_eq!(fallback.temperature(), temperatures[earlier.len()]);
        fallback.accept(result(*last, 1.0, 0.0)).expect("the last attempt")
    }

    #[test]
    fn the_first_attempt_that_passes_ends_the_window() {
        let decoded = attempts(&[0.0, 0.2, 0.4], &[-0.5]);
        assert_eq!((decoded.temperature, decoded.has_failed), (0.0, false));
        let decoded = attempts(&[0.0, 0.2, 0.4], &[-1.5, -0.9]);
        assert_eq!((decoded.temperature, decoded.has_failed), (0.2, false));
        assert_eq!(decoded.result.avg_logprob, -0.9, "a result that passes replaces a kept one");
    }

    #[test]
    fn the_last_attempt_ends_the_window_with_the_best_result() {
        for (logprobs, best) in
            [([-3.0, -2.0, -4.0], -2.0), ([-2.0, -3.0, -4.0], -2.0), ([-4.0, -3.0, -2.0], -2.0)]
        {
            let decoded = attempts(&[0.0, 0.4, 1.0], &logprobs);
            // The temperature is that of the last attempt: it decides on the next prompt.
            assert_eq!((decoded.temperature, decoded.has_failed), (1.0, true));
            assert_eq!(decoded.result.avg_logprob, best, "{logprobs:?}");
        }
        // A passing attempt follows a better one that failed by repetition.
        let options = Options { temperatures: vec![0.0, 0.5], ..Options::default() };
        let mut fallback = Fallback::new(options.into());
        assert_eq!(fallback.accept(looped(-0.1)), None);
        let decoded = fallback.accept(result(-0.8, 1.0, 0.0)).unwrap();
        assert_eq!((decoded.result.avg_logprob, decoded.has_failed), (-0.8, false));
    }

    #[test]
    fn attempts_have_the_options_of_their_window() {
        let options = Options { hotwords: Some("ab".to_owned()), ..Options::default() };
        assert_eq!(Fallback::new(Arc::new(options.clone())).options(), &options);
    }
}
