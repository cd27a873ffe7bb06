//! Drafts of speculative decoding: n-grams, or a smaller model on the device of its target.

use std::path::{Path, PathBuf};

use stonechat_formats::ModelFile;
use stonechat_llm::{
    Config, DraftLength, Drafter, Model, ModelDrafter, NGramMod, NGramSimple, StateOptions,
};

use crate::device::OpenDevice;
use crate::engine::CommonOptions;
use crate::{Error, GpuLayers, Models};

/// Source of drafts for speculative decoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DraftSource {
    /// Repetitions in the context.
    NGramSimple(NGramSimple),
    /// Hashed n-grams of all contexts so far.
    NGramMod {
        /// Tokens of an n-gram.
        n: usize,
        /// Length of drafts.
        length: DraftLength,
    },
    /// A smaller model of the same vocabulary.
    Model {
        /// Path or installed name.
        path: PathBuf,
        /// Length of drafts.
        length: DraftLength,
    },
}

impl DraftSource {
    /// Length of drafts.
    #[must_use]
    pub fn length(&self) -> DraftLength {
        match self {
            Self::NGramSimple(NGramSimple { length, .. })
            | Self::NGramMod { length, .. }
            | Self::Model { length, .. } => *length,
        }
    }

    /// Path and length of a draft model.
    #[must_use]
    pub fn model(&self) -> Option<(&Path, DraftLength)> {
        match self {
            Self::Model { path, length } => Some((path, *length)),
            _ => None,
        }
    }

    /// A drafter of n-grams.
    #[must_use]
    pub fn n_grams(&self) -> Option<Drafter> {
        match *self {
            Self::NGramSimple(simple) => Some(Drafter::NGramSimple(simple)),
            Self::NGramMod { n, length } => Some(Drafter::NGramMod(NGramMod::new(n, length))),
            Self::Model { .. } => None,
        }
    }
}

/// A draft model that is not loaded yet.
pub(crate) struct DraftModel {
    path: PathBuf,
    file: ModelFile,
    length: DraftLength,
    state: StateOptions,
    n_gpu: usize,
    /// Bytes of GPU memory.
    pub(crate) gpu_bytes: u64,
}

impl DraftModel {
    /// Opens a draft model; `target`: sizes of the state of the model that it drafts for.
    pub(crate) fn open(
        (path, length): (&Path, DraftLength),
        target: StateOptions,
        device: &OpenDevice,
        layers: GpuLayers,
    ) -> Result<Self, Error> {
        let path = Models::from_env().find_path(path)?;
        let file = ModelFile::open(&path)?;
        let config =
            Config::from_file(&file).map_err(|error| Error::from(error).of_model(&path))?;
        let state = ModelDrafter::state_options(target, &config);
        let n_gpu = device.n_gpu_layers(layers, &file, &config, &state, 0)?;
        let bytes = file.weight_bytes() + state.kv_bytes(&config);
        let gpu_bytes = if n_gpu > 0 { bytes } else { 0 };
        Ok(Self { path, file, length, state, n_gpu, gpu_bytes })
    }

    /// Loads it on the devices of the target.
    pub(crate) fn load(
        self,
        target: &Model,
        device: &mut OpenDevice,
        engine: &CommonOptions,
    ) -> Result<Drafter, Error> {
        let Self { path, file, length, state, n_gpu, .. } = self;
        // The CPU of the target has the threads.
        let cpu = device.cpu.clone();
        let open_cpu = || cpu.map_or_else(|| engine.open_cpu(), Ok);
        let model = device.load_language_model(&file, n_gpu, open_cpu, |_| ());
        let drafter = model.and_then(|model| {
            Ok(Drafter::Model(Box::new(ModelDrafter::new(model, target, length, state)?)))
        });
        drafter.map_err(|error| error.of_model(&path))
    }
}
