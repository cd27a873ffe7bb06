//! The whole sampler chain.

use std::ops::{Deref, DerefMut};

use stonechat_compute::cpu::TopKEntry;

use super::{Candidate, DryBreakers, SampleScratch, Sampler, SamplerKind, SamplingOptions};
use crate::Rng;

/// A sampler with memory of its own.
struct Tested {
    sampler: Sampler,
    scratch: SampleScratch,
}

impl Tested {
    fn new(options: &SamplingOptions, vocab_size: usize) -> Self {
        let sampler = Sampler::new(options, vocab_size, DryBreakers::default()).unwrap();
        Self { sampler, scratch: SampleScratch::new(vocab_size) }
    }

    #[track_caller]
    fn sample(&mut self, logits: &[f32]) -> u32 {
        self.sampler.sample(logits, &mut self.scratch)
    }

    fn sample_top_k(&mut self, top_k: &[TopKEntry]) -> u32 {
        self.sampler.sample_top_k(top_k, &mut self.scratch)
    }

    fn candidates(&self) -> &[Candidate] {
        self.scratch.candidates()
    }
}

impl Deref for Tested {
    type Target = Sampler;

    fn deref(&self) -> &Sampler {
        &self.sampler
    }
}

impl DerefMut for Tested {
    fn deref_mut(&mut self) -> &mut Sampler {
        &mut self.sampler
    }
}

fn sampler(vocab_size: usize, change: impl FnOnce(&mut SamplingOptions)) -> Tested {
    let mut options = SamplingOptions { seed: Some(42), ..SamplingOptions::default() };
    change(&mut options);
    Tested::new(&options, vocab_size)
}

fn random_logits(n: usize, rng: &mut Rng) -> Vec<f32> {
    (0..n).map(|_| (rng.uniform() * 20.0 - 10.0) as f32).collect()
}

fn survivors(sampler: &Tested) -> Vec<u32> {
    let possible = sampler.candidates().iter().filter(|c| c.p > 0.0);
    let mut tokens: Vec<u32> = possible.map(|c| c.token).collect();
    tokens.sort_unstable();
    tokens
}

#[test]
fn the_same_seed_draws_the_same_tokens() {
    let mut rng = Rng::new(1);
    let all: Vec<Vec<f32>> = (0..50).map(|_| random_logits(300, &mut rng)).collect();
    let run = |sampler: &mut Tested| -> Vec<u32> {
        let draw = |logits: &Vec<f32>| {
            let token = sampler.sample(logits);
            sampler.accept(token);
            token
        };
        all.iter().map(draw).collect()
    };
    let hot = |o: &mut SamplingOptions| o.temperature = 3.0;
    let first = run(&mut sampler(300, hot));
    assert_eq!(first, run(&mut sampler(300, hot)));
    let mut again = sampler(300, hot);
    run(&mut again);
    let seed = again.seed();
    again.reseed(seed);
    assert_eq!(first, run(&mut again));
    let other = run(&mut sampler(300, |o| {
        hot(o);
        o.seed = Some(43);
    }));
    assert_ne!(first, other);
}

#[test]
fn a_random_seed_is_reported_and_repeats_the_draws() {
    let options = SamplingOptions { temperature: 2.0, ..SamplingOptions::default() };
    let open = Tested::new(&options, 100);
    let seed = open.seed();
    assert_ne!(seed, Tested::new(&options, 100).seed());
    let mut rng = Rng::new(2);
    let (mut open, mut fixed) =
        (open, sampler(100, |o| *o = SamplingOptions { seed: Some(seed), ..options }));
    for _ in 0..20 {
        let logits = random_logits(100, &mut rng);
        assert_eq!(open.sample(&logits), fixed.sample(&logits));
    }
}

#[test]
fn draws_follow_the_distribution() {
    let p = [0.5f32, 0.25, 0.125, 0.125];
    let logits = p.map(f32::ln);
    let mut sampler = sampler(4, |o| {
        o.temperature = 1.0;
        o.min_p = 0.0;
        o.top_p = 1.0;
    });
    let mut counts = [0u32; 4];
    let n = 20_000;
    for _ in 0..n {
        counts[sampler.sample(&logits) as usize] += 1;
    }
    for (count, p) in counts.into_iter().zip(p) {
        let sigma = (f64::from(p) * (1.0 - f64::from(p)) * f64::from(n)).sqrt();
        assert!((f64::from(count) - f64::from(p) * f64::from(n)).abs() < 5.0 * sigma);
    }
}

