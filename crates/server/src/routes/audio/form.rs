//! Multipart bodies: the file, and the fields before and after it.

use axum::body::Bytes;
use axum::extract::multipart::{Field, Multipart, MultipartError};
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap};
use stonechat_api::speech::MAX_FIELD_BYTES;

use super::upload::{self, Encoding};
use crate::audio_memory::{AudioMemory, Charge};
use crate::{ApiError, ApiResult, AppState};

/// Maximum number of fields.
const MAX_FIELDS: usize = 1000;
/// Bytes of a body beside its file.
const MAX_OTHER_BYTES: u64 = 2 << 20;

/// Field of the file, and its encoding.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileField {
    pub(super) name: &'static str,
    pub(super) encoding: Encoding,
}

/// Reads a body, then decodes its file; options may come after it. `set` gets the other fields, and tells if there is one of
/// that name. Returns the samples of the file, 16 kHz mono, and the memory that they take.
pub(super) async fn read(
    state: &AppState,
    request: Request,
    file_field: FileField,
    mut set: impl FnMut(&str, &str) -> ApiResult<bool>,
) -> ApiResult<(Vec<f32>, Charge)> {
    let (max_bytes, max_seconds) =
        (state.options().max_audio_size, state.options().max_audio_seconds);
    // A file that can never fit is refused whatever others use.
    let budget = usize::try_from(state.audio_memory().n_bytes()).unwrap_or(usize::MAX);
    let max_bytes = max_bytes.min(budget);
    let headers = request.headers();
    if content_length(headers).is_some_and(|n| n > max_bytes as u64 + MAX_OTHER_BYTES) {
        return Err(ApiError::too_large(max_bytes));
    }
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let content_type = content_type.unwrap_or("none").to_owned();
    let mut body = Multipart::from_request(request, state)
        .await
        .map_err(|_| ApiError::media_type("multipart/form-data with a boundary", &content_type))?;
    let (mut file, mut n_fields, mut n_left) = (None, 0, MAX_FIELD_BYTES);
    // A client that is still sending would not see an answer: the rest of the body is read before it.
    let mut first_error = None;
    while let Some(mut field) = body.next_field().await.map_err(|error| body_error(&error))? {
        n_fields += 1;
        if n_fields > MAX_FIELDS {
            return Err(ApiError::field("form", &format!("at most {MAX_FIELDS} fields"), "more"));
        }
        let name = field.name().unwrap_or_default().to_owned();
        if name == file_field.name {
            if file.is_some() {
                first_error.get_or_insert(ApiError::field(&name, "one file", "several"));
            }
            // A second file takes the place, and the memory, of the first one.
            drop(file.take());
            file = Some(read_file(&mut field, state.audio_memory(), max_bytes).await?);
            continue;
        }
        let text = read_text(&mut field, &name, &mut n_left).await?;
        match set(&name, &text) {
            Ok(true) => {}
            Ok(false) => tracing::debug!("unknown field `{name}` of an audio request"),
            Err(error) => {
                first_error.get_or_insert(error);
            }
        }
    }
    if let Some(error) = first_error {
        return Err(error);
    }
    let missing = || ApiError::field(file_field.name, "an audio file", "none");
    let file = file.ok_or_else(missing)?;
    upload::decode(state.audio_memory(), file, file_field, max_seconds).await
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn body_error(error: &MultipartError) -> ApiError {
    match error.status() {
        StatusCode::INTERNAL_SERVER_ERROR => ApiError::bad_request("the body ended early"),
        _ => ApiError::bad_request(format!("multipart body: {}", error.body_text())),
    }
}

async fn chunk(field: &mut Field<'_>) -> ApiResult<Option<Bytes>> {
    field.chunk().await.map_err(|error| body_error(&error))
}

/// Collects the bytes of a file, at most `max_bytes`, before they are decoded: a client that stalls holds no thread.
async fn read_file(
    field: &mut Field<'_>,
    memory: &AudioMemory,
    max_bytes: usize,
) -> ApiResult<(Vec<u8>, Charge)> {
    let (mut file, charge) = (Vec::new(), memory.charge());
    while let Some(bytes) = chunk(field).await? {
        let n_bytes = file.len() + bytes.len();
        if n_bytes > max_bytes {
            return Err(ApiError::too_large(max_bytes));
        }
        charge.try_raise(n_bytes as u64)?;
        file.extend_from_slice(&bytes);
    }
    Ok((file, charge))
}

async fn read_text(field: &mut Field<'_>, name: &str, n_left: &mut usize) -> ApiResult<String> {
    let mut bytes = Vec::new();
    while let Some(chunk) = chunk(field).await? {
        *n_left = n_left.checked_sub(chunk.len()).ok_or_else(|| {
            let expected = format!("at most {MAX_FIELD_BYTES} bytes of fields beside the file");
            ApiError::field(name, &expected, "more")
        })?;
        bytes.extend_from_slice(&chunk);
    }
    String::from_utf8(bytes).map_err(|_| ApiError::field(name, "text in UTF-8", "other bytes"))
}
