//! A decode step must not allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use stonechat_nn::{Cpu, KvDType};
use stonechat_testkit::{Lcg, TinyWhisper};
use stonechat_whisper::{Batch, Model, WINDOW_FRAMES};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on unchanged to the system allocator, which upholds the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's obligations are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's obligations are the same.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's obligations are the same.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

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
            let before = ALLOCATIONS.load(Ordering::Relaxed);
            (0..44).for_each(&mut step);
            *allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
        }
        rounds
    };
    assert!(rounds.contains(&0), "allocations in rounds of 44 steps: {rounds:?}");
}
