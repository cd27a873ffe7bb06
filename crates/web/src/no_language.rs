//! Language models in a binary for speech alone: refused.

use stonechat::formats::ModelFile;
use stonechat_api::{ApiError, ApiResult};

use crate::model::{OpenModel, Opening};

/// Refuses a language model.
///
/// # Errors
/// Always.
pub(crate) async fn open(_file: ModelFile, _opening: Opening) -> ApiResult<Box<dyn OpenModel>> {
    Err(ApiError::bad_request("expected a speech model: this binary has no language models"))
}
