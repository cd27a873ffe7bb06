//! A running request with its share of the metrics and the trace.

use std::sync::Arc;
use std::time::Instant;

use stonechat::llm::DraftCounts;
use stonechat::{Completion, Finish, Request};
use stonechat_api::generation::{RequestStats, Run};

use crate::otlp::{RequestTrace, TextTimes};
use crate::{ApiError, AppState, LanguageGuard, Metrics, RequestEnd, RequestReport};

/// Texts that are generated for one request. Dropping it cancels them, and records it in the metrics and the trace.
pub(crate) struct TextRun {
    pub(super) run: Run,
    metrics: Arc<Metrics>,
    trace: RequestTrace,
    report: RequestReport,
    /// A model in use is not unloaded.
    _model: LanguageGuard,
}

impl TextRun {
    /// Starts a request.
    pub(super) fn start(
        state: &AppState,
        model: LanguageGuard,
        request: Request,
        trace: RequestTrace,
    ) -> Self {
        let report = RequestReport {
            model: model.spec().name.clone(),
            n_choices: request.n_choices,
            max_tokens: request.options.n_predict,
            temperature: request.options.sampling.temperature,
            top_p: request.options.sampling.top_p,
            ..RequestReport::default()
        };
        let metrics = Arc::clone(state.metrics());
        Self { run: Run::start(&model, request), metrics, trace, report, _model: model }
    }
}

/// Completes the report with the end of the texts: a client that went away has none.
fn set_end(report: &mut RequestReport, result: Option<Result<&[Completion], &ApiError>>) {
    let completions = match result {
        None => return report.finish = RequestEnd::Abort,
        Some(Err(error)) => {
            report.finish = RequestEnd::Error;
            report.error = Some(error.clone());
            return;
        }
        Some(Ok(completions)) => completions,
    };
    let finishes = completions.iter().map(|completion| completion.finish);
    report.finish = match finishes.max_by_key(|finish| *finish == Finish::Length) {
        Some(Finish::Length | Finish::ContextFull | Finish::TimeLimit | Finish::Cancelled) => {
            RequestEnd::Length
        }
        _ => RequestEnd::Stop,
    };
    let drafts = completions.iter().map(|completion| completion.drafts);
    report.drafts = DraftCounts {
        drafts: drafts.clone().map(|drafts| drafts.drafts).sum(),
        proposed: drafts.clone().map(|drafts| drafts.proposed).sum(),
        accepted: drafts.map(|drafts| drafts.accepted).sum(),
    };
    let preemptions = completions.iter().map(|completion| completion.preemptions);
    report.n_preemptions = preemptions.max().unwrap_or(0);
}

/// Sets the counts and durations of a report.
fn set_counts(report: &mut RequestReport, stats: &RequestStats, now: Instant) {
    let seconds = |from: Instant, to: Instant| (to - from).as_secs_f64();
    let started = stats.started.unwrap_or(now);
    let first_token = stats.first_token.unwrap_or(now);
    // A client that goes away, or an error, ends a prompt early.
    report.prompt_tokens = stats.prompt_done;
    report.cached_tokens = stats.cached_tokens;
    report.generated_tokens = stats.generated_tokens;
    report.token_gaps.clone_from(&stats.token_gaps);
    report.queue_seconds = seconds(stats.queued, started);
    report.prefill_seconds = seconds(started, first_token);
    report.decode_seconds = seconds(first_token, now);
    report.e2e_seconds = seconds(stats.queued, now);
    report.time_to_first_token = stats.first_token.map(|time| seconds(stats.queued, time));
}

impl Drop for TextRun {
    fn drop(&mut self) {
        let (now, stats) = (Instant::now(), self.run.stats());
        set_end(&mut self.report, self.run.result());
        set_counts(&mut self.report, stats, now);
        self.metrics.request_finished(&self.report);
        let RequestStats { queued, started, first_token, .. } = *stats;
        self.trace.text(&self.report, &TextTimes { queued, started, first_token, ended: now });
    }
}
