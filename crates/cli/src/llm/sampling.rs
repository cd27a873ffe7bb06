//! Flags of the sampling chain, by llama.cpp's names.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use stonechat::llm::Model;
use stonechat::sampling::{CompiledGrammar, GrammarSource, SamplerKind, SamplingOptions};
use stonechat::text::Tokenizer;

use super::read_text;
use crate::UsageError;
use crate::headings::{GRAMMAR, SAMPLING};

/// Flags of the sampling chain.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = SAMPLING)]
pub(super) struct SamplingArgs {
    /// Temperature; 0 is greedy
    #[arg(long, visible_alias = "temperature", value_name = "T", default_value_t = 0.8)]
    temp: f32,
    /// Dynamic temperature range; 0 disables
    ///
    /// The temperature is T - RANGE to T + RANGE, by the entropy of the candidates.
    #[arg(long, value_name = "RANGE", default_value_t = 0.0)]
    dynatemp_range: f32,
    /// Dynamic temperature exponent
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    dynatemp_exp: f32,
    /// Top-k sampling; 0 disables
    #[arg(long, value_name = "N", default_value_t = 40, allow_negative_numbers = true)]
    top_k: i64,
    /// Top-p (nucleus) sampling; 1 disables
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    top_p: f32,
    /// Min-p sampling; 0 disables
    ///
    /// P is the minimum probability relative to that of the most probable token.
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    min_p: f32,
    /// Locally typical sampling
    ///
    /// 1 disables.
    #[arg(long, visible_alias = "typical-p", value_name = "P", default_value_t = 1.0)]
    typical: f32,
    /// Top-n-sigma sampling
    ///
    /// Keeps logits within N standard deviations of the maximum; -1 disables.
    #[arg(long, visible_alias = "top-n-sigma", value_name = "N", default_value_t = -1.0, allow_negative_numbers = true)]
    top_nsigma: f32,
    /// XTC probability; 0 disables
    ///
    /// Chance to exclude the top choices.
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    xtc_probability: f32,
    /// XTC threshold
    ///
    /// Minimum probability of a top choice.
    #[arg(long, value_name = "P", default_value_t = 0.1)]
    xtc_threshold: f32,
    /// Tail-free sampling; 1 disables
    #[arg(long, value_name = "Z", default_value_t = 1.0)]
    tfs: f32,
    /// Eta sampling cutoff; 0 disables
    #[arg(long, value_name = "ETA", default_value_t = 0.0)]
    eta_cutoff: f32,
    /// Epsilon sampling cutoff; 0 disables
    ///
    /// Minimum probability of a token.
    #[arg(long, value_name = "EPSILON", default_value_t = 0.0)]
    epsilon_cutoff: f32,
    /// Minimum number of tokens that each sampler keeps
    #[arg(long, value_name = "N", default_value_t = 0)]
    min_keep: usize,
    /// Last n tokens to penalize; 0 disables, -1 is all
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true)]
    repeat_last_n: i64,
    /// Repeat penalty of previous tokens; 1 disables
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    repeat_penalty: f32,
    /// Presence penalty; 0 disables
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    presence_penalty: f32,
    /// Frequency penalty; 0 disables
    #[arg(long, value_name = "X", default_value_t = 0.0, allow_negative_numbers = true)]
    frequency_penalty: f32,
    /// DRY multiplier; 0 disables
    #[arg(long, value_name = "X", default_value_t = 0.0)]
    dry_multiplier: f32,
    /// DRY base value
    ///
    /// Growth of the penalty with the length of the repetition.
    #[arg(long, value_name = "X", default_value_t = 1.75)]
    dry_base: f32,
    /// DRY allowed length without penalty
    #[arg(long, value_name = "N", default_value_t = 2)]
    dry_allowed_length: usize,
    /// DRY penalty for the last n tokens; -1 is all
    #[arg(long, value_name = "N", default_value_t = 64, allow_negative_numbers = true)]
    dry_penalty_last_n: i64,
    /// DRY sequence breaker; repeatable, none clears the default
    #[arg(long, value_name = "TEXT")]
    dry_sequence_breaker: Vec<String>,
    /// Mirostat version 1 or 2; 0 disables
    ///
    /// Replaces the sampling chain.
    #[arg(long, value_name = "N", default_value_t = 0)]
    mirostat: u8,
    /// Mirostat learning rate, parameter eta
    #[arg(long, value_name = "ETA", default_value_t = 0.1)]
    mirostat_lr: f32,
    /// Mirostat target entropy, parameter tau
    #[arg(long, value_name = "TAU", default_value_t = 5.0)]
    mirostat_ent: f32,
    /// Logit bias of a token: ID+BIAS or ID-BIAS; repeatable
    ///
    /// ID-inf forbids the token.
    #[arg(short = 'l', long, value_name = "ID+BIAS", allow_hyphen_values = true)]
    logit_bias: Vec<String>,
    /// Samplers of the chain in order, separated by `;`
    #[arg(long, value_name = "NAMES")]
    samplers: Option<String>,
    /// Samplers in order, a letter each
    #[arg(
        long,
        visible_alias = "sampler-seq",
        value_name = "LETTERS",
        conflicts_with = "samplers"
    )]
    sampling_seq: Option<String>,
    /// RNG seed; -1 is a random seed
    #[arg(short, long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    seed: i64,
    /// Ignore end-of-text tokens and continue generating
    #[arg(long)]
    pub(super) ignore_eos: bool,
    /// Grammar (GBNF) to constrain generation
    #[arg(long, value_name = "GBNF", group = "grammars", help_heading = GRAMMAR)]
    grammar: Option<String>,
    /// File with a grammar (GBNF)
    #[arg(long, value_name = "FILE", group = "grammars", help_heading = GRAMMAR)]
    grammar_file: Option<PathBuf>,
    /// JSON schema to constrain generation; {} is any JSON
    #[arg(short, long, value_name = "SCHEMA", group = "grammars", help_heading = GRAMMAR)]
    json_schema: Option<String>,
    /// Regular expression to constrain generation
    #[arg(long, value_name = "REGEX", group = "grammars", help_heading = GRAMMAR)]
    regex: Option<String>,
    /// Lark grammar (llguidance's dialect) to constrain generation
    #[arg(long, value_name = "LARK", group = "grammars", help_heading = GRAMMAR)]
    lark: Option<String>,
}

