//! Files of the texts of slots.

use std::path::PathBuf;

use pollster::block_on;
use stonechat_llm::SavedText;

use crate::{Job, Llm};

impl Llm {
    /// Saves the part of a slot's last text that the prefix cache still has.
    pub fn save_slot(&self, slot: usize, path: impl Into<PathBuf>) -> Job<(), SavedText> {
        let path = path.into();
        self.control(move |scheduler| block_on(scheduler.save_slot(slot, &path)))
    }

    /// Loads a saved text into the prefix cache, as the last text of a slot.
    pub fn restore_slot(&self, slot: usize, path: impl Into<PathBuf>) -> Job<(), SavedText> {
        let path = path.into();
        self.control(move |scheduler| block_on(scheduler.restore_slot(slot, &path)))
    }
}
