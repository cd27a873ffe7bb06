//! The sampler chain: logits to a token.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use stonechat_compute::cpu::TopKEntry;

use crate::Error;
use crate::adaptive_p::AdaptiveP;
use crate::breakers::DryBreakers;
use crate::candidates::{Candidate, Candidates};
use crate::dry::{Dry, DryScratch};
use crate::kind::SamplerKind;
use crate::mirostat::Mirostat;
use crate::mt19937::Mt19937;
use crate::options::SamplingOptions;
use crate::penalties::Penalties;
use crate::temperature::Temperature;
use crate::token_values::TokenValues;
use crate::{eta, min_p, tail_free, top_k, top_n_sigma, top_p, typical, xtc};

/// Samples tokens from logits: logit bias, the samplers in order, softmax, a draw.
///
/// A sampler has the state of one sequence: [`Sampler::accept`] must see each of its tokens, prompt included. Its size does
/// not depend on the vocabulary, so clones are cheap. Buffers of size `V` are in a [`SampleScratch`].
#[derive(Debug, Clone)]
pub struct Sampler {
    /// Logit bias by token.
    bias: Vec<(u32, f32)>,
    /// Tokens of `bias`.
    biased: Vec<u32>,
    stages: Vec<Stage>,
    draw: Draw,
    rng: Mt19937,
    /// Generator of XTC, as llama.cpp has it: whether XTC draws does not change the tokens that are drawn.
    xtc_rng: Mt19937,
    seed: u64,
    vocab_size: usize,
}

/// Scratch memory of a draw. Samplers of one vocabulary can share it.
#[derive(Debug)]
pub struct SampleScratch {
    candidates: Candidates,
    /// Occurrences for penalties, repetitions for DRY.
    values: TokenValues,
    dry: DryScratch,
    /// Probabilities before adaptive-p, in the order of the candidates.
    original: Vec<f32>,
}

impl SampleScratch {
    /// Memory for a vocabulary.
    #[must_use]
    pub fn new(vocab_size: usize) -> Self {
        Self {
            candidates: Candidates::new(vocab_size),
            values: TokenValues::new(vocab_size),
            dry: DryScratch::default(),
            original: Vec::new(),
        }
    }

    /// Candidates of the last draw, in any order, with probabilities that sum to 1; empty before the first draw.
    #[must_use]
    pub fn candidates(&self) -> &[Candidate] {
        self.candidates.as_slice()
    }
}

/// An enabled sampler with its settings and state.
#[derive(Debug, Clone)]
enum Stage {
    Penalties(Penalties),
    Dry(Box<Dry>),
    TopNSigma { n: f32 },
    TopK { k: usize },
    TailFree { z: f32, min_keep: usize },
    TypicalP { p: f32, min_keep: usize },
    TopP { p: f32, min_keep: usize },
    MinP { p: f32, min_keep: usize },
    EpsilonCutoff { epsilon: f32, min_keep: usize },
    EtaCutoff { epsilon: f32, min_keep: usize },
    Xtc { probability: f32, threshold: f32, min_keep: usize },
    Temperature(Temperature),
}

/// The draw from the remaining candidates.
#[derive(Debug, Clone)]
enum Draw {
    Plain,
    MirostatV1(Mirostat),
    MirostatV2(Mirostat),
    AdaptiveP(AdaptiveP),
}

impl Sampler {
    /// A sampler for logits `[vocab_size]`. `breakers` are used only with [`SamplingOptions::uses_dry`];
    /// `DryBreakers::default()` is empty.
    ///
    /// # Errors
    /// [`Error::SamplingOption`] for a value out of its range.
    ///
    /// # Panics
    /// If `vocab_size` is 0.
    pub fn new(
        options: &SamplingOptions,
        vocab_size: usize,
        breakers: impl Into<Arc<DryBreakers>>,
    ) -> Result<Self, Error> {
        assert!(vocab_size > 0, "a vocabulary has tokens");
        options.validate()?;
        let (stages, draw) = match options.mirostat {
            0 => chain(options, &breakers.into()),
            version => {
                let mirostat = Mirostat::new(options.mirostat_tau, options.mirostat_eta);
                let fixed =
                    Temperature { temperature: options.temperature, range: 0.0, exponent: 1.0 };
                let draw = match version {
                    1 => Draw::MirostatV1(mirostat),
                    _ => Draw::MirostatV2(mirostat),
                };
                (vec![Stage::Temperature(fixed)], draw)
            }
        };
        let seed = options.seed.unwrap_or_else(fresh_seed);
        Ok(Self {
            bias: options.logit_bias.clone(),
            biased: options.logit_bias.iter().map(|&(token, _)| token).collect(),
            stages,
            draw,
            rng: Mt19937::new(seed),
            xtc_rng: Mt19937::new(seed),
            seed,
            vocab_size,
        })
    }

    /// Draws a token from `logits`, `[V]`. Only [`Sampler::accept`] updates the state of penalties, DRY and mirostat.
    ///
    /// # Panics
    /// If `logits` is not `[V]`.
    #[track_caller]
    pub fn sample(&mut self, logits: &[f32], scratch: &mut SampleScratch) -> u32 {
        scratch.candidates.load(logits);
        self.draw_token(scratch)
    }

