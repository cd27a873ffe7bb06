//! One window of audio to tokens, at one temperature.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use stonechat_nn::Backend;
use stonechat_nn::sample::Rng;

use crate::rules::Rules;
use crate::sampling::{greedy, probability, sample};
use crate::{Batch, DecoderState, Error, Model};

/// What one window was decoded to.
#[derive(Debug, Clone, PartialEq)]
pub struct WindowResult {
    /// Text and timestamp tokens, without the end token.
    pub tokens: Vec<u32>,
    /// The text tokens, decoded and trimmed.
    pub text: String,
    /// Temperature that it was decoded at.
    pub temperature: f32,
    /// Mean log-probability of the tokens, the end token included.
    pub avg_logprob: f64,
    /// Bytes of the text over bytes of it compressed with zlib.
    pub compression_ratio: f64,
    /// Probability of `<|nospeech|>` at the start.
    pub no_speech_prob: f64,
}

/// How to decode a window.
#[derive(Debug)]
pub(crate) struct WindowRequest<'a> {
    /// Earlier text, the start sequence, and a prefix if there is one.
    pub(crate) prompt: &'a [u32],
    pub(crate) rules: &'a Rules,
    pub(crate) temperature: f32,
    pub(crate) n_candidates: usize,
}

/// One candidate transcript of a window.
#[derive(Debug, Default, Clone)]
struct Candidate {
    tokens: Vec<u32>,
    sum_logprob: f64,
    finished: bool,
}

impl Candidate {
    /// Mean log-probability without the end token: what candidates are compared by.
    fn score(&self) -> f64 {
        self.sum_logprob / self.tokens.len().max(1) as f64
    }
}

/// Reusable host memory of the decoding loop.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    logits: Vec<f32>,
    first: Vec<f32>,
    tokens: Vec<u32>,
    sequences: Vec<usize>,
    outputs: Vec<usize>,
}

impl<B: Backend> Model<B> {
    /// Decodes the window that `state` attends to.
    pub(crate) async fn decode_window(
        &self,
        state: &mut DecoderState<B>,
        scratch: &mut Scratch,
        request: WindowRequest<'_>,
        rng: &mut Rng,
    ) -> Result<WindowResult, Error> {
        let WindowRequest { prompt, rules, temperature, n_candidates } = request;
        let special = self.special();
        let Scratch { logits, first, tokens, sequences, outputs } = scratch;
        logits.resize(self.config().vocab_size, 0.0);
        first.resize(self.config().vocab_size, 0.0);

        state.clear();
        sequences.clear();
        sequences.resize(prompt.len(), 0);
        let sot = prompt.iter().rposition(|&t| t == special.sot).unwrap_or(0);
        let last = prompt.len() - 1;
        let wanted: &[usize] = if sot == last { &[last] } else { &[sot, last] };
        self.decode(state, Batch { tokens: prompt, sequences, outputs: wanted })?;
        self.read_logits(state, 0, first).await?;
        let no_speech_prob = f64::from(probability(first, special.no_speech));
        self.read_logits(state, wanted.len() - 1, first).await?;
        rules.apply(first, &[]);

        let mut candidates = vec![Candidate::default(); n_candidates];
        for i in 1..n_candidates {
            state.fork(0, i);
        }
        let mut choose = |logits: &[f32], candidate: &mut Candidate| {
            let choice =
                if temperature == 0.0 { greedy(logits) } else { sample(logits, temperature, rng) };
            candidate.sum_logprob += f64::from(choice.logprob);
            if choice.token == special.eot {
                candidate.finished = true;
            } else {
                candidate.tokens.push(choice.token);
            }
        };
        for candidate in &mut candidates {
            choose(first, candidate);
        }
        // The reference samples n_text_ctx / 2 tokens and stops when the context is full.
        let room = self.config().n_text_ctx - prompt.len();
        for _ in 1..self.config().max_new_tokens().min(room + 1) {
            tokens.clear();
            sequences.clear();
            outputs.clear();
            for (i, candidate) in candidates.iter().enumerate().filter(|(_, c)| !c.finished) {
                outputs.push(tokens.len());
                tokens.extend(candidate.tokens.last());
                sequences.push(i);
            }
            if tokens.is_empty() {
                break;
            }
            self.decode(state, Batch { tokens, sequences, outputs })?;
            let running = candidates.iter_mut().filter(|c| !c.finished);
            for (row, candidate) in running.enumerate() {
                self.read_logits(state, row, logits).await?;
                rules.apply(logits, &candidate.tokens);
                choose(logits, candidate);
            }
        }
        // `max_by` keeps the last of equals and the reference the first.
        let best = candidates
            .into_iter()
            .rev()
            .max_by(|a, b| a.score().total_cmp(&b.score()))
            .unwrap_or_default();
        let text = self.tokenizer().decode(&best.tokens).trim().to_owned();
        Ok(WindowResult {
            avg_logprob: best.sum_logprob / (best.tokens.len() + 1) as f64,
            compression_ratio: compression_ratio(&text),
            tokens: best.tokens,
            text,
            temperature,
            no_speech_prob,
        })
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
