//! Record of a session: metrics, spans and a line in the log.

use std::sync::Arc;
use std::time::Instant;

use crate::otlp::{LiveTrace, UtteranceTimes};
use crate::{ApiError, AudioReport, Metrics, RequestEnd};

/// Sums of a session and its current utterance. Dropping it ends the record.
#[derive(Debug)]
pub(super) struct Record {
    metrics: Arc<Metrics>,
    trace: LiveTrace,
    report: AudioReport,
    n_utterances: u64,
    /// Start of the utterance that has no end yet, and its first text.
    utterance: Option<(Instant, Option<Instant>)>,
}

impl Record {
    pub(super) fn new(metrics: Arc<Metrics>, trace: LiveTrace) -> Self {
        let report = AudioReport { finish: RequestEnd::Abort, ..AudioReport::default() };
        Self { metrics, trace, report, n_utterances: 0, utterance: None }
    }

    /// Names the model.
    pub(super) fn model(&mut self, name: &str) {
        name.clone_into(&mut self.report.model);
    }

    /// Adds seconds of audio.
    pub(super) fn audio(&mut self, seconds: f64) {
        self.report.audio_seconds += seconds;
    }

    /// Adds seconds of decoding.
    pub(super) fn work(&mut self, seconds: f64) {
        self.report.work_seconds += seconds;
    }

    /// Begins an utterance.
    pub(super) fn begin(&mut self) {
        self.utterance = Some((Instant::now(), None));
    }

    /// Records text of the utterance.
    pub(super) fn text(&mut self) {
        if let Some((_, first_text)) = &mut self.utterance {
            first_text.get_or_insert_with(Instant::now);
        }
    }

    /// Ends the utterance of `seconds` seconds of audio.
    pub(super) fn end(&mut self, seconds: f64) {
        let Some((started, first_text)) = self.utterance.take() else { return };
        self.n_utterances += 1;
        let times = UtteranceTimes { started, first_text, ended: Instant::now() };
        self.metrics.live_utterance(&self.report.model, times.to_first_text());
        self.trace.utterance(seconds, &times);
    }

    /// Drops the utterance, which has failed or was cleared.
    pub(super) fn discard(&mut self) {
        self.utterance = None;
    }

    /// Sets the end of the session, which is an abort until then.
    pub(super) fn finish(&mut self, finish: RequestEnd, error: Option<ApiError>) {
        if self.report.finish == RequestEnd::Abort {
            (self.report.finish, self.report.error) = (finish, error);
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let AudioReport { model, audio_seconds, work_seconds, finish, .. } = &self.report;
        tracing::info!(
            model,
            audio_seconds,
            work_seconds,
            utterances = self.n_utterances,
            finish = finish.name(),
            "live session ended"
        );
        self.trace.end(&self.report);
        if !model.is_empty() {
            self.metrics.audio_finished(&self.report);
        }
    }
}
