//! Placement of layers: `--gpu-layers`.

use std::path::Path;
use std::str::FromStr;

use anyhow::Result;
use stonechat::formats::ModelFile;
use stonechat::llm::{Config, Devices, Split, StateOptions, layers_that_fit};
use stonechat::nn::Backend;

use super::super::console::Console;
use super::super::device::{DeviceArgs, Work};
use super::super::format_bytes;
use super::super::headings::DEVICE;
use super::with_path;

/// GPU memory that `--gpu-layers auto` reserves for kernels, uploads and other programs.
const RESERVED_BYTES: u64 = 512 << 20;

/// Flags about devices.
#[derive(Debug, Clone, Copy, clap::Args)]
#[command(next_help_heading = DEVICE)]
pub(super) struct DevicesArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Layers to store in VRAM: N, auto or all
    ///
    /// By default all are on the GPU of --device, if it is one.
    /// The last N layers run on the GPU, the others on the CPU; the output counts as the last one.
    /// auto stores as many as fit the GPU's memory, whose size only Vulkan reports.
    #[arg(long, visible_alias = "n-gpu-layers", value_name = "N", allow_hyphen_values = true)]
    gpu_layers: Option<GpuLayers>,
}

/// Values of `--gpu-layers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GpuLayers {
    Auto,
    All,
    Last(usize),
}

impl FromStr for GpuLayers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "all" => Ok(Self::All),
            _ => text
                .parse()
                .map(Self::Last)
                .map_err(|_| format!("expected a number of layers, auto or all, got `{text}`")),
        }
    }
}

/// Work that is generic over the devices.
pub(super) trait ModelWork: Copy {
    type Output;

    /// Sizes of the state.
    fn state(&self, config: &Config) -> StateOptions;

    fn run<D: Devices>(self, devices: D) -> Result<Self::Output>;
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
        work: W,
    ) -> Result<W::Output> {
        let Self { device, gpu_layers } = self;
        match gpu_layers {
            None => device.run(n_threads, SingleDevice(work)),
            Some(GpuLayers::Last(0)) => device.on_cpu(n_threads, SingleDevice(work)),
            Some(layers) => {
                let offload = Offload { device, n_threads, path, console, layers, work };
                device.on_gpu(n_threads, offload, SingleDevice(work))
            }
        }
    }
}

/// Work with all layers on one device.
struct SingleDevice<W>(W);

impl<W: ModelWork> Work for SingleDevice<W> {
    type Output = W::Output;

    fn run<B: Backend>(self, backend: B) -> Result<W::Output> {
        self.0.run(backend)
    }
}

/// Work with layers on a GPU and on the CPU.
struct Offload<'a, W> {
    device: DeviceArgs,
    n_threads: usize,
    path: &'a Path,
    console: &'a Console,
    layers: GpuLayers,
    work: W,
}

impl<W: ModelWork> Work for Offload<'_, W> {
    type Output = W::Output;

    fn run<B: Backend>(self, gpu: B) -> Result<W::Output> {
        let (n_gpu, all) = self.count(&gpu)?;
        let Self { device, n_threads, work, .. } = self;
        if n_gpu == all {
            return work.run(gpu);
        }
        device.with_cpu(n_threads, |cpu| match n_gpu {
            0 => work.run(cpu),
            n => work.run(Split::new(cpu, gpu, all - n)),
        })
    }
}

impl<W: ModelWork> Offload<'_, W> {
    /// Number of layers on the GPU and in total, with the output as one.
    fn count<B: Backend>(&self, gpu: &B) -> Result<(usize, usize)> {
        let file = ModelFile::open(self.path)?;
        let config = with_path(Config::from_file(&file), self.path, &file)?;
        let all = config.n_layers + 1;
        let n = match (self.layers, gpu.total_memory_bytes()) {
            (GpuLayers::Last(n), _) => n.min(all),
            (GpuLayers::All, _) => all,
            (GpuLayers::Auto, Some(bytes)) => {
                let available = bytes.saturating_sub(RESERVED_BYTES);
                let n = layers_that_fit(gpu, &file, &self.work.state(&config), available)?;
                let memory = format_bytes(bytes);
                self.console.note(&format!(
                    "--gpu-layers auto: {n} of {all} layers fit in {memory} of GPU memory, the output counted as one"
                ));
                n
            }
            (GpuLayers::Auto, None) => {
                self.console.note(&format!(
                    "--gpu-layers auto: all layers, since `{}` does not report its memory size",
                    gpu.describe()
                ));
                all
            }
        };
        Ok((n, all))
    }
}

#[cfg(test)]
mod tests {
    use super::GpuLayers;

    #[test]
    fn layers_are_counted_or_named() {
        assert_eq!("0".parse(), Ok(GpuLayers::Last(0)));
        assert_eq!("20".parse(), Ok(GpuLayers::Last(20)));
        assert_eq!("auto".parse(), Ok(GpuLayers::Auto));
        assert_eq!("all".parse(), Ok(GpuLayers::All));
        for wrong in ["", "-1", "most", "2.5", "99999999999999999999999"] {
            let error = wrong.parse::<GpuLayers>().unwrap_err();
            assert_eq!(error, format!("expected a number of layers, auto or all, got `{wrong}`"));
        }
    }
}
