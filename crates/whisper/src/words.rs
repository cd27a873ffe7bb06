//! Words of a window: where they begin and end in its tokens and in time.
//!
//! Source: openai/whisper 20250625 `timing.py` and `tokenizer.py`; faster-whisper 1.2.1 has the same
//! rules. Both cut Thai and its neighbours between a letter and its vowel; here they stay together.

use stonechat_text::Tokenizer;
use unicode_general_category::{GeneralCategory, get_general_category};

use crate::align::TokenTimes;
use crate::times::hundredths;
use crate::{Segment, SpecialTokens, TIMESTAMP_SECONDS};

/// A word with its times.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Word {
    /// Text, with the space before it and the punctuation around it.
    pub word: String,
    /// Start in seconds.
    pub start: f64,
    /// End in seconds.
    pub end: f64,
    /// Mean probability of its tokens.
    pub probability: f64,
}

/// Marks that end a sentence.
const SENTENCE_ENDS: &str = ".。!！?？";
/// Python's `string.punctuation`.
const ASCII_PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
/// Languages written without spaces: words are cut at every character, with its marks.
const UNSPACED: [&str; 6] = ["zh", "ja", "th", "lo", "my", "yue"];
/// Longest median that word durations are compared with, in seconds.
const MAX_MEDIAN: f64 = 0.7;

/// Tokens and the text that they spell.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Piece {
    text: String,
    n_tokens: usize,
}

/// A word between the steps of its making; merged ones are left empty.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Timing {
    word: String,
    n_tokens: usize,
    start: f64,
    end: f64,
    probability: f64,
}

/// Text tokens cut into words.
fn split(tokenizer: &Tokenizer, tokens: &[u32], language: &str) -> Vec<Piece> {
    let characters = split_on_characters(tokenizer, tokens);
    if UNSPACED.contains(&language) {
        join(characters, |text| !text.starts_with(is_mark))
    } else {
        let begins = |text: &str| text.starts_with(' ') || ASCII_PUNCTUATION.contains(text.trim());
        join(characters, begins)
    }
}

/// Whether a character is written above, below or around the one before it, as vowels of Thai are.
fn is_mark(c: char) -> bool {
    use GeneralCategory::{EnclosingMark, NonspacingMark, SpacingMark};
    matches!(get_general_category(c), EnclosingMark | NonspacingMark | SpacingMark)
}

/// Cuts wherever the tokens so far spell whole characters.
fn split_on_characters(tokenizer: &Tokenizer, tokens: &[u32]) -> Vec<Piece> {
    const BROKEN: char = char::REPLACEMENT_CHARACTER;
    let whole: Vec<char> = tokenizer.decode(tokens).chars().collect();
    let mut pieces = Vec::new();
    let (mut first, mut n_chars) = (0, 0);
    for end in 1..=tokens.len() {
        let text = tokenizer.decode(&tokens[first..end]);
        // Bytes that are no character in the whole text either need not wait for more.
        let broken = text.chars().position(|c| c == BROKEN);
        let is_whole = broken.is_none_or(|at| whole.get(n_chars + at) == Some(&BROKEN));
        if is_whole || end == tokens.len() {
            n_chars += text.chars().count();
            pieces.push(Piece { text, n_tokens: end - first });
            first = end;
        }
    }
    pieces
}

/// Joins what does not begin a word to the word before it.
fn join(pieces: Vec<Piece>, begins: impl Fn(&str) -> bool) -> Vec<Piece> {
    let mut words: Vec<Piece> = Vec::new();
    for piece in pieces {
        match words.last_mut() {
            Some(word) if !begins(&piece.text) => {
                word.text.push_str(&piece.text);
                word.n_tokens += piece.n_tokens;
            }
            _ => words.push(piece),
        }
    }
    words
}

