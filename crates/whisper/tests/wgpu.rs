//! A tiny random Whisper model on a GPU.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use pollster::block_on;
use stonechat_nn::{Backend, KvDType};
use stonechat_testkit::{Lcg, Reference, TinyWhisper, wgpu};
use stonechat_whisper::{Batch, Model, Options, SAMPLE_RATE, Transcriber, WINDOW_FRAMES};

const PROMPT: [u32; 7] = [50257, 50362, 11, 300, 4000, 17, 50000];

/// Logits after a prompt and of two continuations of it that share its pages.
fn logits<B: Backend>(backend: B) -> Vec<Vec<f32>> {
    let model = Model::load(backend, &TinyWhisper::default().file(), |_| {}).unwrap();
    let mel = Lcg::new(3).normals(WINDOW_FRAMES * 80, 0.5);
    let mut encoder = model.encoder_state(KvDType::F32).unwrap();
    model.encode(&mut encoder, &mel);
    let mut state = model.decoder_state(1, 2, KvDType::F32).unwrap();
    model.set_audio(&mut state, 0, &encoder);
    let mut all = Vec::new();
    let mut step = |state: &mut _, tokens: &[u32], sequences: &[usize], outputs: &[usize]| {
        model.decode(state, Batch { tokens, sequences, outputs }).unwrap();
        for i in 0..outputs.len() {
            let mut logits = vec![0.0; model.config().vocab_size];
            block_on(model.read_logits(state, i, &mut logits)).unwrap();
            all.push(logits);
        }
    };
    step(&mut state, &PROMPT, &[0; 7], &[6]);
    state.fork(0, 1);
    step(&mut state, &[9, 77], &[0, 1], &[0, 1]);
    all
}

#[test]
fn kernels_are_compiled_before_the_first_window() {
    for backend in wgpu::backends("kernels_are_compiled_before_the_first_window") {
        let model = Model::load(backend.clone(), &TinyWhisper::default().file(), |_| {}).unwrap();
        let mut transcriber = Transcriber::new(model, KvDType::F16).unwrap();
        let before = backend.counters();
        let samples = Lcg::new(9).normals(5 * SAMPLE_RATE, 0.1);
        // A random model says nothing that passes a threshold.
        let options = Options {
            temperatures: vec![0.0],
            compression_ratio_threshold: None,
            logprob_threshold: None,
            no_speech_threshold: None,
            max_new_tokens: Some(12),
            ..Options::default()
        };
        let transcript = transcriber.transcribe(&samples, &options, &mut |_| ()).unwrap();
        let made = backend.counters() - before;
        assert!(made.submissions > 3 && !transcript.segments.is_empty(), "{transcript:?}");
        assert_eq!(made.pipelines, 0);
    }
}

#[test]
fn wgpu_agrees_with_the_f64_oracle() {
    let backends = wgpu::backends("wgpu_agrees_with_the_f64_oracle");
    if backends.is_empty() {
        return;
    }
    let expected = logits(Reference);
    for backend in backends {
        let got = logits(backend);
        for (got, expected) in got.iter().zip(&expected) {
            let scale = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            let worst = got.iter().zip(expected).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
            assert!(worst <= 1e-4 * scale, "largest difference {worst}, largest value {scale}");
        }
    }
}
