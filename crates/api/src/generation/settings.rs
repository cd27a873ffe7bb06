//! Options of a request under llama-server's names.

use serde::Serialize;
use stonechat::sampling::SamplingOptions;

/// Seed that llama-server shows for a random one.
const RANDOM_SEED: u32 = u32::MAX;

/// Options of a request under llama-server's names, as in `/props` and `generation_settings`.
#[derive(Debug, Clone, Serialize)]
pub struct Settings {
    pub(crate) seed: u64,
    temperature: f64,
    dynatemp_range: f64,
    dynatemp_exponent: f64,
    top_k: usize,
    top_p: f64,
    min_p: f64,
    top_n_sigma: f64,
    xtc_probability: f64,
    xtc_threshold: f64,
    typ_p: f64,
    repeat_last_n: usize,
    repeat_penalty: f64,
    presence_penalty: f64,
    frequency_penalty: f64,
    dry_multiplier: f64,
    dry_base: f64,
    dry_allowed_length: usize,
    dry_penalty_last_n: usize,
    dry_sequence_breakers: Vec<String>,
    mirostat: u8,
    mirostat_tau: f64,
    mirostat_eta: f64,
    n_predict: i64,
    max_tokens: i64,
    n_keep: usize,
    n_discard: usize,
    pub(crate) stop: Vec<String>,
    pub(crate) ignore_eos: bool,
    logit_bias: Vec<Bias>,
    pub(crate) n_probs: usize,
    pub(crate) post_sampling_probs: bool,
    pub(crate) timings_per_token: bool,
    min_keep: usize,
    samplers: Vec<&'static str>,
    pub(crate) stream: bool,
}

/// Bias of a token. JSON has no infinity: the bias of a forbidden token is null, as in llama-server.
#[derive(Debug, Clone, Copy, Serialize)]
struct Bias {
    token: u32,
    bias: f64,
}

impl Settings {
    /// Settings of a text of at most `n_predict` tokens.
    #[must_use]
    pub fn new(options: &SamplingOptions, n_predict: Option<usize>) -> Self {
        let bias = |&(token, bias): &(u32, f32)| Bias { token, bias: bias.into() };
        let n_predict = n_predict.map_or(-1, |n| n as i64);
        Self {
            seed: options.seed.unwrap_or(RANDOM_SEED.into()),
            temperature: options.temperature.into(),
            dynatemp_range: options.dynatemp_range.into(),
            dynatemp_exponent: options.dynatemp_exponent.into(),
            top_k: options.top_k,
            top_p: options.top_p.into(),
            min_p: options.min_p.into(),
            top_n_sigma: options.top_n_sigma.into(),
            xtc_probability: options.xtc_probability.into(),
            xtc_threshold: options.xtc_threshold.into(),
            typ_p: options.typical_p.into(),
            repeat_last_n: options.repeat_last_n,
            repeat_penalty: options.repeat_penalty.into(),
            presence_penalty: options.presence_penalty.into(),
            frequency_penalty: options.frequency_penalty.into(),
            dry_multiplier: options.dry_multiplier.into(),
            dry_base: options.dry_base.into(),
            dry_allowed_length: options.dry_allowed_length,
            dry_penalty_last_n: options.dry_penalty_last_n,
            dry_sequence_breakers: options.dry_sequence_breakers.clone(),
            mirostat: options.mirostat,
            mirostat_tau: options.mirostat_tau.into(),
            mirostat_eta: options.mirostat_eta.into(),
            n_predict,
            max_tokens: n_predict,
            n_keep: 0,
            n_discard: 0,
            stop: Vec::new(),
            ignore_eos: false,
            logit_bias: options.logit_bias.iter().map(bias).collect(),
            n_probs: 0,
            post_sampling_probs: false,
            timings_per_token: false,
            min_keep: options.min_keep,
            samplers: options.order.iter().map(|kind| kind.name()).collect(),
            stream: false,
        }
    }
}
