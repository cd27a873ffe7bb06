//! On which devices a model's layers are: `--gpu-layers` beside `--device`.

use std::str::FromStr;

use anyhow::Result;
use stonechat::llm::{Config, Devices, Split, StateOptions, layers_that_fit};
use stonechat::nn::Backend;

use super::super::console::Console;
use super::super::device::{DeviceArgs, Work};
use super::super::megabytes;
use super::{explained, open};

/// Memory of a GPU that `--gpu-layers auto` leaves to kernels, uploads and other programs.
const SPARED_BYTES: u64 = 512 << 20;

/// Flags of every verb that runs a language model.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(super) struct DevicesArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Layers on the GPU, the last ones, where the output counts as the last of all: a number, auto (as many as fit its memory) or all; the others run on the CPU [default with a GPU: all]
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

/// What is done with a model, wherever its layers are.
pub(super) trait ModelWork: Copy {
    /// What it gives.
    type Output;

    /// Sizes of the state that it needs.
    fn state(&self, config: &Config) -> StateOptions;

    /// Does it.
    fn run<D: Devices>(self, devices: D) -> Result<Self::Output>;
}

impl DevicesArgs {
    /// Whether somebody asked where layers are.
    pub(super) fn is_split(&self) -> bool {
        self.gpu_layers.is_some()
    }

    /// Opens the devices for the model `name` and does `work` on them; `n_threads` are those of the CPU.
    pub(super) fn run<W: ModelWork>(
        self,
        n_threads: usize,
        name: &str,
        console: &Console,
        work: W,
    ) -> Result<W::Output> {
        let Self { device, gpu_layers } = self;
        match gpu_layers {
            None => device.run(n_threads, OnOne(work)),
            Some(GpuLayers::Last(0)) => device.on_cpu(n_threads, OnOne(work)),
            Some(layers) => {
                let shared = Shared { device, n_threads, name, console, layers, work };
                device.on_gpu(n_threads, shared, OnOne(work))
            }
        }
    }
}

/// Work with all layers on one device.
struct OnOne<W>(W);

impl<W: ModelWork> Work for OnOne<W> {
    type Output = W::Output;

    fn run<B: Backend>(self, backend: B) -> Result<W::Output> {
        self.0.run(backend)
    }
}

/// Work with layers on a GPU and, where those are not all, on the CPU.
struct Shared<'a, W> {
    device: DeviceArgs,
    n_threads: usize,
    name: &'a str,
    console: &'a Console,
    layers: GpuLayers,
    work: W,
}

impl<W: ModelWork> Work for Shared<'_, W> {
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

impl<W: ModelWork> Shared<'_, W> {
    /// How many of how many layers are on the GPU; the output is one of them.
    fn count<B: Backend>(&self, gpu: &B) -> Result<(usize, usize)> {
        let (path, file) = open(self.name)?;
        let config = explained(Config::from_file(&file), &path, &file)?;
        let all = config.n_layers + 1;
        let n = match (self.layers, gpu.total_memory_bytes()) {
            (GpuLayers::Last(n), _) => n.min(all),
            (GpuLayers::All, _) => all,
            (GpuLayers::Auto, Some(bytes)) => {
                let room = bytes.saturating_sub(SPARED_BYTES);
                let n = layers_that_fit(gpu, &file, &self.work.state(&config), room)?;
                let memory = megabytes(bytes);
                self.console.note(&format!(
                    "--gpu-layers auto: {n} of {all} layers fit the GPU's {memory}, the output counted as one"
                ));
                n
            }
            (GpuLayers::Auto, None) => {
                self.console.note(&format!(
                    "--gpu-layers auto: all layers, since `{}` does not say how much memory it has",
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
