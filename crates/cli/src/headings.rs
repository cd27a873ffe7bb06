//! Headings that group the flags in help texts.
//!
//! clap's `next_help_heading` of a flattened struct also holds for the fields after it, so that these need a heading
//! of their own.

/// No heading: clap's list "Options".
pub(super) const OPTIONS: Option<&str> = None;
pub(super) const INPUT: &str = "Input";
pub(super) const OUTPUT: &str = "Output";
pub(super) const STREAMING: &str = "Streaming";
pub(super) const DECODING: &str = "Decoding";
pub(super) const VOICE_ACTIVITY: &str = "Voice activity";
pub(super) const SUBTITLES: &str = "Word timestamps and subtitles";
pub(super) const TESTS: &str = "Tests";
pub(super) const CONTEXT: &str = "Context";
pub(super) const GUIDANCE: &str = "Guidance and beam search";
pub(super) const SPECULATION: &str = "Speculative decoding";
pub(super) const SAMPLING: &str = "Sampling";
pub(super) const GRAMMAR: &str = "Grammar";
pub(super) const DEVICE: &str = "Device";
