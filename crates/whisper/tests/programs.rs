//! The program of Whisper: fusion changes no value of the f64 oracle, and the fused program equals its snapshot.
//!
//! `UPDATE_SNAPSHOTS=1 cargo test -p stonechat-whisper --test programs` writes `test-data/golden/programs`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use pollster::block_on;
use stonechat_nn::{Device, KvDType, fuse};
use stonechat_testkit::{Adapted, Lcg, Reference, ReferenceGroup, TinyWhisper, check_snapshot};
use stonechat_whisper::{Model, StateOptions, WINDOW_FRAMES};

const OPTIONS: StateOptions = StateOptions {
    n_windows: 1,
    n_sequences: 2,
    kv_dtype: KvDType::F32,
    has_alignment: true,
    encoder_batch_size: 1,
};

fn model(device: impl Into<Device>) -> Model {
    Model::load(device, &TinyWhisper::default().file(), |_| {}).unwrap()
}

/// Output of the encoder, then logits of a prompt and of two steps of two sequences.
fn story(model: &Model) -> Vec<f32> {
    let mut state = model.state(OPTIONS).unwrap();
    state.encode(&Lcg::new(3).normals(WINDOW_FRAMES * 80, 0.5));
    let mut all = Vec::new();
    block_on(state.read_encoded(&mut all)).unwrap();
    state.set_audio(0);
    let slots = [0, 1].map(|index| state.slot(0, index));
    let mut run = |state: &mut stonechat_whisper::State, runs: &[(usize, &[u32])]| {
        let mut plan = state.plan();
        for &(slot, tokens) in runs {
            plan.add(slots[slot], tokens, [tokens.len() - 1]).unwrap();
        }
        plan.run();
        let mut logits = Vec::new();
        block_on(state.read_logits(runs.len(), &mut logits)).unwrap();
        all.extend(logits);
    };
    run(&mut state, &[(0, &[50257, 50362, 11, 300])]);
    state.fork(slots[0], slots[1]);
    run(&mut state, &[(1, &[17]), (0, &[4000])]);
    run(&mut state, &[(0, &[5]), (1, &[6, 7])]);
    all
}

#[test]
fn fusion_changes_no_value() {
    let (got, expected) = (story(&model(Reference)), story(&model(Adapted::unfused())));
    assert!(got.iter().all(|value| value.is_finite()), "finite values");
    assert_eq!(got.len(), expected.len());
    let differs = got.iter().zip(&expected).position(|(a, b)| a.to_bits() != b.to_bits());
    assert_eq!(differs, None, "index of the first value that differs");
}

#[test]
fn ranks_give_the_values_of_one_device() {
    let (got, expected) = (story(&model(ReferenceGroup(2))), story(&model(Reference)));
    assert_eq!(got.len(), expected.len());
    // Sums in another order.
    let differs =
        got.iter().zip(&expected).position(|(a, b)| (a - b).abs() > 1e-5 * b.abs().max(1.0));
    assert_eq!(differs, None, "index of the first value that differs");
}

#[test]
fn the_fused_program_equals_its_snapshot() {
    let device = Device::from(Reference);
    let program = model(device.clone()).program(OPTIONS);
    let fused = fuse(&program, &device.capabilities()).to_string();
    assert_ne!(fused, fuse(&program, &Adapted::unfused().capabilities()).to_string());
    check_snapshot("programs/tiny-whisper.txt", &fused).unwrap();
}
