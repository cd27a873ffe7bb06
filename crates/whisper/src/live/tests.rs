use proptest::prelude::*;
use stonechat_audio::VadOptions;
use stonechat_nn::{Cpu, KvDType};
use stonechat_testkit::{Lcg, TinyWhisper};

use super::buffer::{MAX_BUFFER, PROMPT_CHARS};
use super::hypothesis::{copies_prompt, without_loop, without_unspoken};
use super::{LiveEvent, LiveOptions, LiveStream};
use crate::SAMPLE_RATE;
use crate::cancel::CancelToken;
use crate::languages::Language;
use crate::model::Model;
use crate::options::{Options, VadMode};
use crate::transcriber::Transcriber;
use crate::transcript::Word;

fn random_model() -> Transcriber {
    let file = TinyWhisper::default().file();
    let model = Model::load(Cpu::new(1).unwrap(), &file, |_| {}).unwrap();
    Transcriber::new(&model, &Options::default(), KvDType::F32).unwrap()
}

/// The text of a random model passes no threshold, and hypotheses rarely agree.
fn options() -> LiveOptions {
    let decoding = Options {
        language: Language::find("en"),
        temperatures: vec![0.0],
        beam_size: 1,
        compression_ratio_threshold: None,
        logprob_threshold: None,
        no_speech_threshold: None,
        max_new_tokens: Some(12),
        vad: VadMode::Off,
        ..Options::default()
    };
    LiveOptions { decoding, min_chunk_s: 1.0, trim_s: 15.0 }
}

fn noise(n_samples: usize) -> Vec<f32> {
    let loudness = |i: usize| ((i / 4000 * 7919) % 13) as f32 / 13.0;
    let samples = Lcg::new(3).normals(n_samples, 0.1);
    samples.iter().enumerate().map(|(i, s)| s * loudness(i)).collect()
}

/// Pushes `samples` in blocks of these lengths in turn, and checks the invariants after each.
fn run(transcriber: &mut Transcriber, samples: &[f32], block_lens: &[usize]) -> Vec<LiveEvent> {
    let mut stream = LiveStream::new(options()).unwrap();
    let (mut emitted, mut rest, mut until) = (Vec::new(), samples, 0.0);
    let mut text: Vec<String> = Vec::new();
    let mut block_lens = block_lens.iter().cycle();
    loop {
        let n = rest.len().min(*block_lens.next().unwrap());
        let (block, others) = rest.split_at(n);
        let events = if block.is_empty() {
            stream.finish(transcriber).unwrap()
        } else {
            stream.push(transcriber, block).unwrap()
        };
        let now = stream.seconds();
        for event in &events {
            match event {
                LiveEvent::Committed { words } => {
                    assert!(!words.is_empty());
                    for live in words {
                        let Word { start, end, .. } = live.word;
                        assert!(until <= start && start <= end && end <= now, "{until} {live:?}");
                        assert!((live.latency - (now - end)).abs() < 1e-9);
                        until = end;
                        text.push(live.word.word.clone());
                    }
                }
                LiveEvent::Revised { replaced, words } => {
                    let kept = text.len() - replaced.len();
                    assert!(text.drain(kept..).eq(replaced.iter().map(|word| word.word.clone())));
                    for Word { start, end, word, .. } in words {
                        assert!(start <= end && *end <= now, "{words:?}");
                        text.push(word.clone());
                        until = *end;
                    }
                }
                LiveEvent::End { time } => assert!(until <= *time && *time <= now + 1e-9),
                LiveEvent::Partial { .. }
                | LiveEvent::Language { .. }
                | LiveEvent::SpeechStart { .. }
                | LiveEvent::SpeechEnd { .. } => {}
            }
        }
        emitted.extend(events);
        assert!(stream.buffer.len() <= MAX_BUFFER, "{} samples", stream.buffer.len());
        assert_eq!(stream.buffer_end(), stream.n_pushed);
        assert!(stream.previous_text.chars().count() <= PROMPT_CHARS);
        if block.is_empty() {
            return emitted;
        }
        rest = others;
    }
}

fn committed(events: &[LiveEvent]) -> Vec<&Word> {
    let words = events.iter().filter_map(|event| match event {
        LiveEvent::Committed { words } => Some(words),
        _ => None,
    });
    words.flatten().map(|live| &live.word).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn times_ascend_and_equal_blocks_give_equal_events(
        n_samples in 1..40 * SAMPLE_RATE,
        block_lens in prop::collection::vec(8000..10 * SAMPLE_RATE, 1..4),
    ) {
        let samples = noise(n_samples);
        let mut transcriber = random_model();
        let events = run(&mut transcriber, &samples, &block_lens);
        let has_end = matches!(events.last(), Some(LiveEvent::End { .. }));
        prop_assert!(has_end);
        prop_assert_eq!(run(&mut transcriber, &samples, &block_lens), events);
    }
}

#[test]
fn endless_speech_fits_a_buffer() {
    let mut transcriber = random_model();
    let events = run(&mut transcriber, &noise(100 * SAMPLE_RATE), &[9 * SAMPLE_RATE]);
    let words = committed(&events);
    assert!(words.len() > 3, "{events:?}");
    // Some words are committed before the end: the buffer is bounded.
    assert!(words[0].end < 40.0, "{words:?}");
}

