//! Batched windows give the same results as single ones, with a random and a real model.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking and says what it skipped"
)]

use std::path::Path;

use stonechat_formats::ModelFile;
use stonechat_nn::{Cpu, KvDType};
use stonechat_testkit::{Lcg, TinyWhisper};
use stonechat_whisper::{
    Event, Model, Options, SAMPLE_RATE, Samples, Segment, Transcriber, Transcript, VadMode,
    WINDOW_SAMPLES,
};

const FOX: &str = " The quick brown fox jumps over the lazy dog.";

fn random() -> Transcriber {
    let file = TinyWhisper::default().file();
    let model = Model::load(Cpu::new(2).unwrap(), &file, |_| {}).unwrap();
    Transcriber::new(&model, &Options::default(), KvDType::F32).unwrap()
}

/// The text of a random model passes no threshold.
fn accept_all() -> Options {
    Options {
        temperatures: vec![0.0],
        compression_ratio_threshold: None,
        logprob_threshold: None,
        no_speech_threshold: None,
        max_new_tokens: Some(40),
        vad: VadMode::Off,
        ..Options::default()
    }
}

fn noise(seconds: usize) -> Vec<f32> {
    let samples = Lcg::new(9).normals(seconds * SAMPLE_RATE, 0.1);
    // Varying loudness, so that windows differ.
    let loudness = |i: usize| ((i / 4000 * 7919) % 13) as f32 / 13.0;
    samples.iter().enumerate().map(|(i, s)| s * loudness(i)).collect()
}

/// Transcribes, and checks the events meanwhile.
fn transcribe(transcriber: &mut Transcriber, samples: &[f32], options: &Options) -> Transcript {
    let mut segments: Vec<Segment> = Vec::new();
    let mut at = 0;
    let on_event = |event: Event| match event {
        Event::Segment(segment) => segments.push(segment),
        Event::Position(done, all) => {
            assert!(at <= done && done <= all, "{at} {done} {all}");
            at = done;
        }
        _ => {}
    };
    let transcript = transcriber.transcribe(samples, options, on_event).unwrap();
    assert_eq!(segments, transcript.segments, "segments come in order, each once");
    assert_eq!(at, samples.len());
    assert!(segments.iter().enumerate().all(|(i, segment)| segment.id == i));
    transcript
}

/// Options with clips of 25 s, each of one window, 10 ms apart.
fn with_clips(samples: &[f32], options: &Options) -> Options {
    let n_clips = samples.len().div_ceil(25 * SAMPLE_RATE);
    let starts = (0..n_clips).map(|i| 25.0 * i as f64);
    let clip_timestamps = starts.flat_map(|start| [start, start + 24.99]).collect();
    Options { clip_timestamps, ..options.clone() }
}

#[test]
fn a_batch_of_windows_equals_one_by_one() {
    let samples = noise(100);
    for (temperature, beam_size, best_of) in [(0.0, 1, 1), (0.0, 3, 1), (0.7, 1, 2)] {
        let options = Options {
            temperatures: vec![temperature],
            beam_size,
            best_of,
            condition_on_previous_text: false,
            ..accept_all()
        };
        let mut transcriber = random();
        let options = with_clips(&samples, &options);
        let alone = transcribe(&mut transcriber, &samples, &options);
        let n_windows = transcriber.timings().windows;
        assert!(n_windows >= 4 && alone.segments.len() >= 4, "{n_windows} windows");
        for batch_size in [2, 3, 8] {
            let options = Options { batch_size: Some(batch_size), ..options.clone() };
            let together = transcribe(&mut transcriber, &samples, &options);
            assert_eq!(together, alone, "{batch_size} windows, temperature {temperature}");
        }
    }
}