#[test]
fn temperature_zero_takes_the_lowest_token_of_equal_maxima_after_penalties() {
    let logits = [1.0, 5.0, 4.9, 5.0];
    let mut greedy = sampler(4, |o| o.temperature = 0.0);
    assert_eq!(greedy.sample(&logits), 1);
    assert_eq!(greedy.candidates().len(), 1);
    let mut penalized = sampler(4, |o| {
        o.temperature = 0.0;
        o.repeat_penalty = 1.1;
    });
    penalized.accept(1);
    assert_eq!(penalized.sample(&logits), 3);
    penalized.accept(3);
    assert_eq!(penalized.sample(&logits), 2);
}

#[test]
fn greedy_shortcuts_equal_the_whole_chain() {
    let mut rng = Rng::new(9);
    for seed in 0..200 {
        let logits = random_logits(400, &mut rng);
        let settings = |o: &mut SamplingOptions| {
            o.seed = Some(seed);
            o.top_n_sigma = 2.0;
            o.xtc_probability = (seed % 2) as f32;
            o.typical_p = if seed % 3 == 0 { 0.7 } else { 1.0 };
        };
        let mut greedy = sampler(400, |o| {
            settings(o);
            o.temperature = 0.0;
        });
        // Greedy: the argmax of the remaining candidates.
        let mut whole = sampler(400, |o| {
            settings(o);
            o.order.retain(|&kind| kind != SamplerKind::Temperature);
        });
        whole.sample(&logits);
        let best = whole.candidates().iter().max_by(|a, b| a.logit.total_cmp(&b.logit)).unwrap();
        assert_eq!(greedy.sample(&logits), best.token);
    }
}

#[test]
fn the_order_matters_and_can_be_changed() {
    let logits = [0.4f32, 0.3, 0.2, 0.1].map(f32::ln);
    let order = |letters: &str| {
        let order = SamplerKind::parse_letters(letters).unwrap();
        let mut sampler = sampler(4, |o| {
            o.order = order;
            o.temperature = 4.0;
            o.top_p = 0.6;
        });
        sampler.sample(&logits);
        survivors(&sampler)
    };
    assert_eq!(order("pt"), [0, 1]);
    // The temperature comes first and flattens the distribution.
    assert_eq!(order("tp"), [0, 1, 2]);
    assert_eq!(order("t"), [0, 1, 2, 3]);
}

#[test]
fn biases_forbid_and_force_tokens() {
    let logits = [3.0, 2.0, 1.0, 0.0];
    let mut forbid = sampler(4, |o| {
        o.temperature = 5.0;
        o.logit_bias = vec![(0, f32::NEG_INFINITY), (1, f32::NEG_INFINITY), (9, 1.0)];
    });
    for _ in 0..200 {
        assert!(forbid.sample(&logits) >= 2);
    }
    let mut force = sampler(4, |o| o.logit_bias = vec![(3, 50.0), (3, 50.0)]);
    assert_eq!(force.sample(&logits), 3);
    assert_eq!(force.candidates()[0].logit, 100.0 / 0.8);
}

#[test]
fn the_top_k_draws_the_same_token_as_all_logits() {
    let mut rng = Rng::new(5);
    let check = |n: usize, logits: &[f32], required: usize, change: fn(&mut SamplingOptions)| {
        let [mut all, mut from_top_k] = [sampler(n, change), sampler(n, change)];
        assert_eq!(from_top_k.required_top_k(), Some(required.min(n)));
        let mut top_k = Vec::new();
        stonechat_compute::cpu::top_k(logits, required, &mut top_k);
        for _ in 0..20 {
            let token = all.sample(logits);
            assert_eq!(from_top_k.sample_top_k(&top_k), token);
            assert_eq!(from_top_k.candidates(), all.candidates());
            all.accept(token);
            from_top_k.accept(token);
        }
    };
    for n in [1, 5, 41, 300, 5000] {
        let mut logits = random_logits(n, &mut rng);
        for round in 0..3 {
            check(n, &logits, 40, |_| ());
            check(n, &logits, 1, |o| o.temperature = 0.0);
            check(n, &logits, 3, |o| {
                (o.temperature, o.top_k) = (0.0, 0);
                o.logit_bias = [0, 4].map(|token| (token, f32::NEG_INFINITY)).to_vec();
            });
            check(n, &logits, 8, |o| {
                (o.top_k, o.temperature, o.min_p) = (7, 3.0, 0.0);
                o.logit_bias = vec![(3, f32::NEG_INFINITY)];
            });
            check(n, &logits, 20, |o| {
                (o.top_k, o.typical_p, o.xtc_probability, o.dynatemp_range) = (20, 0.7, 0.5, 0.3);
                o.adaptive_target = 0.3;
                o.order.push(SamplerKind::AdaptiveP);
            });
            // With ties, then with logits of −∞.
            match round {
                0 => logits.iter_mut().for_each(|logit| *logit = logit.floor()),
                _ => logits.iter_mut().step_by(2).for_each(|logit| *logit = f32::NEG_INFINITY),
            }
        }
    }
}

