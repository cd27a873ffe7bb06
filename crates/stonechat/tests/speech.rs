//! Recordings in one batch of a `Whisper`: each gives what it gives alone.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::print_stdout, reason = "a skipped test says so")]

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use stonechat::compute::DType;
use stonechat::formats::ModelFile;
use stonechat::nn::Cpu;
use stonechat::whisper::{
    self, CancelToken, Event, ExportFormat, Language, Options, Segment, Task, Timings, VadMode,
    export,
};
use stonechat::{Device, KvDType, Recording, SpeechStep, Whisper, WhisperBuilder};
use stonechat_testkit::{Lcg, TinyWhisper};

/// A multilingual model whose matrices are q8_0: products of integers have the same bits in a batch of any size.
fn model() -> ModelFile {
    let tiny = TinyWhisper { vocab_size: 51865, n_layers: 1, ..TinyWhisper::default() };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    export(&tiny.file(), &path, ExportFormat::Gguf, Some(DType::Q8_0), |_| {}).unwrap();
    ModelFile::open(&path).unwrap()
}

fn builder() -> WhisperBuilder {
    Whisper::builder().device(Device::Cpu).threads(2).kv_dtype(KvDType::F32)
}

fn fox() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../test-data/audio/quick_brown_fox.wav")
}

fn noise(random: &mut Lcg, seconds: usize) -> Vec<f32> {
    let samples = random.normals(seconds * 16_000, 0.1);
    let loudness = |i: usize| ((i / 4000 * 7919) % 13) as f32 / 13.0;
    samples.iter().enumerate().map(|(i, s)| s * loudness(i)).collect()
}

/// Short greedy texts.
fn short() -> Options {
    Options {
        language: Language::find("en"),
        temperatures: vec![0.0],
        beam_size: 1,
        best_of: 1,
        compression_ratio_threshold: None,
        logprob_threshold: None,
        no_speech_threshold: None,
        max_new_tokens: Some(8),
        vad: VadMode::Off,
        ..Options::default()
    }
}

/// Options of a recording. The text of a random model passes few thresholds, so that windows fall back.
fn options(random: &mut Lcg) -> Options {
    let mut pick = |n: u32| (random.next_u32() % n) as usize;
    Options {
        language: [None, Some("en"), Some("de")][pick(3)].and_then(Language::find),
        task: if pick(4) == 0 { Task::Translate } else { Task::Transcribe },
        temperatures: [vec![0.0], vec![0.0, 0.4, 1.0], vec![0.7]][pick(3)].clone(),
        beam_size: 1 + pick(4),
        best_of: 1 + pick(4),
        batch_size: [None, Some(2), Some(3)][pick(3)],
        compression_ratio_threshold: [None, Some(1.1)][pick(2)],
        condition_on_previous_text: pick(2) == 0,
        initial_prompt: (pick(3) == 0).then(|| "ab cd".to_owned()),
        hotwords: (pick(3) == 0).then(|| "ef".to_owned()),
        max_new_tokens: Some(4 + pick(20)),
        without_timestamps: pick(4) == 0,
        seed: pick(100) as u64,
        word_timestamps: pick(3) == 0,
        ..short()
    }
}

/// Segments of a recording that has the engine for itself.
fn alone(samples: &[f32], options: &Options) -> Vec<Segment> {
    let whisper = builder().open_file(model()).unwrap();
    let recording = Recording::samples(samples).options(options.clone());
    whisper.transcribe(recording).wait().unwrap().segments
}

