//! A running request: its events, the report for the metrics.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stonechat::llm::{AcceptedToken, DraftCounts};
use stonechat::{Completion, Finish, Job, LlmEvent, LlmRequest};

use super::Timings;
use crate::otlp::{RequestTrace, TextTimes};
use crate::{ApiError, ApiResult, AppState, LanguageGuard, Metrics, RequestEnd, RequestReport};

/// Texts that are generated for one request. Dropping it cancels them.
pub(crate) struct TextRun {
    job: Job<LlmEvent, Vec<Completion>>,
    model: LanguageGuard,
    /// First event, which was taken before the headers of the answer were sent.
    first: Option<Step>,
    clock: Clock,
    /// Tokens of the prompt that were cached or have run.
    prompt_done: usize,
    metrics: Arc<Metrics>,
    trace: RequestTrace,
    report: RequestReport,
    is_reported: bool,
}

/// Event of a running request.
#[derive(Debug)]
pub(crate) enum Step {
    /// It has left the queue.
    Started,
    /// A chunk of the prompt has run.
    Prompt,
    /// Tokens of a text.
    Text {
        /// Index of the text.
        choice: usize,
        /// Tokens, each with its range of `text`.
        tokens: Vec<AcceptedToken>,
        /// Text.
        text: String,
    },
    /// All texts have ended.
    Ended(Vec<Completion>),
}

/// Times of a request.
#[derive(Debug)]
struct Clock {
    queued: Instant,
    started: Option<Instant>,
    first_token: Option<Instant>,
    /// Last token of each text.
    last_token: Vec<Option<Instant>>,
}

impl TextRun {
    /// Starts a request.
    pub(crate) fn start(
        state: &AppState,
        model: LanguageGuard,
        request: LlmRequest,
        trace: RequestTrace,
    ) -> Self {
        let report = RequestReport {
            model: model.spec().name.clone(),
            prompt_tokens: request.prompt.len(),
            n_choices: request.n_choices,
            max_tokens: request.options.n_predict,
            temperature: request.options.sampling.temperature,
            top_p: request.options.sampling.top_p,
            finish: RequestEnd::Abort,
            ..RequestReport::default()
        };
        Self {
            clock: Clock {
                queued: Instant::now(),
                started: None,
                first_token: None,
                last_token: vec![None; request.n_choices],
            },
            job: model.llm.generate(request),
            model,
            first: None,
            prompt_done: 0,
            metrics: Arc::clone(state.metrics()),
            trace,
            report,
            is_reported: false,
        }
    }

    /// The model.
    pub(crate) fn model(&self) -> &LanguageGuard {
        &self.model
    }

    /// Waits until the request has left the queue or has failed, so that an error has a status of its own; at most `limit`,
    /// after which the stream begins with comments.
    ///
    /// # Errors
    /// If the request has failed.
    pub(crate) async fn begin(&mut self, limit: Option<Duration>) -> ApiResult<()> {
        let step = match limit {
            None => self.next().await,
            Some(limit) => match tokio::time::timeout(limit, self.next()).await {
                Ok(step) => step,
                Err(_) => return Ok(()),
            },
        };
        self.first = Some(step?);
        Ok(())
    }

    /// The next event.
    ///
    /// # Errors
    /// If the request has failed.
    pub(crate) async fn next(&mut self) -> ApiResult<Step> {
        if let Some(step) = self.first.take() {
            return Ok(step);
        }
        loop {
            match self.job.next_async().await {
                Some(Ok(event)) => {
                    if let Some(step) = self.take(event) {
                        return Ok(step);
                    }
                }
                Some(Err(error)) => return Err(self.fail(error)),
                None => {
                    return match (&mut self.job).await {
                        Ok(completions) => Ok(self.end(completions)),
                        Err(error) => Err(self.fail(error)),
                    };
                }
            }
        }
    }

    /// `prompt_progress` of llama-server: cached tokens count as processed.
    pub(crate) fn progress(&self) -> Value {
        let now = Instant::now();
        json!({
            "total": self.report.prompt_tokens,
            "cache": self.report.cached_tokens,
            "processed": self.prompt_done,
            "time_ms": (now - self.clock.started.unwrap_or(now)).as_millis() as u64,
        })
    }

    /// Counts so far.
    pub(crate) fn timings(&self) -> Timings {
        let (now, clock) = (Instant::now(), &self.clock);
        let ms = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1e3;
        let started = clock.started.unwrap_or(now);
        let first_token = clock.first_token.unwrap_or(now);
        Timings {
            prompt_tokens: self.report.prompt_tokens,
            cached_tokens: self.report.cached_tokens,
            prompt_ms: ms(started, first_token),
            generated: self.report.generated_tokens,
            n_texts: clock.last_token.iter().flatten().count(),
            decode_ms: ms(first_token, now),
            ..Timings::default()
        }
    }

    /// Waits for the whole texts.
    ///
    /// # Errors
    /// If the request has failed.
    pub(crate) async fn finish(&mut self) -> ApiResult<Vec<Completion>> {
        loop {
            if let Step::Ended(completions) = self.next().await? {
                return Ok(completions);
            }
        }
    }

    fn take(&mut self, event: LlmEvent) -> Option<Step> {
        let now = Instant::now();
        match event {
            LlmEvent::Started { cached_tokens } => {
                self.clock.started = Some(now);
                self.report.cached_tokens = cached_tokens;
                self.prompt_done = cached_tokens;
                self.report.queue_seconds = (now - self.clock.queued).as_secs_f64();
                Some(Step::Started)
            }
            LlmEvent::Prompt { done, .. } => {
                self.prompt_done = done;
                Some(Step::Prompt)
            }
            LlmEvent::Text { choice, tokens, text } => {
                self.clock.first_token.get_or_insert(now);
                let last = &mut self.clock.last_token[choice];
                if tokens.is_empty() {
                    return Some(Step::Text { choice, tokens, text });
                }
                if let Some(last) = last {
                    // Tokens of an accepted draft arrive together.
                    let n = tokens.len();
                    let gap = (now - *last).as_secs_f64();
                    let gaps = (0..n).map(|i| if i == 0 { gap } else { 0.0 });
                    self.report.token_gaps.extend(gaps);
                }
                *last = Some(now);
                self.report.generated_tokens += tokens.len();
                Some(Step::Text { choice, tokens, text })
            }
            _ => None,
        }
    }

    fn end(&mut self, completions: Vec<Completion>) -> Step {
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
        Step::Ended(completions)
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
        // A client that goes away, or an error, ends a prompt early.
        self.report.prompt_tokens = self.prompt_done;
        let (now, clock) = (Instant::now(), &self.clock);
        let seconds = |from: Instant, to: Instant| (to - from).as_secs_f64();
        let started = clock.started.unwrap_or(now);
        let first_token = clock.first_token.unwrap_or(now);
        self.report.queue_seconds = seconds(clock.queued, started);
        self.report.prefill_seconds = seconds(started, first_token);
        self.report.decode_seconds = seconds(first_token, now);
        self.report.e2e_seconds = seconds(clock.queued, now);
        self.report.time_to_first_token = clock.first_token.map(|time| seconds(clock.queued, time));
        self.metrics.request_finished(&self.report);
        let Clock { queued, started, first_token, .. } = self.clock;
        self.trace.text(&self.report, &TextTimes { queued, started, first_token, ended: now });
    }
}

impl Drop for TextRun {
    fn drop(&mut self) {
        // A client that went away.
        self.report();
    }
}
