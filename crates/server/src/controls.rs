//! Controls of running answers by their identifiers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stonechat::llm::ReasoningControl;

/// Controls of the running answers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Controls(Arc<Mutex<HashMap<String, ReasoningControl>>>);

/// Entry of a running answer. Dropping it removes the entry.
#[derive(Debug)]
pub(crate) struct ControlEntry {
    controls: Controls,
    id: String,
}

impl Controls {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, ReasoningControl>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the control of an answer that runs until the entry is dropped.
    pub(crate) fn add(&self, id: String, control: ReasoningControl) -> ControlEntry {
        self.lock().insert(id.clone(), control);
        ControlEntry { controls: self.clone(), id }
    }

    /// Ends the reasoning of an answer; returns whether it is running.
    pub(crate) fn end_reasoning(&self, id: &str) -> bool {
        self.lock().get(id).map(ReasoningControl::end).is_some()
    }
}

impl Drop for ControlEntry {
    fn drop(&mut self) {
        self.controls.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use stonechat::llm::ReasoningControl;

    use super::Controls;

    #[test]
    fn an_answer_is_controlled_while_it_runs() {
        let (controls, control) = (Controls::default(), ReasoningControl::default());
        let entry = controls.add("chatcmpl-1".to_owned(), control.clone());
        assert!(!controls.end_reasoning("chatcmpl-2") && !control.is_ended());
        assert!(controls.end_reasoning("chatcmpl-1") && control.is_ended());
        drop(entry);
        assert!(!controls.end_reasoning("chatcmpl-1"));
    }
}
