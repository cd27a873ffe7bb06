//! A running request with its share of the metrics and the trace.

use std::sync::Arc;
use std::time::{Duration, Instant};

use stonechat::llm::DraftCounts;
use stonechat::{Completion, Finish, Request, RequestEvent};
use stonechat_api::generation::{RequestStats, Run};

use crate::otlp::{RequestTrace, TextTimes};
use crate::{ApiError, ApiResult, AppState, LanguageGuard, Metrics, RequestEnd, RequestReport};

/// Texts that are generated for one request. Dropping it cancels them.
pub(crate) struct TextRun {
    run: Run,
    /// First event, which was taken before the headers of the answer were sent.
    first: Option<RequestEvent>,
    metrics: Arc<Metrics>,
    trace: RequestTrace,
    report: RequestReport,
    is_reported: bool,
    /// A model in use is not unloaded.
    _model: LanguageGuard,
}

impl TextRun {
    /// Starts a request.
    pub(crate) fn start(
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
            finish: RequestEnd::Abort,
            ..RequestReport::default()
        };
        Self {
            run: Run::start(&model, request),
            first: None,
            metrics: Arc::clone(state.metrics()),
            trace,
            report,
            is_reported: false,
            _model: model,
        }
    }

    /// Waits until the request has left the queue or has failed, so that an error has a status of its own; at most `limit`,
    /// after which the stream begins with comments.
    ///
    /// # Errors
    /// If the request has failed.
    pub(crate) async fn begin(&mut self, limit: Option<Duration>) -> ApiResult<()> {
        let event = match limit {
            None => self.next().await,
            Some(limit) => match tokio::time::timeout(limit, self.next()).await {
                Ok(event) => event,
                Err(_) => return Ok(()),
            },
        };
        self.first = event?;
        Ok(())
    }

    /// The next event; `None` when all texts have ended.
    ///
    /// # Errors
    /// If the request has failed.
    pub(crate) async fn next(&mut self) -> ApiResult<Option<RequestEvent>> {
        if let Some(event) = self.first.take() {
            return Ok(Some(event));
        }
        match self.run.next().await {
            Ok(None) => {
                self.end();
                Ok(None)
            }
            Ok(event) => Ok(event),
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Texts; none before all have ended.
    pub(crate) fn completions(&self) -> &[Completion] {
        self.run.completions()
    }

    /// Counts and times so far.
    pub(crate) fn stats(&self) -> &RequestStats {
        self.run.stats()
    }

    /// Waits for the whole texts.
    ///
    /// # Errors
    /// If the request has failed.
    pub(crate) async fn finish(mut self) -> ApiResult<Vec<Completion>> {
        while self.next().await?.is_some() {}
        Ok(self.run.take_completions())
    }

    /// Completes the report with the texts.
    fn end(&mut self) {
        let completions = self.run.completions();
        let finishes = completions.iter().map(|completion| completion.finish);
        self.report.finish = match finishes.max_by_key(|finish| *finish == Finish::Length) {
            Some(Finish::Length | Finish::ContextFull | Finish::TimeLimit | Finish::Cancelled) => {
                RequestEnd::Length
            }
            _ => RequestEnd::Stop,
        };
        let drafts = completions.iter().map(|completion| completion.drafts);
        self.report.drafts = DraftCounts {
            drafts: drafts.clone().map(|drafts| drafts.drafts).sum(),
            proposed: drafts.clone().map(|drafts| drafts.proposed).sum(),
            accepted: drafts.map(|drafts| drafts.accepted).sum(),
        };
        let preemptions = completions.iter().map(|completion| completion.preemptions);
        self.report.n_preemptions = preemptions.max().unwrap_or(0);
        self.report();
    }

    fn fail(&mut self, error: stonechat::Error) -> ApiError {
        let error = ApiError::from(error);
        self.report.finish = RequestEnd::Error;
        self.report.error = Some(error.clone());
        self.report();
        error
    }

    /// Records the request once.
    fn report(&mut self) {
        if std::mem::replace(&mut self.is_reported, true) {
            return;
        }
        let (now, stats) = (Instant::now(), self.run.stats());
        let seconds = |from: Instant, to: Instant| (to - from).as_secs_f64();
        let started = stats.started.unwrap_or(now);
        let first_token = stats.first_token.unwrap_or(now);
        let report = &mut self.report;
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
        self.metrics.request_finished(report);
        let RequestStats { queued, started, first_token, .. } = *stats;
        self.trace.text(report, &TextTimes { queued, started, first_token, ended: now });
    }
}

impl Drop for TextRun {
    fn drop(&mut self) {
        // A client that went away.
        self.report();
    }
}
