//! Prometheus metrics: those of llama-server (`llamacpp:`), and vLLM's with this program's prefix (`stonechat:`).
//!
//! | function | called by | when |
//! |---|---|---|
//! | [`Metrics::request_finished`] | a generation route | at the end of a request, also of an aborted one |
//! | [`Metrics::step`] | the engine of a language model | after a step |
//! | [`Metrics::audio_finished`], [`Metrics::audio_queued`] | the audio routes | at the end of an upload; when the queue changes |
//! | [`Metrics::http`] | the log of requests | at the end of a response |

mod reports;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

pub use reports::{AudioReport, DraftReport, FinishReason, RequestReport, StepReport};

/// Seconds to the first token, vLLM's buckets.
const TTFT: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
/// Seconds between tokens.
const GAP: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
/// Seconds of a request or a phase of it.
const LATENCY: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
/// Tokens of a step.
const STEP_TOKENS: &[f64] =
    &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
/// Tokens of a request: 1, 2 and 5 of every power of ten.
const REQUEST_TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5,
    5e5, 1e6,
];
/// Choices, preemptions.
const SMALL_COUNTS: &[f64] = &[0.0, 1.0, 2.0, 5.0, 10.0, 20.0];
/// Seconds of audio per second of work.
const SPEEDS: &[f64] = &[0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0];

