//! Windows that fail are decoded again, at higher temperatures.
//!
//! Source: openai/whisper `transcribe.py`.

use stonechat_nn::Backend;
use web_time::Instant;

use crate::context::{Context, Prompt};
use crate::options::no_temperature;
use crate::rules::Rules;
use crate::track::Track;
use crate::window::{Attempt, WindowRequest};
use crate::{Error, Finish, Options, Transcriber, WindowResult};

/// What a window was decoded to.
#[derive(Debug)]
pub(crate) struct Decoded {
    /// The best attempt.
    pub(crate) result: WindowResult,
    /// Temperature of the last attempt.
    pub(crate) temperature: f32,
    /// Whether that one failed too.
    pub(crate) has_failed: bool,
}

impl<B: Backend> Transcriber<B> {
    /// Decodes the windows at hand of `tracks`, those that fail again at the next temperature; `None`
    /// if that was cancelled.
    pub(crate) async fn decode_with_fallback(
        &mut self,
        tracks: &[&mut Track],
        context: &Context,
        rules: &Rules,
        options: &Options,
    ) -> Result<Option<Vec<Decoded>>, Error> {
        let started = Instant::now();
        let prompt =
            |track: &&mut Track| context.prompt(&self.model, &track.history, track.window_start());
        let prompts: Vec<Prompt> = tracks.iter().map(prompt).collect();
        let mut best: Vec<Option<Decoded>> = tracks.iter().map(|_| None).collect();
        let mut open: Vec<usize> = (0..tracks.len()).collect();
        for (n, &temperature) in options.temperatures.iter().enumerate() {
            if open.is_empty() {
                break;
            }
            let request = |&window: &usize| {
                let Prompt { tokens, n_given } = &prompts[window];
                // Draws depend on the window, not on what is decoded beside it.
                let at = (tracks[window].window_start() * options.temperatures.len() + n) as u64;
                let seed = options.seed.wrapping_add(at);
                let reach = tracks[window].reach(self.model.special());
                WindowRequest { window, prompt: tokens, n_given: *n_given, reach, seed }
            };
            let requests: Vec<_> = open.iter().map(request).collect();
            let (state, scratch) = (&mut self.decoder, &mut self.scratch);
            let attempt = Attempt { rules, options, temperature, cancel: &self.cancel };
            let results = self.model.decode_windows(state, scratch, &requests, attempt).await?;
            let Some(results) = results else { return Ok(None) };
            let mut failed = Vec::new();
            for (&window, result) in open.iter().zip(results) {
                let has_failed = needs_fallback(&result, options);
                let kept = best[window].take().map(|earlier| earlier.result);
                let result = match kept {
                    Some(kept) if has_failed && !is_better(&result, &kept, options) => kept,
                    _ => result,
                };
                best[window] = Some(Decoded { result, temperature, has_failed });
                if has_failed {
                    failed.push(window);
                }
            }
            self.timings.fallbacks += failed.len();
            open = failed;
        }
        self.timings.decode += started.elapsed();
        let mut decoded: Vec<Decoded> =
            best.into_iter().collect::<Option<_>>().ok_or_else(no_temperature)?;
        for Decoded { result, .. } in &mut decoded {
            if result.finish == Finish::Loop {
                result.cut_loop(self.model.tokenizer(), self.model.special());
            }
            self.timings.tokens += result.tokens.len();
        }
        Ok(Some(decoded))
    }
}

/// Which of two failed attempts to keep: one that does not repeat itself, then the more probable
/// one. The reference keeps the last, which is the most random; this is faster-whisper's choice.
fn is_better(a: &WindowResult, b: &WindowResult, options: &Options) -> bool {
    (!repeats(a, options), a.avg_logprob) > (!repeats(b, options), b.avg_logprob)
}

fn repeats(result: &WindowResult, options: &Options) -> bool {
    let limit = options.compression_ratio_threshold;
    result.finish == Finish::Loop || limit.is_some_and(|limit| result.compression_ratio > limit)
}

fn needs_fallback(result: &WindowResult, options: &Options) -> bool {
    let unlikely = options.logprob_threshold.is_some_and(|limit| result.avg_logprob < limit);
    let silent =
        unlikely && options.no_speech_threshold.is_some_and(|limit| result.no_speech_prob > limit);
    (repeats(result, options) || unlikely) && !silent
}

/// Whether the window holds no speech: the model says so and is unsure of the text it gave.
pub(crate) fn is_silent(result: &WindowResult, options: &Options) -> bool {
    let sure = options.logprob_threshold.is_some_and(|limit| result.avg_logprob > limit);
    options.no_speech_threshold.is_some_and(|limit| result.no_speech_prob > limit) && !sure
}
