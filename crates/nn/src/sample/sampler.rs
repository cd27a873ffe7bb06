//! The chain at work: logits in, a token out.

use std::hash::{BuildHasher, Hasher, RandomState};

use super::adaptive_p::AdaptiveP;
use super::breakers::DryBreakers;
use super::candidates::{Candidate, Candidates};
use super::dry::Dry;
use super::kind::SamplerKind;
use super::mirostat::Mirostat;
use super::options::SamplingOptions;
use super::penalties::Penalties;
use super::rng::Rng;
use super::temperature::Temperature;
use super::{eta, min_p, tail_free, top_k, top_n_sigma, top_p, typical, xtc};
use crate::{Error, TopKEntry};

/// Chooses tokens from logits: bias, the samplers in their order, a draw.
///
/// One sampler serves one sequence. Tell it every token of the sequence with
/// [`Sampler::accept`], those of the prompt too.
#[derive(Debug, Clone)]
pub struct Sampler {
    bias: Vec<(u32, f32)>,
    biased: Vec<u32>,
    stages: Vec<Stage>,
    draw: Draw,
    candidates: Candidates,
    rng: Rng,
    seed: u64,
    vocab_size: usize,
}

/// A sampler that is on, with its settings and state.
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

/// How the token is drawn from what the stages left.
#[derive(Debug, Clone)]
enum Draw {
    Plain,
    MirostatV1(Mirostat),
    MirostatV2(Mirostat),
    AdaptiveP(AdaptiveP),
}

impl Sampler {
    /// A sampler for logits of `vocab_size` tokens. `breakers` matter only where
    /// [`SamplingOptions::uses_dry`]; `DryBreakers::default()` has none.
    ///
    /// # Errors
    /// [`Error::SamplingOption`] for a value out of its range.
    ///
    /// # Panics
    /// If `vocab_size` is 0.
    pub fn new(
        options: &SamplingOptions,
        vocab_size: usize,
        breakers: DryBreakers,
    ) -> Result<Self, Error> {
        assert!(vocab_size > 0, "a vocabulary has tokens");
        options.validate()?;
        let (stages, draw) = match options.mirostat {
            0 => chain(options, vocab_size, breakers),
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
        let list_capacity = match stages.iter().find(|stage| stage.truncates()) {
            Some(Stage::TopK { k }) => k + options.logit_bias.len(),
            Some(Stage::Temperature(temperature)) if temperature.is_greedy() => {
                1 + options.logit_bias.len()
            }
            _ => vocab_size,
        };
        let seed = options.seed.unwrap_or_else(fresh_seed);
        Ok(Self {
            bias: options.logit_bias.clone(),
            biased: options.logit_bias.iter().map(|&(token, _)| token).collect(),
            stages,
            draw,
            candidates: Candidates::new(vocab_size, list_capacity.min(vocab_size)),
            rng: Rng::new(seed),
            seed,
            vocab_size,
        })
    }

    /// Draws a token. The state that follows the text (penalties, DRY, mirostat) moves only when
    /// a token is accepted.
    ///
    /// # Panics
    /// If `logits` has not one value for each token.
    #[track_caller]
    pub fn sample(&mut self, logits: &[f32]) -> u32 {
        self.candidates.load(logits);
        self.choose()
    }

    /// How many of the greatest logits decide, which [`Sampler::sample_top_k`] takes: as many as the
    /// first cut leaves, if that is top-k or the greatest alone, and one more for each token that is
    /// forbidden. None where any logit may count.
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

    /// What [`Sampler::sample`] would draw from all logits, from the [`required_top_k`](Self::required_top_k)
    /// greatest, in order.
    ///
    /// # Panics
    /// If these are not as many.
    #[track_caller]
    pub fn sample_top_k(&mut self, greatest: &[TopKEntry]) -> u32 {
        assert_eq!(Some(greatest.len()), self.required_top_k(), "the greatest logits that decide");
        self.candidates.load_greatest(greatest);
        self.choose()
    }

    /// Draws from the candidates.
    fn choose(&mut self) -> u32 {
        let candidates = &mut self.candidates;
        for (i, &(biased, bias)) in self.bias.iter().enumerate() {
            candidates.adjust(&self.biased[i..=i], |token, logit| {
                if token == biased { logit + bias } else { logit }
            });
        }
        for stage in &mut self.stages {
            stage.apply(candidates, &mut self.rng);
        }
        match &mut self.draw {
            Draw::Plain => {}
            Draw::MirostatV1(mirostat) => mirostat.truncate_v1(candidates, self.vocab_size),
            Draw::MirostatV2(mirostat) => mirostat.truncate_v2(candidates),
            Draw::AdaptiveP(adaptive) => adaptive.apply(candidates),
        }
        let left = candidates.softmax();
        let index = draw(left, self.rng.uniform());
        let drawn = left[index];
        match &mut self.draw {
            Draw::Plain => {}
            Draw::MirostatV1(state) | Draw::MirostatV2(state) => state.drawn(drawn.token, drawn.p),
            Draw::AdaptiveP(adaptive) => adaptive.drawn(drawn.token, index),
        }
        drawn.token
    }

    /// Tells the sampler that the sequence goes on with `token`.
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

    /// Forgets the sequence and starts the draws over.
    pub fn reset(&mut self) {
        for stage in &mut self.stages {
            match stage {
                Stage::Penalties(penalties) => penalties.reset(),
                Stage::Dry(dry) => dry.reset(),
                _ => {}
            }
        }
        match &mut self.draw {
            Draw::Plain => {}
            Draw::MirostatV1(state) | Draw::MirostatV2(state) => state.reset(),
            Draw::AdaptiveP(adaptive) => adaptive.reset(),
        }
        self.rng = Rng::new(self.seed);
    }

    /// What the last [`Sampler::sample`] drew from, with probabilities that sum to 1, in no
    /// particular order; empty before the first.
    #[must_use]
    pub fn candidates(&self) -> &[Candidate] {
        self.candidates.as_slice()
    }

    /// The seed of the draws, also where the options left it open.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }
}

impl Stage {
    fn apply(&mut self, candidates: &mut Candidates, rng: &mut Rng) {
        match *self {
            Self::Penalties(ref penalties) => penalties.apply(candidates),
            Self::Dry(ref mut dry) => dry.apply(candidates),
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
                xtc::apply(candidates, probability, threshold, min_keep, rng);
            }
            Self::Temperature(temperature) => temperature.apply(candidates),
        }
    }