#[test]
fn windows_that_fail_alone_are_decoded_again() {
    // Above the impossible log-probability everything fails, below it nothing does.
    let samples = noise(70);
    let with = |threshold: f64| {
        let options = Options {
            temperatures: vec![0.0, 0.4],
            logprob_threshold: Some(threshold),
            batch_size: Some(3),
            beam_size: 2,
            best_of: 2,
            ..accept_all()
        };
        let mut transcriber = random();
        let transcript = transcribe(&mut transcriber, &samples, &options);
        (transcript, transcriber.timings())
    };
    let (transcript, timings) = with(-1000.0);
    assert_eq!(timings.fallbacks, 0);
    // Between the least and the most probable window some fail and some do not.
    let mut logprobs: Vec<f64> = transcript.segments.iter().map(|s| s.avg_logprob).collect();
    logprobs.sort_by(f64::total_cmp);
    let (least, most) = (logprobs[0], logprobs[logprobs.len() - 1]);
    assert!(least < most, "every window is alike");
    let (mixed, timings) = with(f64::midpoint(least, most));
    assert!((1..2 * timings.windows).contains(&timings.fallbacks), "{timings:?}");
    let at_zero = |t: &Transcript| {
        t.segments
            .iter()
            .filter(|s| s.temperature == 0.0 && s.avg_logprob == most)
            .map(|s| (s.seek, s.tokens.clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(at_zero(&mixed), at_zero(&transcript), "what passed is as it was");
    let (_, timings) = with(0.0);
    assert_eq!(timings.fallbacks, 2 * timings.windows, "every window fails twice");
}

#[test]
fn clips_are_transcribed_alone() {
    let samples = noise(70);
    let mut transcriber = random();
    let options = Options { batch_size: Some(2), beam_size: 1, ..accept_all() };
    let with = |clip_timestamps: &[f64]| Options {
        clip_timestamps: clip_timestamps.to_vec(),
        ..options.clone()
    };
    let transcript =
        transcribe(&mut transcriber, &samples, &with(&[1.0, 2.0, 3.0, 5.0, 60.0, 65.0]));
    assert!(!transcript.segments.is_empty());
    for segment in &transcript.segments {
        let inside = |from: f64, to: f64| from <= segment.start && segment.end <= to;
        assert!(inside(1.0, 2.0) || inside(3.0, 5.0) || inside(60.0, 65.0), "{segment:?}");
    }
    // Audio around a clip has no influence.
    let last = &samples[WINDOW_SAMPLES * 2..65 * SAMPLE_RATE];
    let alone = transcriber.transcribe(last, &options, |_| {}).unwrap();
    let tail = transcript.segments.iter().filter(|s| s.start >= 60.0);
    assert!(tail.map(|s| &s.tokens).eq(alone.segments.iter().map(|s| &s.tokens)));
    let overlapping = with(&[4.0, 9.0, 5.0, 10.0]);
    assert!(transcriber.transcribe(&samples, &overlapping, |_| {}).is_err());
    let past_the_end = with(&[80.0]);
    assert!(transcribe(&mut transcriber, &samples, &past_the_end).segments.is_empty());
}

#[test]
fn speech_ranges_are_checked() {
    let (samples, options) = (noise(1), accept_all());
    let wrong = Some(vec![4..9, 5..10]);
    assert!(Samples::from(&samples).with_speech(wrong).is_err());
    let silence = Samples::from(&samples).with_speech(Some(vec![])).unwrap();
    let none = random().transcribe(silence, &options, |_| {}).unwrap();
    assert!(none.segments.is_empty());
}

#[test]
fn silence_may_be_cut_beforehand() {
    let (samples, options) = (noise(40), accept_all());
    let speech = Some(vec![8_000..200_000, 320_000..600_000]);
    let run = |recording: Samples<'_>| {
        random().transcribe(recording, &options, |_| {}).map(|transcript| {
            transcript.segments.into_iter().map(|s| (s.tokens, s.start, s.end)).collect::<Vec<_>>()
        })
    };
    let borrowed = Samples::from(&samples).with_speech(speech.clone()).unwrap();
    let expected = run(borrowed).unwrap();
    assert!(!expected.is_empty());
    let cut = Samples::from(samples.clone()).with_speech(speech).unwrap();
    assert_eq!((cut.duration(), run(cut.clone()).unwrap()), (40.0, expected));
    let clips = Options { clip_timestamps: vec![1.0, 2.0], ..options.clone() };
    assert!(random().transcribe(cut, &clips, |_| {}).is_err());
}

/// The installed `tiny.en`, or a line that says why `test` is skipped.
fn tiny_en(test: &str) -> Option<Transcriber> {
    let file = stonechat_testkit::models_folder()
        .and_then(|folder| ModelFile::open(folder.join("tiny.en")).ok());
    let Some(file) = file else {
        println!("SKIPPED {test}: no tiny.en in STONECHAT_MODELS, run `cargo xtask test`");
        return None;
    };
    let model = Model::load(Cpu::new(0).unwrap(), &file, |_| {}).unwrap();
    Some(Transcriber::new(&model, &Options::default(), KvDType::F32).unwrap())
}

fn recording(name: &str) -> Vec<f32> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/audio");
    stonechat_audio::decode_file(folder.join(name)).unwrap().samples
}

/// Recordings that start 20 s apart.
fn long_recording(names: &[&str]) -> Vec<f32> {
    let mut samples = Vec::new();
    for (i, name) in names.iter().enumerate() {
        samples.resize(i * 20 * SAMPLE_RATE, 0.0);
        samples.extend(recording(name));
    }
    samples
}

#[test]
fn a_long_recording_in_batches() {
    let Some(mut tiny) = tiny_en("a_long_recording_in_batches") else { return };
    let names = ["quick_brown_fox.wav", "hello_world.wav", "counting.wav", "quick_brown_fox.wav"];
    let samples = long_recording(&names);
    for beam_size in [1, 5] {
        let options = Options { beam_size, vad: VadMode::Off, ..Options::default() };
        let sequential = transcribe(&mut tiny, &samples, &options);
        let in_batches = Options { batch_size: Some(4), ..options.clone() };
        let unaware = Options { condition_on_previous_text: false, ..options.clone() };
        let alone = transcribe(&mut tiny, &samples, &with_clips(&samples, &unaware));
        assert_eq!(transcribe(&mut tiny, &samples, &with_clips(&samples, &in_batches)), alone);
        let batched = transcribe(&mut tiny, &samples, &in_batches);
        // Capital letters depend on the text before, which the prompts of a batch lack.
        assert!(batched.text.to_lowercase().contains(" hello world."), "{}", batched.text);
        for transcript in [&sequential, &batched] {
            let text = &transcript.text;
            assert!(text.starts_with(FOX) && text.ends_with(FOX), "beam {beam_size}: {text}");
            let end = samples.len() as f64 / SAMPLE_RATE as f64;
            let mut times = transcript.segments.iter().map(|s| (s.start, s.end));
            assert!(times.clone().all(|(start, end)| start < end));
            assert!(times.all(|(_, stop)| stop <= end + 0.01));
            assert!(transcript.segments.windows(2).all(|s| s[0].end <= s[1].start + 0.01));
        }
    }
}

/// A window without timestamps loses neither its end nor what follows it.
#[test]
fn a_long_recording_without_timestamps() {
    let Some(mut tiny) = tiny_en("a_long_recording_without_timestamps") else { return };
    let names = ["quick_brown_fox.wav", "counting.wav", "hello_world.wav"];
    let samples: Vec<f32> = (0..15)
        .flat_map(|i| [recording(names[i % 3]), vec![0.0; SAMPLE_RATE / 2]].concat())
        .collect();
    assert!(samples.len() > WINDOW_SAMPLES + 10 * SAMPLE_RATE, "{} samples", samples.len());
    let without_timestamps = true;
    for (vad, batch_size) in [(VadMode::Off, None), (VadMode::Auto, None), (VadMode::Auto, Some(4))]
    {
        let options =
            Options { beam_size: 1, vad, batch_size, without_timestamps, ..Options::default() };
        let transcript = transcribe(&mut tiny, &samples, &options);
        let text = transcript.text.to_lowercase();
        for word in ["brown fox", "hello"] {
            let n = text.matches(word).count();
            assert!((4..=5).contains(&n), "{vad:?} {batch_size:?}: {n} times {word} of 5: {text}");
        }
        assert!(transcript.segments.iter().all(|s| s.start < s.end && s.words.is_none()));
        assert!(transcript.segments.windows(2).all(|s| s[0].end <= s[1].start + 0.02));
    }
}

#[test]
fn prompts_prefixes_and_limits() {
    let Some(mut tiny) = tiny_en("prompts_prefixes_and_limits") else { return };
    let samples = recording("quick_brown_fox.wav");
    let mut text = |options: Options| tiny.transcribe(&samples, &options, |_| {}).unwrap();
    let default = Options::default;
    assert_eq!(text(default()).text, FOX);
    // A prefix is part of the text, with timestamps and without.
    for without_timestamps in [false, true] {
        let prefix = Some("The quick".to_owned());
        let options = Options { prefix, without_timestamps, ..default() };
        assert_eq!(text(options).text, FOX);
    }
    // faster-whisper 1.2.1 writes the same with this hotword.
    let options = Options { hotwords: Some("Foxx".to_owned()), ..default() };
    assert_eq!(text(options).text, " The Quick Brown Fox jumps over the lazy dog.");
    let options = Options { max_new_tokens: Some(4), temperatures: vec![0.0], ..default() };
    assert_eq!(text(options).segments[0].tokens.len(), 4);
    // " fox" by another spelling, or not at all.
    let fox = text(default()).segments[0].tokens[4];
    let options = Options { suppress_tokens: vec![fox], ..default() };
    assert!(text(options).segments.iter().all(|s| !s.tokens.contains(&fox)));
}
