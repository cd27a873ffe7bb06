//! Windows of several recordings in one batch: each recording gives what it gives alone.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use pollster::block_on;
use proptest::prelude::*;
use stonechat_compute::DType;
#[cfg(target_arch = "x86_64")]
use stonechat_compute::simd::Isa;
use stonechat_formats::ModelFile;
use stonechat_nn::{Cpu, KvDType};
use stonechat_testkit::{Lcg, TinyWhisper};
use stonechat_whisper::{
    DecodeRequest, Error, ExportFormat, Model, Options, Rules, SAMPLE_RATE, Segment, StateOptions,
    Task, Transcription, VadMode, WINDOW_SAMPLES, WindowAudio, WindowDecoder, WindowOutput,
    WindowRequest, WindowTask, export,
};

/// Beams of the widest options.
const MAX_BEAMS: usize = 4;

/// A multilingual model whose matrices are q8_0: products of integers have the same bits in a batch of any size.
fn model() -> Model {
    let tiny = TinyWhisper { vocab_size: 51865, n_layers: 1, ..TinyWhisper::default() };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    export(&tiny.file(), &path, ExportFormat::Gguf, Some(DType::Q8_0), |_| {}).unwrap();
    Model::load(cpu(), &ModelFile::open(&path).unwrap(), |_| {}).unwrap()
}

/// Not AMX, which rounds products of more than 16 rows in another way.
fn cpu() -> Cpu {
    let mut device = stonechat_compute::Cpu::new(2).unwrap();
    if device.isa.name() == "amx" {
        device.isa = Isa::available().into_iter().rfind(|isa| isa.name() != "amx").unwrap();
    }
    Cpu::with_device(device)
}

/// Decoder of `n_windows` windows, which encodes `encoder_batch_size` in a pass.
fn decoder(model: &Model, (n_windows, encoder_batch_size): (usize, usize)) -> WindowDecoder {
    let options = StateOptions {
        n_windows,
        n_sequences: MAX_BEAMS,
        kv_dtype: KvDType::F32,
        encoder_batch_size,
        ..StateOptions::default()
    };
    let mut decoder = WindowDecoder::new(model, options).unwrap();
    let words = Options { word_timestamps: true, beam_size: 1, best_of: 1, ..Options::default() };
    decoder.reserve(&words, n_windows).unwrap();
    decoder
}

fn noise(random: &mut Lcg, seconds: usize) -> Vec<f32> {
    let samples = random.normals(seconds * SAMPLE_RATE, 0.1);
    let loudness = |i: usize| ((i / 4000 * 7919) % 13) as f32 / 13.0;
    samples.iter().enumerate().map(|(i, s)| s * loudness(i)).collect()
}

/// Options of a recording. The text of a random model passes few thresholds, so that windows fall back.
fn options(random: &mut Lcg) -> Options {
    let mut pick = |n: u32| random.next_u32() % n;
    let languages = [None, Some("en"), Some("de")];
    Options {
        language: languages[pick(3) as usize].and_then(stonechat_whisper::Language::find),
        task: if pick(4) == 0 { Task::Translate } else { Task::Transcribe },
        temperatures: [vec![0.0], vec![0.0, 0.4, 1.0], vec![0.7]][pick(3) as usize].clone(),
        beam_size: 1 + pick(MAX_BEAMS as u32) as usize,
        best_of: 1 + pick(MAX_BEAMS as u32) as usize,
        patience: [1.0, 2.0][pick(2) as usize],
        length_penalty: [None, Some(0.5)][pick(2) as usize],
        batch_size: [None, Some(2), Some(3)][pick(3) as usize],
        compression_ratio_threshold: [None, Some(1.1)][pick(2) as usize],
        logprob_threshold: [None, Some(-8.0)][pick(2) as usize],
        no_speech_threshold: None,
        condition_on_previous_text: pick(2) == 0,
        initial_prompt: (pick(3) == 0).then(|| "ab cd".to_owned()),
        prefix: (pick(4) == 0).then(|| "ab".to_owned()),
        no_repeat_ngram_size: pick(3) as usize,
        max_new_tokens: Some(4 + pick(20) as usize),
        without_timestamps: pick(4) == 0,
        seed: pick(100).into(),
        word_timestamps: pick(3) == 0,
        vad: VadMode::Off,
        ..Options::default()
    }
}