#[test]
fn silence_is_not_decoded() {
    let mut transcriber = random_model();
    let mut live = options();
    live.decoding.vad = VadMode::On;
    let mut stream = LiveStream::new(live).unwrap();
    for _ in 0..90 {
        assert_eq!(stream.push(&mut transcriber, &vec![0.0; SAMPLE_RATE]).unwrap(), []);
        assert!(stream.buffer.len() < SAMPLE_RATE);
    }
    assert_eq!(stream.finish(&mut transcriber).unwrap(), []);
    assert_eq!(transcriber.timings().windows, 0);
}

#[test]
fn speech_between_silences_is_an_utterance() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/audio/quick_brown_fox.wav");
    let speech = stonechat_audio::decode_file(path).unwrap().samples;
    let silence = vec![0.0; 3 * SAMPLE_RATE];
    let samples = [&silence[..], &speech, &silence, &speech, &silence].concat();
    let mut live = options();
    live.decoding.vad = VadMode::On;
    live.decoding.vad_options = VadOptions { min_silence_ms: 600, ..VadOptions::default() };
    let mut transcriber = random_model();
    let mut stream = LiveStream::new(live).unwrap();
    let mut ends = Vec::new();
    for block in samples.chunks(SAMPLE_RATE) {
        let events = stream.push(&mut transcriber, block).unwrap();
        for live in committed(&events) {
            assert!(live.start >= 2.5, "{live:?}");
        }
        ends.extend(events.iter().filter_map(|event| match event {
            LiveEvent::End { time } => Some(*time),
            _ => None,
        }));
    }
    let length = speech.len() as f64 / SAMPLE_RATE as f64;
    let expected = [3.0 + length, 6.0 + 2.0 * length];
    assert_eq!(ends.len(), 2, "{ends:?}");
    for (end, expected) in ends.iter().zip(expected) {
        assert!((end - expected).abs() < 1.0, "{ends:?}, expected {expected}");
    }
}

#[test]
fn a_cancelled_stream_commits_nothing() {
    let mut transcriber = random_model();
    let token = CancelToken::new();
    transcriber.cancelled_by(&token);
    token.cancel();
    let mut stream = LiveStream::new(options()).unwrap();
    assert_eq!(stream.push(&mut transcriber, &noise(5 * SAMPLE_RATE)).unwrap(), []);
    let events = stream.finish(&mut transcriber).unwrap();
    assert!(matches!(events[..], [LiveEvent::End { .. }]), "{events:?}");
}

#[test]
fn words_copied_from_the_prompt_are_recognised() {
    #[track_caller]
    fn check(words: &[&str], is_copied: bool) {
        let prompt =
            " of all. \"You were always accusing people,\" he said, 他说你总是指责别人开店的";
        let word =
            |word: &&str| Word { word: (*word).to_owned(), start: 0.0, end: 0.0, probability: 1.0 };
        let words: Vec<Word> = words.iter().map(word).collect();
        assert_eq!(copies_prompt(&words, prompt), is_copied, "{words:?}");
    }
    check(&[" Then", " you", " were", " always", " accusing", " him."], true);
    check(&[" You", " were", " always", " right."], false);
    check(&[" of", " all", " you", " w"], false);
    let copied = ["他", "说", "你", "总", "是", "指", "责", "别", "人", "开", "店", "的"];
    check(&copied, true);
    check(&copied[..11], false);
    check(&[], false);
}

#[test]
fn words_that_nobody_spoke_are_cut() {
    #[track_caller]
    fn check(ends: &[f64], kept: usize) {
        let mut start = 0.0;
        let word = |&end: &f64| {
            let word = Word { word: " a".to_owned(), start, end, probability: 1.0 };
            start = end;
            word
        };
        let words: Vec<Word> = ends.iter().map(word).collect();
        assert_eq!(without_unspoken(&words), kept, "{words:?}");
    }
    check(&[0.3, 0.5, 0.5, 0.5, 0.5, 0.5], 2);
    check(&[0.3, 0.5, 0.52, 0.54, 0.54, 0.56], 2);
    check(&[0.3, 0.5, 0.54, 0.58, 0.62, 0.66], 6);
    check(&[0.3, 0.5, 0.5, 0.5, 0.5], 5);
    check(&[0.3, 0.3, 0.3, 0.3, 0.3, 0.5], 6);
    check(&[], 0);
}

#[test]
fn loops_are_cut_to_one_round() {
    #[track_caller]
    fn check(text: &str, kept: usize) {
        let word =
            |word: &str| Word { word: format!(" {word}"), start: 0.0, end: 0.0, probability: 1.0 };
        let words: Vec<Word> = text.split_whitespace().map(word).collect();
        assert_eq!(without_loop(&words), kept, "{text}");
    }
    check("no no no no no", 5);
    check("well, thank you. Thank you. thank you thank you Thank you. thank you", 3);
    check(&format!("so {}", "it goes on and on ".repeat(4)), 6);
    check(&"it goes on and on ".repeat(3), 15);
    check("", 0);
}
