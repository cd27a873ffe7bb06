//! Words of a window: text tokens to words, words to times, words to segments.
//!
//! ```text
//! tokens ──split──► words ──time_words──► WordTimings ──place_words──► Segment.words, token_times
//! ```
//!
//! Source: openai/whisper 20250625 `timing.py` and `tokenizer.py`; faster-whisper 1.2.1 has the same
//! rules. Both separate combining marks from their letters in scripts such as Thai; here they stay
//! together.

use stonechat_text::Tokenizer;
use unicode_general_category::{GeneralCategory, get_general_category};

use crate::TIMESTAMP_SECONDS;
use crate::special::SpecialTokens;
use crate::times::hundredths;
use crate::transcript::{Segment, Word};

/// Times of the text tokens of a window.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenTimes {
    /// Start of each token in seconds from the start of the window, then the end of the last.
    pub seconds: Vec<f64>,
    /// Probability of each token among text tokens, given those before it.
    pub probabilities: Vec<f32>,
}

/// Marks that end a sentence.
const SENTENCE_ENDS: &str = ".。!！?？";
/// Python's `string.punctuation`.
const ASCII_PUNCTUATION: &str = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
/// Languages written without spaces: every character with its combining marks is a word.
const UNSPACED: [&str; 6] = ["zh", "ja", "th", "lo", "my", "yue"];
/// Upper limit of the median word duration, in seconds.
const MAX_MEDIAN: f64 = 0.7;

/// Adjacent tokens and their text.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TokenGroup {
    text: String,
    n_tokens: usize,
}

/// A word with its times in seconds from the start of the window; empty once merged into another.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WordTiming {
    word: String,
    n_tokens: usize,
    start: f64,
    end: f64,
    probability: f64,
}

/// Splits text tokens into words.
fn split(tokenizer: &Tokenizer, tokens: &[u32], language: &str) -> Vec<TokenGroup> {
    let characters = split_on_characters(tokenizer, tokens);
    if UNSPACED.contains(&language) {
        join(characters, |text| !text.starts_with(is_mark))
    } else {
        let begins = |text: &str| text.starts_with(' ') || ASCII_PUNCTUATION.contains(text.trim());
        join(characters, begins)
    }
}

/// Whether `c` is a combining mark, as vowels of Thai are.
fn is_mark(c: char) -> bool {
    use GeneralCategory::{EnclosingMark, NonspacingMark, SpacingMark};
    matches!(get_general_category(c), EnclosingMark | NonspacingMark | SpacingMark)
}

/// Splits wherever the tokens decode to whole characters.
fn split_on_characters(tokenizer: &Tokenizer, tokens: &[u32]) -> Vec<TokenGroup> {
    const BROKEN: char = char::REPLACEMENT_CHARACTER;
    let whole: Vec<char> = tokenizer.decode(tokens).chars().collect();
    let mut groups = Vec::new();
    let (mut first, mut n_chars) = (0, 0);
    for end in 1..=tokens.len() {
        let text = tokenizer.decode(&tokens[first..end]);
        // Later tokens do not complete bytes that are invalid in the whole text, too.
        let broken = text.chars().position(|c| c == BROKEN);
        let is_whole = broken.is_none_or(|at| whole.get(n_chars + at) == Some(&BROKEN));
        if is_whole || end == tokens.len() {
            n_chars += text.chars().count();
            groups.push(TokenGroup { text, n_tokens: end - first });
            first = end;
        }
    }
    groups
}

/// Joins groups that do not begin a word to the word before them.
fn join(groups: Vec<TokenGroup>, begins: impl Fn(&str) -> bool) -> Vec<TokenGroup> {
    let mut words: Vec<TokenGroup> = Vec::new();
    for group in groups {
        match words.last_mut() {
            Some(word) if !begins(&group.text) => {
                word.text.push_str(&group.text);
                word.n_tokens += group.n_tokens;
            }
            _ => words.push(group),
        }
    }
    words
}

