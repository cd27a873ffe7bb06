//! Answers as server-sent events.

use std::collections::VecDeque;
use std::time::Duration;

use axum::response::Response;
use axum::response::sse::Event;
use futures_util::stream::unfold;
use stonechat::whisper::Task;
use stonechat_api::speech::{Fields, SpeechEvents};
use stonechat_api::text::Frame;
use tokio::time::timeout;

use super::{MAX_STATUS_DELAY, Running};
use crate::{ApiResult, sse};

/// Starts a stream. An error before the first segment is one of the request, unless that takes long.
pub(super) async fn respond(
    mut running: Running,
    fields: &Fields,
    task: Task,
    ping_interval: Option<Duration>,
) -> ApiResult<Response> {
    let delay = ping_interval.map_or(MAX_STATUS_DELAY, |interval| interval.min(MAX_STATUS_DELAY));
    let (mut ready, mut events) = (VecDeque::new(), SpeechEvents::new(fields, task));
    match timeout(delay, running.job.next_async()).await {
        Ok(Some(Ok(segment))) => ready.extend(events.segment(&segment)),
        Ok(Some(Err(error))) => return running.end(Err(error)),
        // Without a segment the end follows.
        Ok(None) | Err(_) => {}
    }
    let stream = AudioStream { ready, running: Some((running, events)) };
    let events = unfold(stream, |mut stream| async move { Some((stream.next().await?, stream)) });
    Ok(sse::respond(events, ping_interval))
}

/// Events of a transcription on their way.
struct AudioStream {
    ready: VecDeque<Frame>,
    /// `None` after the last segment.
    running: Option<(Running, SpeechEvents)>,
}

impl AudioStream {
    /// The next event; `None` at the end.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(Event::default().data(event.data));
            }
            let (running, events) = self.running.as_mut()?;
            let result = match running.job.next_async().await {
                Some(Ok(segment)) => {
                    self.ready.extend(events.segment(&segment));
                    continue;
                }
                Some(Err(error)) => Err(error),
                None => (&mut running.job).await,
            };
            let (mut running, events) = self.running.take()?;
            self.ready.push_back(match running.end(result) {
                Ok(transcript) => events.end(&transcript),
                Err(error) => Frame::new(&error.to_json()),
            });
        }
    }
}
