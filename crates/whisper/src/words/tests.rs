use stonechat_text::Tokenizer;

use super::*;
use crate::options::Options;

const PREPENDED: &str = Options::PREPEND_PUNCTUATIONS;
const APPENDED: &str = Options::APPEND_PUNCTUATIONS;

/// A vocabulary of the 256 bytes and the given tokens from 256 on.
fn tokenizer(tokens: &[&[u8]]) -> Tokenizer {
    let mut all: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    all.extend(tokens.iter().map(|token| token.to_vec()));
    Tokenizer::from_ranked(&all).unwrap()
}

#[track_caller]
fn check_split(tokens: &[&[u8]], language: &str, expected: &[(&str, usize)]) {
    let ids: Vec<u32> = (256..).take(tokens.len()).collect();
    let groups = split(&tokenizer(tokens), &ids, language);
    let got: Vec<_> = groups.iter().map(|g| (g.text.as_str(), g.n_tokens)).collect();
    assert_eq!(got, expected);
}

#[test]
fn words_begin_with_a_space_or_are_punctuation() {
    check_split(
        &[b" Hel", b"lo", b",", b" wor", b"ld", b"!?", b" it", b"'", b"s", b" a", b"-", b"b"],
        "en",
        &[(" Hello", 2), (",", 1), (" world!?", 3), (" it", 1), ("'s", 2), (" a", 1), ("-b", 2)],
    );
    check_split(&[b"no", b" space"], "en", &[("no", 1), (" space", 1)]);
    check_split(&[], "en", &[]);
}

#[test]
fn characters_that_span_tokens_stay_whole() {
    check_split(&["ส".as_bytes(), "ั".as_bytes(), "บ".as_bytes()], "th", &[("สั", 2), ("บ", 1)]);
    // U+4F60 and U+597D, each cut between two tokens.
    let cut: [&[u8]; 4] = [b"\xe4\xbd", b"\xa0\xe5", b"\xa5", b"\xbd"];
    check_split(&cut, "zh", &[("你好", 4)]);
    check_split(&["你".as_bytes(), "好".as_bytes(), b"."], "ja", &[("你", 1), ("好", 1), (".", 1)]);
    check_split(&["你".as_bytes(), "好".as_bytes(), b"."], "en", &[("你好", 2), (".", 1)]);
    // Bytes that never become a character do not hold the rest up.
    check_split(&[b" a", b"\xff", b" b"], "en", &[(" a\u{fffd}", 2), (" b", 1)]);
    check_split(&[b" a", b"\xe4"], "zh", &[(" a", 1), ("\u{fffd}", 1)]);
}

fn timing(word: &str, start: f64, end: f64) -> WordTiming {
    WordTiming { word: word.to_owned(), n_tokens: 1, start, end, probability: 0.5 }
}

#[test]
fn punctuation_joins_its_words() {
    let words = [" \"", " Hello", ",", " (", "you", ")", ".\"", " -", " x", "..."];
    let mut timings: Vec<WordTiming> =
        words.iter().enumerate().map(|(i, w)| timing(w, i as f64, i as f64 + 1.0)).collect();
    merge_punctuation(&mut timings, PREPENDED, APPENDED);
    let got: Vec<_> = timings
        .iter()
        .filter(|t| !t.word.is_empty())
        .map(|t| (t.word.as_str(), t.start, t.n_tokens))
        .collect();
    // `.` and `"` do not follow each other in the list, so that `."` stays a word; neither do three
    // dots. Times are those of the word.
    assert_eq!(
        got,
        [
            (" \" Hello,", 1.0, 3),
            (" (you)", 4.0, 3),
            (".\"", 6.0, 1),
            (" - x", 8.0, 2),
            ("...", 9.0, 1)
        ]
    );
    assert_eq!(timings.iter().map(|t| t.n_tokens).sum::<usize>(), words.len());
    merge_punctuation(&mut [], PREPENDED, APPENDED);
}

#[test]
fn medians_leave_empty_words_out_and_are_capped() {
    let median = |durations: &[f64]| {
        let words: Vec<_> = durations.iter().map(|&d| timing("a", 1.0, 1.0 + d)).collect();
        (median_duration(&words) * 1e6).round() / 1e6
    };
    assert_eq!(median(&[]), 0.0);
    assert_eq!(median(&[0.0, 0.0]), 0.0);
    assert_eq!(median(&[0.0, 0.2, 0.6, 0.4]), 0.4);
    assert_eq!(median(&[0.2, 0.4]), 0.3);
    assert_eq!(median(&[3.0, 3.0]), 0.7);
}

#[test]
fn long_words_at_sentence_ends_are_shortened() {
    let mut words = [
        timing(" a", 0.0, 5.0),
        timing(".", 5.0, 9.0),
        timing(" b", 9.0, 19.0),
        timing(" c", 19.0, 30.0),
    ];
    shorten_at_sentence_ends(&mut words, 1.0);
    let times: Vec<_> = words.iter().map(|w| (w.start, w.end)).collect();
    assert_eq!(times, [(0.0, 5.0), (5.0, 6.0), (18.0, 19.0), (19.0, 30.0)]);
}

fn segment(start: f64, end: f64, n_tokens: usize) -> Segment {
    // A timestamp before and after the text does not count.
    let mut tokens = vec![50364];
    tokens.resize(n_tokens + 1, 400);
    tokens.push(50464);
    Segment { start, end, tokens, ..Segment::default() }
}

