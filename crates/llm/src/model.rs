//! A loaded model: configuration, tokenizer and chat template, and weights on its devices.

use std::ops::Deref;
use std::sync::Arc;

use stonechat_formats::ModelFile;
use stonechat_nn::{LoadStats, Program};
use web_time::Instant;

use crate::model::info::ModelInfo;
use crate::model::source::Source;
use crate::model::weights::{StageLayers, Weights};
use crate::step::stage::Stage;
use crate::{Config, Devices, Error, Placement, State, StateOptions};

pub(crate) mod arch;
pub(crate) mod config;
mod config_file;
mod gguf;
mod grammars;
pub(crate) mod hugging_face;
pub(crate) mod info;
pub(crate) mod layer;
pub(crate) mod pooling;
pub(crate) mod quantize;
pub(crate) mod rope;
pub(crate) mod source;
pub(crate) mod vocabulary;
pub(crate) mod weights;

/// Immutable language model on its devices. Clones share it. Its properties are those of [`ModelInfo`].
#[derive(Debug, Clone)]
pub struct Model {
    info: Arc<ModelInfo>,
    stages: Arc<[Stage]>,
}

impl Deref for Model {
    type Target = ModelInfo;

    fn deref(&self) -> &ModelInfo {
        &self.info
    }
}

impl Model {
    /// Loads a GGUF file or a Hugging Face folder; `progress` gets the fraction done. Each device loads only the
    /// weights of its own layers.
    ///
    /// # Errors
    /// If the architecture is unknown, a tensor is missing or misshapen, the tokenizer cannot be
    /// read, a device is out of memory, or the first stages have more layers than the model.
    pub fn load(
        devices: impl Into<Devices>,
        file: &ModelFile,
        progress: impl FnMut(f32),
    ) -> Result<Self, Error> {
        Self::with_config(devices.into(), file, Config::from_file(file)?, progress)
    }

    /// Loads the weights of a model with this configuration.
    fn with_config(
        devices: Devices,
        file: &ModelFile,
        config: Config,
        mut progress: impl FnMut(f32),
    ) -> Result<Self, Error> {
        let started = Instant::now();
        let info = Arc::new(ModelInfo::new(file, config)?);
        let config = &info.config;
        let n_layers = config.n_layers();
        let (mut done, steps) = (0.0, (n_layers + 2) as f32);
        let mut step = || {
            done += 1.0;
            progress(done / steps);
        };
        let source = Source::new(file, config);
        let stages = devices.stages(n_layers).ok_or_else(|| {
            let (expected, got) = (format!("0 to {n_layers}"), devices.n_split().to_string());
            Error::Option { option: "layers of the first devices", expected, got }
        })?;
        let last = stages.len() - 1;
        let load = |(i, (device, layers))| {
            let layers = StageLayers { layers, has_input: i == 0, has_output: i == last };
            let weights = Weights::load(&device, (file, &source), config, layers, &mut step)?;
            Ok::<_, Error>(Stage { device, weights })
        };
        let stages = stages.into_iter().enumerate().map(load).collect::<Result<_, _>>()?;
        source.check_read(config)?;
        let model = Self { info, stages };
        tracing::info!(
            name = model.summary().name,
            architecture = model.config.architecture.name,
            dtype = model.summary().dtype,
            device = model.describe(),
            bytes = model.summary().weight_bytes,
            seconds = started.elapsed().as_secs_f64(),
            "language model loaded"
        );
        Ok(model)
    }

    /// Properties of the model.
    #[must_use]
    pub fn info(&self) -> &Arc<ModelInfo> {
        &self.info
    }

    /// Names of the kernels and devices in use, for logs and benchmarks.
    #[must_use]
    pub fn describe(&self) -> String {
        let names: Vec<String> = self.stages.iter().map(|stage| stage.device.describe()).collect();
        names.join(" + ")
    }

    /// Load statistics of the weights, summed over the devices.
    #[must_use]
    pub fn load_stats(&self) -> LoadStats {
        let stats = self.stages.iter().map(|stage| stage.device.load_stats());
        stats.fold(LoadStats::default(), |sum, stats| sum + stats)
    }

    /// Layers, weight bytes and KV bytes of each device for a state of these sizes, in pipeline order.
    #[must_use]
    pub fn placements(&self, options: &StateOptions) -> Vec<Placement> {
        self.stages.iter().map(|stage| stage.placement(&self.info.config, options)).collect()
    }

    /// Allocates sequences, KV pages and buffers, and warms up the devices.
    ///
    /// # Errors
    /// If a size is out of range or a device is out of memory.
    pub fn state(&self, options: StateOptions) -> Result<State, Error> {
        State::new(&self.info, &self.stages, options)
    }

    /// Recorded program of each stage of a state, before fusion, for inspection and tests.
    ///
    /// # Errors
    /// If a size is out of range or a device is out of memory.
    pub fn programs(&self, options: StateOptions) -> Result<Vec<Program>, Error> {
        options.check()?;
        let program = |stage: &Stage| Ok(stage.program(&self.info, options)?);
        self.stages.iter().map(program).collect()
    }
}

#[cfg(test)]
mod tests;
