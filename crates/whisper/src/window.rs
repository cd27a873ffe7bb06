//! Windows of audio to tokens, at one temperature: all texts of all windows are one ragged batch.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use stonechat_nn::Backend;
use stonechat_text::Tokenizer;

use crate::loops::{self, Limits};
use crate::rules::Rules;
use crate::sampling::{Scores, probability};
use crate::search::{Finish, Hypothesis, Search, SearchOptions};
use crate::{Batch, CancelToken, DecoderState, Error, Model, Options, SpecialTokens};

/// What one window was decoded to.
#[derive(Debug, Clone, PartialEq)]
pub struct WindowResult {
    /// Text and timestamp tokens, without the end token.
    pub tokens: Vec<u32>,
    /// The log-probability of each; 0 of those of a prefix.
    pub logprobs: Vec<f32>,
    /// The text tokens, decoded and trimmed.
    pub text: String,
    /// Temperature that it was decoded at.
    pub temperature: f32,
    /// Mean log-probability of the chosen tokens, the end token included.
    pub avg_logprob: f64,
    /// Bytes of the text over bytes of it compressed with zlib.
    pub compression_ratio: f64,
    /// Probability of `<|nospeech|>` at the start.
    pub no_speech_prob: f64,
    /// Why the text ends where it does.
    pub finish: Finish,
}

/// A window to decode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WindowRequest<'a> {
    /// Which of the state's windows.
    pub(crate) window: usize,
    /// Earlier text, the start sequence, and the prefix if there is one.
    pub(crate) prompt: &'a [u32],
    /// Tokens at the prompt's end that the window's text begins with.
    pub(crate) n_given: usize,
    /// The timestamp that its text may not end before.
    pub(crate) reach: Option<u32>,
    /// Seed of what is drawn.
    pub(crate) seed: u64,
}

/// How to decode windows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt<'a> {
    pub(crate) rules: &'a Rules,
    pub(crate) options: &'a Options,
    pub(crate) temperature: f32,
    pub(crate) cancel: &'a CancelToken,
}

/// A window that is being decoded.
#[derive(Debug)]
struct Decoding {
    search: Search,
    /// The first of its sequences.
    first_sequence: usize,
    reach: Option<u32>,
    no_speech_prob: f64,
}

/// Reusable host memory of the decoding loop.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    logits: Vec<f32>,
    scores: Vec<Scores>,
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

/// The logits of what a text goes on with.
#[derive(Debug)]
struct Row<'a> {
    logits: &'a mut [f32],
    scores: &'a mut Scores,
    text: &'a [u32],
    reach: Option<u32>,
    n_top: usize,
}

/// The rows of all texts of `decodings`.
fn rows<'a>(
    decodings: &'a [Decoding],
    logits: impl Iterator<Item = &'a mut [f32]>,
    scores: &'a mut Vec<Scores>,
) -> Vec<Row<'a>> {
    let texts: Vec<_> =
        decodings.iter().flat_map(|d| d.search.alive().iter().map(move |h| (d, h))).collect();
    scores.resize_with(texts.len(), Scores::default);
    let buffers = logits.zip(scores);
    let row = |((decoding, hypothesis), (logits, scores)): ((&'a Decoding, &'a Hypothesis), _)| {
        let Decoding { search, reach, .. } = decoding;
        Row { logits, scores, text: &hypothesis.tokens, reach: *reach, n_top: search.n_top() }
    };
    texts.into_iter().zip(buffers).map(row).collect()
}

impl Row<'_> {
    /// Applies the rules and finds what the search looks at.
    fn score(&mut self, rules: &Rules) {
        rules.apply(self.logits, self.text, self.reach);
        self.scores.score(self.logits, self.n_top);
    }
}

impl Decoding {
    /// Chooses the next tokens from `logits`, `[alive, V]`, and their scores.
    fn step<B: Backend>(
        &mut self,
        state: &mut DecoderState<B>,
        logits: &[f32],
        scores: &[Scores],
        forks: &mut Vec<(usize, usize)>,
    ) {
        self.search.step(logits, scores, forks);
        for (from, to) in forks.iter() {
            state.fork(self.first_sequence + from, self.first_sequence + to);
        }
    }