#[test]
fn required_top_k_is_none_if_the_first_sampler_reads_all_logits() {
    for change in [
        (|o| o.top_k = 0) as fn(&mut SamplingOptions),
        |o| o.repeat_penalty = 1.1,
        |o| o.top_n_sigma = 1.0,
        |o| o.mirostat = 2,
        |o| o.logit_bias = vec![(1, 2.0)],
        |o| o.order = vec![SamplerKind::TopP, SamplerKind::TopK],
    ] {
        assert_eq!(sampler(100, change).required_top_k(), None);
    }
}

#[test]
fn mirostat_holds_the_surprise_near_its_target() {
    let logits: Vec<f32> = (1..=2000).map(|i| -1.1 * (i as f32).ln()).collect();
    for version in [1, 2] {
        let mut sampler = sampler(2000, |o| {
            o.mirostat = version;
            o.mirostat_tau = 3.0;
            o.temperature = 1.0;
        });
        let mut surprise = 0.0;
        let n = 3000;
        for i in 0..n + 300 {
            let token = sampler.sample(&logits);
            let p = sampler.candidates().iter().find(|c| c.token == token).unwrap().p;
            if i >= 300 {
                surprise -= p.log2() / n as f32;
            }
            sampler.accept(token);
        }
        assert!((surprise - 3.0).abs() < 0.1, "version {version}: {surprise} bits");
    }
}

#[test]
fn adaptive_p_takes_the_place_of_the_draw() {
    let mut sampler = sampler(4, |o| {
        o.order.push(SamplerKind::AdaptiveP);
        o.adaptive_target = 0.1;
        o.temperature = 1.0;
        o.min_p = 0.0;
        o.top_p = 1.0;
    });
    sampler.sample(&[0.4f32, 0.3, 0.2, 0.1].map(f32::ln));
    let best = sampler.candidates().iter().max_by(|a, b| a.p.total_cmp(&b.p)).unwrap();
    assert_eq!(best.token, 3);
}

#[test]
fn every_option_set_draws_a_survivor_with_sound_probabilities() {
    let mut rng = Rng::new(77);
    for round in 0..3000 {
        let n = [1, 2, 5, 80, 700][round % 5];
        let mut logits = random_logits(n, &mut rng);
        if round % 7 == 0 {
            logits.iter_mut().step_by(2).for_each(|logit| *logit = f32::NEG_INFINITY);
        }
        let mut pick = |values: &[f32]| values[(rng.uniform() * values.len() as f64) as usize];
        let mut order = SamplerKind::DEFAULT_ORDER.to_vec();
        order.push(SamplerKind::AdaptiveP);
        for i in (1..order.len()).rev() {
            order.swap(i, pick(&[0.0, 1.0, 3.0, 5.0, 11.0]) as usize % (i + 1));
        }
        let options = SamplingOptions {
            seed: Some(round as u64),
            temperature: pick(&[-1.0, 0.0, 0.1, 0.8, 1.0, 5.0]),
            dynatemp_range: pick(&[0.0, 0.5, 2.0]),
            top_k: pick(&[0.0, 1.0, 3.0, 40.0]) as usize,
            top_p: pick(&[0.0, 0.3, 0.95, 1.0]),
            min_p: pick(&[0.0, 0.05, 0.9, 1.0]),
            typical_p: pick(&[0.0, 0.5, 1.0]),
            tail_free_z: pick(&[0.0, 0.5, 1.0]),
            epsilon_cutoff: pick(&[0.0, 0.01, 1.0]),
            eta_cutoff: pick(&[0.0, 0.01, 1.0]),
            xtc_probability: pick(&[0.0, 0.5, 1.0]),
            xtc_threshold: pick(&[0.0, 0.1, 0.5]),
            top_n_sigma: pick(&[-1.0, 0.5, 2.0]),
            min_keep: pick(&[0.0, 1.0, 3.0]) as usize,
            repeat_penalty: pick(&[0.5, 1.0, 1.3]),
            presence_penalty: pick(&[0.0, -1.0, 1.0]),
            dry_multiplier: pick(&[0.0, 0.8]),
            mirostat: pick(&[0.0, 0.0, 1.0, 2.0]) as u8,
            adaptive_target: pick(&[-1.0, 0.0, 0.5]),
            order,
            ..SamplingOptions::default()
        };
        let mut sampler = Tested::new(&options, n);
        for _ in 0..6 {
            let token = sampler.sample(&logits);
            let p: f32 = sampler.candidates().iter().map(|c| c.p).sum();
            assert!((p - 1.0).abs() < 1e-4, "{options:?} leaves a sum of {p}");
            let drawn = sampler.candidates().iter().find(|c| c.token == token).unwrap();
            assert!(drawn.p > 0.0, "{options:?} drew an impossible token");
            sampler.accept(token);
        }
    }
}

