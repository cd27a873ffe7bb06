//! Logits of a model, to compare models.

use pollster::block_on;
use stonechat_nn::KvDType;
use stonechat_testkit::Lcg;
use stonechat_whisper::{Model, StateOptions, WINDOW_FRAMES};

/// Logits after a prompt, over noise.
pub(crate) fn logits(model: &Model) -> Vec<f32> {
    let options = StateOptions { kv_dtype: KvDType::F32, ..StateOptions::default() };
    let mut state = model.state(options).unwrap();
    state.encode(&Lcg::new(5).normals(WINDOW_FRAMES * 80, 0.5));
    state.set_audio(0);
    let slot = state.slot(0, 0);
    let mut plan = state.plan();
    plan.add(slot, &[50257, 50362, 11, 700], [3]).unwrap();
    plan.run();
    let mut logits = Vec::new();
    block_on(state.read_logits(1, &mut logits)).unwrap();
    logits
}
