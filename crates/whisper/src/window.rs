//! Windows to tokens, at one temperature: all hypotheses of all windows are one ragged batch.
//!
//! ```text
//! prefill the prompts, as many as fit a batch ──► logits after <|startoftranscript|>: no_speech_prob
//!                                             ──► logits after the prompt: first tokens
//! until no hypothesis is active:
//!     decode the last token of every active hypothesis of every window
//!     on all threads: apply the rules, compute log-sum-exp and top k of every row
//!     each window's search chooses tokens and forks KV sequences
//! ```

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use stonechat_nn::{Backend, Batch};
use stonechat_text::Tokenizer;

use crate::cancel::CancelToken;
use crate::decoder::DecoderState;
use crate::error::Error;
use crate::loops::{self, LoopLimits};
use crate::model::Model;
use crate::options::Options;
use crate::rules::Rules;
use crate::sampling::{LogitStats, probability};
use crate::search::{FinishReason, Hypothesis, Search, SearchOptions};
use crate::special::SpecialTokens;

/// Result of decoding one window (openai/whisper `DecodingResult`).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WindowResult {
    /// Text and timestamp tokens, without the end token.
    pub(crate) tokens: Vec<u32>,
    /// Log-probability of each token; 0 for those of a prefix.
    pub(crate) logprobs: Vec<f32>,
    /// Text, trimmed.
    pub(crate) text: String,
    /// Temperature of the attempt.
    pub(crate) temperature: f32,
    /// Mean log-probability of the chosen tokens, the end token included.
    pub(crate) avg_logprob: f64,
    /// Bytes of the text over bytes of it compressed with zlib.
    pub(crate) compression_ratio: f64,
    /// Probability of `<|nospeech|>` after `<|startoftranscript|>`.
    pub(crate) no_speech_prob: f64,
    /// Why the text ends.
    pub(crate) finish: FinishReason,
}

/// A window to decode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WindowRequest<'a> {
    /// Index of the window in the decoder state.
    pub(crate) window: usize,
    /// Earlier text, start sequence, prefix.
    pub(crate) prompt: &'a [u32],
    /// Tokens of the prefix, at the end of `prompt`.
    pub(crate) n_prefix: usize,
    /// Earliest timestamp token that may end the text; `None` if any may.
    pub(crate) min_end_timestamp: Option<u32>,
    /// Seed of the sampler.
    pub(crate) seed: u64,
}

/// Settings that all windows of a batch share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt<'a> {
    pub(crate) rules: &'a Rules,
    pub(crate) options: &'a Options,
    pub(crate) temperature: f32,
    pub(crate) cancel: &'a CancelToken,
}

/// A window that is being decoded.
#[derive(Debug)]
struct ActiveWindow {
    search: Search,
    /// First of its sequences in the decoder state.
    first_sequence: usize,
    min_end_timestamp: Option<u32>,
    no_speech_prob: f64,
}

/// Reusable host memory of the decoding loop.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// `[outputs, V]`.
    logits: Vec<f32>,
    stats: Vec<LogitStats>,
    tokens: Vec<u32>,
    sequences: Vec<usize>,
    outputs: Vec<usize>,
    forks: Vec<(usize, usize)>,
}

impl Scratch {
    fn clear(&mut self) {
        self.tokens.clear();
        self.sequences.clear();
        self.outputs.clear();
    }

    fn batch(&self) -> Batch<'_> {
        Batch { tokens: &self.tokens, sequences: &self.sequences, outputs: &self.outputs }
    }

    /// Reads the logits of all outputs.
    async fn read_logits<B: Backend>(
        &mut self,
        model: &Model<B>,
        state: &DecoderState<B>,
    ) -> Result<(), Error> {
        self.logits.resize(self.outputs.len() * model.config().vocab_size, 0.0);
        model.read_logits(state, 0, &mut self.logits).await
    }
}

/// Logits of the next token of one hypothesis.
#[derive(Debug)]
struct LogitRow<'a> {
    /// `[V]`.
    logits: &'a mut [f32],
    stats: &'a mut LogitStats,
    /// Tokens of the window so far.
    tokens: &'a [u32],
    min_end_timestamp: Option<u32>,
    top_k: usize,
}