type Float = Counter<f64, AtomicU64>;
type FloatGauge = Gauge<f64, AtomicU64>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabel {
    model_name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FinishLabels {
    model_name: String,
    finished_reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PositionLabels {
    position: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HttpLabels {
    method: String,
    route: String,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabel {
    route: String,
}

/// Makes histograms of fixed buckets.
#[derive(Debug, Clone, Copy)]
struct Buckets(&'static [f64]);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

type ModelCounter = Family<ModelLabel, Counter>;
type ModelHistogram = Family<ModelLabel, Histogram, Buckets>;

/// Metrics of llama-server, summed over the models.
#[derive(Debug, Default)]
struct LlamaMetrics {
    prompt_tokens: Counter,
    prompt_tokens_cached: Counter,
    prompt_seconds: Float,
    tokens_predicted: Counter,
    tokens_predicted_seconds: Float,
    n_decode: Counter,
    n_tokens_max: Gauge<i64>,
    drafts: Counter,
    draft_tokens: Counter,
    accepted_tokens: Counter,
    accepted_per_position: Family<PositionLabels, Counter>,
    prompt_tokens_seconds: FloatGauge,
    predicted_tokens_seconds: FloatGauge,
    requests_processing: Gauge<i64>,
    requests_deferred: Gauge<i64>,
    busy_slots_per_decode: FloatGauge,
}

/// Metrics of vLLM, by model.
#[derive(Debug)]
struct EngineMetrics {
    running: Family<ModelLabel, Gauge<i64>>,
    waiting: Family<ModelLabel, Gauge<i64>>,
    kv_usage: Family<ModelLabel, FloatGauge>,
    prefix_queries: ModelCounter,
    prefix_hits: ModelCounter,
    prompt_tokens: ModelCounter,
    prompt_tokens_cached: ModelCounter,
    generation_tokens: ModelCounter,
    preemptions: ModelCounter,
    success: Family<FinishLabels, Counter>,
    rejections: Counter,
    drafts: ModelCounter,
    draft_tokens: ModelCounter,
    accepted_tokens: ModelCounter,
    ttft: ModelHistogram,
    gap: ModelHistogram,
    time_per_token: ModelHistogram,
    e2e: ModelHistogram,
    queue_time: ModelHistogram,
    prefill_time: ModelHistogram,
    decode_time: ModelHistogram,
    inference_time: ModelHistogram,
    step_tokens: ModelHistogram,
    step_time: ModelHistogram,
    request_prompt: ModelHistogram,
    request_generated: ModelHistogram,
    params_n: ModelHistogram,
    params_max_tokens: ModelHistogram,
    request_preemptions: ModelHistogram,
    request_computed: ModelHistogram,
}

/// Metrics of speech.
#[derive(Debug)]
struct AudioMetrics {
    seconds: Family<ModelLabel, Float>,
    success: Family<FinishLabels, Counter>,
    queue_time: ModelHistogram,
    e2e: ModelHistogram,
    speed: ModelHistogram,
    waiting: Family<ModelLabel, Gauge<i64>>,
    waiting_seconds: Family<ModelLabel, FloatGauge>,
}

/// Metrics of the server itself.
#[derive(Debug)]
struct ServerMetrics {
    http: Family<HttpLabels, Counter>,
    http_seconds: Family<RouteLabel, Histogram, Buckets>,
    models_waiting: Gauge<i64>,
    models_bytes: Gauge<i64>,
    models_budget: Gauge<i64>,
}

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
    audio: AudioMetrics,
    server: ServerMetrics,
    sums: Mutex<Sums>,
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

/// Registers a clone of a metric under a name with a prefix.
struct Names<'a> {
    registry: &'a mut Registry,
    prefix: &'static str,
}

impl Names<'_> {
    fn add<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.registry.register(format!("{}:{name}", self.prefix), help, metric.clone());
        metric
    }

    fn histogram(&mut self, name: &str, help: &str, buckets: &'static [f64]) -> ModelHistogram {
        self.add(name, help, Family::new_with_constructor(Buckets(buckets)))
    }
}

impl LlamaMetrics {
    fn new(registry: &mut Registry) -> Self {
        let mut names = Names { registry, prefix: "llamacpp" };
        let accepted = |what: &str| format!("Number of {what} of speculative decoding");
        let (drafts, tokens) = (accepted("drafts"), accepted("draft tokens"));
        let (accepted, by_position) =
            (accepted("accepted draft tokens"), accepted("accepted draft tokens by position"));
        Self {
            prompt_tokens: names.add(
                "prompt_tokens",
                "Number of prompt tokens processed",
                Counter::default(),
            ),
            prompt_tokens_cached: names.add(
                "prompt_tokens_cached",
                "Number of prompt tokens taken from the cache",
                Counter::default(),
            ),
            prompt_seconds: names.add(
                "prompt_seconds",
                "Prompt processing time in seconds",
                Float::default(),
            ),
            tokens_predicted: names.add(
                "tokens_predicted",
                "Number of generated tokens",
                Counter::default(),
            ),
            tokens_predicted_seconds: names.add(
                "tokens_predicted_seconds",
                "Generation time in seconds",
                Float::default(),
            ),
            n_decode: names.add("n_decode", "Number of forward passes", Counter::default()),
            n_tokens_max: names.add(
                "n_tokens_max",
                "Largest number of tokens of a sequence",
                Gauge::default(),
            ),
            drafts: names.add("spec_decode_num_drafts", &drafts, Counter::default()),
            draft_tokens: names.add("spec_decode_num_draft_tokens", &tokens, Counter::default()),
            accepted_tokens: names.add(
                "spec_decode_num_accepted_tokens",
                &accepted,
                Counter::default(),
            ),
            accepted_per_position: names.add(
                "spec_decode_num_accepted_tokens_per_pos",
                &by_position,
                Family::default(),
            ),
            prompt_tokens_seconds: names.add(
                "prompt_tokens_seconds",
                "Average prompt throughput in tokens/s",
                FloatGauge::default(),
            ),
            predicted_tokens_seconds: names.add(
                "predicted_tokens_seconds",
                "Average generation throughput in tokens/s",
                FloatGauge::default(),
            ),
            requests_processing: names.add(
                "requests_processing",
                "Number of requests being processed",
                Gauge::default(),
            ),
            requests_deferred: names.add(
                "requests_deferred",
                "Number of requests in the queue",
                Gauge::default(),
            ),
            busy_slots_per_decode: names.add(
                "n_busy_slots_per_decode",
                "Average number of sequences of a forward pass",
                FloatGauge::default(),
            ),
        }
    }
}

impl EngineMetrics {
    fn new(registry: &mut Registry) -> Self {
        let mut names = Names { registry, prefix: "stonechat" };
        Self {
            running: names.add(
                "num_requests_running",
                "Number of requests in the batch",
                Family::default(),
            ),
            waiting: names.add(
                "num_requests_waiting",
                "Number of requests in the queue",
                Family::default(),
            ),
            kv_usage: names.add(
                "kv_cache_usage_perc",
                "Used part of the KV pages, 0 to 1",
                Family::default(),
            ),
            prefix_queries: names.add(
                "prefix_cache_queries",
                "Prompt tokens looked up in the prefix cache",
                Family::default(),
            ),
            prefix_hits: names.add(
                "prefix_cache_hits",
                "Prompt tokens found in the prefix cache",
                Family::default(),
            ),
            prompt_tokens: names.add(
                "prompt_tokens",
                "Number of prompt tokens, cached ones included",
                Family::default(),
            ),
            prompt_tokens_cached: names.add(
                "prompt_tokens_cached",
                "Number of cached prompt tokens",
                Family::default(),
            ),
            generation_tokens: names.add(
                "generation_tokens",
                "Number of generated tokens",
                Family::default(),
            ),
            preemptions: names.add(
                "num_preemptions",
                "Number of preempted requests",
                Family::default(),
            ),
            success: names.add("request_success", "Number of finished requests", Family::default()),
            rejections: names.add(
                "admission_rejections",
                "Number of requests refused by a full queue",
                Counter::default(),
            ),
            drafts: names.add("spec_decode_num_drafts", "Number of drafts", Family::default()),
            draft_tokens: names.add(
                "spec_decode_num_draft_tokens",
                "Number of draft tokens",
                Family::default(),
            ),
            accepted_tokens: names.add(
                "spec_decode_num_accepted_tokens",
                "Number of accepted draft tokens",
                Family::default(),
            ),
            ttft: names.histogram("time_to_first_token_seconds", "Time to the first token", TTFT),
            gap: names.histogram("inter_token_latency_seconds", "Time between tokens", GAP),
            time_per_token: names.histogram(
                "request_time_per_output_token_seconds",
                "Mean time between the tokens of a request",
                GAP,
            ),
            e2e: names.histogram("e2e_request_latency_seconds", "Time of a request", LATENCY),
            queue_time: names.histogram("request_queue_time_seconds", "Time in the queue", LATENCY),
            prefill_time: names.histogram(
                "request_prefill_time_seconds",
                "Time of the prompt",
                LATENCY,
            ),
            decode_time: names.histogram(
                "request_decode_time_seconds",
                "Time of the generation",
                LATENCY,
            ),
            inference_time: names.histogram(
                "request_inference_time_seconds",
                "Time of prompt and generation",
                LATENCY,
            ),
            step_tokens: names.histogram("iteration_tokens_total", "Tokens of a step", STEP_TOKENS),
            step_time: names.histogram("iteration_duration_seconds", "Time of a step", GAP),
            request_prompt: names.histogram(
                "request_prompt_tokens",
                "Prompt tokens of a request",
                REQUEST_TOKENS,
            ),
            request_generated: names.histogram(
                "request_generation_tokens",
                "Generated tokens of a request",
                REQUEST_TOKENS,
            ),
            params_n: names.histogram("request_params_n", "Parameter n of a request", SMALL_COUNTS),
            params_max_tokens: names.histogram(
                "request_params_max_tokens",
                "Parameter max_tokens of a request",
                REQUEST_TOKENS,
            ),
            request_preemptions: names.histogram(
                "request_num_preemptions",
                "Preemptions of a request",
                SMALL_COUNTS,
            ),
            request_computed: names.histogram(
                "request_prefill_kv_computed_tokens",
                "Prompt tokens that were not cached",
                REQUEST_TOKENS,
            ),
        }
    }
}

impl AudioMetrics {
    fn new(registry: &mut Registry) -> Self {
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

impl ServerMetrics {
    fn new(registry: &mut Registry) -> Self {
        let mut names = Names { registry, prefix: "stonechat" };
        let http_seconds = Family::new_with_constructor(Buckets(TTFT));
        Self {
            http: names.add("http_requests", "Number of HTTP requests", Family::default()),
            http_seconds: names.add(
                "http_request_duration_seconds",
                "Time of a response, its stream included",
                http_seconds,
            ),
            models_waiting: names.add(
                "model_load_requests_waiting",
                "Number of requests that wait for a model",
                Gauge::default(),
            ),
            models_bytes: names.add(
                "models_memory_bytes",
                "Estimated memory of the open models",
                Gauge::default(),
            ),
            models_budget: names.add(
                "models_memory_limit_bytes",
                "Memory for open models",
                Gauge::default(),
            ),
        }
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
            audio: AudioMetrics::new(&mut registry),
            server: ServerMetrics::new(&mut registry),
            sums: Mutex::default(),
            registry,
        }
    }

    /// Records a request of a language model that has ended, whatever its end.
    pub fn request_finished(&self, report: &RequestReport) {
        let computed = report.prompt_tokens.saturating_sub(report.cached_tokens);
        self.add_to_llama(report, computed);
        let label = ModelLabel { model_name: report.model.clone() };
        let engine = &self.engine;
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
        engine.drafts.get_or_create(&label).inc_by(report.drafts.n_drafts);
        engine.draft_tokens.get_or_create(&label).inc_by(report.drafts.n_tokens);
        engine.accepted_tokens.get_or_create(&label).inc_by(report.drafts.n_accepted);
        if let Some(seconds) = report.time_to_first_token {
            engine.ttft.get_or_create(&label).observe(seconds);
        }
        {
            let gap = engine.gap.get_or_create(&label);
            report.token_gaps.iter().for_each(|&seconds| gap.observe(f64::from(seconds)));
        }
        if report.generated_tokens > 1 {
            let mean = report.decode_seconds / (report.generated_tokens - 1) as f64;
            engine.time_per_token.get_or_create(&label).observe(mean);
        }
        let values = [
            (&engine.e2e, report.e2e_seconds),
            (&engine.queue_time, report.queue_seconds),
            (&engine.prefill_time, report.prefill_seconds),
            (&engine.decode_time, report.decode_seconds),
            (&engine.inference_time, report.prefill_seconds + report.decode_seconds),
            (&engine.request_prompt, report.prompt_tokens as f64),
            (&engine.request_generated, report.generated_tokens as f64),
            (&engine.params_n, report.n_choices as f64),
            (&engine.request_preemptions, report.n_preemptions as f64),
            (&engine.request_computed, computed as f64),
        ];
        for (histogram, value) in values {
            histogram.get_or_create(&label).observe(value);
        }
        if let Some(max_tokens) = report.max_tokens {
            engine.params_max_tokens.get_or_create(&label).observe(max_tokens as f64);
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
        llama.n_tokens_max.inner().fetch_max(n_tokens, std::sync::atomic::Ordering::Relaxed);
        llama.drafts.inc_by(report.drafts.n_drafts);
        llama.draft_tokens.inc_by(report.drafts.n_tokens);
        llama.accepted_tokens.inc_by(report.drafts.n_accepted);
        for (position, &n) in report.drafts.accepted_by_position.iter().enumerate() {
            let label = PositionLabels { position: position as u64 };
            llama.accepted_per_position.get_or_create(&label).inc_by(n);
        }
    }

    /// Records a step of a language model.
    pub fn step(&self, report: &StepReport) {
        let n_tokens = report.prompt_tokens + report.decoded_tokens;
        let label = ModelLabel { model_name: report.model.clone() };
        let engine = &self.engine;
        engine.running.get_or_create(&label).set(report.n_running as i64);
        engine.waiting.get_or_create(&label).set(report.n_waiting as i64);
        let usage = report.kv_pages_used as f64 / report.kv_pages_total.max(1) as f64;
        engine.kv_usage.get_or_create(&label).set(usage);
        engine.preemptions.get_or_create(&label).inc_by(report.n_preempted as u64);
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        if n_tokens > 0 {
            engine.step_tokens.get_or_create(&label).observe(n_tokens as f64);
            engine.step_time.get_or_create(&label).observe(report.seconds);
            self.llama.n_decode.inc();
            sums.decodes += 1;
            sums.busy_slots += report.n_decoding as u64;
        }
        let load = Load { n_running: report.n_running, n_waiting: report.n_waiting };
        match sums.loads.get_mut(&report.model) {
            Some(old) => *old = load,
            None => drop(sums.loads.insert(report.model.clone(), load)),
        }
    }

    /// Records that no request uses a model: its last step may have had some, which were cancelled.
    pub(crate) fn idle(&self, model: &str) {
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(load) = sums.loads.get_mut(model) {
            *load = Load::default();
            let label = ModelLabel { model_name: model.to_owned() };
            self.engine.running.get_or_create(&label).set(0);
            self.engine.waiting.get_or_create(&label).set(0);
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

    /// Records a response. `route` is a pattern of the router, so that the number of labels is bounded.
    pub fn http(&self, method: &str, route: &str, status: u16, duration: Duration) {
        let (method, route) = (method.to_owned(), route.to_owned());
        let label = RouteLabel { route: route.clone() };
        self.server.http.get_or_create(&HttpLabels { method, route, status }).inc();
        self.server.http_seconds.get_or_create(&label).observe(duration.as_secs_f64());
    }

    /// Sets the state of the models: requests that wait for one, bytes in use, budget in bytes.
    pub fn models(&self, n_waiting: usize, (used, budget): (u64, u64)) {
        self.server.models_waiting.set(n_waiting as i64);
        self.server.models_bytes.set(i64::try_from(used).unwrap_or(i64::MAX));
        self.server.models_budget.set(i64::try_from(budget).unwrap_or(i64::MAX));
    }

    /// All metrics as OpenMetrics text.
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