    fn result(self, tokenizer: &Tokenizer, temperature: f32) -> WindowResult {
        let (best, n_chosen) = self.search.best();
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
    /// Decodes windows of `state` side by side, each with as many sequences as it searches with;
    /// `None` if that was cancelled.
    pub(crate) async fn decode_windows(
        &self,
        state: &mut DecoderState<B>,
        scratch: &mut Scratch,
        requests: &[WindowRequest<'_>],
        attempt: Attempt<'_>,
    ) -> Result<Option<Vec<WindowResult>>, Error> {
        state.clear();
        let mut decodings = Vec::with_capacity(requests.len());
        while decodings.len() < requests.len() {
            let rest = &requests[decodings.len()..];
            decodings.extend(self.prefill(state, scratch, rest, attempt).await?);
        }
        loop {
            if attempt.cancel.is_cancelled() {
                return Ok(None);
            }
            scratch.clear();
            for decoding in &decodings {
                for hypothesis in decoding.search.alive() {
                    scratch.outputs.push(scratch.tokens.len());
                    scratch.tokens.extend(hypothesis.tokens.last());
                    scratch.sequences.push(decoding.first_sequence + hypothesis.sequence);
                }
            }
            if scratch.tokens.is_empty() {
                break;
            }
            self.decode(state, scratch.batch())?;
            scratch.read_logits(self, state).await?;
            let vocab_size = self.config().vocab_size;
            let logits = scratch.logits.chunks_exact_mut(vocab_size);
            let mut rows = rows(&decodings, logits, &mut scratch.scores);
            self.backend().for_each(&mut rows, |row| row.score(attempt.rules));
            let mut first = 0;
            for decoding in decodings.iter_mut().filter(|d| !d.search.alive().is_empty()) {
                let own = first..first + decoding.search.alive().len();
                first = own.end;
                let logits = &scratch.logits[own.start * vocab_size..own.end * vocab_size];
                decoding.step(state, logits, &scratch.scores[own], &mut scratch.forks);
            }
        }
        let result = |d: Decoding| d.result(self.tokenizer(), attempt.temperature);
        Ok(Some(decodings.into_iter().map(result).collect()))
    }

    /// Runs the prompts of the first `requests`, as many as fit one batch, and chooses their first
    /// tokens.
    async fn prefill(
        &self,
        state: &mut DecoderState<B>,
        scratch: &mut Scratch,
        requests: &[WindowRequest<'_>],
        attempt: Attempt<'_>,
    ) -> Result<Vec<Decoding>, Error> {
        let special = self.special();
        scratch.clear();
        let mut decodings = Vec::new();
        for request in requests {
            let WindowRequest { window, prompt, n_given, reach, seed } = *request;
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
            let search = Search::new(options, &prompt[prompt.len() - n_given..], seed);
            decodings.push(Decoding { search, first_sequence, reach, no_speech_prob: 0.0 });
        }
        self.decode(state, scratch.batch())?;
        scratch.read_logits(self, state).await?;
        // After the start of the transcript, and after the prompt.
        let vocab_size = self.config().vocab_size;
        let last = scratch.logits.chunks_exact_mut(vocab_size).skip(1).step_by(2);
        let mut rows = rows(&decodings, last, &mut scratch.scores);
        self.backend().for_each(&mut rows, |row| row.score(attempt.rules));
        let rows = scratch.logits.chunks_exact(2 * vocab_size).zip(scratch.scores.chunks(1));
        for (decoding, (logits, scores)) in decodings.iter_mut().zip(rows) {
            let (sot, last) = logits.split_at(vocab_size);
            decoding.no_speech_prob = f64::from(probability(sot, special.no_speech));
            decoding.step(state, last, scores, &mut scratch.forks);
        }
        Ok(decodings)
    }

    fn search_options(&self, attempt: Attempt<'_>, prompt_len: usize) -> SearchOptions {
        let Attempt { options, temperature, .. } = attempt;
        // The reference samples n_text_ctx / 2 tokens and stops when the context is full.
        let room = self.config().n_text_ctx - prompt_len;
        let wanted = options.max_new_tokens.unwrap_or(self.config().max_new_tokens());
        SearchOptions {
            temperature,
            width: if temperature == 0.0 { options.beam_size } else { options.best_of },
            patience: options.patience,
            length_penalty: options.length_penalty,
            eot: self.special().eot,
            max_tokens: wanted.min(room + 1),
        }
    }
}

impl WindowResult {
    /// Cuts the repeats of a loop off; only for a window that nothing better was found for.
    pub(crate) fn cut_loop(&mut self, tokenizer: &Tokenizer, special: &SpecialTokens) {
        let is_text = |token: u32| token < special.eot;
        if let Some(tokens) = loops::without_repeats(&self.tokens, is_text, Limits::WINDOW) {
            self.text = tokenizer.decode(tokens).trim().to_owned();
            self.compression_ratio = compression_ratio(&self.text);
            let n_left = tokens.len();
            self.tokens.truncate(n_left);
            self.logprobs.truncate(n_left);
        }
    }
}

/// Bytes of `text` over its bytes after zlib; empty text gives 0.
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
