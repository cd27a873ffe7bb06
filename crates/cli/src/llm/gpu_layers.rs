//! Placement of layers: `--gpu-layers`.

use std::path::Path;

use anyhow::Result;
use stonechat::llm::{Config, Devices, Split, StateOptions};
use stonechat::nn::{Backend, Cpu};
use stonechat::{ChosenDevice, DeviceNeeds, GpuLayers};

use super::super::console::Console;
use super::super::device::{DeviceArgs, Work};
use super::super::format_bytes;
use super::super::headings::DEVICE;
use super::{OpenFile, with_path};

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
    /// auto stores as many as fit the GPU's memory, whose size only Vulkan reports.
    #[arg(long, visible_alias = "n-gpu-layers", value_name = "N", allow_hyphen_values = true)]
    gpu_layers: Option<GpuLayers>,
}

/// Work that is generic over the devices.
pub(super) trait ModelWork: Copy {
    type Output;

    /// Sizes of the state.
    fn state(&self, config: &Config) -> StateOptions;

    /// Runs with the model in `file` on `devices`.
    fn run<D: Devices>(self, devices: D, file: OpenFile<'_>) -> Result<Self::Output>;
}

impl DevicesArgs {
    /// Tells if `--gpu-layers` is given.
    pub(super) fn is_split(&self) -> bool {
        self.gpu_layers.is_some()
    }

    /// Opens the devices for the model at `path`, the CPU with `n_threads` threads, and runs `work` on them.
    pub(super) fn run<W: ModelWork>(
        self,
        n_threads: usize,
        path: &Path,
        console: &Console,
        verbose: bool,
        work: W,
    ) -> Result<W::Output> {
        let Self { device, gpu_layers } = self;
        let file = OpenFile::open(path)?;
        let chosen = match gpu_layers {
            None => {
                let weight_bytes = file.file.weight_bytes();
                Some(device.choose(DeviceNeeds { weight_bytes, can_split: true }, verbose)?)
            }
            Some(GpuLayers::Last(0)) => None,
            Some(_) => match device.choose_gpu(verbose)? {
                Ok(gpu) => Some(gpu),
                Err(error) => {
                    console.note(&format!("all layers are on the CPU: {error:#}"));
                    None
                }
            },
        };
        match chosen {
            None | Some(ChosenDevice::Cpu(_)) => {
                device.on_cpu(n_threads, SingleDevice { file, work })
            }
            Some(gpu) => {
                let offload = Offload { device, n_threads, file, console, gpu_layers, work };
                device.run_on(gpu, n_threads, offload)
            }
        }
    }
}

/// Work with all layers on one device.
struct SingleDevice<'a, W> {
    file: OpenFile<'a>,
    work: W,
}

impl<W: ModelWork> Work for SingleDevice<'_, W> {
    type Output = W::Output;

    fn run<B: Backend>(self, backend: B) -> Result<W::Output> {
        self.work.run(backend, self.file)
    }
}

/// Work with layers on a GPU and on the CPU.
struct Offload<'a, W> {
    device: DeviceArgs,
    n_threads: usize,
    file: OpenFile<'a>,
    console: &'a Console,
    gpu_layers: Option<GpuLayers>,
    work: W,
}

impl<W: ModelWork> Work for Offload<'_, W> {
    type Output = W::Output;

    fn run<B: Backend>(self, gpu: B) -> Result<W::Output> {
        let (n_gpu, all) = self.count(&gpu)?;
        let Self { device, n_threads, file, work, .. } = self;
        if n_gpu == all {
            return work.run(gpu, file);
        }
        device.with_cpu(n_threads, |cpu| match n_gpu {
            0 => work.run(cpu, file),
            n => work.run(Split::new(cpu, gpu, all - n), file),
        })
    }

    fn run_on_cpu(self, cpu: Cpu) -> Result<W::Output> {
        self.work.run(cpu, self.file)
    }
}

impl<W: ModelWork> Offload<'_, W> {
    /// Number of layers on the GPU and in total, with the output as one.
    fn count<B: Backend>(&self, gpu: &B) -> Result<(usize, usize)> {
        let OpenFile { path, file, .. } = &self.file;
        let config = with_path(Config::from_file(file), path, file)?;
        let layers = self.gpu_layers.unwrap_or(GpuLayers::default_on(self.device.device()));
        let n = layers.count(gpu, file, &config, &self.work.state(&config))?;
        let all = GpuLayers::total(&config);
        if layers == GpuLayers::Auto && (self.gpu_layers.is_some() || n < all) {
            self.console.note(&match gpu.total_memory_bytes().map(format_bytes) {
                Some(memory) => format!(
                    "--gpu-layers auto: {n} of {all} layers fit in {memory} of GPU memory, the output counted as one"
                ),
                None => format!(
                    "--gpu-layers auto: all layers, since `{}` does not report its memory size",
                    gpu.describe()
                ),
            });
        }
        Ok((n, all))
    }
}
