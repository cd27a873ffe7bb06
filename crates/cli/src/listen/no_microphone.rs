//! A build without microphones.

use std::sync::mpsc::SyncSender;

use super::input::News;

/// What this build has none of.
#[derive(Debug)]
pub(super) enum Microphone {}

impl Microphone {
    pub(super) fn open(_: Option<&str>, _: SyncSender<News>) -> anyhow::Result<Self> {
        anyhow::bail!(
            "this build has no microphone (feature `microphone`): pipe raw sound in, for example `arecord -f S16_LE -r 16000 | stonechat listen -`"
        )
    }

    pub(super) fn name(&self) -> &str {
        match *self {}
    }
}
