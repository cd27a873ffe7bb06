//! Tests of names, sums and buckets.

use std::time::Duration;

use crate::models::Memory;

use stonechat::llm::{DraftCounts, StepReport};

use super::{AudioReport, Metrics, RequestEnd, RequestReport};

/// Value of the sample that `line` starts.
#[track_caller]
fn value(text: &str, line: &str) -> f64 {
    let found = text.lines().find_map(|each| each.strip_prefix(line)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no `{line}` in\n{text}")).parse().unwrap()
}

fn report() -> RequestReport {
    RequestReport {
        model: "m".to_owned(),
        prompt_tokens: 100,
        cached_tokens: 64,
        generated_tokens: 11,
        queue_seconds: 0.2,
        prefill_seconds: 0.5,
        decode_seconds: 2.0,
        e2e_seconds: 2.7,
        time_to_first_token: Some(0.7),
        token_gaps: vec![0.2; 10],
        finish: RequestEnd::Length,
        error: None,
        n_choices: 1,
        temperature: 0.8,
        top_p: 0.95,
        max_tokens: Some(11),
        n_preemptions: 1,
        drafts: DraftCounts { drafts: 3, proposed: 6, accepted: 4 },
    }
}

#[test]
fn totals_are_the_sums_of_the_requests() {
    let metrics = Metrics::new();
    metrics.request_finished(&report());
    metrics.request_finished(&RequestReport { prompt_tokens: 10, cached_tokens: 0, ..report() });
    let text = metrics.text();
    for (line, expected) in [
        ("llamacpp:prompt_tokens_total", 46.0),
        ("llamacpp:prompt_tokens_cached_total", 64.0),
        ("llamacpp:prompt_seconds_total", 1.0),
        ("llamacpp:tokens_predicted_total", 22.0),
        ("llamacpp:tokens_predicted_seconds_total", 4.0),
        ("llamacpp:prompt_tokens_seconds", 46.0),
        ("llamacpp:predicted_tokens_seconds", 5.5),
        ("llamacpp:n_tokens_max", 111.0),
        ("llamacpp:spec_decode_num_drafts_total", 6.0),
        ("llamacpp:spec_decode_num_draft_tokens_total", 12.0),
        ("llamacpp:spec_decode_num_accepted_tokens_total", 8.0),
        ("stonechat:prompt_tokens_total{model_name=\"m\"}", 110.0),
        ("stonechat:prefix_cache_hits_total{model_name=\"m\"}", 64.0),
        ("stonechat:generation_tokens_total{model_name=\"m\"}", 22.0),
        ("stonechat:request_num_preemptions_sum{model_name=\"m\"}", 2.0),
        ("stonechat:request_success_total{model_name=\"m\",finished_reason=\"length\"}", 2.0),
        ("stonechat:time_to_first_token_seconds_count{model_name=\"m\"}", 2.0),
        ("stonechat:inter_token_latency_seconds_count{model_name=\"m\"}", 20.0),
        ("stonechat:inter_token_latency_seconds_bucket{le=\"0.15\",model_name=\"m\"}", 0.0),
        ("stonechat:inter_token_latency_seconds_bucket{le=\"0.2\",model_name=\"m\"}", 20.0),
        ("stonechat:request_time_per_output_token_seconds_sum{model_name=\"m\"}", 0.4),
        ("stonechat:request_prefill_kv_computed_tokens_sum{model_name=\"m\"}", 46.0),
        ("stonechat:request_params_max_tokens_count{model_name=\"m\"}", 2.0),
    ] {
        let got = value(&text, line);
        assert!((got - expected).abs() < 1e-6, "{line}: {got}, expected {expected}");
    }
}

#[test]
fn gauges_are_those_of_the_last_step_of_each_model() {
    let metrics = Metrics::new();
    let step = |n_running, n_waiting| {
        let mut report = StepReport::default();
        (report.prompt_tokens, report.text_tokens) = (20, n_running);
        (report.n_decoding, report.n_running, report.n_waiting) = (n_running, n_running, n_waiting);
        (report.used_pages, report.cached_pages, report.n_pages) = (32, 7, 100);
        (report.n_preempted, report.seconds) = (1, 0.01);
        report
    };
    metrics.step("a", &step(4, 2));
    metrics.step("b", &step(2, 0));
    metrics.step("a", &step(6, 1));
    let text = metrics.text();
    assert!((value(&text, "llamacpp:requests_processing") - 8.0).abs() < 1e-9);
    assert!((value(&text, "llamacpp:requests_deferred") - 1.0).abs() < 1e-9);
    assert!((value(&text, "llamacpp:n_decode_total") - 3.0).abs() < 1e-9);
    assert!((value(&text, "llamacpp:n_busy_slots_per_decode") - 4.0).abs() < 1e-9);
    assert!((value(&text, "stonechat:kv_cache_usage_perc{model_name=\"a\"}") - 0.25).abs() < 1e-9);
    let tokens = value(&text, "stonechat:iteration_tokens_total_sum{model_name=\"a\"}");
    assert!((tokens - 50.0).abs() < 1e-9, "{tokens}");
    let seconds = value(&text, "stonechat:iteration_duration_seconds_sum{model_name=\"a\"}");
    assert!((seconds - 0.02).abs() < 1e-9, "{seconds}");
    let preempted = value(&text, "stonechat:num_preemptions_total{model_name=\"a\"}");
    assert!((preempted - 2.0).abs() < 1e-9, "{preempted}");
    for (line, expected) in [
        ("stonechat:kv_cache_pages{model_name=\"a\"}", 100.0),
        ("stonechat:kv_cache_pages_used{model_name=\"a\"}", 25.0),
        ("stonechat:kv_cache_pages_cached{model_name=\"a\"}", 7.0),
    ] {
        assert!((value(&text, line) - expected).abs() < 1e-9, "{line}\n{text}");
    }
    metrics.step("a", &StepReport::default());
    let text = metrics.text();
    assert!((value(&text, "llamacpp:requests_processing") - 2.0).abs() < 1e-9);
    assert!((value(&text, "llamacpp:n_decode_total") - 3.0).abs() < 1e-9);
}

#[test]
fn audio_and_http_are_counted() {
    let metrics = Metrics::new();
    metrics.audio_finished(&AudioReport {
        model: "base".to_owned(),
        audio_seconds: 60.0,
        queue_seconds: 1.0,
        work_seconds: 3.0,
        finish: RequestEnd::Stop,
        error: None,
    });
    metrics.audio_queued("base", 2, 90.0);
    metrics.http("GET", "/health", 200, Duration::from_millis(2));
    metrics.models(1, (Memory { host: 10, gpu: 5 }, Memory::host(20)));
    let text = metrics.text();
    for (line, expected) in [
        ("stonechat:audio_seconds_total{model_name=\"base\"}", 60.0),
        ("stonechat:audio_speed_sum{model_name=\"base\"}", 20.0),
        ("stonechat:audio_seconds_waiting{model_name=\"base\"}", 90.0),
        ("stonechat:http_requests_total{method=\"GET\",route=\"/health\",status=\"200\"}", 1.0),
        ("stonechat:models_memory_bytes", 10.0),
        ("stonechat:models_memory_limit_bytes", 20.0),
        ("stonechat:models_gpu_memory_bytes", 5.0),
        ("stonechat:model_load_requests_waiting", 1.0),
    ] {
        assert!((value(&text, line) - expected).abs() < 1e-9, "{line}\n{text}");
    }
}

#[test]
fn live_sessions_are_counted_by_protocol() {
    let metrics = Metrics::new();
    ["realtime", "wyoming", "realtime"].into_iter().for_each(|one| metrics.live_opened(one));
    metrics.live_closed("realtime");
    metrics.live_refused("wyoming");
    [Some(2.0), None].into_iter().for_each(|time| metrics.live_utterance("base", time));
    let text = metrics.text();
    for (line, expected) in [
        ("stonechat:live_sessions{protocol=\"realtime\"}", 1.0),
        ("stonechat:live_sessions{protocol=\"wyoming\"}", 1.0),
        ("stonechat:live_sessions_opened_total{protocol=\"realtime\"}", 2.0),
        ("stonechat:live_sessions_refused_total{protocol=\"wyoming\"}", 1.0),
        ("stonechat:live_utterances_total{model_name=\"base\"}", 2.0),
        ("stonechat:live_time_to_first_text_seconds_sum{model_name=\"base\"}", 2.0),
        ("stonechat:live_time_to_first_text_seconds_count{model_name=\"base\"}", 1.0),
    ] {
        assert!((value(&text, line) - expected).abs() < 1e-9, "{line}\n{text}");
    }
}

#[test]
fn panics_are_counted_by_model() {
    let metrics = Metrics::new();
    ["a", "b", "a"].into_iter().for_each(|model| metrics.engine_panicked(model));
    assert_eq!(metrics.n_panics(), 3);
    let text = metrics.text();
    let of = |model: &str| {
        value(&text, &format!("stonechat:engine_panics_total{{model_name=\"{model}\"}}"))
    };
    assert!((of("a") - 2.0).abs() < 1e-9 && (of("b") - 1.0).abs() < 1e-9);
}

#[test]
fn unknown_methods_share_a_label() {
    let metrics = Metrics::new();
    for method in ["A1", "A2", "get", "POST"] {
        metrics.http(method, "/health", 405, Duration::ZERO);
    }
    let text = metrics.text();
    assert!(text.contains("{method=\"OTHER\",route=\"/health\",status=\"405\"} 3"), "{text}");
    assert!(text.contains("{method=\"POST\",route=\"/health\",status=\"405\"} 1"), "{text}");
}
