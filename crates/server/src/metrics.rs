//! Prometheus metrics: those of llama-server (`llamacpp:`), and vLLM's with this program's prefix (`stonechat:`).
//!
//! | function | called by | when |
//! |---|---|---|
//! | [`Metrics::request_finished`] | a generation route | at the end of a request, also of an aborted one |
//! | [`Metrics::step`] | the engine of a language model | after a step, and without requests |
//! | [`Metrics::audio_finished`], [`Metrics::audio_queued`] | the audio routes | at the end of an upload; when the queue changes |
//! | [`Metrics::live_opened`] to [`Metrics::live_utterance`] | live sessions | at their start, refusal and end; at the end of an utterance |
//! | [`Metrics::http`] | the log of requests | at the end of a response |

mod families;
mod labels;
mod reports;
mod speech;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use stonechat::llm::StepReport;

pub use reports::{AudioReport, RequestEnd, RequestReport};

use crate::models::Memory;
use families::{EngineHistograms, EngineMetrics, LlamaMetrics, ServerMetrics};
use labels::{FinishLabels, HttpLabels, ModelLabel, ProtocolLabel, RouteLabel};
use speech::{AudioMetrics, LiveMetrics};

/// Requests of a model in its last step.
#[derive(Debug, Default, Clone, Copy)]
struct Load {
    n_running: usize,
    n_waiting: usize,
}

/// Sums for the averages of llama-server.
#[derive(Debug, Default)]
struct Sums {
    loads: BTreeMap<String, Load>,
    busy_slots: u64,
    decodes: u64,
}

