//! Embeddings of several texts.

use std::collections::BTreeMap;

use crate::{
    Embedding, Error, Model, Pooling, RequestEvent, Scheduler, SchedulerOptions, StateOptions,
};

/// Maximum tokens per step.
const N_BATCH: usize = 512;
/// Maximum texts per step.
const MAX_TEXTS: usize = 16;

impl Model {
    /// Embeds token sequences: one [`Embedding`] per sequence, several per step. The vectors are not normalized; see
    /// [`normalize`](crate::normalize).
    ///
    /// # Errors
    /// If a text is empty, has an unknown token or is longer than the context of the model, or a device fails.
    pub async fn embed(
        &self,
        texts: &[Vec<u32>],
        pooling: Pooling,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let new = |tokens: &Vec<u32>| Embedding::new(tokens.clone(), pooling);
        let embeddings: Vec<Embedding> = texts.iter().map(new).collect::<Result<_, _>>()?;
        let Some(n_max) = texts.iter().map(Vec::len).max() else { return Ok(Vec::new()) };
        let n_ctx = self.config().n_ctx_train;
        if n_max > n_ctx {
            return Err(Error::ContextFull { tokens: n_max, n_ctx });
        }
        let n_batch = N_BATCH.min(texts.iter().map(Vec::len).sum());
        let state = StateOptions {
            n_sequences: texts.len().min(MAX_TEXTS),
            n_batch,
            n_hidden: n_batch,
            ..StateOptions::new(n_max)
        };
        let mut scheduler = Scheduler::new(self, SchedulerOptions::new(state))?;
        for embedding in embeddings {
            scheduler.add_task(embedding.into())?;
        }
        // Requests are in the order of the texts.
        let mut vectors = BTreeMap::new();
        while !scheduler.is_idle() {
            let mut on_event = |id, event| {
                if let RequestEvent::Embedded(vector) = event {
                    vectors.insert(id, vector);
                }
            };
            scheduler.step(&mut on_event).await?;
        }
        Ok(vectors.into_values().collect())
    }
}
