//! Events of the texts after one or several prompts.

use std::collections::VecDeque;
use std::time::Duration;

use axum::response::Response;
use axum::response::sse::Event;
use serde_json::Value;

use super::{Step, TextRun};
use crate::{ApiResult, sse};

/// Events of an answer by the steps of its requests.
pub(crate) trait StreamedAnswer: Send + 'static {
    /// Whether the stream ends with `[DONE]`.
    const ENDS_WITH_DONE: bool;

    /// Appends the events of a step of prompt `prompt`.
    fn take(&mut self, run: &TextRun, prompt: usize, step: Step, events: &mut VecDeque<Value>);

    /// Appends the events after the last prompt.
    fn finish(&mut self, _: &mut VecDeque<Value>) {}
}

/// A streamed answer. The prompts run side by side; the events of one follow those of the one before. Dropping it cancels
/// the requests.
struct AnswerStream<A> {
    answer: A,
    runs: VecDeque<TextRun>,
    /// Index of the first prompt of `runs`.
    prompt: usize,
    events: VecDeque<Value>,
    /// Whether `[DONE]` is still to come.
    sends_done: bool,
}

/// Answers with the events of running requests. `ping` is the interval of comments while there are none.
///
/// # Errors
/// If the first request fails before it leaves the queue.
pub(crate) async fn respond<A: StreamedAnswer>(
    mut runs: VecDeque<TextRun>,
    answer: A,
    ping: Option<Duration>,
) -> ApiResult<Response> {
    if let Some(run) = runs.front_mut() {
        run.begin(ping).await?;
    }
    let (events, sends_done) = (VecDeque::new(), A::ENDS_WITH_DONE);
    let stream = AnswerStream { answer, runs, prompt: 0, events, sends_done };
    let events = futures_util::stream::unfold(stream, |mut stream| async move {
        Some((stream.next().await?, stream))
    });
    Ok(sse::respond(events, ping))
}

impl<A: StreamedAnswer> AnswerStream<A> {
    /// The next event; `None` at the end.
    async fn next(&mut self) -> Option<Event> {
        let Self { answer, runs, prompt, events, sends_done } = self;
        loop {
            if let Some(event) = events.pop_front() {
                return Some(Event::default().data(event.to_string()));
            }
            let Some(run) = runs.front_mut() else {
                return std::mem::take(sends_done).then(|| Event::default().data("[DONE]"));
            };
            match run.next().await {
                Ok(step) => {
                    let has_ended = matches!(step, Step::Ended(_));
                    answer.take(run, *prompt, step, events);
                    if has_ended {
                        runs.pop_front();
                        *prompt += 1;
                        if runs.is_empty() {
                            answer.finish(events);
                        }
                    }
                }
                Err(error) => {
                    runs.clear();
                    events.push_back(error.to_json());
                }
            }
        }
    }
}