/// The words of a window's text tokens, in seconds from its start, with overlong words at sentence
/// ends cut and punctuation merged; and what their durations are compared with.
pub(crate) fn time_words(
    tokenizer: &Tokenizer,
    tokens: &[u32],
    times: &TokenTimes,
    language: &str,
    (prepended, appended): (&str, &str),
) -> (Vec<Timing>, f64) {
    let mut first = 0;
    let mut words: Vec<Timing> = split(tokenizer, tokens, language)
        .into_iter()
        .map(|piece| {
            let range = first..first + piece.n_tokens;
            first = range.end;
            let sum: f64 = times.probabilities[range.clone()].iter().map(|&p| f64::from(p)).sum();
            Timing {
                word: piece.text,
                n_tokens: piece.n_tokens,
                start: times.seconds[range.start],
                end: times.seconds[range.end],
                probability: sum / range.len() as f64,
            }
        })
        .collect();
    let median = median_duration(&words);
    cut_at_sentence_ends(&mut words, 2.0 * median);
    merge_punctuation(&mut words, prepended, appended);
    (words, median)
}

/// The median of the durations above zero, at most [`MAX_MEDIAN`]; 0 if there are none.
fn median_duration(words: &[Timing]) -> f64 {
    let mut durations: Vec<f64> =
        words.iter().map(|w| w.end - w.start).filter(|&d| d != 0.0).collect();
    durations.sort_by(f64::total_cmp);
    let n = durations.len();
    if n == 0 {
        return 0.0;
    }
    durations[(n - 1) / 2].midpoint(durations[n / 2]).min(MAX_MEDIAN)
}

/// Cuts words around the end of a sentence to `longest`: a pause was counted to them.
fn cut_at_sentence_ends(words: &mut [Timing], longest: f64) {
    if longest == 0.0 {
        return;
    }
    for i in 1..words.len() {
        if words[i].end - words[i].start > longest {
            if SENTENCE_ENDS.contains(&words[i].word) {
                words[i].end = words[i].start + longest;
            } else if SENTENCE_ENDS.contains(&words[i - 1].word) {
                words[i].start = words[i].end - longest;
            }
        }
    }
}

/// Moves punctuation into the words that it belongs to; their times stay.
fn merge_punctuation(words: &mut [Timing], prepended: &str, appended: &str) {
    let merge = |into: &mut Timing, from: &mut Timing, before: bool| {
        let text = std::mem::take(&mut from.word);
        if before {
            into.word.insert_str(0, &text);
        } else {
            into.word.push_str(&text);
        }
        into.n_tokens += std::mem::take(&mut from.n_tokens);
    };
    let mut following = words.len().saturating_sub(1);
    for i in (0..following).rev() {
        let [from, into] = words.get_disjoint_mut([i, following]).expect("i is smaller");
        if from.word.starts_with(' ') && prepended.contains(from.word.trim()) {
            merge(into, from, true);
        } else {
            following = i;
        }
    }
    let mut previous = 0;
    for i in 1..words.len() {
        let [into, from] = words.get_disjoint_mut([previous, i]).expect("i is larger");
        if !into.word.ends_with(' ') && appended.contains(from.word.as_str()) {
            merge(into, from, false);
        } else {
            previous = i;
        }
    }
}

/// Where a window's words are put.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placement<'a> {
    /// Start of the window in seconds.
    pub(crate) offset: f64,
    /// Where speech ended before it.
    pub(crate) last_speech: f64,
    /// What [`time_words`] gave for the words.
    pub(crate) median: f64,
    /// Start of each text token in seconds from the start of the window, then the end of the last.
    pub(crate) token_seconds: &'a [f64],
}

