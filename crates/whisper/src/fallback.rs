//! Temperature fallback: windows whose result fails a threshold are decoded again at the next
//! temperature.
//!
//! ```text
//! for temperature in temperatures:
//!     decode all windows that have not passed, in one batch
//!     a window passes unless it repeats itself (compression ratio, loop)
//!         or its log-probability is low; low and no speech passes as silence
//!     a failed result is kept if it is better than the one kept before
//! ```
//!
//! Source: openai/whisper `transcribe.py`.

use stonechat_nn::Backend;
use web_time::Instant;

use crate::chunk::Chunk;
use crate::error::Error;
use crate::options::{Options, no_temperature};
use crate::prompt::{Prompt, PromptBuilder};
use crate::rules::Rules;
use crate::search::FinishReason;
use crate::transcriber::Transcriber;
use crate::window::{Attempt, WindowRequest, WindowResult};

/// Result of one window after all attempts.
#[derive(Debug)]
pub(crate) struct DecodedWindow {
    /// Result of the best attempt.
    pub(crate) result: WindowResult,
    /// Temperature of the last attempt.
    pub(crate) temperature: f32,
    /// Whether the last attempt failed too.
    pub(crate) has_failed: bool,
}

impl<B: Backend> Transcriber<B> {
    /// Decodes the current windows of `chunks` with temperature fallback; `None` if cancelled.
    pub(crate) async fn decode_with_fallback(
        &mut self,
        chunks: &[&mut Chunk],
        prompts: &PromptBuilder,
        rules: &Rules,
        options: &Options,
    ) -> Result<Option<Vec<DecodedWindow>>, Error> {
        let started = Instant::now();
        let prompt =
            |chunk: &&mut Chunk| prompts.prompt(&self.model, &chunk.history, chunk.window_start());
        let prompts: Vec<Prompt> = chunks.iter().map(prompt).collect();
        let mut best: Vec<Option<DecodedWindow>> = chunks.iter().map(|_| None).collect();
        let mut open: Vec<usize> = (0..chunks.len()).collect();
        for (n, &temperature) in options.temperatures.iter().enumerate() {
            if open.is_empty() {
                break;
            }
            let request = |&window: &usize| {
                let Prompt { tokens, n_prefix } = &prompts[window];
                // The seed depends on the window and the attempt, not on the rest of the batch.
                let at = (chunks[window].window_start() * options.temperatures.len() + n) as u64;
                WindowRequest {
                    window,
                    prompt: tokens,
                    n_prefix: *n_prefix,
                    min_end_timestamp: chunks[window].min_end_timestamp(self.model.special()),
                    seed: options.seed.wrapping_add(at),
                }
            };
            let requests: Vec<_> = open.iter().map(request).collect();
            let (state, scratch) = (&mut self.decoder, &mut self.scratch);
            let attempt = Attempt { rules, options, temperature, cancel: &self.cancel };
            let results = self.model.decode_windows(state, scratch, &requests, attempt).await?;
            let Some(results) = results else { return Ok(None) };
            let mut failed = Vec::new();
            for (&window, result) in open.iter().zip(results) {
                let has_failed = needs_fallback(&result, options);
                tracing::debug!(
                    start_s = chunks[window].window_start_seconds(),
                    temperature,
                    tokens = result.tokens.len(),
                    avg_logprob = result.avg_logprob,
                    compression_ratio = result.compression_ratio,
                    no_speech_prob = result.no_speech_prob,
                    has_failed,
                    "window decoded"
                );
                let kept = best[window].take().map(|earlier| earlier.result);
                let result = match kept {
                    Some(kept) if has_failed && !is_better(&result, &kept, options) => kept,
                    _ => result,
                };
                best[window] = Some(DecodedWindow { result, temperature, has_failed });
                if has_failed {
                    failed.push(window);
                }
            }
            self.timings.fallbacks += failed.len();
            open = failed;
        }
        self.timings.decode += started.elapsed();
        let mut decoded: Vec<DecodedWindow> =
            best.into_iter().collect::<Option<_>>().ok_or_else(no_temperature)?;
        for DecodedWindow { result, .. } in &mut decoded {
            if result.finish == FinishReason::Loop {
                result.cut_loop(self.model.tokenizer(), self.model.special());
            }
            self.timings.tokens += result.tokens.len();
        }
        Ok(Some(decoded))
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
        // Of equal ones the first is kept.
        assert!(!is_better(&plain, &plain, &options));
    }
}
