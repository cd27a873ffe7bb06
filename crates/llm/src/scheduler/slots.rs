//! Slots of a scheduler: what they hold, and their texts in files.

use std::path::Path;

use stonechat_nn::{PAGE_LEN, Slot};

use crate::cache::prompt_cache::{self, Restored, SaltedText};
use crate::scheduler::task::Kind;
use crate::{Error, Scheduler};

/// A slot of a scheduler: a sequence of its state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotInfo {
    /// Number of the request that runs in it.
    pub request: Option<u64>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens in the KV cache.
    pub cached_tokens: usize,
    /// Generated tokens.
    pub generated_tokens: usize,
    /// Tokens up to the limit of the text.
    pub tokens_left: Option<usize>,
    /// Tokens of the text that it held last, if it is idle.
    pub last_tokens: usize,
}

/// Size of a text in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SavedText {
    /// Tokens.
    pub n_tokens: usize,
    /// Bytes of the file.
    pub n_bytes: usize,
}

impl Scheduler {
    /// State of each slot.
    #[must_use]
    pub fn slots(&self) -> Vec<SlotInfo> {
        let last = |(text, _): &(Vec<u32>, u64)| SlotInfo {
            last_tokens: text.len(),
            ..SlotInfo::default()
        };
        let mut slots: Vec<SlotInfo> = self.last_texts.iter().map(last).collect();
        for task in self.running.values() {
            let (Some(slot), Kind::Text(text)) = (task.slot, &task.kind) else { continue };
            slots[slot.index()] = SlotInfo {
                request: Some(task.id.number),
                prompt_tokens: task.n_input(),
                cached_tokens: text.cached().len(),
                generated_tokens: text.n_generated(),
                tokens_left: text.tokens_left(),
                last_tokens: 0,
            };
        }
        slots
    }

    /// Saves the part of a slot's last text that the prefix cache still has.
    ///
    /// # Errors
    /// If there is no such slot, it or all others are in use, or the file cannot be written.
    pub async fn save_slot(&mut self, slot: usize, path: &Path) -> Result<SavedText, Error> {
        let slot = self.idle_slot(slot)?;
        let (tokens, salt) = self.last_texts[slot.index()].clone();
        // One more token, since a lookup leaves the last one out.
        let n = self.cache.attach(&mut self.state, slot, &[&tokens[..], &[0]].concat(), salt);
        let n = n.min(tokens.len());
        let text = SaltedText { tokens: &tokens[..n], salt };
        let saved = prompt_cache::save(&self.info, &mut self.state, slot, text, path).await;
        self.state.truncate(slot, 0);
        Ok(SavedText { n_tokens: n, n_bytes: saved? })
    }

    /// Loads a saved text into the prefix cache, under the salt that it was saved with, as the last text of a slot.
    ///
    /// # Errors
    /// As [`save_slot`](Self::save_slot); also if the file was saved with another model, or needs more pages than are free.
    pub async fn restore_slot(&mut self, slot: usize, path: &Path) -> Result<SavedText, Error> {
        let slot = self.idle_slot(slot)?;
        self.state.truncate(slot, 0);
        let n_pages = self.state.options().n_ctx.div_ceil(PAGE_LEN).min(self.state.n_pages());
        // As many as a text may have; those that are in use stay.
        self.cache.evict(&mut self.state, n_pages).await?;
        let restored = prompt_cache::restore(&self.info, &mut self.state, slot, path);
        let Restored { tokens, salt, n_bytes } = restored?;
        self.cache.insert_ended(&mut self.state, slot, &tokens, salt);
        self.state.truncate(slot, 0);
        let n_tokens = tokens.len();
        self.last_texts[slot.index()] = (tokens, salt);
        Ok(SavedText { n_tokens, n_bytes })
    }

    /// Removes the last text of a slot from the prefix cache, up to the pages that other texts share; returns its length.
    ///
    /// # Errors
    /// If there is no such slot or it is in use.
    pub fn erase_slot(&mut self, slot: usize) -> Result<usize, Error> {
        let slot = self.idle_slot(slot)?;
        let (tokens, salt) = std::mem::take(&mut self.last_texts[slot.index()]);
        self.cache.remove_text(&mut self.state, &tokens, salt);
        Ok(tokens.len())
    }

    /// A slot without a request.
    fn idle_slot(&self, slot: usize) -> Result<Slot, Error> {
        let n = self.state.options().n_sequences;
        let option = "slot";
        if slot >= n {
            let (expected, got) = (format!("0 to {}", n - 1), slot.to_string());
            return Err(Error::Option { option, expected, got });
        }
        let slot = Slot::new(slot);
        if self.free_slots.contains(&slot) {
            return Ok(slot);
        }
        let (expected, got) = ("an idle one".to_owned(), "one with a request".to_owned());
        Err(Error::Option { option, expected, got })
    }
}
