//! Hypotheses: the buffer decoded once, with the checks of copies and loops.

use std::collections::HashMap;

use super::agreement::{key, letters};
use super::{LiveDecoder, LiveStream, seconds};
use crate::languages::Language;
use crate::loops::{self, LoopLimits};
use crate::options::Options;
use crate::transcript::{Segment, Word};

/// Consecutive words that also occur in the prompt, above which they count as copied from it.
const COPIED_WORDS: usize = 4;
/// Letters in those words.
const COPIED_LETTERS: usize = 12;
/// Consecutive words of at most [`UNSPOKEN_S`] at the end of a hypothesis, from which on nobody spoke them: the alignment puts
/// words that were not heard at the end of the audio.
const UNSPOKEN_WORDS: usize = 4;
/// Seconds of such a word: a position of the encoder, 20 ms, and rounding.
const UNSPOKEN_S: f64 = 0.021;
/// Loops of words are rejected: two hypotheses with the same loop would agree.
const LOOP: LoopLimits = LoopLimits { min_rounds: 4, min_tokens: 12 };

/// Result of decoding the buffer; times are seconds of the stream.
#[derive(Debug)]
pub(super) struct Hypothesis {
    pub(super) words: Vec<Word>,
    /// End of each segment, in seconds.
    pub(super) ends: Vec<f64>,
    /// Unknown if it was cancelled before.
    pub(super) language: Option<Language>,
    /// Whether it failed every attempt, was cancelled or repeats itself.
    pub(super) is_rejected: bool,
}

impl LiveStream {
    /// Decodes the buffer up to sample `position` of the stream, with the previous text as prompt.
    /// If the words are copied from the prompt, decodes again without it.
    pub(super) async fn decode<D: LiveDecoder>(
        &mut self,
        decoder: &mut D,
        position: u64,
        is_last: bool,
    ) -> Result<Hypothesis, D::Error> {
        let mut options = self.options.hypothesis_options(is_last);
        options.language = self.language;
        self.decoded_until = position;
        if options.condition_on_previous_text && !self.previous_text.is_empty() {
            let initial_prompt = Some(self.previous_text.clone());
            let with_prompt = Options { initial_prompt, ..options.clone() };
            let hypothesis = self.decode_with(decoder, position, &with_prompt).await?;
            if !copies_prompt(&hypothesis.words, &self.previous_text) {
                return Ok(hypothesis);
            }
            // With a short buffer, the model may copy its prompt. Words that are really repeated are
            // decoded without a prompt too.
            self.previous_text.clear();
        }
        self.decode_with(decoder, position, &options).await
    }

    /// Decodes the buffer up to sample `position` of the stream with `options`.
    async fn decode_with<D: LiveDecoder>(
        &self,
        decoder: &mut D,
        position: u64,
        options: &Options,
    ) -> Result<Hypothesis, D::Error> {
        let audio = &self.buffer[..(position - self.buffer_start) as usize];
        let offset = seconds(self.buffer_start);
        let transcript = decoder.decode(audio, options).await?;
        let language = Language::find(&transcript.language);
        let is_incomplete = transcript.has_failed || transcript.cancelled;
        let (mut words, mut ends) = (Vec::new(), Vec::new());
        for Segment { words: new, end, .. } in transcript.segments {
            ends.push(end + offset);
            words.extend(new.unwrap_or_default().into_iter().map(|word| Word {
                start: word.start + offset,
                end: word.end + offset,
                ..word
            }));
        }
        let n_kept = without_loop(&words);
        let is_rejected = is_incomplete || n_kept < words.len();
        words.truncate(without_unspoken(&words[..n_kept]));
        Ok(Hypothesis { words, ends, language, is_rejected })
    }
}

/// Whether at least [`COPIED_WORDS`] consecutive words occur in `prompt` in the same order.
pub(super) fn copies_prompt(words: &[Word], prompt: &str) -> bool {
    let prompt = letters(prompt);
    let keys: Vec<String> = words.iter().map(|word| letters(&word.word)).collect();
    let is_copied = |first: usize| {
        let mut run = String::new();
        keys[first..].iter().enumerate().any(|(i, key)| {
            run += key;
            let is_long = i + 1 >= COPIED_WORDS && run.chars().count() >= COPIED_LETTERS;
            is_long && prompt.contains(&run)
        })
    };
    (0..keys.len()).any(is_copied)
}

/// Number of words before [`UNSPOKEN_WORDS`] or more at the end that take no time.
pub(super) fn without_unspoken(words: &[Word]) -> usize {
    let n_unspoken =
        words.iter().rev().take_while(|word| word.end - word.start <= UNSPOKEN_S).count();
    if n_unspoken < UNSPOKEN_WORDS { words.len() } else { words.len() - n_unspoken }
}

/// Number of words left after the loop at the end is cut to one round.
pub(super) fn without_loop(words: &[Word]) -> usize {
    let mut ids = HashMap::new();
    let numbered = |word: &Word| {
        let n = ids.len() as u32;
        *ids.entry(key(word)).or_insert(n)
    };
    let numbers: Vec<u32> = words.iter().map(numbered).collect();
    loops::without_repeats(&numbers, |_| true, LOOP).map_or(words.len(), <[u32]>::len)
}