/// All metrics of a server. Recording is cheap: atomics, behind a read lock where there are labels.
pub struct Metrics {
    registry: Registry,
    llama: LlamaMetrics,
    engine: EngineMetrics,
    histograms: EngineHistograms,
    audio: AudioMetrics,
    live: LiveMetrics,
    server: ServerMetrics,
    sums: Mutex<Sums>,
    n_panics: AtomicU64,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Metrics at zero.
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Registry::default();
        Self {
            llama: LlamaMetrics::new(&mut registry),
            engine: EngineMetrics::new(&mut registry),
            histograms: EngineHistograms::new(&mut registry),
            audio: AudioMetrics::new(&mut registry),
            live: LiveMetrics::new(&mut registry),
            server: ServerMetrics::new(&mut registry),
            sums: Mutex::default(),
            n_panics: AtomicU64::new(0),
            registry,
        }
    }

    /// Records a request of a language model that has ended, whatever its end.
    pub fn request_finished(&self, report: &RequestReport) {
        let computed = report.prompt_tokens.saturating_sub(report.cached_tokens);
        self.add_to_llama(report, computed);
        let label = ModelLabel { model_name: report.model.clone() };
        let Self { engine, histograms, .. } = self;
        engine.prefix_queries.get_or_create(&label).inc_by(report.prompt_tokens as u64);
        engine.prefix_hits.get_or_create(&label).inc_by(report.cached_tokens as u64);
        engine.prompt_tokens.get_or_create(&label).inc_by(report.prompt_tokens as u64);
        engine.prompt_tokens_cached.get_or_create(&label).inc_by(report.cached_tokens as u64);
        engine.generation_tokens.get_or_create(&label).inc_by(report.generated_tokens as u64);
        let finish = FinishLabels {
            model_name: report.model.clone(),
            finished_reason: report.finish.name(),
        };
        engine.success.get_or_create(&finish).inc();
        engine.drafts.get_or_create(&label).inc_by(report.drafts.drafts as u64);
        engine.draft_tokens.get_or_create(&label).inc_by(report.drafts.proposed as u64);
        engine.accepted_tokens.get_or_create(&label).inc_by(report.drafts.accepted as u64);
        if let Some(seconds) = report.time_to_first_token {
            histograms.ttft.get_or_create(&label).observe(seconds);
        }
        {
            let gap = histograms.gap.get_or_create(&label);
            report.token_gaps.iter().for_each(|&seconds| gap.observe(seconds));
        }
        if report.generated_tokens > 1 {
            let mean = report.decode_seconds / (report.generated_tokens - 1) as f64;
            histograms.time_per_token.get_or_create(&label).observe(mean);
        }
        let values = [
            (&histograms.e2e, report.e2e_seconds),
            (&histograms.queue_time, report.queue_seconds),
            (&histograms.prefill_time, report.prefill_seconds),
            (&histograms.decode_time, report.decode_seconds),
            (&histograms.inference_time, report.prefill_seconds + report.decode_seconds),
            (&histograms.request_prompt, report.prompt_tokens as f64),
            (&histograms.request_generated, report.generated_tokens as f64),
            (&histograms.params_n, report.n_choices as f64),
            (&histograms.request_preemptions, report.n_preemptions as f64),
            (&histograms.request_computed, computed as f64),
        ];
        for (histogram, value) in values {
            histogram.get_or_create(&label).observe(value);
        }
        if let Some(max_tokens) = report.max_tokens {
            histograms.params_max_tokens.get_or_create(&label).observe(max_tokens as f64);
        }
    }

    fn add_to_llama(&self, report: &RequestReport, computed: usize) {
        let llama = &self.llama;
        llama.prompt_tokens.inc_by(computed as u64);
        llama.prompt_tokens_cached.inc_by(report.cached_tokens as u64);
        llama.prompt_seconds.inc_by(report.prefill_seconds);
        llama.tokens_predicted.inc_by(report.generated_tokens as u64);
        llama.tokens_predicted_seconds.inc_by(report.decode_seconds);
        let n_tokens = (report.prompt_tokens + report.generated_tokens) as i64;
        llama.n_tokens_max.inner().fetch_max(n_tokens, Ordering::Relaxed);
        llama.drafts.inc_by(report.drafts.drafts as u64);
        llama.draft_tokens.inc_by(report.drafts.proposed as u64);
        llama.accepted_tokens.inc_by(report.drafts.accepted as u64);
    }

    /// Records a step of a language model, or its state without requests.
    pub fn step(&self, model: &str, report: &StepReport) {
        let n_tokens = report.prompt_tokens + report.text_tokens;
        // Pages that only the prefix cache has are free for requests.
        let used_pages = report.used_pages.saturating_sub(report.cached_pages);
        let label = ModelLabel { model_name: model.to_owned() };
        let Self { engine, histograms, .. } = self;
        engine.running.get_or_create(&label).set(report.n_running as i64);
        engine.waiting.get_or_create(&label).set(report.n_waiting as i64);
        let usage = used_pages as f64 / report.n_pages.max(1) as f64;
        engine.kv_usage.get_or_create(&label).set(usage);
        engine.kv_pages.get_or_create(&label).set(report.n_pages as i64);
        engine.kv_pages_used.get_or_create(&label).set(used_pages as i64);
        engine.kv_pages_cached.get_or_create(&label).set(report.cached_pages as i64);
        engine.preemptions.get_or_create(&label).inc_by(report.n_preempted as u64);
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        if n_tokens > 0 {
            histograms.step_tokens.get_or_create(&label).observe(n_tokens as f64);
            histograms.step_time.get_or_create(&label).observe(report.seconds);
            self.llama.n_decode.inc();
            sums.decodes += 1;
            sums.busy_slots += report.n_decoding as u64;
        }
        let load = Load { n_running: report.n_running, n_waiting: report.n_waiting };
        match sums.loads.get_mut(model) {
            Some(old) => *old = load,
            None => drop(sums.loads.insert(model.to_owned(), load)),
        }
    }

    /// Records a request that a full queue refused.
    pub fn rejected(&self) {
        self.engine.rejections.inc();
    }

    /// Records a recording that has ended, whatever its end.
    pub fn audio_finished(&self, report: &AudioReport) {
        let label = ModelLabel { model_name: report.model.clone() };
        let finish = FinishLabels {
            model_name: report.model.clone(),
            finished_reason: report.finish.name(),
        };
        self.audio.success.get_or_create(&finish).inc();
        self.audio.seconds.get_or_create(&label).inc_by(report.audio_seconds);
        self.audio.queue_time.get_or_create(&label).observe(report.queue_seconds);
        let e2e = report.queue_seconds + report.work_seconds;
        self.audio.e2e.get_or_create(&label).observe(e2e);
        if report.work_seconds > 0.0 {
            let speed = report.audio_seconds / report.work_seconds;
            self.audio.speed.get_or_create(&label).observe(speed);
        }
    }

    /// Sets the queue of a speech model: recordings, and their seconds of audio.
    pub fn audio_queued(&self, model: &str, n_waiting: usize, seconds: f64) {
        let label = ModelLabel { model_name: model.to_owned() };
        self.audio.waiting.get_or_create(&label).set(n_waiting as i64);
        self.audio.waiting_seconds.get_or_create(&label).set(seconds);
    }

    /// Records the start of a live session of a protocol.
    pub(crate) fn live_opened(&self, protocol: &'static str) {
        let label = ProtocolLabel { protocol };
        self.live.opened.get_or_create(&label).inc();
        self.live.sessions.get_or_create(&label).inc();
    }

    /// Records the end of a live session.
    pub(crate) fn live_closed(&self, protocol: &'static str) {
        self.live.sessions.get_or_create(&ProtocolLabel { protocol }).dec();
    }

    /// Records a live session that the maximum refused.
    pub(crate) fn live_refused(&self, protocol: &'static str) {
        self.live.refused.get_or_create(&ProtocolLabel { protocol }).inc();
    }

    /// Records an utterance of a live session, and the seconds to its first text if it has any.
    pub(crate) fn live_utterance(&self, model: &str, time_to_first_text: Option<f64>) {
        let label = ModelLabel { model_name: model.to_owned() };
        self.live.utterances.get_or_create(&label).inc();
        if let Some(seconds) = time_to_first_text {
            self.live.first_text.get_or_create(&label).observe(seconds);
        }
    }

    /// Records a panic on the thread of a model.
    pub fn engine_panicked(&self, model: &str) {
        let label = ModelLabel { model_name: model.to_owned() };
        self.engine.panics.get_or_create(&label).inc();
        self.n_panics.fetch_add(1, Ordering::Relaxed);
    }

    /// Panics on threads of models.
    #[must_use]
    pub fn n_panics(&self) -> u64 {
        self.n_panics.load(Ordering::Relaxed)
    }

    /// Records a response. `route` is a pattern of the router, and an unknown method counts as `OTHER`, so that the number
    /// of labels is bounded.
    pub fn http(&self, method: &str, route: &str, status: u16, duration: Duration) {
        const METHODS: [&str; 9] =
            ["GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT"];
        let method = METHODS.into_iter().find(|known| *known == method).unwrap_or("OTHER");
        let route = route.to_owned();
        let label = RouteLabel { route: route.clone() };
        self.server.http.get_or_create(&HttpLabels { method, route, status }).inc();
        self.server.http_seconds.get_or_create(&label).observe(duration.as_secs_f64());
    }

    /// Sets the state of the models: requests that wait for one, bytes in use, budget in bytes.
    pub(crate) fn models(&self, n_waiting: usize, (used, budget): (Memory, Memory)) {
        self.server.models_waiting.set(n_waiting as i64);
        let gauge = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.server.models_bytes.set(gauge(used.host));
        self.server.models_budget.set(gauge(budget.host));
        self.server.models_gpu_bytes.set(gauge(used.gpu));
    }

    /// All metrics as text of Prometheus.
    #[must_use]
    pub fn text(&self) -> String {
        self.set_averages();
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    /// Sets the gauges that follow from sums.
    fn set_averages(&self) {
        let llama = &self.llama;
        let rate = |n: u64, seconds: f64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        let prompt = rate(llama.prompt_tokens.get(), llama.prompt_seconds.get());
        llama.prompt_tokens_seconds.set(prompt);
        let predicted = rate(llama.tokens_predicted.get(), llama.tokens_predicted_seconds.get());
        llama.predicted_tokens_seconds.set(predicted);
        let sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let running: usize = sums.loads.values().map(|load| load.n_running).sum();
        let waiting: usize = sums.loads.values().map(|load| load.n_waiting).sum();
        llama.requests_processing.set(running as i64);
        llama.requests_deferred.set(waiting as i64);
        llama.busy_slots_per_decode.set(sums.busy_slots as f64 / sums.decodes.max(1) as f64);
    }
}

#[cfg(test)]
mod tests;
