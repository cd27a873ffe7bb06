//! Events of the texts after one or several prompts.

use std::collections::VecDeque;
use std::time::Duration;

use axum::response::Response;
use axum::response::sse::Event;
use serde_json::Value;
use stonechat::RequestEvent;

use super::TextRun;
use crate::{ApiResult, sse};

/// Answer as a stream of JSON objects, made from the events of its requests.
pub(crate) trait StreamedAnswer: Send + 'static {
    /// Whether the stream ends with `[DONE]`.
    const ENDS_WITH_DONE: bool;

    /// Appends the objects of an event of prompt `prompt`.
    fn take(
        &mut self,
        run: &TextRun,
        prompt: usize,
        event: RequestEvent,
        objects: &mut VecDeque<Value>,
    );

    /// Appends the objects at the end of the texts of prompt `prompt`.
    fn end(&mut self, run: &TextRun, prompt: usize, objects: &mut VecDeque<Value>);

    /// Appends the objects after the last prompt.
    fn finish(&mut self, _: &mut VecDeque<Value>) {}
}

/// Running requests of a streamed answer. The prompts run side by side; the objects of one follow those of the one before.
/// Dropping it cancels the requests.
struct AnswerStream<A> {
    answer: A,
    runs: VecDeque<TextRun>,
    /// Index of the first prompt of `runs`.
    prompt: usize,
    /// Objects that are not sent yet.
    objects: VecDeque<Value>,
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
    let (objects, sends_done) = (VecDeque::new(), A::ENDS_WITH_DONE);
    let stream = AnswerStream { answer, runs, prompt: 0, objects, sends_done };
    let events = futures_util::stream::unfold(stream, |mut stream| async move {
        Some((stream.next().await?, stream))
    });
    Ok(sse::respond(events, ping))
}

impl<A: StreamedAnswer> AnswerStream<A> {
    /// The next event; `None` at the end.
    async fn next(&mut self) -> Option<Event> {
        let Self { answer, runs, prompt, objects, sends_done } = self;
        loop {
            if let Some(object) = objects.pop_front() {
                return Some(Event::default().data(object.to_string()));
            }
            let Some(run) = runs.front_mut() else {
                return std::mem::take(sends_done).then(|| Event::default().data("[DONE]"));
            };
            match run.next().await {
                Ok(Some(event)) => answer.take(run, *prompt, event, objects),
                Ok(None) => {
                    answer.end(run, *prompt, objects);
                    runs.pop_front();
                    *prompt += 1;
                    if runs.is_empty() {
                        answer.finish(objects);
                    }
                }
                Err(error) => {
                    runs.clear();
                    objects.push_back(error.to_json());
                }
            }
        }
    }
}