/// Pairs the logits with the active hypotheses of `windows`.
fn logit_rows<'a>(
    windows: &'a [ActiveWindow],
    logits: impl Iterator<Item = &'a mut [f32]>,
    stats: &'a mut Vec<LogitStats>,
) -> Vec<LogitRow<'a>> {
    let hypotheses: Vec<_> =
        windows.iter().flat_map(|w| w.search.active().iter().map(move |h| (w, h))).collect();
    stats.resize_with(hypotheses.len(), LogitStats::default);
    let buffers = logits.zip(stats);
    let row = |((window, hypothesis), (logits, stats)): ((&'a ActiveWindow, &'a Hypothesis), _)| {
        LogitRow {
            logits,
            stats,
            tokens: &hypothesis.tokens,
            min_end_timestamp: window.min_end_timestamp,
            top_k: window.search.top_k(),
        }
    };
    hypotheses.into_iter().zip(buffers).map(row).collect()
}

impl LogitRow<'_> {
    /// Applies the rules and computes the statistics that the search needs.
    fn evaluate(&mut self, rules: &Rules) {
        rules.apply(self.logits, self.tokens, self.min_end_timestamp);
        self.stats.compute(self.logits, self.top_k);
    }
}

impl ActiveWindow {
    /// Chooses the next tokens from `logits`, `[active, V]`, and forks sequences of `state`.
    fn step<B: Backend>(
        &mut self,
        state: &mut DecoderState<B>,
        logits: &[f32],
        stats: &[LogitStats],
        forks: &mut Vec<(usize, usize)>,
    ) {
        self.search.step(logits, stats, forks);
        for (from, to) in forks.iter() {
            state.fork(self.first_sequence + from, self.first_sequence + to);
        }
    }

    fn into_result(self, tokenizer: &Tokenizer, temperature: f32) -> WindowResult {
        let (best, n_chosen) = self.search.into_best();
        let text = tokenizer.decode(&best.tokens).trim().to_owned();
        WindowResult {
            avg_logprob: best.sum_logprob / (n_chosen + 1) as f64,
            compression_ratio: compression_ratio(&text),
            tokens: best.tokens,
            logprobs: best.logprobs,
            text,
            temperature,
            no_speech_prob: self.no_speech_prob,
            finish: best.finish,
        }
    }
}

