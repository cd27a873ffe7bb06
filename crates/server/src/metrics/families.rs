//! The metrics of language models and of the server, registered under their names.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::labels::{
    Buckets, FinishLabels, Float, FloatGauge, GAP, HttpLabels, LATENCY, ModelCounter,
    ModelHistogram, ModelLabel, Names, REQUEST_TOKENS, RouteLabel, SMALL_COUNTS, STEP_TOKENS, TTFT,
};

/// Metrics of llama-server, summed over the models.
#[derive(Debug, Default)]
pub(super) struct LlamaMetrics {
    pub(super) prompt_tokens: Counter,
    pub(super) prompt_tokens_cached: Counter,
    pub(super) prompt_seconds: Float,
    pub(super) tokens_predicted: Counter,
    pub(super) tokens_predicted_seconds: Float,
    pub(super) n_decode: Counter,
    pub(super) n_tokens_max: Gauge<i64>,
    pub(super) drafts: Counter,
    pub(super) draft_tokens: Counter,
    pub(super) accepted_tokens: Counter,
    pub(super) prompt_tokens_seconds: FloatGauge,
    pub(super) predicted_tokens_seconds: FloatGauge,
    pub(super) requests_processing: Gauge<i64>,
    pub(super) requests_deferred: Gauge<i64>,
    pub(super) busy_slots_per_decode: FloatGauge,
}

/// Gauges and counters of vLLM, by model.
#[derive(Debug)]
pub(super) struct EngineMetrics {
    pub(super) running: Family<ModelLabel, Gauge<i64>>,
    pub(super) waiting: Family<ModelLabel, Gauge<i64>>,
    pub(super) kv_usage: Family<ModelLabel, FloatGauge>,
    pub(super) kv_pages: Family<ModelLabel, Gauge<i64>>,
    pub(super) kv_pages_used: Family<ModelLabel, Gauge<i64>>,
    pub(super) kv_pages_cached: Family<ModelLabel, Gauge<i64>>,
    pub(super) prefix_queries: ModelCounter,
    pub(super) prefix_hits: ModelCounter,
    pub(super) prompt_tokens: ModelCounter,
    pub(super) prompt_tokens_cached: ModelCounter,
    pub(super) generation_tokens: ModelCounter,
    pub(super) preemptions: ModelCounter,
    pub(super) success: Family<FinishLabels, Counter>,
    pub(super) rejections: Counter,
    pub(super) panics: ModelCounter,
    pub(super) drafts: ModelCounter,
    pub(super) draft_tokens: ModelCounter,
    pub(super) accepted_tokens: ModelCounter,
}

/// Histograms of vLLM, by model.
#[derive(Debug)]
pub(super) struct EngineHistograms {
    pub(super) ttft: ModelHistogram,
    pub(super) gap: ModelHistogram,
    pub(super) time_per_token: ModelHistogram,
    pub(super) e2e: ModelHistogram,
    pub(super) queue_time: ModelHistogram,
    pub(super) prefill_time: ModelHistogram,
    pub(super) decode_time: ModelHistogram,
    pub(super) inference_time: ModelHistogram,
    pub(super) step_tokens: ModelHistogram,
    pub(super) step_time: ModelHistogram,
    pub(super) request_prompt: ModelHistogram,
    pub(super) request_generated: ModelHistogram,
    pub(super) params_n: ModelHistogram,
    pub(super) params_max_tokens: ModelHistogram,
    pub(super) request_preemptions: ModelHistogram,
    pub(super) request_computed: ModelHistogram,
}

/// Metrics of the server itself.
#[derive(Debug)]
pub(super) struct ServerMetrics {
    pub(super) http: Family<HttpLabels, Counter>,
    pub(super) http_seconds: Family<RouteLabel, Histogram, Buckets>,
    pub(super) models_waiting: Gauge<i64>,
    pub(super) models_bytes: Gauge<i64>,
    pub(super) models_budget: Gauge<i64>,
    pub(super) models_gpu_bytes: Gauge<i64>,
}

impl LlamaMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let mut names = Names { registry, prefix: "llamacpp" };
        let accepted = |what: &str| format!("Number of {what} of speculative decoding");
        let (drafts, tokens) = (accepted("drafts"), accepted("draft tokens"));
        let accepted = accepted("accepted draft tokens");
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
    pub(super) fn new(registry: &mut Registry) -> Self {
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
            panics: names.add(
                "engine_panics",
                "Number of panics on the thread of a model",
                Family::default(),
            ),
            kv_pages: names.add("kv_cache_pages", "Number of KV pages", Family::default()),
            kv_pages_used: names.add(
                "kv_cache_pages_used",
                "Number of KV pages in use by requests alone",
                Family::default(),
            ),
            kv_pages_cached: names.add(
                "kv_cache_pages_cached",
                "Number of KV pages of the prefix cache",
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
        }
    }
}

impl EngineHistograms {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let mut names = Names { registry, prefix: "stonechat" };
        Self {
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

impl ServerMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
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
            models_gpu_bytes: names.add(
                "models_gpu_memory_bytes",
                "Estimated memory of the open models on a GPU",
                Gauge::default(),
            ),
        }
    }
}
