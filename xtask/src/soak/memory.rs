//! Anonymous memory of the server over time.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};

/// Growth that is no leak: a share of the memory, or bytes, whichever is more.
const MAX_SHARE: f64 = 0.02;
const MAX_BYTES: f64 = 8e6;

/// Memory at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Sample {
    pub(super) time: Duration,
    pub(super) bytes: u64,
}

/// Line through samples, at its ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Fit {
    pub(super) first: f64,
    pub(super) last: f64,
}

pub(super) fn megabytes(bytes: f64) -> f64 {
    bytes / 1e6
}

/// `RssAnon` + `VmSwap` of a process in bytes.
pub(super) fn read(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    sum(&status).with_context(|| format!("{path}: expected RssAnon and VmSwap"))
}

fn sum(status: &str) -> Option<u64> {
    let kilobytes = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_start_matches(':').trim().strip_suffix("kB")?.trim().parse().ok()
    };
    Some((kilobytes("RssAnon")? + kilobytes("VmSwap")?) * 1024)
}

/// Least squares of the samples from `from` on; `None` for fewer than two.
pub(super) fn fit(samples: &[Sample], from: Duration) -> Option<Fit> {
    let points: Vec<(f64, f64)> = samples
        .iter()
        .filter(|sample| sample.time >= from)
        .map(|sample| (sample.time.as_secs_f64(), sample.bytes as f64))
        .collect();
    let ((start, _), (end, _)) = (*points.first()?, *points.last()?);
    let n = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / n;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let variance: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    if variance == 0.0 {
        return None;
    }
    let covariance: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    let at = |time: f64| y + covariance / variance * (time - x);
    Some(Fit { first: at(start), last: at(end) })
}

impl Fit {
    /// Largest growth that passes.
    pub(super) fn max_growth(&self) -> f64 {
        (MAX_SHARE * self.first).max(MAX_BYTES)
    }

    pub(super) fn is_flat(&self) -> bool {
        self.last - self.first <= self.max_growth()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(bytes: impl Fn(u64) -> u64) -> Vec<Sample> {
        (0..100).map(|i| Sample { time: Duration::from_secs(i), bytes: bytes(i) }).collect()
    }

    #[test]
    fn both_kinds_of_memory_count() {
        let status =
            "VmRSS:\t  900 kB\nRssAnon:\t     300 kB\nRssFile:\t 600 kB\nVmSwap:\t       4 kB\n";
        assert_eq!(sum(status), Some(304 * 1024));
        assert_eq!(sum("RssAnon:\t 300 kB\n"), None);
    }

    #[test]
    fn growth_after_the_settling_time_counts() {
        let settle_time = Duration::from_secs(50);
        let fast_start = samples(|i| if i < 50 { i * 10_000_000 } else { 500_000_000 + i % 3 });
        assert!(fit(&fast_start, settle_time).unwrap().is_flat());
        assert!(!fit(&fast_start, Duration::ZERO).unwrap().is_flat());
        let leak = samples(|i| 100_000_000 + i * 200_000);
        let Fit { first, last } = fit(&leak, settle_time).unwrap();
        assert!((first - 110e6).abs() < 1.0 && (last - 119.8e6).abs() < 1.0, "{first} {last}");
        assert!(!fit(&leak, settle_time).unwrap().is_flat());
        // 2 % of a large process is more.
        let large = samples(|i| 1_000_000_000 + i * 200_000);
        assert!(fit(&large, settle_time).unwrap().is_flat());
        assert!(fit(&samples(|_| 1)[..1], Duration::ZERO).is_none());
    }
}
