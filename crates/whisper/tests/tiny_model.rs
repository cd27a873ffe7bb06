//! Properties of the forward pass on a random model of real structure.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use pollster::block_on;
use stonechat_nn::{Cpu, Device, KvDType};
use stonechat_testkit::{Lcg, Reference, TinyWhisper};
use stonechat_whisper::{Model, State, StateOptions, WINDOW_FRAMES};

const PROMPT: [u32; 7] = [50257, 50362, 11, 300, 4000, 17, 50000];

fn model(device: impl Into<Device>) -> Model {
    Model::load(device, &TinyWhisper::default().file(), |_| {}).unwrap()
}

fn mel(seed: u64) -> Vec<f32> {
    Lcg::new(seed).normals(WINDOW_FRAMES * 80, 0.5)
}

/// State with noise of `seed` as audio, for `n` sequences.
fn state(model: &Model, seed: u64, n: usize) -> State {
    let options =
        StateOptions { n_sequences: n, kv_dtype: KvDType::F32, ..StateOptions::default() };
    let mut state = model.state(options).unwrap();
    state.encode(&mel(seed));
    state.set_audio(0);
    state
}

/// Logits of the first `n` outputs of the last step.
fn logits(state: &mut State, n: usize) -> Vec<f32> {
    let mut logits = Vec::new();
    block_on(state.read_logits(n, &mut logits)).unwrap();
    logits
}

fn step(state: &mut State, tokens: &[u32], sequence: usize) -> Vec<f32> {
    let slot = state.slot(0, sequence);
    let mut plan = state.plan();
    plan.add(slot, tokens, [tokens.len() - 1]).unwrap();
    plan.run();
    logits(state, 1)
}

#[track_caller]
fn assert_close(a: &[f32], b: &[f32], limit: f32) {
    let scale = b.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let worst = a.iter().zip(b).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
    assert!(worst <= limit * scale, "largest difference {worst}, largest value {scale}");
}

#[test]
fn the_cpu_agrees_with_the_f64_oracle() {
    let (cpu, oracle) = (model(Cpu::new(2).unwrap()), model(Reference));
    let (mut a, mut b) = (state(&cpu, 3, 1), state(&oracle, 3, 1));
    let got = step(&mut a, &PROMPT, 0);
    let expected = step(&mut b, &PROMPT, 0);
    assert_close(&got, &expected, 1e-4);
}

#[test]
fn windows_encoded_together_equal_windows_encoded_alone() {
    let model = model(Cpu::new(2).unwrap());
    let options = StateOptions {
        n_windows: 4,
        kv_dtype: KvDType::F32,
        has_alignment: true,
        encoder_batch_size: 3,
        ..StateOptions::default()
    };
    let mut together = model.state(options).unwrap();
    together.encode(&[mel(5), mel(6), mel(7)].concat());
    together.set_audio(1);
    for (window, seed) in [(1, 5), (2, 6), (3, 7)] {
        let slot = together.slot(window, 0);
        let mut plan = together.plan();
        plan.add(slot, &PROMPT, [PROMPT.len() - 1]).unwrap();
        plan.run();
        let got = logits(&mut together, 1);
        let expected = step(&mut state(&model, seed, 1), &PROMPT, 0);
        assert_close(&got, &expected, 1e-5);
    }
}

#[test]
fn prefill_equals_token_by_token() {
    let model = model(Cpu::new(2).unwrap());
    let mut state = state(&model, 4, 1);
    let at_once = step(&mut state, &PROMPT, 0);
    state.clear(0);
    let mut one_by_one = Vec::new();
    for token in PROMPT {
        one_by_one = step(&mut state, &[token], 0);
    }
    assert_close(&one_by_one, &at_once, 1e-5);
}

#[test]
fn a_batch_equals_its_parts() {
    let model = model(Cpu::new(2).unwrap());
    let mut state = state(&model, 5, 3);
    // A long prompt, one token, and a short prompt in one call.
    let (a, b, c) = (&PROMPT[..], &[50257u32][..], &PROMPT[..3]);
    let slots = [0, 2, 1].map(|index| state.slot(0, index));
    let mut plan = state.plan();
    for (slot, tokens) in slots.into_iter().zip([a, b, c]) {
        plan.add(slot, tokens, [tokens.len() - 1]).unwrap();
    }
    plan.run();
    let together = logits(&mut state, 3);
    let together = together.chunks_exact(model.config().vocab_size);
    for (tokens, together) in [a, b, c].into_iter().zip(together) {
        state.clear(0);
        assert_close(together, &step(&mut state, tokens, 1), 1e-5);
    }
}

#[test]
fn a_fork_continues_where_its_parent_stood() {
    let model = model(Cpu::new(2).unwrap());
    let mut state = state(&model, 6, 3);
    step(&mut state, &PROMPT, 0);
    let [parent, first, second] = [0, 1, 2].map(|index| state.slot(0, index));
    state.fork(parent, first);
    state.fork(parent, second);
    let other = step(&mut state, &[77], 1);
    let forked = step(&mut state, &[9], 2);
    let parent = step(&mut state, &[9], 0);
    assert_eq!(forked, parent, "the same pages and the same token");
    assert!(other != parent);
}

#[test]
fn audio_changes_the_answer() {
    let model = model(Cpu::new(2).unwrap());
    let a = step(&mut state(&model, 7, 1), &PROMPT, 0);
    let b = step(&mut state(&model, 8, 1), &PROMPT, 0);
    assert!(a != b);
}
