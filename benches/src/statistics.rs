//! Numbers that describe a list of measurements.

/// Number of (scaled) median deviations from the median beyond which a sample is an outlier
/// (Iglewicz and Hoaglin 1993).
const OUTLIER_DEVIATIONS: f64 = 3.5;
/// Fewer measurements say nothing about which of them is usual.
const MIN_FOR_OUTLIERS: usize = 5;
/// Makes a median absolute deviation an estimate of a normal distribution's standard deviation.
const MAD_TO_SIGMA: f64 = 1.4826;

/// Description of some measurements.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
    /// Standard deviation over mean, 0 for a single measurement.
    pub cov: f64,
    /// Scaled median absolute deviation over median: the same without outliers' weight.
    pub spread: f64,
    /// Indices of measurements far from the median. They count in everything above.
    pub outliers: Vec<usize>,
}

/// Describes `samples`; `None` without any.
#[must_use]
pub fn summarize(samples: &[f64]) -> Option<Summary> {
    if samples.is_empty() {
        return None;
    }
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let n = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / n;
    let squares: f64 = samples.iter().map(|s| (s - mean).powi(2)).sum();
    let deviation = if samples.len() > 1 { (squares / (n - 1.0)).sqrt() } else { 0.0 };
    let p50 = percentile(&sorted, 0.5);
    let mut deviations: Vec<f64> = samples.iter().map(|s| (s - p50).abs()).collect();
    deviations.sort_by(f64::total_cmp);
    let sigma = MAD_TO_SIGMA * percentile(&deviations, 0.5);
    let enough = samples.len() >= MIN_FOR_OUTLIERS;
    let far = |s: &f64| enough && sigma > 0.0 && (s - p50).abs() > OUTLIER_DEVIATIONS * sigma;
    Some(Summary {
        mean,
        p50,
        p95: percentile(&sorted, 0.95),
        p99: percentile(&sorted, 0.99),
        max: sorted[sorted.len() - 1],
        cov: relative(deviation, mean),
        spread: relative(sigma, p50),
        outliers: samples.iter().enumerate().filter(|(_, s)| far(s)).map(|(i, _)| i).collect(),
    })
}

fn relative(part: f64, whole: f64) -> f64 {
    if whole == 0.0 { 0.0 } else { part / whole }
}

/// The value below which the fraction `p` of `sorted` lies, interpolated between neighbours (`NumPy`'s
/// `linear`).
fn percentile(sorted: &[f64], p: f64) -> f64 {
    let at = p * (sorted.len() - 1) as f64;
    let below = at.floor();
    let low = sorted[below as usize];
    let high = sorted[at.ceil() as usize];
    low + (high - low) * (at - below)
}

#[cfg(test)]
mod tests {
    use super::summarize;

    #[track_caller]
    fn close(got: f64, expected: f64) {
        assert!((got - expected).abs() < 1e-9, "got {got}, expected {expected}");
    }

    #[test]
    fn values_are_those_computed_by_hand() {
        // Mean 5, squares 9+1+1+1+0+0+4+16 = 32, deviation sqrt(32/7).
        let summary = summarize(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        close(summary.mean, 5.0);
        close(summary.p50, 4.5);
        close(summary.cov, (32.0f64 / 7.0).sqrt() / 5.0);
        // At 0.95 * 7 = 6.65: 7 + 0.65 * 2; at 0.99 * 7 = 6.93: 7 + 0.93 * 2.
        close(summary.p95, 8.3);
        close(summary.p99, 8.86);
        close(summary.max, 9.0);
        // Deviations from 4.5: .5 .5 .5 .5 .5 2.5 2.5 4.5, of which the median is 0.5.
        close(summary.spread, 1.4826 * 0.5 / 4.5);
        // 3.5 * 0.7413 = 2.59: only 9 is farther away.
        assert_eq!(summary.outliers, [7]);
    }

    #[test]
    fn outliers_are_marked_and_still_count() {
        let summary = summarize(&[10.0, 11.0, 30.0, 9.0, 10.0]).unwrap();
        assert_eq!(summary.outliers, [2]);
        close(summary.mean, 14.0);
        close(summary.p50, 10.0);
        assert!(summarize(&[10.0, 10.1, 30.0, 10.0]).unwrap().outliers.is_empty());
    }

    #[test]
    fn few_or_equal_samples_have_no_spread() {
        assert_eq!(summarize(&[]), None);
        for samples in [&[3.0][..], &[3.0, 3.0, 3.0]] {
            let summary = summarize(samples).unwrap();
            assert_eq!((summary.p50, summary.p95, summary.p99), (3.0, 3.0, 3.0));
            assert_eq!(summary.max, 3.0);
            assert_eq!((summary.cov, summary.spread), (0.0, 0.0));
            assert!(summary.outliers.is_empty());
        }
    }
}
