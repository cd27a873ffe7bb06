//! A running request: its events, the report for the metrics.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stonechat::llm::DraftCounts;
use stonechat::text::Tokenizer;
use stonechat::{Completion, Finish, GenerateOptions, Job, Llm, Request, RequestEvent};

use super::{GenerationFields, Usage};
use crate::otlp::{RequestTrace, TextTimes};
use crate::{ApiError, ApiResult, AppState, LanguageGuard, Metrics, RequestEnd, RequestReport};

/// Texts that are generated for one request. Dropping it cancels them.
pub(crate) struct TextRun {
    job: Job<RequestEvent, Vec<Completion>>,
    model: LanguageGuard,
    /// First event, which was taken before the headers of the answer were sent.
    first: Option<RequestEvent>,
    /// Texts, once all have ended.
    completions: Option<Vec<Completion>>,
    clock: Clock,
    /// Tokens of the prompt that were cached or have run.
    prompt_done: usize,
    metrics: Arc<Metrics>,
    trace: RequestTrace,
    report: RequestReport,
    is_reported: bool,
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
        request: Request,
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
            job: model.generate(request),
            model,
            first: None,
            completions: None,
            prompt_done: 0,
            metrics: Arc::clone(state.metrics()),
            trace,
            report,
            is_reported: false,
        }
    }

    /// Starts a request for each prompt.
    ///
    /// # Errors
    /// If the model cannot be opened again.
    pub(crate) async fn start_all(
        state: &AppState,
        trace: &RequestTrace,
        fields: &GenerationFields,
        prompts: Vec<Vec<u32>>,
        options: &GenerateOptions,
    ) -> ApiResult<VecDeque<Self>> {
        let mut runs = VecDeque::new();
        for prompt in prompts {
            let model = state.open::<Llm>(fields.model.as_deref(), fields.deadline).await?;
            let request = fields.schedule(Request::new(prompt, options.clone()));
            runs.push_back(Self::start(state, model, request, trace.clone()));
        }
        Ok(runs)
    }

    /// Tokenizer of the model.
    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        self.model.info().model.tokenizer()
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
        if self.first.is_some() || self.completions.is_some() {
            return Ok(self.first.take());
        }
        match self.job.next_async().await {
            Some(Ok(event)) => {
                self.record(&event);
                Ok(Some(event))
            }
            Some(Err(error)) => Err(self.fail(error)),
            None => match (&mut self.job).await {
                Ok(completions) => {
                    self.end(&completions);
                    self.completions = Some(completions);
                    Ok(None)
                }
                Err(error) => Err(self.fail(error)),
            },
        }
    }

    /// Texts; none before all have ended.
    pub(crate) fn completions(&self) -> &[Completion] {
        self.completions.as_deref().unwrap_or_default()
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
    pub(crate) fn usage(&self) -> Usage {
        let (now, clock) = (Instant::now(), &self.clock);
        let ms = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1e3;
        let started = clock.started.unwrap_or(now);
        let first_token = clock.first_token.unwrap_or(now);
        Usage {
            prompt_tokens: self.report.prompt_tokens,
            cached_tokens: self.report.cached_tokens,
            prompt_ms: ms(started, first_token),
            generated: self.report.generated_tokens,
            n_texts: clock.last_token.iter().flatten().count(),
            decode_ms: ms(first_token, now),
            ..Usage::default()
        }
    }

    /// Waits for the whole texts.
    ///
    /// # Errors
    /// If the request has failed.
    pub(crate) async fn finish(&mut self) -> ApiResult<&[Completion]> {
        while self.next().await?.is_some() {}
        Ok(self.completions())
    }

    /// Records an event in the report and the clock.
    fn record(&mut self, event: &RequestEvent) {
        let now = Instant::now();
        match event {
            RequestEvent::Started { cached_tokens } => {
                self.clock.started = self.job.started();
                self.report.cached_tokens = *cached_tokens;
                self.prompt_done = *cached_tokens;
            }
            RequestEvent::Prompt { done, .. } => self.prompt_done = *done,
            RequestEvent::Text { choice, tokens, .. } => {
                self.clock.first_token.get_or_insert(now);
                if tokens.is_empty() {
                    return;
                }
                let last = &mut self.clock.last_token[*choice];
                if let Some(last) = last {
                    // Tokens of an accepted draft arrive together.
                    let n = tokens.len();
                    let gap = (now - *last).as_secs_f64();
                    let gaps = (0..n).map(|i| if i == 0 { gap } else { 0.0 });
                    self.report.token_gaps.extend(gaps);
                }
                *last = Some(now);
                self.report.generated_tokens += tokens.len();
            }
            _ => {}
        }
    }

    /// Completes the report with the texts.
    fn end(&mut self, completions: &[Completion]) {
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
