//! Damaged model files give errors, never panics.

use stonechat_formats::ModelFile;
use stonechat_nn::Cpu;
use stonechat_testkit::{Lcg, TinyWhisper};
use stonechat_whisper::Model;

/// Whether `bytes` load as a model.
fn loads(bytes: Vec<u8>) -> bool {
    let cpu = Cpu::new(1).expect("a CPU");
    ModelFile::from_reader(bytes).is_ok_and(|file| Model::load(cpu, &file, |_| {}).is_ok())
}

#[test]
fn flipped_bytes_never_panic() {
    let whole = TinyWhisper { d_model: 32, n_layers: 1, ..TinyWhisper::default() }.gguf();
    assert!(loads(whole.clone()));
    // Sizes, names, shapes and the vocabulary precede the weights.
    let sizes = 600;
    let header = whole.len() / 4;
    let mut random = Lcg::new(7);
    let mut refused = 0;
    for case in 0..150 {
        let mut bytes = whole.clone();
        let range = if case % 2 == 0 { sizes } else { header };
        for _ in 0..=case % 3 {
            let at = random.next_u32() as usize % range;
            bytes[at] ^= 1 << (random.next_u32() % 8);
        }
        refused += usize::from(!loads(bytes));
    }
    assert!(refused > 30, "damage to sizes and names is noticed, {refused} of 150 were refused");
}

#[test]
fn truncated_models_are_refused() {
    let whole = TinyWhisper { d_model: 32, n_layers: 1, ..TinyWhisper::default() }.gguf();
    for part in 0..20 {
        assert!(!loads(whole[..whole.len() * part / 20].to_vec()), "{part}/20 of a model");
    }
}
