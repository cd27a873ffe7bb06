//! Options of the sampler chain.

use crate::Error;
use crate::kind::SamplerKind;

/// Options of the sampler chain. The defaults are llama.cpp's.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingOptions {
    /// Seed of the draws; `None` for a random one.
    pub seed: Option<u64>,
    /// Divisor of the logits; 0 or less is greedy.
    pub temperature: f32,
    /// Dynamic temperature: half-width of its range; 0 is off.
    pub dynatemp_range: f32,
    /// Dynamic temperature: exponent of the normalized entropy.
    pub dynatemp_exponent: f32,
    /// Keep the `k` most probable tokens; 0 is off.
    pub top_k: usize,
    /// Keep the most probable tokens up to this total probability; 1 is off.
    pub top_p: f32,
    /// Keep tokens with at least this fraction of the largest probability; 0 is off.
    pub min_p: f32,
    /// Total probability of locally typical sampling; 1 is off.
    pub typical_p: f32,
    /// Threshold `z` of tail-free sampling; 1 is off.
    pub tail_free_z: f32,
    /// Keep tokens with at least this probability; 0 is off.
    pub epsilon_cutoff: f32,
    /// Epsilon of eta sampling; 0 is off.
    pub eta_cutoff: f32,
    /// XTC: probability of excluding the top choices; 0 is off.
    pub xtc_probability: f32,
    /// XTC: probability from which a token is a top choice; above 0.5 is off.
    pub xtc_threshold: f32,
    /// Keep logits within this many standard deviations of the maximum; 0 or less is off.
    pub top_n_sigma: f32,
    /// Tokens that truncating samplers keep at least.
    pub min_keep: usize,
    /// Divides positive logits of recent tokens and multiplies others; 1 is off.
    pub repeat_penalty: f32,
    /// Window of the repetition, frequency and presence penalties, in tokens; 0 is off.
    pub repeat_last_n: usize,
    /// Subtracted per occurrence of a recent token; 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted once for a recent token; 0 is off.
    pub presence_penalty: f32,
    /// DRY: multiplier of the penalty; 0 is off.
    pub dry_multiplier: f32,
    /// DRY: base of the penalty; below 1 is off.
    pub dry_base: f32,
    /// DRY: repetitions of at least this length are penalized.
    pub dry_allowed_length: usize,
    /// DRY: window in tokens; 0 is off.
    pub dry_penalty_last_n: usize,
    /// DRY: strings that end a repetition, for [`crate::DryBreakers::new`].
    pub dry_sequence_breakers: Vec<String>,
    /// Mirostat version, 1 or 2; 0 is off. With it, only the bias and the fixed temperature run besides.
    pub mirostat: u8,
    /// Mirostat: target surprise in bits.
    pub mirostat_tau: f32,
    /// Mirostat: learning rate.
    pub mirostat_eta: f32,
    /// Adaptive-p: target probability; below 0 is off. `order` must contain it, too.
    pub adaptive_target: f32,
    /// Adaptive-p: decay of the moving average, 0 to 0.99.
    pub adaptive_decay: f32,
    /// Logit bias per token, added first; −∞ forbids a token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Samplers to run, in order.
    pub order: Vec<SamplerKind>,
}

impl Default for SamplingOptions {
    fn default() -> Self {
        Self {
            seed: None,
            temperature: 0.8,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            tail_free_z: 1.0,
            epsilon_cutoff: 0.0,
            eta_cutoff: 0.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            top_n_sigma: -1.0,
            min_keep: 0,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: 64,
            dry_sequence_breakers: ["\n", ":", "\"", "*"].map(str::to_owned).to_vec(),
            mirostat: 0,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            adaptive_target: -1.0,
            adaptive_decay: 0.9,
            logit_bias: Vec::new(),
            order: SamplerKind::DEFAULT_ORDER.to_vec(),
        }
    }
}

impl SamplingOptions {
    /// Greedy decoding: temperature 0.
    #[must_use]
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Whether DRY is on, which needs breakers.
    #[must_use]
    pub fn uses_dry(&self) -> bool {
        self.dry_multiplier != 0.0 && self.dry_base >= 1.0 && self.dry_penalty_last_n > 0
    }

