//! Events of the texts after one or several prompts.

use std::collections::VecDeque;
use std::time::Duration;

use axum::response::Response;
use axum::response::sse::Event;
use futures_util::StreamExt;
use stonechat_api::text::{Answer, Frame, Framing};
use tokio::time::timeout;

use super::TextRun;
use crate::controls::ControlEntry;
use crate::{ApiResult, lines, sse};

/// Running requests of a streamed answer. The prompts run side by side; the objects of one follow those of the one before.
/// Dropping it cancels the requests.
struct AnswerStream {
    runs: VecDeque<TextRun>,
    /// Objects that are not sent yet.
    frames: VecDeque<Frame>,
    /// Whether `[DONE]` is still to come.
    sends_done: bool,
    answer: Box<dyn Answer>,
    _control: Option<ControlEntry>,
}

/// Answers with the events of running requests. `ping` is the interval of comments while there are none.
///
/// # Errors
/// If the first request fails before it leaves the queue.
pub(super) async fn respond(
    mut runs: VecDeque<TextRun>,
    (answer, control): (Box<dyn Answer>, Option<ControlEntry>),
    ping: Option<Duration>,
) -> ApiResult<Response> {
    if let Some(TextRun { run, .. }) = runs.front_mut() {
        // An error has a status of its own, unless that takes long: then the stream begins with comments.
        match ping {
            None => run.started().await?,
            Some(limit) => timeout(limit, run.started()).await.unwrap_or(Ok(()))?,
        }
    }
    let framing = answer.framing();
    let sends_done = framing == Framing::Events { ends_with_done: true };
    let frames = VecDeque::new();
    let stream = AnswerStream { runs, frames, sends_done, answer, _control: control };
    let frames = futures_util::stream::unfold(stream, |mut stream| async move {
        Some((stream.next().await?, stream))
    });
    Ok(match framing {
        Framing::Lines => lines::respond(frames.map(|frame| frame.data)),
        _ => sse::respond(frames.map(event), ping),
    })
}

/// Server-sent event of an object.
pub(super) fn event(Frame { event, data }: Frame) -> Event {
    match event {
        Some(name) => Event::default().event(name).data(data),
        None => Event::default().data(data),
    }
}

impl AnswerStream {
    /// The next object; `None` at the end.
    async fn next(&mut self) -> Option<Frame> {
        let Self { runs, frames, sends_done, answer, .. } = self;
        loop {
            if let Some(frame) = frames.pop_front() {
                return Some(frame);
            }
            let Some(TextRun { run, .. }) = runs.front_mut() else {
                let done = || Frame { event: None, data: "[DONE]".to_owned() };
                return std::mem::take(sends_done).then(done);
            };
            match run.next().await {
                Ok(Some(event)) => frames.extend(answer.event(run.stats(), event)),
                Ok(None) => {
                    frames.extend(answer.end(run.stats(), run.completions()));
                    runs.pop_front();
                }
                Err(error) => {
                    runs.clear();
                    frames.extend(answer.error(&error));
                }
            }
        }
    }
}
