//! Absence of downloads: the feature `pull` is off.

use stonechat::Models;
use tokio::sync::mpsc;

use crate::{ApiError, ApiResult};

/// Step of a download; there is none.
#[derive(Debug)]
#[expect(dead_code, reason = "the fields are those of the module with downloads")]
pub(crate) enum PullStep {
    /// Bytes of a file.
    Progress { file: String, done: u64, total: u64 },
    /// The end.
    End(ApiResult<()>),
}

/// Refuses a download.
///
/// # Errors
/// 501.
pub(crate) fn start(_: Models, _: String) -> ApiResult<mpsc::Receiver<PullStep>> {
    Err(ApiError::not_supported("this build downloads no models: its feature `pull` is off"))
}