impl<B: Backend> Model<B> {
    /// Decodes windows of `state` in one batch at one temperature; `None` if cancelled.
    pub(crate) async fn decode_windows(
        &self,
        state: &mut DecoderState<B>,
        scratch: &mut Scratch,
        requests: &[WindowRequest<'_>],
        attempt: Attempt<'_>,
    ) -> Result<Option<Vec<WindowResult>>, Error> {
        state.clear();
        let mut windows = Vec::with_capacity(requests.len());
        while windows.len() < requests.len() {
            let rest = &requests[windows.len()..];
            windows.extend(self.prefill(state, scratch, rest, attempt).await?);
        }
        loop {
            if attempt.cancel.is_cancelled() {
                return Ok(None);
            }
            scratch.clear();
            for window in &windows {
                for hypothesis in window.search.active() {
                    scratch.outputs.push(scratch.tokens.len());
                    scratch.tokens.extend(hypothesis.tokens.last());
                    scratch.sequences.push(window.first_sequence + hypothesis.sequence);
                }
            }
            if scratch.tokens.is_empty() {
                break;
            }
            self.decode(state, scratch.batch())?;
            scratch.read_logits(self, state).await?;
            let vocab_size = self.config().vocab_size;
            let logits = scratch.logits.chunks_exact_mut(vocab_size);
            let mut rows = logit_rows(&windows, logits, &mut scratch.stats);
            self.backend().for_each(&mut rows, |row| row.evaluate(attempt.rules));
            let mut first = 0;
            for window in windows.iter_mut().filter(|w| !w.search.active().is_empty()) {
                let own = first..first + window.search.active().len();
                first = own.end;
                let logits = &scratch.logits[own.start * vocab_size..own.end * vocab_size];
                window.step(state, logits, &scratch.stats[own], &mut scratch.forks);
            }
        }
        let result = |w: ActiveWindow| w.into_result(self.tokenizer(), attempt.temperature);
        Ok(Some(windows.into_iter().map(result).collect()))
    }

    /// Prefills the prompts of the first `requests`, as many as fit one batch, and chooses their
    /// first tokens.
    async fn prefill(
        &self,
        state: &mut DecoderState<B>,
        scratch: &mut Scratch,
        requests: &[WindowRequest<'_>],
        attempt: Attempt<'_>,
    ) -> Result<Vec<ActiveWindow>, Error> {
        let special = self.special();
        scratch.clear();
        let mut windows = Vec::new();
        for request in requests {
            let WindowRequest { window, prompt, n_prefix, min_end_timestamp, seed } = *request;
            let start = scratch.tokens.len();
            if start + prompt.len() > state.max_tokens() {
                break;
            }
            let first_sequence = window * state.n_sequences();
            scratch.tokens.extend_from_slice(prompt);
            scratch.sequences.resize(scratch.tokens.len(), first_sequence);
            let sot = prompt.iter().rposition(|&t| t == special.sot).unwrap_or(0);
            scratch.outputs.extend([start + sot, start + prompt.len() - 1]);
            let options = self.search_options(attempt, prompt.len());
            let search = Search::new(options, &prompt[prompt.len() - n_prefix..], seed);
            windows.push(ActiveWindow {
                search,
                first_sequence,
                min_end_timestamp,
                no_speech_prob: 0.0,
            });
        }
        self.decode(state, scratch.batch())?;
        scratch.read_logits(self, state).await?;
        // Two rows of logits per window: after `<|startoftranscript|>` and after the prompt.
        let vocab_size = self.config().vocab_size;
        let last = scratch.logits.chunks_exact_mut(vocab_size).skip(1).step_by(2);
        let mut rows = logit_rows(&windows, last, &mut scratch.stats);
        self.backend().for_each(&mut rows, |row| row.evaluate(attempt.rules));
        let rows = scratch.logits.chunks_exact(2 * vocab_size).zip(scratch.stats.chunks(1));
        for (window, (logits, stats)) in windows.iter_mut().zip(rows) {
            let (sot, last) = logits.split_at(vocab_size);
            window.no_speech_prob = f64::from(probability(sot, special.no_speech));
            window.step(state, last, stats, &mut scratch.forks);
        }
        Ok(windows)
    }

    fn search_options(&self, attempt: Attempt<'_>, prompt_len: usize) -> SearchOptions {
        let Attempt { options, temperature, .. } = attempt;
        // The reference samples n_text_ctx / 2 tokens and stops when the context is full.
        let room = self.config().n_text_ctx - prompt_len;
        let max_tokens = options.max_new_tokens.unwrap_or(self.config().max_new_tokens());
        SearchOptions {
            temperature,
            width: if temperature == 0.0 { options.beam_size } else { options.best_of },
            patience: options.patience,
            length_penalty: options.length_penalty,
            eot: self.special().eot,
            max_tokens: max_tokens.min(room + 1),
        }
    }
}

impl WindowResult {
    /// Cuts a loop after its first round, if the tokens end in one.
    pub(crate) fn cut_loop(&mut self, tokenizer: &Tokenizer, special: &SpecialTokens) {
        let is_text = |token: u32| token < special.eot;
        if let Some(tokens) = loops::without_repeats(&self.tokens, is_text, LoopLimits::WINDOW) {
            self.text = tokenizer.decode(tokens).trim().to_owned();
            self.compression_ratio = compression_ratio(&self.text);
            let n_left = tokens.len();
            self.tokens.truncate(n_left);
            self.logprobs.truncate(n_left);
        }
    }
}

/// Bytes of `text` over bytes of it compressed with zlib; 0 for empty text.
fn compression_ratio(text: &str) -> f64 {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    let compressed = encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish());
    compressed.map_or(0.0, |bytes| text.len() as f64 / bytes.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::compression_ratio;

    #[test]
    fn repetition_compresses_past_the_threshold() {
        assert!(compression_ratio(&"thank you. ".repeat(20)) > 2.4);
        assert!(compression_ratio("The quick brown fox jumps over the lazy dog.") < 1.2);
        assert!(compression_ratio("").abs() < 1e-9);
    }
}
