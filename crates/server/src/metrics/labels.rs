//! Labels, buckets, and the names under which metrics are registered.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

/// Seconds to the first token, vLLM's buckets.
pub(super) const TTFT: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
/// Seconds between tokens.
pub(super) const GAP: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
/// Seconds of a request or a phase of it.
pub(super) const LATENCY: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
/// Tokens of a step.
pub(super) const STEP_TOKENS: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
/// Tokens of a request: 1, 2 and 5 of every power of ten.
pub(super) const REQUEST_TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5,
    5e5, 1e6,
];
/// Numbers of choices or preemptions of a request.
pub(super) const SMALL_COUNTS: &[f64] = &[0.0, 1.0, 2.0, 5.0, 10.0, 20.0];
/// Seconds of audio per second of work.
pub(super) const SPEEDS: &[f64] = &[0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0];

pub(super) type Float = Counter<f64, AtomicU64>;
pub(super) type FloatGauge = Gauge<f64, AtomicU64>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ModelLabel {
    pub(super) model_name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct FinishLabels {
    pub(super) model_name: String,
    pub(super) finished_reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct HttpLabels {
    pub(super) method: &'static str,
    pub(super) route: String,
    pub(super) status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RouteLabel {
    pub(super) route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ProtocolLabel {
    pub(super) protocol: &'static str,
}

/// Makes histograms of fixed buckets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Buckets(pub(super) &'static [f64]);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

pub(super) type ModelCounter = Family<ModelLabel, Counter>;
pub(super) type ModelHistogram = Family<ModelLabel, Histogram, Buckets>;

/// Registers a clone of a metric under a name with a prefix.
pub(super) struct Names<'a> {
    pub(super) registry: &'a mut Registry,
    pub(super) prefix: &'static str,
}

impl Names<'_> {
    pub(super) fn add<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.registry.register(format!("{}:{name}", self.prefix), help, metric.clone());
        metric
    }

    pub(super) fn histogram(
        &mut self,
        name: &str,
        help: &str,
        buckets: &'static [f64],
    ) -> ModelHistogram {
        self.add(name, help, Family::new_with_constructor(Buckets(buckets)))
    }
}