fn place(words: &[(&str, f64, f64)], segments: &mut [Segment], last_speech: f64) {
    let special = SpecialTokens::new(51865).unwrap();
    let words: Vec<WordTiming> = words.iter().map(|&(w, s, e)| timing(w, s, e)).collect();
    let median = median_duration(&words);
    let last = words.last().map(|word| word.end);
    let token_seconds: Vec<f64> = words.iter().map(|word| word.start).chain(last).collect();
    let placement = Placement { offset: 10.0, last_speech, median, token_seconds: &token_seconds };
    place_words(words, segments, &special, placement);
}

fn times(segment: &Segment) -> Vec<(f64, f64)> {
    segment.words.as_ref().unwrap().iter().map(|w| (w.start, w.end)).collect()
}

#[test]
fn segments_get_their_words_and_times() {
    let mut segments = [segment(10.0, 11.0, 2), segment(11.0, 13.0, 1), segment(13.0, 14.0, 0)];
    place(&[(" a", 0.1, 0.4), (" b", 0.4, 0.7), (" c", 1.3, 1.6)], &mut segments, 10.0);
    assert_eq!(times(&segments[0]), [(10.1, 10.4), (10.4, 10.7)]);
    assert_eq!(times(&segments[1]), [(11.3, 11.6)]);
    assert_eq!((segments[0].start, segments[0].end), (10.1, 10.7));
    assert_eq!((segments[1].start, segments[1].end), (11.3, 11.6));
    assert_eq!(segments[2].words, Some(vec![]));
    assert_eq!((segments[2].start, segments[2].end), (13.0, 14.0));
}

#[test]
fn tokens_have_times_inside_those_of_their_words() {
    let special = SpecialTokens::new(51865).unwrap();
    let mut segments = [segment(10.0, 11.0, 2), segment(11.0, 13.0, 2)];
    // The second word extends into the second segment; the first began before 10.3.
    let words = [("a", 1, 0.1, 0.4), ("bc", 2, 0.4, 1.2), ("d", 1, 1.2, 1.5)]
        .map(|(word, n_tokens, start, end)| WordTiming { n_tokens, ..timing(word, start, end) });
    let placement = Placement {
        offset: 10.0,
        last_speech: 10.3,
        median: 0.3,
        token_seconds: &[0.1, 0.4, 0.9, 1.2, 1.5],
    };
    place_words(words.to_vec(), &mut segments, &special, placement);
    assert_eq!(times(&segments[0]), [(10.3, 10.4), (10.4, 11.2)]);
    let tokens = |i: usize| segments[i].token_times.clone();
    assert_eq!(tokens(0), [(10.3, 10.3), (10.3, 10.4), (10.4, 10.9), (11.2, 11.2)]);
    assert_eq!(tokens(1), [(11.2, 11.2), (10.9, 11.2), (11.2, 11.5), (11.5, 11.5)]);
}

#[test]
fn pauses_before_and_after_a_segment_are_no_part_of_it() {
    // The first word began with the pause; the segment's own start is not far enough to be used.
    let mut segments = [segment(10.0, 16.0, 3)];
    place(&[(" a", 0.0, 5.0), (" b", 5.0, 5.3), (" c", 5.3, 5.7)], &mut segments, 5.0);
    assert_eq!(times(&segments[0])[0], (14.2, 15.0));
    // The segment's end is more than half a second before that of its last word.
    let mut segments = [segment(10.0, 11.0, 2)];
    place(&[(" a", 0.0, 0.4), (" b", 0.4, 3.0)], &mut segments, 10.0);
    assert_eq!(times(&segments[0]), [(10.0, 10.4), (10.4, 11.1)]);
    // The same for its start.
    let mut segments = [segment(12.0, 13.0, 2)];
    place(&[(" a", 0.0, 2.5), (" b", 2.5, 2.9)], &mut segments, 12.0);
    assert_eq!(times(&segments[0]), [(12.0, 12.5), (12.5, 12.9)]);
}

#[test]
fn times_never_go_back() {
    // The last word of the first segment ends after the start of the second.
    let mut segments = [segment(10.0, 11.05, 2), segment(11.05, 14.0, 1)];
    place(&[(" a", 0.0, 1.0), (" b", 1.0, 1.6), (" c", 1.6, 2.6)], &mut segments, 10.0);
    assert_eq!(times(&segments[0]), [(10.0, 11.0), (11.0, 11.7)]);
    assert_eq!(times(&segments[1]), [(11.7, 12.6)]);
    let mut segments = [segment(10.0, 11.0, 1)];
    place(&[(" a", 0.0, 0.5)], &mut segments, 10.3);
    assert_eq!(times(&segments[0]), [(10.3, 10.5)]);
}

#[test]
fn words_have_the_times_and_probabilities_of_their_tokens() {
    let tokenizer = tokenizer(&[b" Hel", b"lo", b"."]);
    let times =
        TokenTimes { seconds: vec![0.2, 0.3, 0.6, 0.7], probabilities: vec![0.5, 1.0, 0.25] };
    let (words, median) =
        time_words(&tokenizer, &[256, 257, 258], &times, "en", (PREPENDED, APPENDED));
    assert!((median - 0.25).abs() < 1e-9);
    let [hello, dot] = &words[..] else { panic!("{words:?}") };
    assert_eq!(
        (hello.word.as_str(), hello.n_tokens, hello.start, hello.end),
        (" Hello.", 3, 0.2, 0.6)
    );
    assert!((hello.probability - 0.75).abs() < 1e-9);
    assert_eq!((dot.word.as_str(), dot.n_tokens), ("", 0));
}
