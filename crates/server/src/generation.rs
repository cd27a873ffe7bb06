//! Routes of generated text: the running requests of a body, their metrics, and the answer as one object or as a stream.

mod run;
mod stream;

use std::collections::VecDeque;

use axum::response::Response;
use futures_util::StreamExt;
use futures_util::stream::iter;
use stonechat::Llm;
use stonechat_api::text::{Body, Dialect, Frame, Model, Prepared};

use crate::otlp::RequestTrace;
use crate::tasks::blocking;
use crate::{AppState, HandlerResult, json, sse};

use run::TextRun;

/// Answers a body: opens its model, runs its requests side by side.
pub(crate) async fn answer<T: Dialect>(
    state: &AppState,
    trace: &RequestTrace,
    body: Body<T>,
) -> HandlerResult<Response> {
    let fields = body.fields();
    let (name, deadline) = (fields.model().map(str::to_owned), fields.deadline());
    let is_stream = fields.is_stream();
    let ping = fields.ping_interval(state.options().sse_ping_interval);
    let model = state.open::<Llm>(name.as_deref(), deadline).await?;
    let prepared = {
        let (spec, answered_as) = (model.spec(), model.name_for(name.as_deref()));
        let model = Model { llm: &model, id: spec.id(), name: &answered_as };
        blocking(|| body.prepare(model, &state.options().defaults()))?
    };
    let Prepared { requests, answer, control } = prepared;
    let control = control.map(|(id, control)| state.controls().add(id, control));
    let (mut runs, mut model) = (VecDeque::with_capacity(requests.len()), Some(model));
    for request in requests {
        // Each request is a user of the model.
        let model = match model.take() {
            Some(model) => model,
            None => state.open::<Llm>(name.as_deref(), deadline).await?,
        };
        runs.push_back(TextRun::start(state, model, request, trace.clone()));
    }
    if is_stream {
        return Ok(stream::respond(runs, (answer, control), ping).await?);
    }
    let mut texts = Vec::with_capacity(runs.len());
    for mut text in runs {
        texts.push(text.run.finish().await?.to_vec());
    }
    Ok(json::response(answer.whole(&texts).data))
}

/// Answers with the events of a request that does not run.
pub(crate) fn events(frames: Vec<Frame>) -> Response {
    sse::respond(iter(frames).map(stream::event), None)
}
