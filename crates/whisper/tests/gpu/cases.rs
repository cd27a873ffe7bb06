//! A tiny random Whisper model on any GPU.

use pollster::block_on;
use stonechat_nn::{Device, KvDType, Slot};
use stonechat_testkit::{Lcg, Reference, TinyWhisper};
use stonechat_whisper::{Model, State, StateOptions, WINDOW_FRAMES};

const PROMPT: [u32; 7] = [50257, 50362, 11, 300, 4000, 17, 50000];

/// Logits after a prompt and of two continuations of it that share its pages.
fn logits(device: impl Into<Device>) -> Vec<Vec<f32>> {
    let model = Model::load(device, &TinyWhisper::default().file(), |_| {}).unwrap();
    let mel = Lcg::new(3).normals(WINDOW_FRAMES * 80, 0.5);
    let options =
        StateOptions { n_sequences: 2, kv_dtype: KvDType::F32, ..StateOptions::default() };
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

/// Fails unless all logits are within `limit` of the oracle's, relative to the largest.
pub(crate) fn agrees_with_the_f64_oracle(device: impl Into<Device>, limit: f32) {
    for (got, expected) in logits(device).iter().zip(logits(Reference)) {
        let scale = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let worst = got.iter().zip(&expected).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
        assert!(worst <= limit * scale, "largest difference {worst}, largest value {scale}");
    }
}
