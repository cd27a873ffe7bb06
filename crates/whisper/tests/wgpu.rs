//! A tiny random Whisper model on a GPU.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use pollster::block_on;
use stonechat_nn::{Device, KvDType, Slot};
use stonechat_testkit::{Lcg, Reference, TinyWhisper, wgpu};
use stonechat_whisper::{
    Model, Options, SAMPLE_RATE, State, StateOptions, Transcriber, WINDOW_FRAMES,
};

const PROMPT: [u32; 7] = [50257, 50362, 11, 300, 4000, 17, 50000];

/// Logits after a prompt and of two continuations of it that share its pages.
fn logits(device: impl Into<Device>) -> Vec<Vec<f32>> {
    let model = Model::load(device, &TinyWhisper::default().file(), |_| {}).unwrap();
    let mel = Lcg::new(3).normals(WINDOW_FRAMES * 80, 0.5);
    let options =
        StateOptions { n_windows: 1, n_sequences: 2, kv_dtype: KvDType::F32, has_alignment: false };
    let mut state = model.state(options).unwrap();
    state.encode(&mel);
    state.set_audio(0);
    let [first, second] = [state.slot(0, 0), state.slot(0, 1)];
    let vocab_size = model.config().vocab_size;
    let mut all = Vec::new();
    let mut step = |state: &mut State, runs: &[(Slot, &[u32])]| {
        let mut plan = state.plan();
        for (slot, tokens) in runs {
            plan.add(*slot, tokens, [tokens.len() - 1]).unwrap();
        }
        plan.run();
        let mut logits = Vec::new();
        block_on(state.read_logits(runs.len(), &mut logits)).unwrap();
        all.extend(logits.chunks_exact(vocab_size).map(<[f32]>::to_vec));
    };
    step(&mut state, &[(first, &PROMPT)]);
    state.fork(first, second);
    step(&mut state, &[(first, &[9]), (second, &[77])]);
    all
}

#[test]
fn kernels_are_compiled_before_the_first_window() {
    for backend in wgpu::backends("kernels_are_compiled_before_the_first_window") {
        let file = TinyWhisper::default().file();
        let mut transcriber = Transcriber::builder().load(backend.clone(), &file, |_| {}).unwrap();
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
