//! Decoding flags of `transcribe`, by openai-whisper's and faster-whisper's names.

use anyhow::{Context, ensure};
use stonechat::whisper::Options;

use crate::headings::DECODING;
use crate::vad::Threshold;

/// Flags about decoding.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = DECODING)]
pub(super) struct DecodingArgs {
    /// Text to provide as a prefix of the first window
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,
    /// Patience value of beam search
    ///
    /// The search ends when patience times beam size hypotheses have ended, see
    /// arXiv 2204.05424. 1 is conventional beam search.
    #[arg(long, value_name = "X", default_value_t = Options::default().patience)]
    patience: f32,
    /// Length penalty coefficient alpha, 0 to 1 [default: simple length normalization]
    ///
    /// Beams are ranked by log probability over ((5 + tokens) / 6)^alpha, see
    /// arXiv 1609.08144, by default over the number of tokens.
    #[arg(long, value_name = "ALPHA")]
    length_penalty: Option<f32>,
    /// Temperature to use for sampling, or a comma-separated list for fallback
    #[arg(long, value_name = "T", default_value = "0")]
    temperature: String,
    /// Temperature increment when decoding fails, up to 1; none disables fallback
    #[arg(long, value_name = "STEP", default_value = "0.2")]
    temperature_increment_on_fallback: Threshold,
    /// Number of candidates when sampling with non-zero temperature
    #[arg(long, visible_alias = "bo", value_name = "N", default_value_t = Options::default().best_of)]
    best_of: usize,
    /// Provide the previous text as a prompt for the next window
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, hide_possible_values = true)]
    condition_on_previous_text: bool,
    /// Treat decoding as failed above this gzip compression ratio; none disables
    #[arg(long, value_name = "RATIO", default_value = "2.4", allow_negative_numbers = true)]
    compression_ratio_threshold: Threshold,
    /// Treat decoding as failed below this average log probability; none disables
    #[arg(long, value_name = "LOGPROB", default_value = "-1.0", allow_negative_numbers = true)]
    logprob_threshold: Threshold,
    /// Treat a failed window as silence above this no-speech probability
    ///
    /// none disables.
    #[arg(long, value_name = "P", default_value = "0.6", allow_negative_numbers = true)]
    no_speech_threshold: Threshold,
    /// Decode text without timestamps: one segment per 30 s window
    #[arg(long)]
    no_timestamps: bool,
    /// Latest first timestamp of a window (seconds)
    #[arg(long, value_name = "SECONDS", default_value_t = Options::default().max_initial_timestamp)]
    max_initial_timestamp: f32,
    /// Token ids to suppress, comma-separated
    ///
    /// -1 is openai-whisper's list of non-speech symbols, "" suppresses none.
    #[arg(long, value_name = "IDS", default_value = "-1", allow_hyphen_values = true)]
    suppress_tokens: String,
    /// Suppress blank output at the start of a window
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set, hide_possible_values = true)]
    suppress_blank: bool,
    /// Prevent repetitions of n-grams of this size in a window; 0 disables
    #[arg(long, value_name = "N", default_value_t = 0)]
    no_repeat_ngram_size: usize,
    /// Maximum number of tokens per window [default: half of the decoder's context]
    #[arg(long, value_name = "N")]
    max_new_tokens: Option<usize>,
    /// Seed of sampling with non-zero temperature
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

impl DecodingArgs {
    /// Applies these flags to `options`.
    pub(super) fn apply(&self, options: Options) -> anyhow::Result<Options> {
        let (suppress_tokens, suppress_non_speech) = suppressed(&self.suppress_tokens)?;
        Ok(Options {
            temperatures: temperatures(&self.temperature, self.temperature_increment_on_fallback)?,
            patience: self.patience,
            length_penalty: self.length_penalty,
            best_of: self.best_of,
            compression_ratio_threshold: self.compression_ratio_threshold.0,
            logprob_threshold: self.logprob_threshold.0,
            no_speech_threshold: self.no_speech_threshold.0,
            condition_on_previous_text: self.condition_on_previous_text,
            prefix: self.prefix.clone(),
            suppress_blank: self.suppress_blank,
            suppress_non_speech,
            suppress_tokens,
            no_repeat_ngram_size: self.no_repeat_ngram_size,
            max_new_tokens: self.max_new_tokens,
            without_timestamps: self.no_timestamps,
            max_initial_timestamp: self.max_initial_timestamp,
            seed: self.seed,
            ..options
        })
    }
}

