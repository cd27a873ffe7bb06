//! `/asr` and `/detect-language` of whisper-asr-webservice, for Bazarr and other media programs.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use stonechat::whisper::{Event, Language, Options};
use stonechat::{CancelToken, Recording, VadMode, Whisper};
use stonechat_api::speech::{AsrParameters, DetectedLanguage};

use super::form::{self, FileField};
use super::upload::Encoding;
use super::{Running, Upload};
use crate::otlp::RequestTrace;
use crate::routes::Query;
use crate::tasks::within;
use crate::{ApiError, ApiResult, AppState, HandlerResult, Json};

/// Header of the engine's name, which clients show.
static ASR_ENGINE: HeaderName = HeaderName::from_static("asr-engine");
/// Samples that the language is detected in: a window.
const DETECTION_SAMPLES: usize = stonechat::whisper::WINDOW_SAMPLES;

pub(crate) fn router() -> Router<AppState> {
    Router::new().route("/asr", post(asr)).route("/detect-language", post(detect_language))
}

/// Parameters of the query, in order.
type Parameters = Query<Vec<(String, String)>>;

/// Parameters of `/asr`, for the document.
#[cfg(test)]
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "a part of the document")]
struct AsrQuery {
    /// `transcribe` (default) or `translate`
    task: Option<String>,
    /// Spoken language: code or English name; detected by default
    language: Option<String>,
    /// `txt` (default), `vtt`, `srt`, `tsv` or `json`
    output: Option<String>,
    /// Whether the file has a container (default); otherwise it is raw 16-bit little-endian PCM, 16 kHz, mono
    encode: Option<bool>,
    /// Whether the times of words are found
    word_timestamps: Option<bool>,
    /// Whether silence is cut out
    vad_filter: Option<bool>,
    /// Text before the recording, for its style and spelling
    initial_prompt: Option<String>,
    /// Name of the model; not needed if there is only one
    model: Option<String>,
}

/// Form of both routes, for the document.
#[cfg(test)]
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "a part of the document")]
pub(crate) struct AsrForm {
    /// Audio or video file, or raw PCM with `encode=false`
    #[schema(value_type = String, format = Binary)]
    audio_file: (),
}

/// Transcript of a recording, as whisper-asr-webservice
#[cfg_attr(test, utoipa::path(post, path = "/asr", tag = "audio", params(AsrQuery),
    request_body(content = AsrForm, content_type = "multipart/form-data"),
    responses(
        (status = 200, description = "Text, subtitles or JSON", body = String, content_type = "text/plain"),
        (status = 400, description = "A parameter is invalid, or the file is no audio"),
        (status = 413, description = "The file has too many bytes, or is too long"),
    ),
))]
pub(crate) async fn asr(
    State(state): State<AppState>,
    Query(query): Parameters,
    trace: RequestTrace,
    request: Request,
) -> HandlerResult<Response> {
    let parameters = parameters(query)?;
    let options = parameters.options()?;
    state.check_ready()?;
    let deadline = state.options().deadline();
    let upload = within(deadline, read(&state, request, &parameters)).await??;
    let model = state.open::<Whisper>(parameters.model(), deadline).await?;
    let mut running = Running::start(&state, trace, upload, model, |model, samples| {
        model.transcribe(Recording::samples(samples).options(options))
    });
    let transcript = within(deadline, running.transcript()).await??;
    let disposition = format!("attachment; filename=\"transcript.{}\"", parameters.extension());
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8")),
        (ASR_ENGINE.clone(), HeaderValue::from_static("stonechat")),
        (
            CONTENT_DISPOSITION,
            HeaderValue::from_str(&disposition).unwrap_or(HeaderValue::from_static("attachment")),
        ),
    ];
    Ok((headers, parameters.write(&transcript)?).into_response())
}

/// Language of the first 30 seconds of a recording, as whisper-asr-webservice
#[cfg_attr(test, utoipa::path(post, path = "/detect-language", tag = "audio",
    params(
        ("encode" = Option<bool>, Query, description = "Whether the file has a container (default), or is raw PCM"),
        ("model" = Option<String>, Query, description = "Name of the model; not needed if there is only one"),
    ),
    request_body(content = AsrForm, content_type = "multipart/form-data"),
    responses(
        (status = 200, body = DetectedLanguage),
        (status = 400, description = "A parameter is invalid, or the file is no audio"),
        (status = 501, description = "The model is English-only"),
    ),
))]
pub(crate) async fn detect_language(
    State(state): State<AppState>,
    Query(query): Parameters,
    trace: RequestTrace,
    request: Request,
) -> HandlerResult<Json<DetectedLanguage>> {
    let parameters = parameters(query)?;
    state.check_ready()?;
    let deadline = state.options().deadline();
    let mut upload = within(deadline, read(&state, request, &parameters)).await??;
    let model = state.open::<Whisper>(parameters.model(), deadline).await?;
    if !model.info().is_multilingual {
        let message = "the model is English-only: it detects no languages";
        return Err(ApiError::not_supported(message).into());
    }
    upload.samples.truncate(DETECTION_SAMPLES);
    let detected = Arc::new(Mutex::new(None));
    let (found, cancel) = (Arc::clone(&detected), CancelToken::new());
    let stop = cancel.clone();
    // The text is not needed: the detection cancels it.
    let on_event = move |event: Event| {
        if let Event::Language(language, probability) = event {
            *lock(&found) = Some((language, probability));
            stop.cancel();
        }
    };
    let mut running = Running::start(&state, trace, upload, model, |model, samples| {
        let options = Options { vad: VadMode::Off, ..Options::default() };
        let recording = Recording::samples(samples).options(options).cancelled_by(&cancel);
        model.transcribe_with(recording, on_event)
    });
    within(deadline, running.transcript()).await??;
    let found = lock(&detected).take();
    let (language, probability) =
        found.ok_or_else(|| ApiError::server("no language was detected"))?;
    Ok(Json(DetectedLanguage::new(language, probability)))
}

type Detected = Mutex<Option<(Language, f32)>>;

fn lock(detected: &Detected) -> std::sync::MutexGuard<'_, Option<(Language, f32)>> {
    detected.lock().unwrap_or_else(PoisonError::into_inner)
}

fn parameters(query: Vec<(String, String)>) -> ApiResult<AsrParameters> {
    let mut parameters = AsrParameters::default();
    for (name, text) in query {
        set(&mut parameters, &name, &text)?;
    }
    Ok(parameters)
}

fn set(parameters: &mut AsrParameters, name: &str, text: &str) -> ApiResult<()> {
    if !parameters.set(name, text)? {
        tracing::debug!("unknown parameter `{name}` of an audio request");
    }
    Ok(())
}

/// Reads the file of a form. All parameters are in the query: one in the form is refused, other fields have no effect.
async fn read(state: &AppState, request: Request, parameters: &AsrParameters) -> ApiResult<Upload> {
    let encoding = if parameters.is_raw() { Encoding::Raw } else { Encoding::Container };
    let field = FileField { name: "audio_file", encoding };
    let refuse = |name: &str, text: &str| {
        let is_parameter = !text.is_empty() && AsrParameters::default().set(name, text)?;
        let error = || ApiError::field(name, "a parameter of the query", "a field of the form");
        if is_parameter { Err(error()) } else { Ok(false) }
    };
    let (samples, charge) = form::read(state, request, field, refuse).await?;
    Ok(Upload { samples, charge, received: Instant::now() })
}
