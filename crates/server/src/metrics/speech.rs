//! The metrics of speech, registered under their names.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::labels::{
    FinishLabels, Float, FloatGauge, LATENCY, ModelCounter, ModelHistogram, ModelLabel, Names,
    ProtocolLabel, SPEEDS,
};

/// Metrics of recordings.
#[derive(Debug)]
pub(super) struct AudioMetrics {
    pub(super) seconds: Family<ModelLabel, Float>,
    pub(super) success: Family<FinishLabels, Counter>,
    pub(super) queue_time: ModelHistogram,
    pub(super) e2e: ModelHistogram,
    pub(super) speed: ModelHistogram,
    pub(super) waiting: Family<ModelLabel, Gauge<i64>>,
    pub(super) waiting_seconds: Family<ModelLabel, FloatGauge>,
}

/// Metrics of live sessions.
#[derive(Debug)]
pub(super) struct LiveMetrics {
    pub(super) sessions: Family<ProtocolLabel, Gauge<i64>>,
    pub(super) opened: Family<ProtocolLabel, Counter>,
    pub(super) refused: Family<ProtocolLabel, Counter>,
    pub(super) utterances: ModelCounter,
    pub(super) first_text: ModelHistogram,
}

impl AudioMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let mut names = Names { registry, prefix: "stonechat" };
        Self {
            seconds: names.add("audio_seconds", "Seconds of transcribed audio", Family::default()),
            success: names.add(
                "audio_request_success",
                "Number of finished recordings",
                Family::default(),
            ),
            queue_time: names.histogram(
                "audio_queue_time_seconds",
                "Time of a recording in the queue",
                LATENCY,
            ),
            e2e: names.histogram("audio_e2e_latency_seconds", "Time of a recording", LATENCY),
            speed: names.histogram("audio_speed", "Seconds of audio per second of work", SPEEDS),
            waiting: names.add(
                "audio_requests_waiting",
                "Number of recordings in the queue",
                Family::default(),
            ),
            waiting_seconds: names.add(
                "audio_seconds_waiting",
                "Seconds of audio in the queue",
                Family::default(),
            ),
        }
    }
}

impl LiveMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let mut names = Names { registry, prefix: "stonechat" };
        Self {
            sessions: names.add("live_sessions", "Number of open live sessions", Family::default()),
            opened: names.add(
                "live_sessions_opened",
                "Number of live sessions since the start",
                Family::default(),
            ),
            refused: names.add(
                "live_sessions_refused",
                "Number of live sessions refused by their maximum",
                Family::default(),
            ),
            utterances: names.add(
                "live_utterances",
                "Number of transcribed utterances of live sessions",
                Family::default(),
            ),
            first_text: names.histogram(
                "live_time_to_first_text_seconds",
                "Time from the start of an utterance, or its commit, to its first text",
                LATENCY,
            ),
        }
    }
}