/// Parses `--suppress-tokens`: the ids, and if -1 was among them.
fn suppressed(text: &str) -> anyhow::Result<(Vec<u32>, bool)> {
    let (mut tokens, mut non_speech) = (Vec::new(), false);
    for id in text.split(',').map(str::trim).filter(|id| !id.is_empty()) {
        if id == "-1" {
            non_speech = true;
        } else {
            let expected = "token ids and -1, separated by commas";
            tokens.push(
                id.parse()
                    .ok()
                    .with_context(|| format!("suppress-tokens: expected {expected}, got `{id}`"))?,
            );
        }
    }
    Ok((tokens, non_speech))
}

/// Parses the temperatures of fallback: a list as given, or one value and its increments up to 1, as
/// openai-whisper's command line does.
fn temperatures(text: &str, increment: Threshold) -> anyhow::Result<Vec<f32>> {
    let parse = |text: &str| {
        let value = text.trim().parse().ok().filter(|value| f32::is_finite(*value));
        value.with_context(|| format!("temperature: expected 0 to 2, got `{text}`"))
    };
    let mut temperatures: Vec<f32> = text.split(',').map(parse).collect::<Result<_, _>>()?;
    if let (&[first], Some(increment)) = (&temperatures[..], increment.0) {
        ensure!(
            increment >= 0.01,
            "temperature-increment-on-fallback: expected 0.01 or more, or none, got {increment}"
        );
        let steps = (1..).map(|i| f64::from(first) + f64::from(i) * increment);
        // The tolerance includes 1.0, which a sum of tenths may exceed by a rounding error.
        let steps = steps.take_while(|t| *t <= 1.0 + 1e-6);
        temperatures.extend(steps.map(|t| ((t * 1e6).round() / 1e6) as f32));
    }
    Ok(temperatures)
}

#[cfg(test)]
mod tests {
    use super::{Threshold, suppressed, temperatures};

    #[test]
    fn one_temperature_is_a_ladder() {
        #[track_caller]
        fn check(text: &str, increment: Option<f64>, expected: &[f32]) {
            assert_eq!(temperatures(text, Threshold(increment)).unwrap(), expected);
        }
        check("0", Some(0.2), &[0.0, 0.2, 0.4, 0.6, 0.8, 1.0]);
        check("0.5", Some(0.2), &[0.5, 0.7, 0.9]);
        check("0", None, &[0.0]);
        check("1.5", Some(0.2), &[1.5]);
        check("0, 0.5", Some(0.2), &[0.0, 0.5]);
    }

    #[test]
    fn other_temperatures_are_refused() {
        for text in ["", "warm", "0,", "NaN", "inf"] {
            let message = temperatures(text, Threshold(None)).unwrap_err().to_string();
            assert!(message.starts_with("temperature: expected 0 to 2, got `"), "{message}");
        }
        assert!(temperatures("0", Threshold(Some(0.0))).is_err());
    }

    #[test]
    fn suppressed_tokens_are_openai_whispers_list() {
        assert_eq!(suppressed("-1").unwrap(), (vec![], true));
        assert_eq!(suppressed("").unwrap(), (vec![], false));
        assert_eq!(suppressed("50, -1,7").unwrap(), (vec![50, 7], true));
        for text in ["-2", "x", "1;2"] {
            assert!(suppressed(text).unwrap_err().to_string().contains("separated by commas"));
        }
    }
}