    /// Whether this may turn the dense logits into a list.
    fn truncates(&self) -> bool {
        match self {
            Self::Penalties(_) | Self::Dry(_) | Self::TopNSigma { .. } => false,
            Self::Temperature(temperature) => temperature.is_greedy() || temperature.range > 0.0,
            _ => true,
        }
    }

    /// Whether the greatest logit before this is the greatest after it.
    fn keeps_the_greatest(&self) -> bool {
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

/// The samplers of `options.order` that are on, and the draw at their end.
fn chain(
    options: &SamplingOptions,
    vocab_size: usize,
    mut breakers: DryBreakers,
) -> (Vec<Stage>, Draw) {
    let mut stages = Vec::with_capacity(options.order.len());
    let mut draw = Draw::Plain;
    for &kind in &options.order {
        let Some(stage) = stage(kind, options, vocab_size, &mut breakers) else {
            if kind == SamplerKind::AdaptiveP && options.adaptive_target >= 0.0 {
                let (target, decay) = (options.adaptive_target, options.adaptive_decay);
                draw = Draw::AdaptiveP(AdaptiveP::new(target, decay));
            }
            continue;
        };
        if matches!(&stage, Stage::Temperature(temperature) if temperature.is_greedy()) {
            // What comes right before and keeps the greatest logit makes no difference.
            while stages.last().is_some_and(Stage::keeps_the_greatest) {
                stages.pop();
            }
        }
        stages.push(stage);
    }
    (stages, draw)
}

/// The sampler `kind`, unless the options turn it off.
fn stage(
    kind: SamplerKind,
    options: &SamplingOptions,
    vocab_size: usize,
    breakers: &mut DryBreakers,
) -> Option<Stage> {
    let o = options;
    let min_keep = o.min_keep;
    match kind {
        SamplerKind::Penalties => {
            let (repeat, last_n) = (o.repeat_penalty, o.repeat_last_n);
            let (frequency, presence) = (o.frequency_penalty, o.presence_penalty);
            let penalties = Penalties::new(vocab_size, last_n, repeat, frequency, presence);
            penalties.map(Stage::Penalties)
        }
        SamplerKind::Dry => {
            let dry = Dry::new(o, vocab_size, std::mem::take(breakers));
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

/// The candidate at which the running sum of probabilities reaches the share `at` of all.
fn draw(candidates: &[Candidate], at: f64) -> usize {
    let sum: f64 = candidates.iter().map(|c| f64::from(c.p)).sum();
    let mut left = at * sum;
    let mut last = 0;
    for (i, candidate) in candidates.iter().enumerate() {
        if candidate.p > 0.0 {
            left -= f64::from(candidate.p);
            if left < 0.0 {
                return i;
            }
            last = i;
        }
    }
    last
}

/// A seed from the process's hash keys, which come from the system's entropy, and the time (in a
/// browser the keys are the same in every instance).
fn fresh_seed() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    let since_epoch = web_time::SystemTime::now().duration_since(web_time::UNIX_EPOCH);
    hasher.write_u128(since_epoch.map_or(0, |time| time.as_nanos()));
    hasher.finish()
}

#[cfg(test)]
mod tests;
