//! Placement of layers: `--gpu-layers`.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use stonechat::GpuLayers;
use stonechat::device::{DeviceNeeds, OpenDevice};
use stonechat::formats::ModelFile;
use stonechat::llm::{Config, StateOptions};

use super::super::console::Console;
use super::super::device::DeviceArgs;
use super::super::format_bytes;
use super::super::headings::DEVICE;
use super::{Loaded, with_path};

/// Flags about devices.
#[derive(Debug, Clone, Copy, clap::Args)]
#[command(next_help_heading = DEVICE)]
pub(super) struct DevicesArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Layers to store in VRAM: N, auto or all
    ///
    /// By default all are on a GPU that is named, and as many as fit on one that --device auto chooses.
    /// The last N layers run on the GPU, the others on the CPU; the output counts as the last one.
    /// auto stores as many as fit the free memory of the GPU, which CUDA reports; Vulkan reports only the total.
    #[arg(long, visible_alias = "n-gpu-layers", value_name = "N", allow_hyphen_values = true)]
    gpu_layers: Option<GpuLayers>,
}

impl DevicesArgs {
    /// Tells if `--gpu-layers` is given.
    pub(super) fn is_split(&self) -> bool {
        self.gpu_layers.is_some()
    }

    /// Opens the devices for the model at `path`, the CPU with `n_threads` threads, and loads the model. `state` gives the
    /// sizes of the state.
    pub(super) fn load(
        self,
        path: &Path,
        n_threads: usize,
        (console, verbose): (&Console, bool),
        state: impl FnOnce(&Config) -> StateOptions,
    ) -> Result<Loaded> {
        let start = Instant::now();
        let file = &ModelFile::open(path)?;
        let needs = DeviceNeeds::layers(file.weight_bytes(), self.gpu_layers);
        let mut devices = self.device.open(needs, n_threads, console, verbose)?;
        let config = with_path(Config::from_file(file), path, file)?;
        let n_gpu = self.count(&devices.device, file, (&config, &state(&config)), console)?;
        let open_cpu = || self.device.cpu(n_threads);
        let loaded = console.stage("loading", |on_progress| {
            devices.device.load_language_model(file, n_gpu, open_cpu, on_progress)
        });
        let model = with_path(loaded, path, file)?;
        Ok(Loaded { model, time: start.elapsed(), _devices: devices })
    }

    /// Number of layers on the GPU, with the output as one.
    fn count(
        self,
        device: &OpenDevice,
        file: &ModelFile,
        (config, state): (&Config, &StateOptions),
        console: &Console,
    ) -> Result<usize> {
        let layers = self.gpu_layers.unwrap_or(GpuLayers::default_on(self.device.device()));
        let n = device.n_gpu_layers(layers, file, config, state, 0)?;
        let all = GpuLayers::total(config);
        if let Some((name, memory)) = device.gpu_memory()
            && layers == GpuLayers::Auto
            && (self.gpu_layers.is_some() || n < all)
        {
            console.note(&match memory.map(format_bytes) {
                Some(memory) => format!(
                    "--gpu-layers auto: {n} of {all} layers fit in {memory} of GPU memory, the output counted as one"
                ),
                None => format!(
                    "--gpu-layers auto: all layers, since `{name}` does not report its memory size"
                ),
            });
        }
        Ok(n)
    }
}
