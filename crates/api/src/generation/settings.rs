//! Options of a request under llama-server's names.

use serde_json::{Value, json};
use stonechat::sampling::SamplingOptions;

/// Seed that llama-server shows for a random one.
const RANDOM_SEED: u32 = u32::MAX;

/// Options of a request under llama-server's names, as in `/props` and `generation_settings`.
#[must_use]
pub fn settings(options: &SamplingOptions, n_predict: Option<usize>) -> Value {
    let seed = options.seed.unwrap_or(RANDOM_SEED.into());
    // JSON has no infinity: the bias of a forbidden token is null, as in llama-server.
    let bias = |&(token, bias): &(u32, f32)| json!({"token": token, "bias": bias});
    let biases: Vec<Value> = options.logit_bias.iter().map(bias).collect();
    let samplers: Vec<&str> = options.order.iter().map(|kind| kind.name()).collect();
    json!({
        "seed": seed,
        "temperature": options.temperature,
        "dynatemp_range": options.dynatemp_range,
        "dynatemp_exponent": options.dynatemp_exponent,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "min_p": options.min_p,
        "top_n_sigma": options.top_n_sigma,
        "xtc_probability": options.xtc_probability,
        "xtc_threshold": options.xtc_threshold,
        "typ_p": options.typical_p,
        "repeat_last_n": options.repeat_last_n,
        "repeat_penalty": options.repeat_penalty,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        "dry_multiplier": options.dry_multiplier,
        "dry_base": options.dry_base,
        "dry_allowed_length": options.dry_allowed_length,
        "dry_penalty_last_n": options.dry_penalty_last_n,
        "dry_sequence_breakers": options.dry_sequence_breakers,
        "mirostat": options.mirostat,
        "mirostat_tau": options.mirostat_tau,
        "mirostat_eta": options.mirostat_eta,
        "n_predict": n_predict.map_or(-1, |n| n as i64),
        "max_tokens": n_predict.map_or(-1, |n| n as i64),
        "n_keep": 0,
        "n_discard": 0,
        "stop": [],
        "ignore_eos": false,
        "logit_bias": biases,
        "n_probs": 0,
        "post_sampling_probs": false,
        "timings_per_token": false,
        "min_keep": options.min_keep,
        "samplers": samplers,
        "stream": false,
    })
}