    /// Number of top logits that [`Sampler::sample_top_k`] needs, if the first sampler is top-k (`k`) or greedy (1):
    /// that number plus one per forbidden token. `None` if the draw depends on all logits.
    #[must_use]
    pub fn required_top_k(&self) -> Option<usize> {
        let k = match self.stages.first()? {
            Stage::TopK { k } => *k,
            Stage::Temperature(temperature) if temperature.is_greedy() => 1,
            _ => return None,
        };
        let forbids = |(_, bias): &(u32, f32)| *bias == f32::NEG_INFINITY;
        let n = k.saturating_add(self.bias.len()).min(self.vocab_size);
        self.bias.iter().all(forbids).then_some(n)
    }

    /// Draws the same token as [`Sampler::sample`], from the top-k logits in descending order, ties by token id.
    ///
    /// # Panics
    /// If `top_k` has not [`required_top_k`](Self::required_top_k) entries.
    #[track_caller]
    pub fn sample_top_k(&mut self, top_k: &[TopKEntry], scratch: &mut SampleScratch) -> u32 {
        assert_eq!(Some(top_k.len()), self.required_top_k(), "entries of the top-k logits");
        scratch.candidates.load_top_k(top_k);
        self.draw_token(scratch)
    }

    /// Runs the chain on the candidates and draws.
    fn draw_token(&mut self, scratch: &mut SampleScratch) -> u32 {
        let candidates = &mut scratch.candidates;
        for (i, &(biased, bias)) in self.bias.iter().enumerate() {
            candidates.adjust(&self.biased[i..=i], |token, logit| {
                if token == biased { logit + bias } else { logit }
            });
        }
        for stage in &mut self.stages {
            stage.apply(candidates, (&mut scratch.values, &mut scratch.dry), &mut self.xtc_rng);
        }
        match &mut self.draw {
            Draw::Plain => {}
            Draw::MirostatV1(mirostat) => mirostat.truncate_v1(candidates, self.vocab_size),
            Draw::MirostatV2(mirostat) => mirostat.truncate_v2(candidates),
            Draw::AdaptiveP(adaptive) => adaptive.apply(candidates, &mut scratch.original),
        }
        let remaining = candidates.softmax();
        let index = draw(remaining, self.rng.uniform());
        let drawn = remaining[index];
        match &mut self.draw {
            Draw::Plain => {}
            Draw::MirostatV1(state) | Draw::MirostatV2(state) => {
                state.record_draw(drawn.token, drawn.p)
            }
            Draw::AdaptiveP(adaptive) => {
                adaptive.record_draw(drawn.token, scratch.original[index]);
            }
        }
        drawn.token
    }

    /// Appends `token` to the sequence.
    pub fn accept(&mut self, token: u32) {
        for stage in &mut self.stages {
            match stage {
                Stage::Penalties(penalties) => penalties.accept(token),
                Stage::Dry(dry) => dry.accept(token),
                _ => {}
            }
        }
        match &mut self.draw {
            Draw::Plain => {}
            Draw::MirostatV1(state) | Draw::MirostatV2(state) => state.accept(token),
            Draw::AdaptiveP(adaptive) => adaptive.accept(token),
        }
    }

    /// Seed of the draws; the random one if the options have none.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Restarts the random numbers with another seed.
    pub fn reseed(&mut self, seed: u64) {
        self.seed = seed;
        (self.rng, self.xtc_rng) = (Mt19937::new(seed), Mt19937::new(seed));
    }
}

impl Stage {
    fn apply(
        &self,
        candidates: &mut Candidates,
        (values, dry_scratch): (&mut TokenValues, &mut DryScratch),
        xtc_rng: &mut Mt19937,
    ) {
        match *self {
            Self::Penalties(ref penalties) => penalties.apply(candidates, values),
            Self::Dry(ref dry) => dry.apply(candidates, values, dry_scratch),
            Self::TopNSigma { n } => top_n_sigma::apply(candidates, n),
            Self::TopK { k } => top_k::apply(candidates, k),
            Self::TailFree { z, min_keep } => tail_free::apply(candidates, z, min_keep),
            Self::TypicalP { p, min_keep } => typical::apply(candidates, p, min_keep),
            Self::TopP { p, min_keep } => top_p::apply(candidates, p, min_keep),
            Self::MinP { p, min_keep } => min_p::apply(candidates, p, min_keep),
            Self::EpsilonCutoff { epsilon, min_keep } => {
                eta::apply_epsilon(candidates, epsilon, min_keep);
            }
            Self::EtaCutoff { epsilon, min_keep } => eta::apply_eta(candidates, epsilon, min_keep),
            Self::Xtc { probability, threshold, min_keep } => {
                xtc::apply(candidates, probability, threshold, min_keep, xtc_rng);
            }
            Self::Temperature(temperature) => temperature.apply(candidates),
        }
    }

