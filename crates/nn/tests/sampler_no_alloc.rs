//! A decode step must not allocate: drawing a token does not, once the buffers have grown.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use stonechat_nn::sample::{DryBreakers, Rng, Sampler, SamplerKind, SamplingOptions};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: both calls are the system allocator's own; the count is a plain integer of the thread.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: `layout` is the caller's, who owes what the system's allocator asks.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: every block was handed out by `System.alloc` above with this layout.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[track_caller]
fn check(change: impl FnOnce(&mut SamplingOptions)) {
    let mut options = SamplingOptions { seed: Some(1), ..SamplingOptions::default() };
    change(&mut options);
    let vocab_size = 20_000;
    let breakers = DryBreakers::from_tokens(&[vec![3], vec![5, 6]]);
    let mut sampler = Sampler::new(&options, vocab_size, breakers).expect("valid options");
    let mut rng = Rng::new(2);
    let mut logits = vec![0.0f32; vocab_size];
    let mut counted = 0;
    for step in 0..40 {
        logits.iter_mut().for_each(|logit| *logit = (rng.uniform() * 12.0) as f32);
        let before = ALLOCATIONS.with(Cell::get);
        let token = sampler.sample(&logits);
        sampler.accept(token);
        if step >= 4 {
            counted += ALLOCATIONS.with(Cell::get) - before;
        }
    }
    assert_eq!(counted, 0, "{options:?}");
}

#[test]
fn a_draw_does_not_allocate() {
    check(|_| ());
    check(|o| o.temperature = 0.0);
    check(|o| o.top_k = 0);
    check(|o| o.mirostat = 1);
    check(|o| o.mirostat = 2);
    check(|o| {
        o.repeat_penalty = 1.1;
        o.presence_penalty = 0.5;
        o.dry_multiplier = 0.8;
        o.dry_allowed_length = 0;
        o.repeat_last_n = 10;
        o.dry_penalty_last_n = 12;
        o.top_n_sigma = 2.0;
        o.typical_p = 0.9;
        o.tail_free_z = 0.95;
        o.eta_cutoff = 0.001;
        o.epsilon_cutoff = 0.0005;
        o.xtc_probability = 0.5;
        o.dynatemp_range = 0.4;
        o.adaptive_target = 0.3;
        o.order.push(SamplerKind::AdaptiveP);
    });
}
