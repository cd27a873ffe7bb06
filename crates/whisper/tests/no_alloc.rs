//! A decode step must not allocate.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use stonechat_nn::{Cpu, KvDType};
use stonechat_testkit::{CountingAllocator, Lcg, TinyWhisper};
use stonechat_whisper::{Model, StateOptions, WINDOW_FRAMES};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

#[test]
fn a_decode_step_does_not_allocate() {
    let file = TinyWhisper::default().file();
    let model = Model::load(Cpu::new(2).unwrap(), &file, |_| {}).unwrap();
    let options =
        StateOptions { n_sequences: 2, kv_dtype: KvDType::F32, ..StateOptions::default() };
    let mut state = model.state(options).unwrap();
    state.encode(&Lcg::new(1).normals(WINDOW_FRAMES * 80, 0.5));
    state.set_audio(0);
    let slots = [state.slot(0, 0), state.slot(0, 1)];
    let mut logits = Vec::new();
    let mut step = |token: u32| {
        let mut plan = state.plan();
        plan.add(slots[0], &[token], [0]).unwrap();
        plan.add(slots[1], &[token + 1], [0]).unwrap();
        plan.run();
        // The CPU reads at the first poll.
        let read = pin!(state.read_logits(2, &mut logits));
        let read = read.poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(read, Poll::Ready(Ok(()))));
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