    /// Checks the range of every option.
    ///
    /// # Errors
    /// [`Error::SamplingOption`] for the first value out of its range.
    pub fn validate(&self) -> Result<(), Error> {
        let finite = "a finite number";
        let fraction = "a number from 0 to 1";
        let is_fraction = |x: f32| (0.0..=1.0).contains(&x);
        let not_negative = "a finite number that is not negative";
        let is_not_negative = |x: f32| x >= 0.0 && x.is_finite();
        let is_positive = |x: f32| x > 0.0 && x.is_finite() && x.recip().is_finite();
        let checks = [
            ("temperature", self.temperature, self.temperature.is_finite(), finite),
            ("dynatemp_range", self.dynatemp_range, self.dynatemp_range.is_finite(), finite),
            (
                "dynatemp_exponent",
                self.dynatemp_exponent,
                is_not_negative(self.dynatemp_exponent),
                not_negative,
            ),
            ("top_p", self.top_p, is_fraction(self.top_p), fraction),
            ("min_p", self.min_p, is_fraction(self.min_p), fraction),
            ("typical_p", self.typical_p, is_fraction(self.typical_p), fraction),
            ("tail_free_z", self.tail_free_z, is_fraction(self.tail_free_z), fraction),
            ("epsilon_cutoff", self.epsilon_cutoff, is_fraction(self.epsilon_cutoff), fraction),
            ("eta_cutoff", self.eta_cutoff, is_fraction(self.eta_cutoff), fraction),
            ("xtc_probability", self.xtc_probability, is_fraction(self.xtc_probability), fraction),
            ("xtc_threshold", self.xtc_threshold, is_fraction(self.xtc_threshold), fraction),
            ("top_n_sigma", self.top_n_sigma, self.top_n_sigma.is_finite(), finite),
            (
                "repeat_penalty",
                self.repeat_penalty,
                is_positive(self.repeat_penalty),
                "a finite number above 0",
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                self.frequency_penalty.is_finite(),
                finite,
            ),
            ("presence_penalty", self.presence_penalty, self.presence_penalty.is_finite(), finite),
            (
                "dry_multiplier",
                self.dry_multiplier,
                is_not_negative(self.dry_multiplier),
                not_negative,
            ),
            ("dry_base", self.dry_base, is_not_negative(self.dry_base), not_negative),
            ("mirostat", f32::from(self.mirostat), self.mirostat <= 2, "0, 1 or 2"),
            ("mirostat_tau", self.mirostat_tau, is_not_negative(self.mirostat_tau), not_negative),
            ("mirostat_eta", self.mirostat_eta, is_not_negative(self.mirostat_eta), not_negative),
            (
                "adaptive_target",
                self.adaptive_target,
                self.adaptive_target <= 1.0,
                "a number up to 1, below 0 for off",
            ),
            (
                "adaptive_decay",
                self.adaptive_decay,
                (0.0..=0.99).contains(&self.adaptive_decay),
                "a number from 0 to 0.99",
            ),
        ];
        let failed = checks.into_iter().find(|&(_, _, holds, _)| !holds);
        let bias = self.logit_bias.iter().find(|(_, bias)| bias.is_nan() || *bias == f32::INFINITY);
        match (failed, bias) {
            (Some((option, got, _, expected)), _) => {
                Err(Error::SamplingOption { option, expected, got })
            }
            (None, Some(&(_, got))) => Err(Error::SamplingOption {
                option: "logit_bias",
                expected: "a finite number or −∞",
                got,
            }),
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::SamplingOptions;

    #[test]
    fn the_defaults_are_valid() {
        SamplingOptions::default().validate().unwrap();
        SamplingOptions::greedy().validate().unwrap();
    }

    #[test]
    fn values_out_of_range_are_named() {
        #[track_caller]
        fn refused(change: impl FnOnce(&mut SamplingOptions), message: &str) {
            let mut options = SamplingOptions::default();
            change(&mut options);
            assert_eq!(options.validate().unwrap_err().to_string(), message);
        }
        refused(
            |o| o.top_p = 1.5,
            "sampling option `top_p`: expected a number from 0 to 1, got 1.5",
        );
        refused(
            |o| o.temperature = f32::NAN,
            "sampling option `temperature`: expected a finite number, got NaN",
        );
        refused(
            |o| o.repeat_penalty = 0.0,
            "sampling option `repeat_penalty`: expected a finite number above 0, got 0",
        );
        refused(|o| o.mirostat = 3, "sampling option `mirostat`: expected 0, 1 or 2, got 3");
        refused(
            |o| o.logit_bias = vec![(1, f32::NEG_INFINITY), (2, f32::INFINITY)],
            "sampling option `logit_bias`: expected a finite number or −∞, got inf",
        );
    }

    #[test]
    fn each_option_has_a_range() {
        type Set = fn(&mut SamplingOptions, f32);
        /// Values within the range and out of it.
        type Values<'a> = (&'a [f32], &'a [f32]);
        let fraction: Values<'_> = (&[0.0, 0.5, 1.0], &[-0.001, 1.001, f32::NAN]);
        let finite: Values<'_> =
            (&[-3.0, 0.0, f32::MAX], &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
        let not_negative: Values<'_> = (&[0.0, 2.0, f32::MAX], &[-0.001, f32::NAN, f32::INFINITY]);
        let table: [(&str, Set, Values<'_>); 23] = [
            ("temperature", |o, x| o.temperature = x, finite),
            ("dynatemp_range", |o, x| o.dynatemp_range = x, finite),
            ("dynatemp_exponent", |o, x| o.dynatemp_exponent = x, not_negative),
            ("top_p", |o, x| o.top_p = x, fraction),
            ("min_p", |o, x| o.min_p = x, fraction),
            ("typical_p", |o, x| o.typical_p = x, fraction),
            ("tail_free_z", |o, x| o.tail_free_z = x, fraction),
            ("epsilon_cutoff", |o, x| o.epsilon_cutoff = x, fraction),
            ("eta_cutoff", |o, x| o.eta_cutoff = x, fraction),
            ("xtc_probability", |o, x| o.xtc_probability = x, fraction),
            ("xtc_threshold", |o, x| o.xtc_threshold = x, fraction),
            ("top_n_sigma", |o, x| o.top_n_sigma = x, finite),
            // The smallest numbers have no finite inverse.
            (
                "repeat_penalty",
                |o, x| o.repeat_penalty = x,
                (&[0.5, 1.3], &[0.0, -1.0, 1e-40, f32::NAN, f32::INFINITY]),
            ),
            ("frequency_penalty", |o, x| o.frequency_penalty = x, finite),
            ("presence_penalty", |o, x| o.presence_penalty = x, finite),
            ("dry_multiplier", |o, x| o.dry_multiplier = x, not_negative),
            ("dry_base", |o, x| o.dry_base = x, not_negative),
            ("mirostat", |o, x| o.mirostat = x as u8, (&[0.0, 1.0, 2.0], &[3.0, 255.0])),
            ("mirostat_tau", |o, x| o.mirostat_tau = x, not_negative),
            ("mirostat_eta", |o, x| o.mirostat_eta = x, not_negative),
            (
                "adaptive_target",
                |o, x| o.adaptive_target = x,
                (&[-1.0, 0.0, 1.0], &[1.001, f32::NAN]),
            ),
            (
                "adaptive_decay",
                |o, x| o.adaptive_decay = x,
                (&[0.0, 0.99], &[-0.01, 0.991, f32::NAN]),
            ),
            (
                "logit_bias",
                |o, x| o.logit_bias = vec![(1, x)],
                (&[-2.0, f32::NEG_INFINITY], &[f32::NAN, f32::INFINITY]),
            ),
        ];
        for (option, set, (valid, invalid)) in table {
            let error = |value: f32| {
                let mut options = SamplingOptions::default();
                set(&mut options, value);
                options.validate().err().map(|error| error.to_string())
            };
            for &value in valid {
                assert_eq!(error(value), None, "{option} {value}");
            }
            for &value in invalid {
                let error = error(value).unwrap_or_default();
                let names_it = error.starts_with(&format!("sampling option `{option}`: "));
                assert!(names_it, "{option} {value}: {error}");
            }
        }
    }

    #[test]
    fn greedy_differs_from_the_defaults_by_the_temperature() {
        let default = SamplingOptions::default();
        assert_eq!(SamplingOptions::greedy(), SamplingOptions { temperature: 0.0, ..default });
    }

    #[test]
    fn dry_needs_a_multiplier_a_base_and_a_window() {
        let uses = |dry_multiplier, dry_base, dry_penalty_last_n| {
            let default = SamplingOptions::default();
            SamplingOptions { dry_multiplier, dry_base, dry_penalty_last_n, ..default }.uses_dry()
        };
        assert!(uses(0.8, 1.0, 1) && uses(0.1, 1.75, 64));
        assert!(!uses(0.0, 1.75, 64) && !uses(0.8, 0.999, 64) && !uses(0.8, 1.75, 0));
    }
}
