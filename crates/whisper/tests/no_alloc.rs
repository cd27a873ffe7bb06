//! A decode step must not allocate.

use stonechat_nn::{Cpu, KvDType};
use stonechat_testkit::{CountingAllocator, Lcg, TinyWhisper};
use stonechat_whisper::{Batch, Model, WINDOW_FRAMES};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

#[test]
fn a_decode_step_does_not_allocate() {
    let file = TinyWhisper::default().file();
    let model = Model::load(Cpu::new(2).unwrap(), &file, |_| {}).unwrap();
    let mut encoder = model.encoder_state(KvDType::F32).unwrap();
    model.encode(&mut encoder, &Lcg::new(1).normals(WINDOW_FRAMES * 80, 0.5));
    let mut decoder = model.decoder_state(1, 2, KvDType::F32).unwrap();
    model.set_audio(&mut decoder, 0, &encoder);
    let mut step = |token: u32| {
        let batch = Batch { tokens: &[token, token + 1], sequences: &[0, 1], outputs: &[0, 1] };
        model.decode(&mut decoder, batch).unwrap();
    };
    // A thread allocates its scratch at its first task, which may be late on a busy machine: at least
    // one round must be without allocations. The rounds fill several KV pages.
    let rounds = {
        let mut rounds = [0; 10];
        for allocations in &mut rounds {
            let before = ALLOCATOR.count();
            (0..44).for_each(&mut step);
            *allocations = ALLOCATOR.count() - before;
        }
        rounds
    };
    assert!(rounds.contains(&0), "allocations in rounds of 44 steps: {rounds:?}");
}
