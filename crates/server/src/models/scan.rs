//! Results of scans of the folder of installed models.

use std::path::PathBuf;
use std::time::SystemTime;

use stonechat::Installed;

use super::table::ModelId;

/// Result of the last scan of the folder of installed models for a path.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) stamp: Stamp,
    /// `None` for a file without a model.
    pub(super) model: Option<ModelId>,
}

/// Identity of a model's files without their contents: detects a replaced model.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    name: String,
    bytes: u64,
    modified: Vec<Option<SystemTime>>,
}

impl Stamp {
    pub(super) fn of(model: &Installed) -> Self {
        let modified = |path: &PathBuf| std::fs::metadata(path).and_then(|m| m.modified()).ok();
        let modified = model.files.iter().map(modified).collect();
        Self { name: model.name.clone(), bytes: model.bytes, modified }
    }
}