#[test]
#[should_panic(expected = "one logit for each token")]
fn logits_of_another_vocabulary_are_refused() {
    sampler(4, |_| ()).sample(&[0.0; 5]);
}

#[test]
fn a_clone_with_the_memory_of_another_sampler_draws_the_same_tokens() {
    let mut rng = Rng::new(6);
    let mut original = sampler(200, |o| {
        (o.repeat_penalty, o.dry_multiplier, o.temperature) = (1.3, 0.8, 2.0);
    });
    (0..20).for_each(|i| original.accept(i % 7));
    let mut other = sampler(200, |o| o.repeat_penalty = 2.0);
    (0..30).for_each(|i| other.accept(i));
    let mut clone = original.sampler.clone();
    for _ in 0..50 {
        let logits = random_logits(200, &mut rng);
        other.sample(&logits);
        let token = original.sample(&logits);
        assert_eq!(clone.sample(&logits, &mut other.scratch), token);
        original.accept(token);
        clone.accept(token);
    }
}

/// Samplers that `options` enable, by name.
fn enabled(change: impl FnOnce(&mut SamplingOptions)) -> Vec<&'static str> {
    let mut options = SamplingOptions {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        ..SamplingOptions::default()
    };
    change(&mut options);
    let (stages, draw) = super::chain(&options, &DryBreakers::default().into());
    let name = |stage: &super::Stage| match stage {
        super::Stage::Penalties(_) => "penalties",
        super::Stage::Dry(_) => "dry",
        super::Stage::TopNSigma { .. } => "top_n_sigma",
        super::Stage::TopK { .. } => "top_k",
        super::Stage::TailFree { .. } => "tfs_z",
        super::Stage::TypicalP { .. } => "typ_p",
        super::Stage::TopP { .. } => "top_p",
        super::Stage::MinP { .. } => "min_p",
        super::Stage::EpsilonCutoff { .. } => "epsilon_cutoff",
        super::Stage::EtaCutoff { .. } => "eta_cutoff",
        super::Stage::Xtc { .. } => "xtc",
        super::Stage::Temperature(_) => "temperature",
    };
    let mut names: Vec<_> = stages.iter().map(name).collect();
    if matches!(draw, super::Draw::AdaptiveP(_)) {
        names.push("adaptive_p");
    }
    names
}

