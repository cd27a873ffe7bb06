//! Stub of a build without the feature `microphone`.

use std::sync::mpsc::SyncSender;

use super::pcm::Message;

/// Never constructed.
#[derive(Debug)]
pub(super) enum Microphone {}

impl Microphone {
    pub(super) fn open(_: Option<&str>, _: SyncSender<Message>) -> anyhow::Result<Self> {
        anyhow::bail!(
            "this build has no microphone (feature `microphone`): pipe raw PCM in, for example `arecord -f S16_LE -r 16000 | stonechat listen -`"
        )
    }

    pub(super) fn name(&self) -> &str {
        match *self {}
    }
}