impl SamplingArgs {
    /// Options of the sampling chain; a wrong value is a usage error.
    pub(super) fn options(&self, tokenizer: &Tokenizer) -> anyhow::Result<SamplingOptions> {
        self.checked(tokenizer).map_err(UsageError::from_error)
    }

    fn checked(&self, tokenizer: &Tokenizer) -> anyhow::Result<SamplingOptions> {
        let defaults = SamplingOptions::default();
        let whole = |n: i64| usize::try_from(n).unwrap_or(if n < 0 { 1 << 20 } else { 0 });
        let options = SamplingOptions {
            seed: u64::try_from(self.seed).ok(),
            temperature: self.temp,
            dynatemp_range: self.dynatemp_range,
            dynatemp_exponent: self.dynatemp_exp,
            top_k: usize::try_from(self.top_k).unwrap_or(0),
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical,
            tail_free_z: self.tfs,
            epsilon_cutoff: self.epsilon_cutoff,
            eta_cutoff: self.eta_cutoff,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            top_n_sigma: self.top_nsigma,
            min_keep: self.min_keep,
            repeat_penalty: self.repeat_penalty,
            repeat_last_n: whole(self.repeat_last_n),
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            dry_multiplier: self.dry_multiplier,
            dry_base: self.dry_base,
            dry_allowed_length: self.dry_allowed_length,
            dry_penalty_last_n: whole(self.dry_penalty_last_n),
            dry_sequence_breakers: match &self.dry_sequence_breaker[..] {
                [] => defaults.dry_sequence_breakers,
                [none] if none == "none" => Vec::new(),
                own => own.iter().map(|text| unescape(text)).collect(),
            },
            mirostat: self.mirostat,
            mirostat_tau: self.mirostat_ent,
            mirostat_eta: self.mirostat_lr,
            logit_bias: self
                .logit_bias
                .iter()
                .map(|text| bias(text, tokenizer))
                .collect::<anyhow::Result<_>>()?,
            order: match (&self.samplers, &self.sampling_seq) {
                (Some(names), _) => SamplerKind::parse_names(names)?,
                (None, Some(letters)) => SamplerKind::parse_letters(letters)?,
                (None, None) => defaults.order,
            },
            ..SamplingOptions::default()
        };
        options.validate()?;
        Ok(options)
    }

    /// Grammar to constrain generation, compiled for a model; a wrong one is a usage error.
    pub(super) fn grammar(&self, model: &Model) -> anyhow::Result<Option<Arc<CompiledGrammar>>> {
        let source = match &self.grammar_file {
            Some(path) => Some(GrammarSource::Gbnf(read_text(path)?)),
            None => {
                let gbnf = self.grammar.clone().map(GrammarSource::Gbnf);
                let schema = self.json_schema.clone().map(GrammarSource::JsonSchema);
                let regex = self.regex.clone().map(GrammarSource::Regex);
                gbnf.or(schema).or(regex).or(self.lark.clone().map(GrammarSource::Lark))
            }
        };
        let compiled = source.map(|source| model.compile_grammar(&source)).transpose();
        let compiled = compiled.map_err(UsageError::from_error)?;
        Ok(compiled.map(Arc::new))
    }
}

/// Parses `ID+BIAS` or `ID-BIAS`; `ID-inf` forbids a token.
fn bias(text: &str, tokenizer: &Tokenizer) -> anyhow::Result<(u32, f32)> {
    let split = text.find(['+', '-']).and_then(|at| {
        let id: u32 = text[..at].trim().parse().ok()?;
        Some((id, text[at..].parse::<f32>().ok()?))
    });
    match split {
        Some((id, bias)) if (id as usize) < tokenizer.vocab_size() && !bias.is_nan() => {
            Ok((id, bias))
        }
        Some((id, _)) => {
            let n = tokenizer.vocab_size();
            bail!(usage_error!("--logit-bias: expected a token below {n}, got {id}"))
        }
        None => {
            bail!(usage_error!("--logit-bias: expected ID+BIAS or ID-BIAS, got `{text}`"))
        }
    }
}

/// Replaces the escape sequences `\n`, `\t`, `\r`, `\\`, `\"` and `\'`.
pub(super) fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some(same @ ('\\' | '"' | '\'')) => out.push(same),
            Some(other) => out.extend(['\\', other]),
            None => out.push('\\'),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::unescape;

    #[test]
    fn escapes_are_replaced_once() {
        assert_eq!(unescape(r#"a\nb\t\\n\"\x\"#), "a\nb\t\\n\"\\x\\");
    }
}
