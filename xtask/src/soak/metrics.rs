//! Metrics of the server, as Prometheus reads them.

use anyhow::{Result, ensure};

use crate::load::client::Target;

/// Samples by name and labels.
#[derive(Debug, PartialEq)]
pub(super) struct Metrics(Vec<(String, f64)>);

/// KV pages of the language model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pages {
    pub(super) total: u64,
    /// In use by requests alone.
    pub(super) used: u64,
    pub(super) cached: u64,
}

/// Reads `/metrics`.
pub(super) fn read(target: &Target) -> Result<Metrics> {
    let answer = target.get("/metrics")?;
    ensure!(answer.is_success(), "/metrics: {}", answer.error());
    Ok(parse(&answer.text))
}

fn parse(text: &str) -> Metrics {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    Metrics(samples.filter_map(sample).collect())
}

impl Metrics {
    /// Sum of the samples of a name that have all these labels, such as `method="POST"`.
    pub(super) fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let has_name = |sample: &str| {
            sample.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
        };
        let samples = self.0.iter().filter(|(sample, _)| has_name(sample));
        let matching = samples.filter(|(sample, _)| labels.iter().all(|l| sample.contains(l)));
        // A sum of none is -0.
        matching.map(|(_, value)| value).sum::<f64>() + 0.0
    }

    /// The sum of a counter.
    pub(super) fn count(&self, name: &str, labels: &[&str]) -> u64 {
        self.sum(name, labels).round() as u64
    }

    /// `POST` requests of a status, or of all.
    pub(super) fn n_posts(&self, status: Option<u16>) -> u64 {
        let status = status.map_or_else(String::new, |status| format!("status=\"{status}\""));
        self.count("stonechat:http_requests_total", &["method=\"POST\"", &status])
    }

    pub(super) fn pages(&self) -> Pages {
        Pages {
            total: self.count("stonechat:kv_cache_pages", &[]),
            used: self.count("stonechat:kv_cache_pages_used", &[]),
            cached: self.count("stonechat:kv_cache_pages_cached", &[]),
        }
    }

    /// Requests and recordings that run or wait.
    pub(super) fn n_active(&self) -> u64 {
        let gauges = [
            "llamacpp:requests_processing",
            "llamacpp:requests_deferred",
            "stonechat:audio_requests_waiting",
        ];
        gauges.iter().map(|name| self.count(name, &[])).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_by_name_and_labels() {
        let metrics = parse(
            "# TYPE a counter\na_total{method=\"GET\",status=\"200\"} 3\na_total{method=\"POST\",status=\"200\"} 4\n\
             a_total{method=\"POST\",status=\"404\"} 5\na_total_b 9\nb 1.5\n# EOF\n",
        );
        assert_eq!(metrics.count("a_total", &[]), 12);
        assert_eq!(metrics.count("a_total", &["method=\"POST\""]), 9);
        assert_eq!(metrics.count("a_total", &["method=\"POST\"", "status=\"200\""]), 4);
        assert!((metrics.sum("b", &[]) - 1.5).abs() < 1e-9);
        assert_eq!(metrics.count("c", &[]), 0);
    }
}