#[test]
fn neutral_settings_disable_a_sampler() {
    assert_eq!(enabled(|_| ()), [""; 0]);
    type Change = fn(&mut SamplingOptions);
    let off: [Change; 16] = [
        |o| o.repeat_last_n = 0,
        |o| (o.repeat_penalty, o.repeat_last_n) = (1.1, 0),
        |o| (o.dry_multiplier, o.dry_base) = (0.8, 0.9),
        |o| o.top_n_sigma = 0.0,
        |o| o.top_n_sigma = -2.0,
        |o| o.tail_free_z = 1.0,
        |o| o.typical_p = 1.0,
        |o| o.epsilon_cutoff = 0.0,
        |o| o.eta_cutoff = 0.0,
        |o| o.xtc_probability = 0.0,
        |o| (o.xtc_probability, o.xtc_threshold) = (0.5, 0.51),
        |o| o.dynatemp_range = -1.0,
        |o| o.adaptive_target = 0.5,
        |o| o.order.push(SamplerKind::AdaptiveP),
        |o| o.order.clear(),
        |o| (o.temperature, o.order) = (0.5, vec![SamplerKind::TopK]),
    ];
    for (i, change) in off.into_iter().enumerate() {
        assert_eq!(enabled(change), [""; 0], "{i}");
    }
    let on: [(&str, Change); 20] = [
        ("penalties", |o| o.repeat_penalty = 1.1),
        ("penalties", |o| o.frequency_penalty = 0.1),
        ("penalties", |o| o.presence_penalty = -0.1),
        ("dry", |o| o.dry_multiplier = 0.1),
        ("top_n_sigma", |o| o.top_n_sigma = 0.01),
        ("top_k", |o| o.top_k = 1),
        ("tfs_z", |o| o.tail_free_z = 0.99),
        ("typ_p", |o| o.typical_p = 0.99),
        ("top_p", |o| o.top_p = 0.99),
        ("min_p", |o| o.min_p = 0.01),
        ("epsilon_cutoff", |o| o.epsilon_cutoff = 0.01),
        ("eta_cutoff", |o| o.eta_cutoff = 0.01),
        ("xtc", |o| (o.xtc_probability, o.xtc_threshold) = (0.01, 0.5)),
        ("temperature", |o| o.temperature = 0.99),
        ("temperature", |o| o.temperature = 0.0),
        ("temperature", |o| o.dynatemp_range = 0.01),
        ("temperature", |o| (o.temperature, o.dynatemp_range) = (0.0, 0.5)),
        ("adaptive_p", |o| {
            o.order.push(SamplerKind::AdaptiveP);
            o.adaptive_target = 0.0;
        }),
        ("adaptive_p", |o| {
            o.order = vec![SamplerKind::AdaptiveP];
            (o.adaptive_target, o.temperature) = (0.3, 0.5);
        }),
        // Greedy drops what keeps the argmax right before it.
        ("temperature", |o| (o.temperature, o.top_k, o.top_p, o.min_p) = (-1.0, 3, 0.5, 0.5)),
    ];
    for (name, change) in on {
        assert_eq!(enabled(change), [name]);
    }
    let greedy = |change: Change| {
        enabled(|o| {
            o.temperature = 0.0;
            change(o);
        })
    };
    assert_eq!(greedy(|o| (o.top_k, o.typical_p) = (3, 0.5)), ["top_k", "typ_p", "temperature"]);
    assert_eq!(greedy(|o| (o.typical_p, o.top_p) = (0.5, 0.5)), ["typ_p", "temperature"]);
    assert_eq!(greedy(|o| o.repeat_penalty = 1.1), ["penalties", "temperature"]);
    // A dynamic temperature is not greedy.
    let dynamic = greedy(|o| (o.dynatemp_range, o.top_k) = (0.5, 3));
    assert_eq!(dynamic, ["top_k", "temperature"]);
}

#[test]
fn a_draw_is_the_first_candidate_whose_running_sum_reaches_the_number() {
    let candidates =
        [0.0, 0.25, 0.5, 0.0, 0.25, 0.0].map(|p| Candidate { token: 0, logit: 0.0, p });
    let draws = [0.0, 0.2, 0.25, 0.5, 0.74, 0.75, 0.99, 1.0];
    let drawn = draws.map(|uniform| super::draw(&candidates, uniform));
    assert_eq!(drawn, [1, 1, 1, 2, 2, 2, 4, 4]);
    // Probabilities need not sum to 1.
    let doubled = candidates.map(|c| Candidate { p: 2.0 * c.p, ..c });
    assert_eq!(draws.map(|uniform| super::draw(&doubled, uniform)), drawn);
}

#[test]
fn random_seeds_have_32_bits() {
    for _ in 0..8 {
        let seed = super::fresh_seed();
        assert!(seed <= u64::from(u32::MAX) && seed > 1, "{seed}");
    }
}

#[test]
fn dry_knows_the_tokens_that_were_accepted() {
    let mut sampler = sampler(4, |options| {
        (options.temperature, options.dry_multiplier) = (0.0, 5.0);
        options.dry_penalty_last_n = 64;
    });
    let logits = [0.0, 0.0, 1.0, 0.5];
    assert_eq!(sampler.sample(&logits), 2);
    // Token 2 would repeat 0 1 2.
    [0, 1, 2, 0, 1].into_iter().for_each(|token| sampler.accept(token));
    assert_eq!(sampler.sample(&logits), 3);
}