/// Gives the words of a window to its segments and moves the segments' times to them, and gives tokens
/// their times. Times do not decrease from word to word.
pub(crate) fn place_words(
    words: Vec<Timing>,
    segments: &mut [Segment],
    special: &SpecialTokens,
    placement: Placement<'_>,
) {
    let Placement { offset, mut last_speech, median, token_seconds } = placement;
    let mut not_before = last_speech.max(offset);
    let mut words = words.into_iter();
    let mut token_ends = token_seconds.windows(2);
    let mut token_times = Vec::with_capacity(token_seconds.len());
    for segment in &mut *segments {
        let n_tokens = segment.tokens.iter().filter(|&&token| token < special.eot).count();
        let mut n_placed = 0;
        let mut placed = Vec::new();
        let mut n_tokens_placed = Vec::new();
        while n_placed < n_tokens
            && let Some(word) = words.next()
        {
            n_placed += word.n_tokens;
            if !word.word.is_empty() {
                n_tokens_placed.push(word.n_tokens);
                placed.push(Word {
                    word: word.word,
                    start: hundredths(offset + word.start),
                    end: hundredths(offset + word.end),
                    probability: word.probability,
                });
            }
        }
        if !placed.is_empty() {
            cut_after_pause(&mut placed, last_speech, median);
            settle_edges(segment, &mut placed, median);
            for word in &mut placed {
                word.start = hundredths(word.start.max(not_before));
                word.end = hundredths(word.end.max(word.start));
                not_before = word.end;
            }
            segment.start = placed[0].start;
            segment.end = placed[placed.len() - 1].end;
            last_speech = segment.end;
        }
        for (word, n_tokens) in placed.iter().zip(n_tokens_placed) {
            let inside = |time: f64| hundredths(offset + time).clamp(word.start, word.end);
            let ends = token_ends.by_ref().take(n_tokens);
            token_times.extend(ends.map(|ends| (inside(ends[0]), inside(ends[1]))));
        }
        segment.words = Some(placed);
    }
    // A word may reach into the next segment, and so do its tokens.
    let mut token_times = token_times.into_iter();
    for segment in segments {
        let Segment { start, end, .. } = *segment;
        let time = |&token: &u32| {
            if token < special.eot {
                return token_times.next().unwrap_or((end, end));
            }
            let steps = f64::from(token.saturating_sub(special.timestamp_begin));
            let stamp = hundredths(offset + steps * TIMESTAMP_SECONDS).clamp(start, end);
            (stamp, stamp)
        };
        segment.token_times = segment.tokens.iter().map(time).collect();
    }
}

/// Where the last word of segments ends, or the last of them.
pub(crate) fn speech_end(segments: &[Segment]) -> Option<f64> {
    let words = segments.iter().rev().find_map(|segment| segment.words.as_ref()?.last());
    words.map(|word| word.end).or_else(|| segments.last().map(|segment| segment.end))
}

/// Cuts the first two words after a pause to twice the median.
fn cut_after_pause(words: &mut [Word], last_speech: f64, median: f64) {
    let longest = 2.0 * median;
    let (first_start, first_end) = (words[0].start, words[0].end);
    let second = words.get(1).map(|word| (word.start, word.end));
    let too_long = first_end - first_start > longest
        || second.is_some_and(|(_, end)| end - first_start > 2.0 * longest);
    if first_end - last_speech > 4.0 * median && too_long {
        if let Some((start, end)) = second.filter(|(start, end)| end - start > longest) {
            debug_assert!(start <= end);
            let boundary = (end / 2.0).max(end - longest);
            words[0].end = boundary;
            words[1].start = boundary;
        }
        words[0].start = (words[0].end - longest).max(0.0);
    }
}

/// Prefers the segment's own times to those of a first or last word that is far longer.
fn settle_edges(segment: &Segment, words: &mut [Word], median: f64) {
    let first = &mut words[0];
    if segment.start < first.end && segment.start - 0.5 > first.start {
        first.start = (first.end - median).min(segment.start).max(0.0);
    }
    let last = words.len() - 1;
    let last = &mut words[last];
    if segment.end > last.start && segment.end + 0.5 < last.end {
        last.end = (last.start + median).max(segment.end);
    }
}

#[cfg(test)]
mod tests;
