//! Word times and speech detection of whole recordings.
//!
//! The golden file comes from `test-data/golden/words.py`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use serde_json::Value;
use stonechat_formats::ModelFile;
use stonechat_nn::{Cpu, KvDType};
use stonechat_testkit::{Lcg, TinyWhisper};
use stonechat_whisper::{
    Event, Language, Model, Options, SAMPLE_RATE, Transcriber, Transcript, VadMode,
};

/// Largest difference of the median time and of the 95th percentile, in seconds.
const MEDIAN: f64 = 0.04;
const MOST: f64 = 0.2;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data")
}

fn load(name: &str) -> Option<Transcriber> {
    let file = ModelFile::open(stonechat_testkit::models_folder()?.join(name)).ok()?;
    let model = Model::load(Cpu::new(0).unwrap(), &file, |_| {}).unwrap();
    Some(Transcriber::new(&model, &Options::default(), KvDType::F32).unwrap())
}

fn recording(name: &str) -> Vec<f32> {
    stonechat_audio::decode_file(root().join("audio").join(name)).unwrap().samples
}

fn options(language: &str) -> Options {
    Options {
        language: Language::find(language),
        temperatures: vec![0.0],
        beam_size: 1,
        condition_on_previous_text: false,
        word_timestamps: true,
        vad: VadMode::Off,
        ..Options::default()
    }
}

fn transcribe(engine: &mut Transcriber, samples: &[f32], options: &Options) -> Transcript {
    let mut reported = Vec::new();
    let transcript = engine
        .transcribe(samples, options, |event| match event {
            Event::Segment(segment) => reported.push(segment),
            Event::Position(done, all) => assert!(done <= all && all == samples.len()),
            _ => {}
        })
        .unwrap();
    assert_eq!(reported, transcript.segments);
    check_times(&transcript, samples.len());
    transcript
}

/// Checks that times ascend, segments contain their words, and nothing lies past the end.
#[track_caller]
fn check_times(transcript: &Transcript, n_samples: usize) {
    let mut last = 0.0;
    for segment in &transcript.segments {
        assert!(last <= segment.start && segment.start <= segment.end, "{last} {segment:?}");
        let Some(words) = &segment.words else { panic!("no words: {segment:?}") };
        for word in words {
            assert!(last <= word.start && word.start <= word.end, "{last} {word:?}");
            assert!((0.0..=1.0).contains(&word.probability));
            last = word.end;
        }
        assert!(last <= segment.end);
        last = segment.end;
    }
    let end = n_samples as f64 / SAMPLE_RATE as f64;
    assert!(last <= end + 0.005, "{last} past {end}");
}

#[test]
fn words_are_where_faster_whisper_has_them() {
    let golden = std::fs::read(root().join("golden/words.json")).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let mut differences = Vec::new();
    for case in golden["cases"].as_array().unwrap() {
        let text = |key: &str| case[key].as_str().unwrap();
        let Some(mut engine) = load(text("model")) else {
            println!("SKIPPED {}: no such model, run `cargo xtask test`", text("model"));
            continue;
        };
        let options = options(text("language"));
        let transcript = transcribe(&mut engine, &recording(text("audio")), &options);
        let segments = case["segments"].as_array().unwrap();
        assert_eq!(transcript.segments.len(), segments.len(), "{}", text("audio"));
        for (segment, expected) in transcript.segments.iter().zip(segments) {
            let tokens: Vec<u64> = segment.tokens.iter().map(|&t| u64::from(t)).collect();
            assert_eq!(serde_json::to_value(tokens).unwrap(), expected["tokens"]);
            let (words, expected) =
                (segment.words.as_ref().unwrap(), expected["words"].as_array().unwrap());
            assert_eq!(words.len(), expected.len());
            let spelled: String = words.iter().map(|word| word.word.as_str()).collect();
            assert_eq!(spelled, segment.text);
            for (word, expected) in words.iter().zip(expected) {
                let number = |i: usize| expected[i].as_f64().unwrap();
                assert_eq!(word.word, expected[0].as_str().unwrap());
                assert!((word.probability - number(3)).abs() < 0.01, "{word:?} {expected}");
                differences.push((word.start - number(1)).abs());
                differences.push((word.end - number(2)).abs());
            }
        }
    }
    if differences.is_empty() {
        return;
    }
    differences.sort_by(f64::total_cmp);
    let n = differences.len();
    println!("{n} times: median {:.3} s, largest {:.3} s", differences[n / 2], differences[n - 1]);
    assert!(differences[n / 2] <= MEDIAN && differences[n * 95 / 100] <= MOST);
}

/// The times of any text of a random model are valid.
#[test]
fn times_of_any_text_are_in_order() {
    let file = TinyWhisper::default().file();
    let model = Model::load(Cpu::new(2).unwrap(), &file, |_| {}).unwrap();
    let mut engine = Transcriber::new(&model, &Options::default(), KvDType::F32).unwrap();
    let samples = Lcg::new(3).normals(SAMPLE_RATE * 37 + 77, 0.1);
    let plain = Options { no_speech_threshold: None, ..options("en") };
    let guarded = Options { hallucination_silence_threshold: Some(0.5), ..plain.clone() };
    let bare = Options { without_timestamps: true, ..plain.clone() };
    for options in [plain, guarded, bare] {
        transcribe(&mut engine, &samples, &options);
    }
}

#[test]
fn speech_is_found_where_it_was_said() {
    let Some(mut engine) = load("tiny.en") else {
        println!("SKIPPED tiny.en: no such model, run `cargo xtask test`");
        return;
    };
    let fox = recording("quick_brown_fox.wav");
    let mut samples = vec![0.0; 20 * SAMPLE_RATE];
    samples.extend(&fox);
    samples.resize(70 * SAMPLE_RATE, 0.0);
    let second = samples.len() as f64 / SAMPLE_RATE as f64;
    samples.extend(&fox);
    samples.resize(samples.len() + 11 * SAMPLE_RATE, 0.0);
    let options = Options { vad: VadMode::Auto, ..options("en") };
    let transcript = transcribe(&mut engine, &samples, &options);
    let words: Vec<_> =
        transcript.segments.iter().flat_map(|segment| segment.words.iter().flatten()).collect();
    let starts: Vec<f64> = words
        .iter()
        .filter(|word| word.word.to_lowercase() == " fox")
        .map(|word| word.start)
        .collect();
    let [a, b] = starts[..] else { panic!("{words:?}") };
    assert!((a - 20.9).abs() < 0.4 && (b - second - 0.9).abs() < 0.4, "{a} {b}");
    // There are no other words.
    assert_eq!(words.len(), 18, "{words:?}");
    let silence = vec![0.0; 40 * SAMPLE_RATE];
    assert_eq!(transcribe(&mut engine, &silence, &options).segments, []);
}
