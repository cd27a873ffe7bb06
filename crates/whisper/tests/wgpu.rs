//! A tiny random Whisper model on a GPU.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use pollster::block_on;
use stonechat_compute::wgpu::Counters;
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
fn a_step_is_one_upload_one_submission_and_one_readback() {
    for gpu in wgpu::backends("a_step_is_one_upload_one_submission_and_one_readback") {
        let file = TinyWhisper::default().file();
        let model = Model::load(gpu.clone(), &file, |_| {}).unwrap();
        let options = StateOptions {
            n_windows: 2,
            n_sequences: 2,
            kv_dtype: KvDType::F16,
            has_alignment: true,
        };
        let mut state = model.state(options).unwrap();
        let mel = Lcg::new(3).normals(WINDOW_FRAMES * 80, 0.5);
        let mut logits = Vec::new();
        for round in 0..3 {
            let before = gpu.counters();
            state.encode(&mel);
            state.set_audio(round % 2);
            // Two tokens of each window in the first rounds, later of the first alone.
            let mut plan = state.plan();
            let slots = if round < 2 { 0..1 } else { 0..2 };
            slots.clone().for_each(|window| {
                plan.add(Slot::new(2 * window), &[11, 300], [1]).unwrap();
            });
            plan.run();
            block_on(state.read_logits(slots.len(), &mut logits)).unwrap();
            let made = gpu.counters() - before;
            // Mel frames are an upload of their own; a pass of the encoder, the keys of the audio, and the tokens are a
            // submission each.
            let counts = (made.uploads, made.submissions, made.readbacks);
            assert_eq!(counts, (4, 3, 1), "round {round}");
            assert_eq!((made.pipelines, made.bind_groups), (0, 0), "round {round}");
        }
        for round in 0..6 {
            let before = gpu.counters();
            let mut plan = state.plan();
            plan.add(Slot::new(0), &[17], [0]).unwrap();
            plan.add(Slot::new(2), &[18], [0]).unwrap();
            plan.run();
            block_on(state.read_logits(2, &mut logits)).unwrap();
            let made = gpu.counters() - before;
            let Counters { dispatches, encodings, host_us, .. } = made;
            let expected = Counters {
                uploads: 1,
                lists: 1,
                submissions: 1,
                readbacks: 1,
                dispatches,
                encodings,
                host_us,
                ..Counters::default()
            };
            // The first steps make the memory of a readback, and encode for themselves.
            if round > 1 {
                assert_eq!((made, encodings), (expected, 1), "round {round}");
            }
        }
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
