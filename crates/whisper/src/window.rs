//! Result of one window, and the figures that decide whether it passes.

use stonechat_text::Tokenizer;

use crate::loops::{self, LoopLimits};
use crate::search::{FinishReason, Search};
use crate::special::SpecialTokens;
use crate::zlib;

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
    /// Compression ratio of the text: its bytes over its bytes compressed with zlib.
    pub compression_ratio: f64,
    /// Probability of `<|nospeech|>` after `<|startoftranscript|>`.
    pub no_speech_prob: f64,
    /// Reason why the text ends.
    pub finish: FinishReason,
}

impl WindowResult {
    /// Takes the result of a search that has ended.
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
    text.len() as f64 / zlib::compressed_len(text.as_bytes()) as f64
}

#[cfg(test)]
mod tests {
    use stonechat_text::Tokenizer;

    use super::{WindowResult, compression_ratio};
    use crate::search::{FinishReason, Search, SearchOptions};
    use crate::special::SpecialTokens;

    /// Tokens are bytes.
    fn tokenizer() -> Tokenizer {
        Tokenizer::from_ranked(&(0..=255u8).map(|byte| vec![byte]).collect::<Vec<_>>()).unwrap()
    }

    fn bytes(text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    #[test]
    fn repetition_compresses_past_the_threshold() {
        assert!(compression_ratio(&"thank you. ".repeat(20)) > 2.4);
        assert!(compression_ratio("The quick brown fox jumps over the lazy dog.") < 1.2);
        assert!(compression_ratio("").abs() < 1e-9);
    }

    /// A search whose prefix is the text, over without a token chosen.
    #[test]
    fn the_mean_counts_the_end_token() {
        let options = SearchOptions {
            temperature: 0.0,
            width: 1,
            patience: 1.0,
            length_penalty: None,
            eot: 50257,
            max_tokens: 1,
        };
        let mut search = Search::new(options, &bytes(" ab "), 0);
        let result = WindowResult::new(&mut search, &tokenizer(), 0.4, 0.25);
        assert_eq!((result.text.as_str(), &result.tokens), ("ab", &bytes(" ab ")));
        assert_eq!((result.temperature, result.no_speech_prob), (0.4, 0.25));
        assert_eq!((result.finish, result.avg_logprob), (FinishReason::Limit, 0.0));
        assert!(search.active().is_empty());
    }

    #[test]
    fn a_loop_is_cut_after_its_first_round() {
        let special = SpecialTokens::new(51865).unwrap();
        let cut = |text: &str, round: &str, n: usize| {
            let tokens = [bytes(text), bytes(&round.repeat(n))].concat();
            let mut result = WindowResult {
                logprobs: (0..tokens.len()).map(|i| i as f32).collect(),
                tokens,
                text: String::new(),
                temperature: 0.0,
                avg_logprob: -0.5,
                compression_ratio: 99.0,
                no_speech_prob: 0.0,
                finish: FinishReason::Loop,
            };
            result.cut_loop(&tokenizer(), &special);
            result
        };
        let result = cut("so-", "well, ", 6);
        assert_eq!((result.text.as_str(), &result.tokens), ("so-well,", &bytes("so-well, ")));
        assert_eq!(result.logprobs, (0..9).map(|i| i as f32).collect::<Vec<_>>());
        assert_eq!(result.compression_ratio, compression_ratio("so-well,"));
        // Five rounds are no loop.
        let result = cut("so-", "well, ", 5);
        assert_eq!((result.tokens.len(), result.compression_ratio), (33, 99.0));
    }
}
