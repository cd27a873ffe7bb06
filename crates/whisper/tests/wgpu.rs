//! A tiny random Whisper model on a GPU.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "gpu/cases.rs"]
mod gpu;

use pollster::block_on;
use stonechat_compute::wgpu::Counters;
use stonechat_nn::{Cpu, Device, KvDType, Slot};
use stonechat_testkit::{Lcg, TinyWhisper, wgpu};
use stonechat_whisper::{
    Model, Options, SAMPLE_RATE, StateOptions, Transcriber, VadMode, WINDOW_FRAMES,
};

#[test]
fn kernels_are_compiled_before_the_first_window() {
    for backend in wgpu::backends("kernels_are_compiled_before_the_first_window") {
        let file = TinyWhisper::default().file();
        let model = Model::load(backend.clone(), &file, |_| {}).unwrap();
        let mut transcriber = Transcriber::new(&model, &Options::default(), KvDType::F16).unwrap();
        let before = backend.counters();
        let samples = Lcg::new(9).normals(5 * SAMPLE_RATE, 0.1);
        // A random model says nothing that passes a threshold.
        let options = Options {
            temperatures: vec![0.0],
            compression_ratio_threshold: None,
            logprob_threshold: None,
            no_speech_threshold: None,
            max_new_tokens: Some(12),
            vad: VadMode::Off,
            ..Options::default()
        };
        let transcript = transcriber.transcribe(&samples, &options, |_| ()).unwrap();
        let made = backend.counters() - before;
        assert!(made.submissions > 3 && !transcript.segments.is_empty(), "{transcript:?}");
        assert_eq!(made.pipelines, 0);
    }
}

/// Tokens of all segments of a recording of noise. A random model says nothing that passes a threshold.
fn tokens(device: impl Into<Device>) -> Vec<Vec<u32>> {
    let file = TinyWhisper::default().file();
    let model = Model::load(device, &file, |_| {}).unwrap();
    let mut transcriber = Transcriber::new(&model, &Options::default(), KvDType::F32).unwrap();
    let options = Options {
        temperatures: vec![0.0],
        beam_size: 3,
        compression_ratio_threshold: None,
        logprob_threshold: None,
        no_speech_threshold: None,
        no_repeat_ngram_size: 1,
        max_new_tokens: Some(12),
        vad: VadMode::Off,
        ..Options::default()
    };
    let samples = Lcg::new(9).normals(5 * SAMPLE_RATE, 0.1);
    let transcript = transcriber.transcribe(&samples, &options, |_| ()).unwrap();
    transcript.segments.into_iter().map(|segment| segment.tokens).collect()
}

#[test]
fn beams_choose_the_tokens_of_the_cpu() {
    let expected = tokens(Cpu::new(2).unwrap());
    assert!(expected.iter().flatten().count() >= 8, "{expected:?}");
    for backend in wgpu::backends("beams_choose_the_tokens_of_the_cpu") {
        assert_eq!(tokens(backend), expected);
    }
}

#[test]
fn a_hundred_windows_take_the_memory_of_the_first() {
    let name = "a_hundred_windows_take_the_memory_of_the_first";
    let Some(gpu) = wgpu::backends(name).pop() else { return };
    let file = TinyWhisper::default().file();
    let model = Model::load(gpu.clone(), &file, |_| {}).unwrap();
    let mut state = model.state(StateOptions::default()).unwrap();
    let mel = Lcg::new(3).normals(WINDOW_FRAMES * 80, 0.5);
    let mut logits = Vec::new();
    let mut window = |n_tokens: usize| {
        state.encode(&mel);
        state.set_audio(0);
        for token in 0..n_tokens {
            let mut plan = state.plan();
            plan.add(Slot::new(0), &[11 + token as u32], [0]).unwrap();
            plan.run();
            block_on(state.read_logits(1, &mut logits)).unwrap();
        }
        state.clear(0);
        (gpu.gpu().memory_bytes(), gpu.counters().buffers)
    };
    let first = window(4);
    for i in 1..100 {
        assert_eq!(window(1 + i % 4), first, "bytes and buffers after window {i}");
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
            has_alignment: true,
            ..StateOptions::default()
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
    for backend in wgpu::backends("wgpu_agrees_with_the_f64_oracle") {
        gpu::agrees_with_the_f64_oracle(backend, 1e-4);
    }
}