/// Words of the text tokens of a window, with overlong words at sentence ends shortened and
/// punctuation merged, and the median duration of a word in seconds.
pub(crate) fn time_words(
    tokenizer: &Tokenizer,
    tokens: &[u32],
    times: &TokenTimes,
    language: &str,
    (prepended, appended): (&str, &str),
) -> (Vec<WordTiming>, f64) {
    let mut first = 0;
    let mut words: Vec<WordTiming> = split(tokenizer, tokens, language)
        .into_iter()
        .map(|group| {
            let range = first..first + group.n_tokens;
            first = range.end;
            let sum: f64 = times.probabilities[range.clone()].iter().map(|&p| f64::from(p)).sum();
            WordTiming {
                word: group.text,
                n_tokens: group.n_tokens,
                start: times.seconds[range.start],
                end: times.seconds[range.end],
                probability: sum / range.len() as f64,
            }
        })
        .collect();
    let median = median_duration(&words);
    shorten_at_sentence_ends(&mut words, 2.0 * median);
    merge_punctuation(&mut words, prepended, appended);
    (words, median)
}

/// Median of the durations above zero, at most [`MAX_MEDIAN`]; 0 if there are none.
fn median_duration(words: &[WordTiming]) -> f64 {
    let mut durations: Vec<f64> =
        words.iter().map(|w| w.end - w.start).filter(|&d| d != 0.0).collect();
    durations.sort_by(f64::total_cmp);
    let n = durations.len();
    if n == 0 {
        return 0.0;
    }
    durations[(n - 1) / 2].midpoint(durations[n / 2]).min(MAX_MEDIAN)
}

/// Shortens words around the end of a sentence to `longest` seconds: they include a pause.
fn shorten_at_sentence_ends(words: &mut [WordTiming], longest: f64) {
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

/// Merges punctuation into adjacent words, whose times stay.
fn merge_punctuation(words: &mut [WordTiming], prepended: &str, appended: &str) {
    let merge = |into: &mut WordTiming, from: &mut WordTiming, before: bool| {
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

/// Position of the words of a window in the recording.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placement<'a> {
    /// Start of the window, in seconds.
    pub(crate) offset: f64,
    /// End of the last speech before the window, in seconds.
    pub(crate) last_speech: f64,
    /// Median duration of a word, in seconds.
    pub(crate) median: f64,
    /// Start of each text token in seconds from the start of the window, then the end of the last.
    pub(crate) token_seconds: &'a [f64],
}

/// Distributes the words of a window over its segments, sets the segment times from the first and last
/// word, and sets the token times. Times do not decrease from word to word.
pub(crate) fn place_words(
    words: Vec<WordTiming>,
    segments: &mut [Segment],
    special: &SpecialTokens,
    placement: Placement<'_>,
) {
    let Placement { offset, mut last_speech, median, token_seconds } = placement;
    let mut min_start = last_speech.max(offset);
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
            shorten_after_pause(&mut placed, last_speech, median);
            limit_edge_words(segment, &mut placed, median);
            for word in &mut placed {
                word.start = hundredths(word.start.max(min_start));
                word.end = hundredths(word.end.max(word.start));
                min_start = word.end;
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
    // A word, and so its tokens, may extend into the next segment.
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

/// End of the last word, or of the last segment if there are no words; in seconds.
pub(crate) fn speech_end(segments: &[Segment]) -> Option<f64> {
    let words = segments.iter().rev().find_map(|segment| segment.words.as_ref()?.last());
    words.map(|word| word.end).or_else(|| segments.last().map(|segment| segment.end))
}

/// Shortens the first two words after a pause to twice the median.
fn shorten_after_pause(words: &mut [Word], last_speech: f64, median: f64) {
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

/// Uses the segment's times for a first or last word that extends more than 0.5 s past them.
fn limit_edge_words(segment: &Segment, words: &mut [Word], median: f64) {
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
