//! Properties of the forward pass on a random model of real structure.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use pollster::block_on;
use stonechat_nn::{Backend, Cpu, KvDType};
use stonechat_testkit::{Lcg, Reference, TinyWhisper};
use stonechat_whisper::{Batch, DecoderState, Model, WINDOW_FRAMES};

const PROMPT: [u32; 7] = [50257, 50362, 11, 300, 4000, 17, 50000];

fn model<B: Backend>(backend: B) -> Model<B> {
    Model::load(backend, &TinyWhisper::default().file(), |_| {}).unwrap()
}

fn mel(seed: u64) -> Vec<f32> {
    Lcg::new(seed).normals(WINDOW_FRAMES * 80, 0.5)
}

/// Decoder state with noise of `seed` as audio, for `n` sequences.
fn decoder_state<B: Backend>(model: &Model<B>, seed: u64, n: usize) -> DecoderState<B> {
    let mut encoder = model.encoder_state(KvDType::F32).unwrap();
    model.encode(&mut encoder, &mel(seed));
    let mut decoder = model.decoder_state(1, n, KvDType::F32).unwrap();
    model.set_audio(&mut decoder, 0, &encoder);
    decoder
}

fn logits<B: Backend>(model: &Model<B>, state: &DecoderState<B>, index: usize) -> Vec<f32> {
    let mut logits = vec![0.0; model.config().vocab_size];
    block_on(model.read_logits(state, index, &mut logits)).unwrap();
    logits
}

fn step<B: Backend>(
    model: &Model<B>,
    state: &mut DecoderState<B>,
    tokens: &[u32],
    sequence: usize,
) -> Vec<f32> {
    let sequences = vec![sequence; tokens.len()];
    let outputs = [tokens.len() - 1];
    model.decode(state, Batch { tokens, sequences: &sequences, outputs: &outputs }).unwrap();
    logits(model, state, 0)
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
    let (mut a, mut b) = (decoder_state(&cpu, 3, 1), decoder_state(&oracle, 3, 1));
    let got = step(&cpu, &mut a, &PROMPT, 0);
    let expected = step(&oracle, &mut b, &PROMPT, 0);
    assert_close(&got, &expected, 1e-4);
}

#[test]
fn prefill_equals_token_by_token() {
    let model = model(Cpu::new(2).unwrap());
    let mut state = decoder_state(&model, 4, 1);
    let at_once = step(&model, &mut state, &PROMPT, 0);
    state.clear();
    let mut one_by_one = Vec::new();
    for token in PROMPT {
        one_by_one = step(&model, &mut state, &[token], 0);
    }
    assert_close(&one_by_one, &at_once, 1e-5);
}

#[test]
fn a_batch_equals_its_parts() {
    let model = model(Cpu::new(2).unwrap());
    let mut state = decoder_state(&model, 5, 3);
    // A long prompt, one token, and a short prompt in one call.
    let (a, b, c) = (&PROMPT[..], &[50257u32][..], &PROMPT[..3]);
    let tokens = [a, b, c].concat();
    let sequences = [0, 0, 0, 0, 0, 0, 0, 2, 1, 1, 1];
    let batch = Batch { tokens: &tokens, sequences: &sequences, outputs: &[6, 7, 10] };
    model.decode(&mut state, batch).unwrap();
    let together: Vec<_> = (0..3).map(|i| logits(&model, &state, i)).collect();
    for (tokens, together) in [a, b, c].into_iter().zip(&together) {
        state.clear();
        assert_close(together, &step(&model, &mut state, tokens, 1), 1e-5);
    }
}

#[test]
fn a_fork_continues_where_its_parent_stood() {
    let model = model(Cpu::new(2).unwrap());
    let mut state = decoder_state(&model, 6, 3);
    step(&model, &mut state, &PROMPT, 0);
    state.fork(0, 1);
    state.fork(0, 2);
    let other = step(&model, &mut state, &[77], 1);
    let forked = step(&model, &mut state, &[9], 2);
    let parent = step(&model, &mut state, &[9], 0);
    assert_eq!(forked, parent, "the same pages and the same token");
    assert!(other != parent);
}

#[test]
fn audio_changes_the_answer() {
    let model = model(Cpu::new(2).unwrap());
    let a = step(&model, &mut decoder_state(&model, 7, 1), &PROMPT, 0);
    let b = step(&model, &mut decoder_state(&model, 8, 1), &PROMPT, 0);
    assert!(a != b);
}
