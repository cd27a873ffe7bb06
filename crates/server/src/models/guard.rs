//! Models in use.

use std::ops::Deref;
use std::sync::Arc;

use stonechat::{Llm, Whisper};

use super::loader::EngineLoader;
use super::registry::Lease;
use super::spec::ModelSpec;

/// An open model `M` in use, which is not unloaded meanwhile.
#[derive(Debug)]
pub struct ModelGuard<M> {
    pub(super) model: M,
    pub(super) lease: Lease<EngineLoader>,
}

/// A language model in use.
pub type LanguageGuard = ModelGuard<Llm>;
/// A speech model in use.
pub type SpeechGuard = ModelGuard<Whisper>;

impl<M> ModelGuard<M> {
    /// Name and sizes.
    #[must_use]
    pub fn spec(&self) -> Arc<ModelSpec> {
        self.lease.spec()
    }

    /// Name in the answer to a request: the requested one, if the model has it.
    pub(crate) fn name_for(&self, requested: Option<&str>) -> String {
        let spec = self.spec();
        requested.filter(|name| spec.has_name(name)).unwrap_or(spec.id()).to_owned()
    }
}

impl<M> Deref for ModelGuard<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.model
    }
}
