//! Result of one window, and the figures that decide whether it passes.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use stonechat_text::Tokenizer;

use crate::loops::{self, LoopLimits};
use crate::search::{FinishReason, Search};
use crate::special::SpecialTokens;

/// Result of decoding one window (openai/whisper `DecodingResult`).
#[derive(Debug, Clone, PartialEq)]
pub struct WindowResult {
    /// Text and timestamp tokens, without the end token.
    pub tokens: Vec<u32>,
    /// Log-probability of each token; 0 for those of a prefix.
    pub logprobs: Vec<f32>,
    /// Text, trimmed.
    pub text: String,
    /// Temperature of the attempt.
    pub temperature: f32,
    /// Mean log-probability of the chosen tokens, the end token included.
    pub avg_logprob: f64,
    /// Bytes of the text over bytes of it compressed with zlib.
    pub compression_ratio: f64,
    /// Probability of `<|nospeech|>` after `<|startoftranscript|>`.
    pub no_speech_prob: f64,
    /// Why the text ends.
    pub finish: FinishReason,
}

impl WindowResult {
    /// Takes the result of a search that is over.
    pub(crate) fn new(
        search: &mut Search,
        tokenizer: &Tokenizer,
        temperature: f32,
        no_speech_prob: f64,
    ) -> Self {
        let (best, n_chosen) = search.take_best();
        let text = tokenizer.decode(&best.tokens).trim().to_owned();
        Self {
            avg_logprob: best.sum_logprob / (n_chosen + 1) as f64,
            compression_ratio: compression_ratio(&text),
            tokens: best.tokens,
            logprobs: best.logprobs,
            text,
            temperature,
            no_speech_prob,
            finish: best.finish,
        }
    }

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
