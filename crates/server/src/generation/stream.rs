//! Events of the texts after one or several prompts.

use std::collections::VecDeque;
use std::time::Duration;

use axum::response::Response;
use axum::response::sse::Event;
use serde_json::Value;
use stonechat_api::text::Answer;
use tokio::time::timeout;

use super::TextRun;
use crate::{ApiResult, sse};

/// Running requests of a streamed answer. The prompts run side by side; the objects of one follow those of the one before.
/// Dropping it cancels the requests.
struct AnswerStream {
    runs: VecDeque<TextRun>,
    /// Objects that are not sent yet.
    objects: VecDeque<Value>,
    /// Whether `[DONE]` is still to come.
    sends_done: bool,
    answer: Box<dyn Answer>,
}

/// Answers with the events of running requests. `ping` is the interval of comments while there are none.
///
/// # Errors
/// If the first request fails before it leaves the queue.
pub(super) async fn respond(
    mut runs: VecDeque<TextRun>,
    answer: Box<dyn Answer>,
    ping: Option<Duration>,
) -> ApiResult<Response> {
    if let Some(TextRun { run, .. }) = runs.front_mut() {
        // An error has a status of its own, unless that takes long: then the stream begins with comments.
        match ping {
            None => run.started().await?,
            Some(limit) => timeout(limit, run.started()).await.unwrap_or(Ok(()))?,
        }
    }
    let (objects, sends_done) = (VecDeque::new(), answer.ends_with_done());
    let stream = AnswerStream { runs, objects, sends_done, answer };
    let events = futures_util::stream::unfold(stream, |mut stream| async move {
        Some((stream.next().await?, stream))
    });
    Ok(sse::respond(events, ping))
}

impl AnswerStream {
    /// The next event; `None` at the end.
    async fn next(&mut self) -> Option<Event> {
        let Self { runs, objects, sends_done, answer } = self;
        loop {
            if let Some(object) = objects.pop_front() {
                return Some(Event::default().data(object.to_string()));
            }
            let Some(TextRun { run, .. }) = runs.front_mut() else {
                return std::mem::take(sends_done).then(|| Event::default().data("[DONE]"));
            };
            match run.next().await {
                Ok(Some(event)) => objects.extend(answer.event(run.stats(), event)),
                Ok(None) => {
                    objects.extend(answer.end(run.completions()));
                    runs.pop_front();
                }
                Err(error) => {
                    runs.clear();
                    objects.push_back(error.to_json());
                }
            }
        }
    }
}
