//! Sampling a token does not allocate once the buffers have grown.

use stonechat_sampling::{DryBreakers, Rng, SampleScratch, Sampler, SamplerKind, SamplingOptions};
use stonechat_testkit::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

#[track_caller]
fn check(change: impl FnOnce(&mut SamplingOptions)) {
    let mut options = SamplingOptions { seed: Some(1), ..SamplingOptions::default() };
    change(&mut options);
    let vocab_size = 20_000;
    let breakers = DryBreakers::from_tokens(&[vec![3], vec![5, 6]]);
    let mut sampler = Sampler::new(&options, vocab_size, breakers).expect("valid options");
    let mut scratch = SampleScratch::new(vocab_size);
    let mut rng = Rng::new(2);
    let mut logits = vec![0.0f32; vocab_size];
    let mut counted = 0;
    for step in 0..40 {
        logits.iter_mut().for_each(|logit| *logit = (rng.uniform() * 12.0) as f32);
        let before = ALLOCATOR.thread_count();
        let token = sampler.sample(&logits, &mut scratch);
        sampler.accept(token);
        if step >= 4 {
            counted += ALLOCATOR.thread_count() - before;
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
