//! Whether a measurement changed by more than its noise.

use crate::report::{Report, Row};
use crate::statistics::summarize;

/// Changes of runs at different times that are never believed, however little each run varied: machines
/// drift.
const DRIFT: f64 = 0.05;
/// Like [`DRIFT`], for runs that took turns.
const PAIRED_DRIFT: f64 = 0.02;
/// Fewer samples say nothing about how much they vary.
const MIN_SAMPLES: usize = 5;
/// A median's standard error beside a mean's, of a normal distribution.
const MEDIAN_ERROR: f64 = 1.2533;

/// Change of a measurement, with its noise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    /// Time now over time before, at the median.
    pub ratio: f64,
    /// Changes up to this part are noise; infinite where samples are too few to know.
    pub noise: f64,
}

/// The verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Slower by more than the noise.
    Slower,
    /// Faster by more than the noise.
    Faster,
    /// Neither.
    Same,
}

impl Change {
    /// The change from `before` to `now`, which are the same measurement. If they were interleaved, sample
    /// `i` of one is compared with sample `i` of the other, so that what disturbed both drops out.
    #[must_use]
    pub fn between(now: &Row, before: &Row, interleaved: bool) -> Self {
        let n = now.samples_s.len().min(before.samples_s.len());
        if n < MIN_SAMPLES {
            return Self { ratio: now.p50_s / before.p50_s, noise: f64::INFINITY };
        }
        // Student's 95 % of n - 1 degrees of freedom, within 3 %.
        let standard_errors = 1.96 + 3.0 / (n - 1) as f64;
        let error = |spread: f64, n: usize| MEDIAN_ERROR * spread / (n as f64).sqrt();
        if interleaved {
            let pairs = now.samples_s.iter().zip(&before.samples_s);
            let ratios: Vec<f64> = pairs.map(|(now, before)| now / before).collect();
            if let Some(summary) = summarize(&ratios) {
                let noise = standard_errors * error(summary.spread, ratios.len());
                return Self { ratio: summary.p50, noise: noise.max(PAIRED_DRIFT) };
            }
        }
        let part = |row: &Row| {
            let spread = summarize(&row.samples_s).map_or(0.0, |summary| summary.spread);
            error(spread, row.samples_s.len())
        };
        let noise = standard_errors * part(now).hypot(part(before));
        Self { ratio: now.p50_s / before.p50_s, noise: noise.max(DRIFT) }
    }

    /// Whether the change is more than noise.
    #[must_use]
    pub fn verdict(self) -> Verdict {
        if self.ratio > 1.0 + self.noise {
            Verdict::Slower
        } else if self.ratio < 1.0 / (1.0 + self.noise) {
            Verdict::Faster
        } else {
            Verdict::Same
        }
    }
}

/// The rows of `now` that `engine` measured, each with the same measurement in `before` of `other`.
#[must_use]
pub fn pairs<'a>(
    (now, engine): (&'a Report, &str),
    (before, other): (&'a Report, &str),
) -> Vec<(&'a Row, &'a Row)> {
    let mut found = Vec::new();
    for row in now.rows.iter().filter(|row| row.engine == engine) {
        let same = |old: &&Row| old.engine == other && old.is_same_measurement(row);
        if let Some(old) = before.rows.iter().find(same) {
            found.push((row, old));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::example;

    /// The example's first row with other samples.
    fn row(samples_s: &[f64]) -> Row {
        let row = example().rows.remove(0);
        let p50_s = summarize(samples_s).unwrap().p50;
        Row { samples_s: samples_s.to_vec(), p50_s, ..row }
    }

    #[test]
    fn changes_beyond_the_noise_have_a_verdict() {
        let before = row(&[1.0, 1.0, 1.01, 0.99, 1.0]);
        let check = |samples: &[f64], interleaved, expected| {
            let change = Change::between(&row(samples), &before, interleaved);
            assert_eq!(change.verdict(), expected, "{samples:?}: {change:?}");
        };
        check(&[1.2, 1.2, 1.21, 1.19, 1.2], false, Verdict::Slower);
        check(&[0.8, 0.8, 0.81, 0.79, 0.8], false, Verdict::Faster);
        check(&[1.03, 1.03, 1.04, 1.02, 1.03], false, Verdict::Same);
        // Disturbances of both runs cancel, and runs in turns resolve finer differences.
        check(&[1.03, 1.03, 1.04, 1.02, 1.03], true, Verdict::Slower);
        // Slower at the median, but by less than it varies.
        check(&[1.1, 0.7, 1.6, 0.9, 1.3], false, Verdict::Same);
        // Too few.
        check(&[2.0, 2.0, 2.0, 2.0], false, Verdict::Same);
    }

    #[test]
    fn disturbances_of_both_drop_out_of_turns() {
        let before = row(&[1.0, 2.0, 1.0, 3.0, 1.5]);
        let now = row(&[1.1, 2.2, 1.1, 3.3, 1.65]);
        let change = Change::between(&now, &before, true);
        assert!((change.ratio - 1.1).abs() < 1e-9 && change.verdict() == Verdict::Slower);
        assert_eq!(Change::between(&now, &before, false).verdict(), Verdict::Same);
    }

    #[test]
    fn rows_find_their_partners() {
        let report = example();
        let both = pairs((&report, "stonechat"), (&report, "llama.cpp"));
        assert_eq!(both.len(), 1);
        assert_eq!(
            (both[0].0.engine.as_str(), both[0].1.engine.as_str()),
            ("stonechat", "llama.cpp")
        );
        let mut other = report.clone();
        other.rows[1].threads = 1;
        assert!(pairs((&report, "stonechat"), (&other, "llama.cpp")).is_empty());
    }
}
