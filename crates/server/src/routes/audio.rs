//! `/v1/audio/transcriptions` and `/v1/audio/translations`: uploads to a Whisper model.
//!
//! ```text
//! multipart body ──► file ──► decoder, at the end of the body, on a thread that may block
//!       │                        │ samples
//!       └──► other fields ──► options ──► engine ──► segments ──► events, or the body at the end
//! ```
//!
//! A client that goes away drops its job, which cancels it. The routes of whisper-asr-webservice are in [`webservice`].

mod events;
mod form;
mod upload;
pub(crate) mod webservice;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use stonechat::whisper::Task;
use stonechat::{Recording, Transcript, TranscriptionJob, Whisper};
use stonechat_api::speech::{Fields, SpeechAnswer};

use form::FileField;
use upload::Encoding;

use crate::audio_memory::Charge;
use crate::otlp::{RequestTrace, SpeechTimes};
use crate::tasks::within;
use crate::{
    ApiError, ApiResult, AppState, AudioReport, HandlerResult, Metrics, RequestEnd, SpeechGuard,
    json,
};

/// Time for which a stream waits for its first segment before its status is sent: an error until then has one of its own.
const MAX_STATUS_DELAY: Duration = Duration::from_secs(5);

pub(crate) fn router() -> Router<AppState> {
    Router::new()
        .route("/v1/audio/transcriptions", post(transcriptions))
        .route("/v1/audio/translations", post(translations))
        .route("/audio/transcriptions", post(transcriptions))
        .route("/audio/translations", post(translations))
        .merge(webservice::router())
}

/// Field of the file in OpenAI's form.
const FILE: FileField = FileField { name: "file", encoding: Encoding::Container };

/// Responses of both routes, for the document.
#[cfg(test)]
#[derive(utoipa::IntoResponses)]
#[expect(dead_code, reason = "a part of the document")]
enum Responses {
    /// JSON, text, subtitles or events
    #[response(status = 200)]
    Text(stonechat_api::speech::TranscriptionAnswer),
    /// A field is invalid, or the file is no audio
    #[response(status = 400)]
    Invalid,
    /// The file has too many bytes, or is too long
    #[response(status = 413)]
    TooLarge,
}

/// Text of a recording in its language
#[cfg_attr(test, utoipa::path(post, path = "/v1/audio/transcriptions", tag = "audio",
    request_body(content = Fields, content_type = "multipart/form-data"),
    responses(Responses),
))]
pub(crate) async fn transcriptions(
    State(state): State<AppState>,
    trace: RequestTrace,
    request: Request,
) -> HandlerResult<Response> {
    answer(state, trace, request, Task::Transcribe).await
}

/// English translation of a recording
#[cfg_attr(test, utoipa::path(post, path = "/v1/audio/translations", tag = "audio",
    request_body(content = Fields, content_type = "multipart/form-data"),
    responses(Responses),
))]
pub(crate) async fn translations(
    State(state): State<AppState>,
    trace: RequestTrace,
    request: Request,
) -> HandlerResult<Response> {
    answer(state, trace, request, Task::Translate).await
}

async fn answer(
    state: AppState,
    trace: RequestTrace,
    request: Request,
    task: Task,
) -> HandlerResult<Response> {
    state.check_ready()?;
    // The time of a request counts from its arrival.
    let deadline = state.options().deadline();
    let mut fields = Fields::default();
    let set = |name: &str, text: &str| fields.set(name, text);
    let read = form::read(&state, request, FILE, set);
    let (samples, charge) = within(deadline, read).await??;
    let received = Instant::now();
    let options = fields.options(task)?;
    let model = state.open::<Whisper>(fields.model(), deadline).await?;
    let upload = Upload { samples, charge, received };
    let recording = |samples| Recording::samples(samples).options(options);
    let mut running = Running::start(&state, trace, upload, model, |model, samples| {
        model.transcribe(recording(samples))
    });
    if fields.is_stream() {
        return Ok(
            events::respond(running, &fields, task, state.options().sse_ping_interval).await?
        );
    }
    let transcript = within(deadline, running.transcript()).await??;
    Ok(match SpeechAnswer::new(&transcript, &fields, task)? {
        SpeechAnswer::Json(answer) => json::response(answer.data),
        SpeechAnswer::Text { text, content_type } => {
            ([(CONTENT_TYPE, content_type)], text).into_response()
        }
    })
}

/// Job of an upload. Dropping it cancels it, and records it in the metrics and the trace.
struct Running {
    /// Time at which the whole upload was decoded.
    received: Instant,
    queued: Instant,
    job: TranscriptionJob,
    report: AudioReport,
    metrics: Arc<Metrics>,
    trace: RequestTrace,
    /// A model in use is not unloaded.
    _model: SpeechGuard,
    /// Share of the samples in the memory of uploads.
    _memory: Charge,
}

/// A decoded file.
struct Upload {
    samples: Vec<f32>,
    charge: Charge,
    /// Time at which it was decoded.
    received: Instant,
}

impl Running {
    /// Submits an upload by `transcribe`.
    fn start(
        state: &AppState,
        trace: RequestTrace,
        upload: Upload,
        model: SpeechGuard,
        transcribe: impl FnOnce(&Whisper, Vec<f32>) -> TranscriptionJob,
    ) -> Self {
        let Upload { samples, charge, received } = upload;
        let report = AudioReport {
            model: model.spec().name.clone(),
            audio_seconds: samples.len() as f64 / f64::from(stonechat::audio::SAMPLE_RATE),
            finish: RequestEnd::Abort,
            ..AudioReport::default()
        };
        Self {
            received,
            queued: Instant::now(),
            job: transcribe(&model, samples),
            report,
            metrics: Arc::clone(state.metrics()),
            trace,
            _model: model,
            _memory: charge,
        }
    }

    /// Waits for the end.
    async fn transcript(&mut self) -> ApiResult<Transcript> {
        let result = (&mut self.job).await;
        self.end(result)
    }

    /// Sets the end in the report.
    fn end<T>(&mut self, result: Result<T, stonechat::Error>) -> ApiResult<T> {
        let result = result.map_err(ApiError::from);
        self.report.error = result.as_ref().err().cloned();
        self.report.finish = match result {
            Ok(_) => RequestEnd::Stop,
            Err(_) => RequestEnd::Error,
        };
        result
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Self { received, queued, .. } = *self;
        let (started, ended) = (self.job.started(), Instant::now());
        let work = started.map_or(Duration::ZERO, |started| ended - started);
        self.report.queue_seconds = (ended - queued - work).as_secs_f64();
        self.report.work_seconds = work.as_secs_f64();
        self.metrics.audio_finished(&self.report);
        self.trace.speech(&self.report, &SpeechTimes { received, queued, started, ended });
    }
}