fn check(seed: u64, n: usize) -> Result<(), TestCaseError> {
    let mut random = Lcg::new(seed);
    // The state grows to the options of recordings that come later, unless it has a size from the start.
    let builder = match random.next_u32() % 4 {
        0 => builder(),
        n => builder().parallel(n as usize),
    };
    let whisper = builder.open_file(model()).unwrap();
    if whisper.info().device.contains("amx") {
        println!(
            "SKIPPED a_recording_gives_what_it_gives_alone: AMX rounds products of more than 16 rows in another way"
        );
        return Ok(());
    }
    let mut jobs = Vec::new();
    for _ in 0..n {
        let seconds = 1 + random.next_u32() as usize % 40;
        let (samples, options) = (noise(&mut random, seconds), options(&mut random));
        let recording = Recording::samples(&samples[..]).options(options.clone());
        let mut job = whisper.transcribe(recording);
        let is_cancelled = random.next_u32().is_multiple_of(4);
        if is_cancelled {
            let n_segments = random.next_u32() as usize % 3;
            let n = job.items().take(n_segments).map(Result::unwrap).count();
            assert!(n <= n_segments);
            job.cancel_token().cancel();
        }
        jobs.push((job, samples, options));
    }
    for (job, samples, options) in jobs {
        let transcript = job.wait().unwrap();
        let expected = alone(&samples, &options);
        let n = transcript.segments.len();
        prop_assert_eq!(transcript.duration, (samples.len() / 16_000) as f64);
        prop_assert!(n == expected.len() || transcript.cancelled && n < expected.len());
        prop_assert_eq!(&transcript.segments[..], &expected[..n], "seed {}: {:?}", seed, options);
        let text: String = expected[..n].iter().map(|segment| &*segment.text).collect();
        prop_assert_eq!(transcript.text, text);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn a_recording_gives_what_it_gives_alone(seed in any::<u64>(), n in 2..=6usize) {
        check(seed, n)?;
    }
}

/// Engine whose steps are recorded.
fn counted(builder: WhisperBuilder) -> (Whisper, Arc<Mutex<Vec<SpeechStep>>>) {
    let steps = Arc::new(Mutex::new(Vec::new()));
    let own = Arc::clone(&steps);
    let on_step = move |step: &SpeechStep| own.lock().unwrap().push(*step);
    (builder.on_step(on_step).open_file(model()).unwrap(), steps)
}

#[test]
fn a_long_recording_leaves_places_to_a_short_one() {
    let (whisper, steps) = counted(builder().parallel(2));
    let mut random = Lcg::new(1);
    let long = Recording::samples(noise(&mut random, 400));
    let mut long = whisper.transcribe(long.options(Options { batch_size: Some(16), ..short() }));
    long.items().next().unwrap().unwrap();
    let short = Recording::samples(noise(&mut random, 5)).options(short());
    whisper.transcribe(short).wait().unwrap();
    let n_windows = steps.lock().unwrap().last().unwrap().timings.windows;
    let transcript = long.wait().unwrap();
    assert_eq!(transcript.duration, 400.0);
    drop(whisper);
    let steps = steps.lock().unwrap();
    let last = steps.last().unwrap();
    let n_last = last.timings.windows;
    assert!(n_last >= 15 && n_windows + 4 < n_last, "{n_windows} of {last:?}");
    assert_eq!((last.finished, last.finished_seconds, last.active), (2, 405.0, 0));
    assert!(steps.iter().any(|step| step.active == 2));
    let work = |step: &SpeechStep| {
        let Timings { windows, rows, tokens, .. } = step.timings;
        (windows, rows, tokens)
    };
    assert!(steps.is_sorted_by_key(work));
    assert_eq!((last.waiting, last.timings.rows > last.timings.tokens), (0, true));
}

#[test]
fn a_recording_that_needs_a_larger_state_waits_for_the_others() {
    let (whisper, steps) = counted(builder().reserve_for(short()));
    let mut random = Lcg::new(2);
    let mut start = |options: &Options| {
        let samples = noise(&mut random, 50);
        let job = whisper.transcribe(Recording::samples(&samples[..]).options(options.clone()));
        (job, alone(&samples, options))
    };
    let wide = Options { beam_size: 3, word_timestamps: true, ..short() };
    let jobs = [start(&short()), start(&wide), start(&short()), start(&wide)];
    for (job, expected) in jobs {
        assert_eq!(job.wait().unwrap().segments, expected);
    }
    let error = whisper.transcribe(
        Recording::samples(vec![0.1; 16])
            .options(Options { suppress_tokens: vec![60_000], ..short() }),
    );
    let error = error.wait().unwrap_err().to_string();
    assert!(error.starts_with("suppress-tokens: expected tokens of the model's"), "{error}");
    drop(whisper);
    assert_eq!(steps.lock().unwrap().last().unwrap().finished, 4);
    let error = builder().parallel(65).open_file(model()).unwrap_err().to_string();
    assert!(error.ends_with(": batch-size: expected 1 to 64, got 65"), "{error}");
}

#[test]
fn limits_say_what_was_expected() {
    let whisper = builder().open_file(model()).unwrap();
    let error =
        |recording: Recording| whisper.transcribe(recording).wait().unwrap_err().to_string();
    let bytes = || Recording::bytes(std::fs::read(fox()).unwrap());
    for recording in [bytes(), Recording::file(fox())] {
        assert_eq!(
            error(recording.max_bytes(10_000)),
            "expected at most 10000 bytes of encoded audio, got more"
        );
    }
    let samples = Recording::samples(vec![0.1; 32_001]);
    for recording in [bytes(), Recording::file(fox()), samples] {
        let got = error(recording.max_seconds(2));
        assert_eq!(got, "expected at most 2 seconds of audio, got more");
    }
    let recording = bytes().max_seconds(3).max_bytes(1 << 20).options(short());
    whisper.transcribe(recording).wait().unwrap();
}

#[test]
fn an_engine_is_dropped_with_recordings_in_it() {
    let whisper = builder().parallel(2).open_file(model()).unwrap();
    let samples = noise(&mut Lcg::new(3), 100);
    let start = || whisper.transcribe(Recording::samples(&samples[..]).options(short()));
    let jobs: Vec<_> = (0..4).map(|_| start()).collect();
    drop(jobs);
    let mut last = start();
    last.items().next().unwrap().unwrap();
    drop(whisper);
    drop(last);
}

#[test]
fn events_are_those_of_the_transcript_and_a_token_cancels_several_recordings() {
    let model = whisper::Model::load(Cpu::new(2).unwrap(), &model(), |_| {}).unwrap();
    let samples = noise(&mut Lcg::new(3), 40);
    let recording =
        || Recording::samples(&samples[..]).options(Options { language: None, ..short() });
    let mut texts = Vec::new();
    for part in model.divide(2).unwrap() {
        let whisper = Whisper::builder().kv_dtype(KvDType::F32).open_model(part).unwrap();
        let (sender, events) = channel();
        let job = whisper.transcribe_with(recording(), move |event| sender.send(event).unwrap());
        let (mut language, mut segments, mut position) = (None, Vec::new(), None);
        for event in events {
            match event {
                Event::Language(found, _) => language = Some(found.code.to_owned()),
                Event::Segment(segment) => segments.push(segment),
                Event::Position(done, all) => position = Some((done, all)),
                _ => {}
            }
        }
        let transcript = job.wait().unwrap();
        assert!(!segments.is_empty());
        assert_eq!((Some(transcript.language), transcript.segments), (language, segments));
        assert_eq!(position, Some((samples.len(), samples.len())));
        texts.push(transcript.text);
        let token = CancelToken::new();
        token.cancel();
        // One is cancelled while it is decoded.
        let file = Recording::file(fox()).options(short());
        let jobs = [recording(), file].map(|one| whisper.transcribe(one.cancelled_by(&token)));
        for job in jobs {
            let transcript = job.wait().unwrap();
            assert!(transcript.cancelled && transcript.segments.is_empty());
        }
    }
    assert_eq!(texts[0], texts[1]);
}
