//! A running request with its counts and times.

use serde::Serialize;
use stonechat::{CancelToken, Completion, Job, Llm, Request, RequestEvent};
use web_time::Instant;

use super::Usage;
use crate::{ApiError, ApiResult};

/// Texts that are generated after one prompt. Dropping it cancels them.
#[derive(Debug)]
pub struct Run {
    job: Job<RequestEvent, Vec<Completion>>,
    stats: RequestStats,
    /// Event that [`started`](Self::started) has taken.
    first: Option<RequestEvent>,
    /// Texts, once all have ended, or the error.
    result: Option<ApiResult<Vec<Completion>>>,
}

/// `prompt_progress` of llama-server.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Progress {
    total: usize,
    cache: usize,
    processed: usize,
    time_ms: u64,
}

/// Counts and times of a running request.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RequestStats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt found in the prefix cache.
    pub cached_tokens: usize,
    /// Tokens of the prompt that were cached or have run.
    pub prompt_done: usize,
    /// Tokens of all texts.
    pub generated_tokens: usize,
    /// Time at which the request was queued.
    pub queued: Instant,
    /// Time at which it left the queue.
    pub started: Option<Instant>,
    /// Time of the first token.
    pub first_token: Option<Instant>,
    /// Seconds between the tokens of a text.
    pub token_gaps: Vec<f64>,
    /// Time of the last token of each text.
    last_tokens: Vec<Option<Instant>>,
}

impl Run {
    /// Queues a request.
    pub fn start(llm: &Llm, request: Request) -> Self {
        let stats = RequestStats::new(request.prompt.len(), request.n_choices);
        Self { job: llm.generate(request), stats, first: None, result: None }
    }

    /// Waits until the request has left the queue. Dropping the future loses nothing.
    ///
    /// # Errors
    /// If the request has failed.
    pub async fn started(&mut self) -> ApiResult<()> {
        if self.first.is_none() {
            self.first = self.next().await?;
        }
        Ok(())
    }

    /// Waits for the next event; `None` when all texts have ended.
    ///
    /// # Errors
    /// If the request has failed.
    pub async fn next(&mut self) -> ApiResult<Option<RequestEvent>> {
        if let Some(event) = self.first.take() {
            return Ok(Some(event));
        }
        if let Some(result) = &self.result {
            return result.as_ref().map(|_| None).map_err(Clone::clone);
        }
        let result = match self.job.next_async().await {
            Some(Ok(event)) => {
                self.stats.record(&event, self.job.started());
                return Ok(Some(event));
            }
            Some(Err(error)) => Err(error),
            None => (&mut self.job).await,
        };
        let result = self.result.insert(result.map_err(ApiError::from));
        result.as_ref().map(|_| None).map_err(Clone::clone)
    }

    /// Waits for the whole texts.
    ///
    /// # Errors
    /// If the request has failed.
    pub async fn finish(&mut self) -> ApiResult<&[Completion]> {
        while self.next().await?.is_some() {}
        Ok(self.completions())
    }

    /// Counts and times so far.
    #[must_use]
    pub fn stats(&self) -> &RequestStats {
        &self.stats
    }

    /// Texts, or the error; `None` while the request runs.
    #[must_use]
    pub fn result(&self) -> Option<Result<&[Completion], &ApiError>> {
        self.result.as_ref().map(|result| result.as_deref())
    }

    /// Texts; none before all have ended.
    #[must_use]
    pub fn completions(&self) -> &[Completion] {
        self.result().and_then(Result::ok).unwrap_or_default()
    }

    /// Takes the texts, once all have ended.
    pub fn take_completions(&mut self) -> Vec<Completion> {
        match &mut self.result {
            Some(Ok(completions)) => std::mem::take(completions),
            _ => Vec::new(),
        }
    }

    /// Token that ends the texts; the answer so far is complete.
    #[must_use]
    pub fn cancel_token(&self) -> CancelToken {
        self.job.cancel_token()
    }
}

impl RequestStats {
    /// Counts of a request that is queued now.
    pub(crate) fn new(prompt_tokens: usize, n_choices: usize) -> Self {
        Self {
            prompt_tokens,
            cached_tokens: 0,
            prompt_done: 0,
            generated_tokens: 0,
            queued: Instant::now(),
            started: None,
            first_token: None,
            token_gaps: Vec::new(),
            last_tokens: vec![None; n_choices],
        }
    }

    /// Records an event of a request that left the queue at `started`.
    fn record(&mut self, event: &RequestEvent, started: Option<Instant>) {
        let now = Instant::now();
        match event {
            RequestEvent::Started { cached_tokens } => {
                self.started = started;
                self.cached_tokens = *cached_tokens;
                self.prompt_done = *cached_tokens;
            }
            RequestEvent::Prompt { done, .. } => self.prompt_done = *done,
            RequestEvent::Text { choice, tokens, .. } => {
                self.first_token.get_or_insert(now);
                if tokens.is_empty() {
                    return;
                }
                let last = &mut self.last_tokens[*choice];
                if let Some(last) = last {
                    // Tokens of an accepted draft arrive together.
                    let gap = (now - *last).as_secs_f64();
                    let gaps = (0..tokens.len()).map(|i| if i == 0 { gap } else { 0.0 });
                    self.token_gaps.extend(gaps);
                }
                *last = Some(now);
                self.generated_tokens += tokens.len();
            }
            _ => {}
        }
    }

    /// `prompt_progress` of llama-server: cached tokens count as processed.
    pub(crate) fn progress(&self) -> Progress {
        let now = Instant::now();
        Progress {
            total: self.prompt_tokens,
            cache: self.cached_tokens,
            processed: self.prompt_done,
            time_ms: (now - self.started.unwrap_or(now)).as_millis() as u64,
        }
    }

    /// Counts so far.
    pub(crate) fn usage(&self) -> Usage {
        let now = Instant::now();
        let ms = |from: Instant, to: Instant| (to - from).as_secs_f64() * 1e3;
        let started = self.started.unwrap_or(now);
        let first_token = self.first_token.unwrap_or(now);
        Usage {
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            prompt_ms: ms(started, first_token),
            generated: self.generated_tokens,
            n_texts: self.last_tokens.iter().flatten().count(),
            decode_ms: ms(first_token, now),
            ..Usage::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use stonechat::RequestEvent;

    use super::RequestStats;

    #[test]
    fn events_are_counted() {
        let mut stats = RequestStats::new(9, 2);
        stats.record(&RequestEvent::Started { cached_tokens: 4 }, Some(stats.queued));
        assert_eq!(stats.progress().processed, 4);
        stats.record(&RequestEvent::Prompt { done: 9, total: 9 }, None);
        assert_eq!((stats.progress().total, stats.prompt_done), (9, 9));
        assert_eq!(stats.usage().n_texts, 0);
        // A text that is held back has no token, but ends the prompt.
        let text = || RequestEvent::Text { choice: 1, tokens: Vec::new(), text: String::new() };
        stats.record(&text(), None);
        assert!(stats.first_token.is_some() && stats.token_gaps.is_empty());
        assert_eq!((stats.usage().generated, stats.usage().cached_tokens), (0, 4));
    }
}
