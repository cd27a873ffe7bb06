//! Growth of an open model: a state beside its own, such as that of live speech.

use super::super::memory::Memory;
use super::{Action, ModelId, Table, Waiter};

impl<M, W: Waiter> Table<M, W> {
    /// Adds `more` to the memory of a model with users. Returns the idle models to close for it, whose memory is free a moment
    /// later; `None` if they are too small. Nothing waits: the queue may wait for this model.
    pub(crate) fn grow(&mut self, id: ModelId, more: Memory) -> Option<Vec<Action<M>>> {
        let own = self.entries[id.0].memory.plus(self.entries[id.0].grown);
        let budget = self.budget.minus(own);
        let mut actions = Vec::new();
        loop {
            let others = self.used().minus(self.closing()).minus(own);
            let missing = more.lacking(others, budget);
            if missing.is_zero() {
                break;
            }
            let idle = self.idle().map(|id| self.entries[id.0].memory);
            let idle = idle.fold(Memory::default(), Memory::plus);
            if !more.lacking(others.minus(idle), budget).is_zero() {
                return None;
            }
            let helps = |id: &ModelId| self.entries[id.0].memory.shares(missing);
            let victim = self.idle().filter(helps).min_by_key(|id| self.entries[id.0].last_used)?;
            actions.extend(self.close(victim));
        }
        let grown = &mut self.entries[id.0].grown;
        *grown = grown.plus(more);
        Some(actions)
    }

    /// Takes back a growth.
    pub(crate) fn shrink(&mut self, id: ModelId, less: Memory) {
        let grown = &mut self.entries[id.0].grown;
        *grown = grown.minus(less);
    }
}
