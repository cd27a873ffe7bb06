//! Objects of `/completion`.

use serde::Serialize;

use crate::generation::{Progress, Settings, Timings, TokenEntry};

/// Object of a step of a text, or of its end.
#[derive(Debug, Serialize)]
pub(crate) struct NativeObject<'a> {
    pub(super) index: usize,
    pub(super) content: &'a str,
    pub(super) tokens: Vec<u32>,
    pub(super) stop: bool,
    pub(super) id_slot: i64,
    pub(super) tokens_predicted: usize,
    pub(super) tokens_evaluated: usize,
    #[serde(flatten)]
    pub(super) end: Option<NativeEnd<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_progress: Option<Progress>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) completion_probabilities: Option<Vec<TokenEntry>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timings: Option<Timings>,
}

/// Fields of a text that has ended.
#[derive(Debug, Serialize)]
pub(super) struct NativeEnd<'a> {
    pub(super) model: &'a str,
    pub(super) generation_settings: Settings,
    pub(super) prompt: &'a str,
    pub(super) has_new_line: bool,
    pub(super) truncated: bool,
    pub(super) stop_type: &'static str,
    pub(super) stopping_word: &'a str,
    pub(super) tokens_cached: usize,
}