/// Segments of a recording in a decoder of its own.
fn alone(model: &Model, samples: &[f32], options: &Options) -> Vec<Segment> {
    let mut decoder = decoder(model, (3, 1));
    let mut run = Transcription::new(model, samples, options).unwrap();
    while !run.is_ended() {
        run.advance(&mut decoder).unwrap();
        block_on(decoder.step()).unwrap();
    }
    assert!(decoder.is_idle());
    std::iter::from_fn(|| run.next_segment()).collect()
}

/// Samples, its options, and its segments when transcribed alone.
struct Request {
    samples: Vec<f32>,
    options: Options,
    expected: Vec<Segment>,
}

fn check(model: &Model, seed: u64, n: usize) -> Result<(), TestCaseError> {
    let mut random = Lcg::new(seed);
    let requests: Vec<Request> = (0..n)
        .map(|_| {
            let seconds = 1 + random.next_u32() as usize % 50;
            let samples = noise(&mut random, seconds);
            let options = options(&mut random);
            let expected = alone(model, &samples, &options);
            Request { samples, options, expected }
        })
        .collect();
    let n_windows = 1 + random.next_u32() as usize % 4;
    let mut decoder = decoder(model, (n_windows, 1 + random.next_u32() as usize % n_windows));
    // Each recording joins at a random step; some are cancelled at one.
    let mut pick = |n: u32| random.next_u32() % n;
    let joins: Vec<u32> = requests.iter().map(|_| pick(40)).collect();
    let cancels: Vec<u32> =
        requests.iter().map(|_| if pick(4) == 0 { pick(60) } else { u32::MAX }).collect();
    let mut runs: Vec<Option<(Transcription<'_>, Vec<Segment>)>> =
        requests.iter().map(|_| None).collect();
    for step in 0.. {
        for (index, run) in runs.iter_mut().enumerate() {
            let Request { samples, options, .. } = &requests[index];
            if step == joins[index] {
                let new = Transcription::new(model, samples, options).unwrap();
                *run = Some((new, Vec::new()));
            }
            let Some((run, segments)) = run else { continue };
            if step == cancels[index].max(joins[index]) {
                run.cancel();
            }
            // A recording may miss steps.
            if pick(4) > 0 {
                run.advance(&mut decoder).unwrap();
            }
            segments.extend(std::iter::from_fn(|| run.next_segment()));
        }
        let is_ended = |run: &Option<(Transcription<'_>, _)>| {
            run.as_ref().is_some_and(|(run, _)| run.is_ended())
        };
        if runs.iter().all(is_ended) {
            break;
        }
        prop_assert!(step < 5000, "seed {seed}: no end");
        block_on(decoder.step()).unwrap();
    }
    for (index, run) in runs.into_iter().enumerate() {
        let (run, segments) = run.unwrap();
        let Request { expected, options, .. } = &requests[index];
        if run.is_cancelled() {
            let n = segments.len();
            prop_assert!(n <= expected.len(), "seed {seed}: recording {index}");
            prop_assert_eq!(&segments[..], &expected[..n], "seed {}: recording {}", seed, index);
        } else {
            prop_assert_eq!(&segments, expected, "seed {}: {} {:?}", seed, index, options);
        }
    }
    // A step without windows drops what the cancelled ones left.
    block_on(decoder.step()).unwrap();
    prop_assert!(decoder.is_idle());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_recording_gives_what_it_gives_alone(seed in any::<u64>(), n in 1..=6usize) {
        check(&model(), seed, n)?;
    }
}

fn mel(model: &Model, seconds: usize) -> Vec<f32> {
    let samples = noise(&mut Lcg::new(3), seconds);
    model.mel(&samples, WINDOW_SAMPLES - samples.len()).data
}

fn text_request(model: &Model, options: Options) -> DecodeRequest {
    DecodeRequest {
        prompt: vec![model.special().sot],
        n_prefix: 0,
        min_end_timestamp: None,
        rules: Rules::new(model, &options).into(),
        options: options.into(),
        seed: 0,
        start: 0.0,
    }
}

#[test]
fn audio_is_kept_for_a_next_request() {
    let model = model();
    let mut decoder = decoder(&model, (1, 1));
    let add = |decoder: &mut WindowDecoder, audio, task, keep_audio| {
        decoder.add(WindowRequest { owner: 0, audio, task, keep_audio }).unwrap()
    };
    let run = |decoder: &mut WindowDecoder, window: &_| loop {
        block_on(decoder.step()).unwrap();
        if let Some(output) = decoder.finished(window) {
            return output;
        }
    };
    let audio = WindowAudio::Mel(mel(&model, 5));
    let language = add(&mut decoder, audio, WindowTask::DetectLanguage(Vec::new()), true);
    let output = run(&mut decoder, &language);
    assert!(matches!(output, WindowOutput::Language(_, p) if p > 0.0 && p < 1.0), "{output:?}");
    // The place is taken while the audio is kept.
    let other = WindowAudio::Mel(mel(&model, 1));
    let waiting = add(&mut decoder, other, WindowTask::DetectLanguage(Vec::new()), false);
    (0..3).for_each(|_| block_on(decoder.step()).unwrap());
    assert!(decoder.finished(&waiting).is_none());
    let options =
        Options { temperatures: vec![0.0], max_new_tokens: Some(5), ..Options::default() };
    let options = Options { beam_size: 1, best_of: 1, ..options };
    let task = || WindowTask::Decode(text_request(&model, options.clone()));
    let text = add(&mut decoder, WindowAudio::Kept(language), task(), false);
    let WindowOutput::Text(kept) = run(&mut decoder, &text) else { panic!("a text") };
    assert!(matches!(run(&mut decoder, &waiting), WindowOutput::Language(..)));
    let again = add(&mut decoder, WindowAudio::Mel(mel(&model, 5)), task(), false);
    let WindowOutput::Text(fresh) = run(&mut decoder, &again) else { panic!("a text") };
    assert_eq!(kept, fresh);
    assert!(decoder.is_idle() && decoder.timings().windows == 3);
}

#[test]
fn detection_chooses_from_the_given_languages() {
    let model = model();
    let samples = noise(&mut Lcg::new(3), 3);
    let language = |codes: &[&str]| {
        let languages = codes.iter().map(|code| stonechat_whisper::Language::find(code).unwrap());
        let options = Options {
            languages: languages.collect(),
            temperatures: vec![0.0],
            max_new_tokens: Some(1),
            beam_size: 1,
            best_of: 1,
            ..Options::default()
        };
        let mut decoder = decoder(&model, (1, 1));
        let mut run = Transcription::new(&model, &samples, &options)?;
        while !run.is_ended() {
            run.advance(&mut decoder)?;
            block_on(decoder.step())?;
        }
        Ok::<_, Error>(run.language().unwrap().code)
    };
    let best = language(&[]).unwrap();
    assert_eq!(language(&[best, "de"]).unwrap(), best);
    for other in ["is", "sw", "haw"].into_iter().filter(|other| *other != best) {
        assert_eq!(language(&[other]).unwrap(), other);
    }
    // Cantonese is a language of large-v3 alone.
    let error = language(&["yue"]).unwrap_err().to_string();
    assert_eq!(error, "language `cantonese`: expected languages of the model");
}

#[test]
fn a_free_place_goes_to_the_recording_with_the_fewest() {
    let model = model();
    let mut decoder = decoder(&model, (2, 1));
    let mut add = |owner| {
        let task = WindowTask::DetectLanguage(Vec::new());
        let audio = WindowAudio::Mel(mel(&model, 1));
        decoder.add(WindowRequest { owner, audio, task, keep_audio: true }).unwrap()
    };
    let (first, second, third) = (add(1), add(1), add(1));
    let (other, fourth) = (add(2), add(1));
    let mut run = |expected: [bool; 5]| {
        (0..4).for_each(|_| block_on(decoder.step()).unwrap());
        let handles = [&first, &second, &third, &other, &fourth];
        let finished = handles.map(|handle| decoder.finished(handle).is_some());
        assert_eq!(finished, expected);
    };
    // The audio that is kept holds both places.
    run([true, false, false, true, false]);
    run([false; 5]);
    drop((first, other));
    (0..8).for_each(|_| block_on(decoder.step()).unwrap());
    let finished = [&second, &third, &fourth].map(|handle| decoder.finished(handle).is_some());
    assert_eq!(finished, [true, true, false]);
}

#[test]
fn a_cancelled_window_makes_room() {
    let model = model();
    let mut decoder = decoder(&model, (1, 1));
    let add = |decoder: &mut WindowDecoder| {
        let task = WindowTask::Decode(text_request(
            &model,
            Options { beam_size: 2, best_of: 1, ..Options::default() },
        ));
        let audio = WindowAudio::Mel(mel(&model, 5));
        decoder.add(WindowRequest { owner: 0, audio, task, keep_audio: true }).unwrap()
    };
    let (first, second, third) = (add(&mut decoder), add(&mut decoder), add(&mut decoder));
    block_on(decoder.step()).unwrap();
    decoder.cancel(first);
    drop(second);
    (0..2).for_each(|_| block_on(decoder.step()).unwrap());
    assert_eq!(decoder.timings().windows, 2, "the second was never encoded");
    drop(third);
    block_on(decoder.step()).unwrap();
    assert!(decoder.is_idle());
}

#[test]
fn requests_that_do_not_fit_are_refused() {
    let model = model();
    let mut decoder = decoder(&model, (1, 1));
    let mut refused = |change: fn(&mut DecodeRequest)| {
        let mut request =
            text_request(&model, Options { best_of: 1, beam_size: 1, ..Options::default() });
        change(&mut request);
        let audio = WindowAudio::Mel(mel(&model, 1));
        let task = WindowTask::Decode(request);
        decoder.add(WindowRequest { owner: 0, audio, task, keep_audio: false }).unwrap_err()
    };
    let error = refused(|request| request.options = Options::default().into());
    assert!(error.to_string().contains("the sequences of the state"), "{error}");
    let error = refused(|request| request.prompt = vec![1; 449]);
    assert!(matches!(error, Error::ContextFull { tokens: 449, n_ctx: 448 }), "{error}");
    let error = refused(|request| {
        request.options =
            Options { temperatures: vec![], beam_size: 1, best_of: 1, ..Options::default() }.into();
    });
    assert!(error.to_string().contains("temperatures"), "{error}");
    // A recording whose options do not fit is refused before its first window.
    let samples = noise(&mut Lcg::new(3), 1);
    let narrow = Options { beam_size: 1, best_of: 1, ..Options::default() };
    for options in [Options::default(), Options { word_timestamps: true, ..narrow }] {
        let options_of_state =
            StateOptions { n_sequences: 2, kv_dtype: KvDType::F32, ..StateOptions::default() };
        let mut decoder = WindowDecoder::new(&model, options_of_state).unwrap();
        let mut run = Transcription::new(&model, &samples, &options).unwrap();
        assert!(matches!(run.advance(&mut decoder), Err(Error::Option { .. })));
        assert!(decoder.is_idle());
    }
    // The state cannot grow below a window.
    let options = Options { beam_size: 1, best_of: 1, ..Options::default() };
    let task = WindowTask::Decode(text_request(&model, options.clone()));
    let audio = WindowAudio::Mel(mel(&model, 1));
    let window = decoder.add(WindowRequest { owner: 0, audio, task, keep_audio: false }).unwrap();
    decoder.reserve(&options, 1).unwrap();
    let error = decoder.reserve(&options, 2).unwrap_err();
    assert!(error.to_string().contains("while other recordings"), "{error}");
    decoder.cancel(window);
    decoder.reserve(&options, 2).unwrap();
}

#[test]
fn a_state_that_grew_shrinks_once_it_is_idle() {
    let model = model();
    let least = StateOptions { n_sequences: 2, kv_dtype: KvDType::F32, ..StateOptions::default() };
    let mut decoder = WindowDecoder::new(&model, least).unwrap();
    let least = decoder.state_options();
    let wide = Options { beam_size: 16, word_timestamps: true, ..Options::default() };
    decoder.reserve(&wide, 3).unwrap();
    let grown = decoder.state_options();
    assert!(grown.n_sequences >= 16 && grown.n_windows == 3 && grown.has_alignment, "{grown:?}");
    // Not beneath a window.
    let options = Options { beam_size: 1, best_of: 1, ..Options::default() };
    let task = WindowTask::Decode(text_request(&model, options));
    let audio = WindowAudio::Mel(mel(&model, 1));
    let window = decoder.add(WindowRequest { owner: 0, audio, task, keep_audio: false }).unwrap();
    decoder.shrink_to(least).unwrap();
    assert_eq!(decoder.state_options(), grown);
    decoder.cancel(window);
    decoder.shrink_to(least).unwrap();
    assert_eq!(decoder.state_options(), least);
}
