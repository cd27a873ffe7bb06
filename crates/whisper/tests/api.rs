//! All ways to run a transcriber give the same result; cancelled runs.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use stonechat_nn::{Cpu, KvDType};
use stonechat_testkit::{Lcg, TinyWhisper};
use stonechat_whisper::{
    CancelToken, Event, LiveOptions, LiveStream, Model, Options, SAMPLE_RATE, Segment, Transcriber,
    VadMode,
};

fn options() -> Options {
    Options {
        temperatures: vec![0.0],
        beam_size: 2,
        compression_ratio_threshold: None,
        logprob_threshold: None,
        no_speech_threshold: None,
        max_new_tokens: Some(40),
        vad: VadMode::Off,
        ..Options::default()
    }
}

fn model() -> Model {
    Model::load(Cpu::new(2).unwrap(), &TinyWhisper::default().file(), |_| {}).unwrap()
}

fn transcriber(options: &Options, token: &CancelToken) -> Transcriber {
    let mut transcriber = Transcriber::new(&model(), options, KvDType::F32).unwrap();
    transcriber.cancelled_by(token);
    transcriber
}

fn noise(seconds: usize) -> Vec<f32> {
    Lcg::new(5).normals(seconds * SAMPLE_RATE, 0.1)
}

#[test]
fn segments_come_one_by_one_as_they_are_in_the_transcript() {
    let samples = noise(70);
    for options in [
        options(),
        Options { batch_size: Some(2), ..options() },
        Options { vad: VadMode::On, ..options() },
        Options { word_timestamps: true, ..options() },
    ] {
        let mut transcriber = transcriber(&options, &CancelToken::new());
        let transcript = transcriber.transcribe(&samples, &options, |_| {}).unwrap();
        assert!(!transcript.cancelled);
        let mut run = transcriber.start(&samples, &options).unwrap();
        assert_eq!(run.language().unwrap().code, transcript.language);
        let mut segments: Vec<Segment> = Vec::new();
        while let Some(segment) = transcriber.next_segment(&mut run).unwrap() {
            segments.push(segment);
        }
        assert_eq!(segments, transcript.segments);
        assert_eq!(run.position(), (samples.len(), samples.len()));
        assert!(!run.is_cancelled() && run.is_ended());
        assert!(transcriber.next_segment(&mut run).unwrap().is_none());
    }
    let mut transcriber = transcriber(&options(), &CancelToken::new());
    let mut run = transcriber.start(Vec::new(), &options()).unwrap();
    assert!(transcriber.next_segment(&mut run).unwrap().is_none());
}

#[test]
fn the_first_segments_do_not_wait_for_the_last() {
    let (samples, options) = (noise(100), options());
    let mut transcriber = transcriber(&options, &CancelToken::new());
    let mut run = transcriber.start(&samples, &options).unwrap();
    transcriber.next_segment(&mut run).unwrap().unwrap();
    let (done, all) = run.position();
    assert!(0 < done && done <= all / 2, "{done} of {all}");
    drop(run);
    assert!(transcriber.timings().windows <= 2);
}

#[test]
fn a_cancelled_run_gives_what_was_finished() {
    let (samples, options) = (noise(100), options());
    let token = CancelToken::new();
    let mut transcriber = transcriber(&options, &token);
    let whole = transcriber.transcribe(&samples, &options, |_| {}).unwrap();
    let mut n_final = 0;
    let transcript = transcriber
        .transcribe(&samples, &options, |event| {
            if let Event::Segment(_) = event {
                n_final += 1;
                token.cancel();
            }
        })
        .unwrap();
    assert!(transcript.cancelled);
    assert_eq!(transcript.segments, whole.segments[..n_final]);
    assert!(0 < n_final && n_final < whole.segments.len(), "{n_final}");
    let json = serde_json::to_value(&transcript).unwrap();
    assert_eq!(json["cancelled"], true);
    assert_eq!(serde_json::to_value(&whole).unwrap().get("cancelled"), None);
    // Later runs are cancelled too, until there is another token.
    let mut run = transcriber.start(&samples, &options).unwrap();
    assert!(transcriber.next_segment(&mut run).unwrap().is_none() && run.is_cancelled());
    transcriber.cancelled_by(&CancelToken::new());
    let again = transcriber.transcribe(&samples, &options, |_| {}).unwrap();
    assert_eq!(again, whole);
}

#[test]
fn options_that_do_not_fit_are_refused() {
    let options = Options { suppress_tokens: vec![1_000_000], ..options() };
    let error = Transcriber::new(&model(), &options, KvDType::F16).unwrap_err();
    assert!(error.to_string().starts_with("suppress-tokens: expected"), "{error}");
}

/// Executors move futures between threads.
#[test]
fn futures_are_send() {
    fn check(_: impl Send) {}
    let (samples, options) = (noise(1), options());
    let mut transcriber = transcriber(&options, &CancelToken::new());
    let mut run = transcriber.start(&samples, &options).unwrap();
    check(transcriber.next_segment_async(&mut run));
    check(transcriber.transcribe_async(&samples, &options, |_| {}));
    let mut stream = LiveStream::new(LiveOptions::default()).unwrap();
    check(stream.push_async(&mut transcriber, &samples));
    check(run);
}