    /// Whether the argmax is the same before and after this sampler.
    fn preserves_argmax(&self) -> bool {
        match self {
            Self::Penalties(_) | Self::Dry(_) | Self::TypicalP { .. } | Self::Xtc { .. } => false,
            Self::TopNSigma { .. }
            | Self::TopK { .. }
            | Self::TailFree { .. }
            | Self::TopP { .. }
            | Self::MinP { .. }
            | Self::EpsilonCutoff { .. }
            | Self::EtaCutoff { .. }
            | Self::Temperature(_) => true,
        }
    }
}

/// The enabled samplers of `options.order`, and the draw.
fn chain(options: &SamplingOptions, breakers: &Arc<DryBreakers>) -> (Vec<Stage>, Draw) {
    let mut stages = Vec::with_capacity(options.order.len());
    let mut draw = Draw::Plain;
    for &kind in &options.order {
        let Some(stage) = stage(kind, options, breakers) else {
            if kind == SamplerKind::AdaptiveP && options.adaptive_target >= 0.0 {
                let (target, decay) = (options.adaptive_target, options.adaptive_decay);
                draw = Draw::AdaptiveP(AdaptiveP::new(target, decay));
            }
            continue;
        };
        if matches!(&stage, Stage::Temperature(temperature) if temperature.is_greedy()) {
            // Samplers right before greedy that preserve the argmax have no effect.
            while stages.last().is_some_and(Stage::preserves_argmax) {
                stages.pop();
            }
        }
        stages.push(stage);
    }
    (stages, draw)
}

/// The sampler `kind`; `None` if the options disable it.
fn stage(
    kind: SamplerKind,
    options: &SamplingOptions,
    breakers: &Arc<DryBreakers>,
) -> Option<Stage> {
    let o = options;
    let min_keep = o.min_keep;
    match kind {
        SamplerKind::Penalties => {
            let (repeat, last_n) = (o.repeat_penalty, o.repeat_last_n);
            let (frequency, presence) = (o.frequency_penalty, o.presence_penalty);
            let penalties = Penalties::new(last_n, repeat, frequency, presence);
            penalties.map(Stage::Penalties)
        }
        SamplerKind::Dry => {
            let dry = Dry::new(o, Arc::clone(breakers));
            dry.map(|dry| Stage::Dry(Box::new(dry)))
        }
        SamplerKind::TopNSigma => {
            (o.top_n_sigma > 0.0).then_some(Stage::TopNSigma { n: o.top_n_sigma })
        }
        SamplerKind::TopK => (o.top_k > 0).then_some(Stage::TopK { k: o.top_k }),
        SamplerKind::TailFree => {
            (o.tail_free_z < 1.0).then_some(Stage::TailFree { z: o.tail_free_z, min_keep })
        }
        SamplerKind::TypicalP => {
            (o.typical_p < 1.0).then_some(Stage::TypicalP { p: o.typical_p, min_keep })
        }
        SamplerKind::TopP => (o.top_p < 1.0).then_some(Stage::TopP { p: o.top_p, min_keep }),
        SamplerKind::MinP => (o.min_p > 0.0).then_some(Stage::MinP { p: o.min_p, min_keep }),
        SamplerKind::EpsilonCutoff => {
            let epsilon = o.epsilon_cutoff;
            (epsilon > 0.0).then_some(Stage::EpsilonCutoff { epsilon, min_keep })
        }
        SamplerKind::EtaCutoff => {
            let epsilon = o.eta_cutoff;
            (epsilon > 0.0).then_some(Stage::EtaCutoff { epsilon, min_keep })
        }
        SamplerKind::Xtc => {
            let (probability, threshold) = (o.xtc_probability, o.xtc_threshold);
            let on = probability > 0.0 && threshold <= 0.5;
            on.then_some(Stage::Xtc { probability, threshold, min_keep })
        }
        SamplerKind::Temperature => {
            let temperature = Temperature {
                temperature: o.temperature,
                range: o.dynatemp_range,
                exponent: o.dynatemp_exponent,
            };
            (!temperature.is_neutral()).then_some(Stage::Temperature(temperature))
        }
        SamplerKind::AdaptiveP => None,
    }
}

/// Inverse transform sampling: index of the first candidate at which the running sum of probabilities reaches `uniform`
/// times their total.
fn draw(candidates: &[Candidate], uniform: f64) -> usize {
    let sum: f64 = candidates.iter().map(|c| f64::from(c.p)).sum();
    let (target, mut run) = (uniform * sum, 0.0);
    let mut last = 0;
    for (i, candidate) in candidates.iter().enumerate() {
        if candidate.p > 0.0 {
            run += f64::from(candidate.p);
            if run >= target {
                return i;
            }
            last = i;
        }
    }
    last
}

/// Random seed: hash of the time with the random hash keys of the process (constant in a browser). Seeds have 32 bits, as
/// llama.cpp's: every client can send them back.
fn fresh_seed() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    let since_epoch = web_time::SystemTime::now().duration_since(web_time::UNIX_EPOCH);
    hasher.write_u128(since_epoch.map_or(0, |time| time.as_nanos()));
    hasher.finish() >> 32
}

#[cfg(test)]
mod tests;
