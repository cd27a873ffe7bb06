//! `--device`, and `stonechat devices`.

use std::str::FromStr;

use anyhow::bail;
use stonechat::nn::{Backend, Cpu};

use super::console::Console;
use super::headings::DEVICE;
use super::load::LoadArgs;

/// Flags about the device.
#[derive(Debug, Clone, Copy, clap::Args)]
#[command(next_help_heading = DEVICE)]
pub(super) struct DeviceArgs {
    /// Device to run on: cpu, wgpu, wgpu:N or auto [default: cpu]
    ///
    /// wgpu is the best GPU, wgpu:N the GPU N of `stonechat devices`, auto a GPU if there is one.
    #[arg(long, value_name = "DEVICE")]
    device: Option<Device>,
    /// Print the time of each op (CPU) or kernel (GPU)
    ///
    /// A GPU runs slower while it is measured.
    #[arg(long)]
    kernel_times: bool,
    #[command(flatten)]
    load: LoadArgs,
}

/// Values of `--device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Device {
    Auto,
    Cpu,
    Wgpu(Option<usize>),
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("expected auto, cpu, wgpu or wgpu:N, got `{text}`");
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "wgpu" => Ok(Self::Wgpu(None)),
            _ => {
                let index = text.strip_prefix("wgpu:").ok_or_else(wrong)?;
                index.parse().map(|index| Self::Wgpu(Some(index))).map_err(|_| wrong())
            }
        }
    }
}

/// Work that is generic over the backend.
pub(super) trait Work {
    type Output;

    fn run<B: Backend>(self, backend: B) -> anyhow::Result<Self::Output>;
}

impl DeviceArgs {
    /// Opens the device, the CPU with `n_threads` threads, and runs `work` on it.
    pub(super) fn run<W: Work>(self, n_threads: usize, work: W) -> anyhow::Result<W::Output> {
        match self.device {
            None | Some(Device::Cpu) => self.on_cpu(n_threads, work),
            Some(Device::Auto) => gpu::auto(self, n_threads, work),
            Some(Device::Wgpu(index)) => gpu::run(self.kernel_times, index, work),
        }
    }

    /// Runs `work` on the CPU.
    pub(super) fn on_cpu<W: Work>(self, n_threads: usize, work: W) -> anyhow::Result<W::Output> {
        self.with_cpu(n_threads, |cpu| work.run(cpu))
    }

    /// Runs `work` on the GPU of `--device`, by default the best one. With `auto` and no GPU: `fallback` on the CPU.
    pub(super) fn on_gpu<W: Work>(
        self,
        n_threads: usize,
        work: W,
        fallback: impl Work<Output = W::Output>,
    ) -> anyhow::Result<W::Output> {
        match self.device {
            Some(Device::Cpu) => bail!("--gpu-layers: expected a GPU, got --device cpu"),
            Some(Device::Auto) if gpu::picked().is_none() => {
                Console::new(false).note("no GPU: all layers are on the CPU");
                self.on_cpu(n_threads, fallback)
            }
            Some(Device::Wgpu(index)) => gpu::run(self.kernel_times, index, work),
            None | Some(Device::Auto) => gpu::run(self.kernel_times, None, work),
        }
    }

    /// Opens the CPU backend, runs `work` and prints the profile of `--kernel-times`.
    pub(super) fn with_cpu<R>(
        self,
        n_threads: usize,
        work: impl FnOnce(Cpu) -> anyhow::Result<R>,
    ) -> anyhow::Result<R> {
        let backend = self.load.cpu(n_threads)?.with_profile(self.kernel_times);
        let result = work(backend.clone())?;
        for time in backend.take_profile() {
            note_time(time.total.as_secs_f64() * 1e3, time.runs, &time.name);
        }
        Ok(result)
    }
}

/// Prints a line of `--kernel-times`.
fn note_time(ms: f64, runs: u64, name: &str) {
    let mean_us = ms * 1e3 / runs as f64;
    Console::new(false).note(&format!("{ms:10.3} ms {runs:7} x {mean_us:9.1} us  {name}"));
}

/// Arguments of `stonechat devices`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  stonechat devices\n  stonechat devices --json")]
pub(super) struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints every device with its features, and the choice of `--device auto`.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let cpu = Cpu::new(0)?.describe();
    let gpus = gpu::list();
    let picked = gpu::picked();
    let auto = picked.map_or_else(|| "cpu".to_owned(), |index| format!("wgpu:{index}"));
    let text = if args.json {
        let all = serde_json::json!({ "cpu": cpu, "wgpu": gpus, "auto": auto });
        format!("{all}\n")
    } else {
        let mut text = format!("cpu     {cpu}\n");
        for gpu in &gpus {
            text += &gpu.line();
        }
        if gpus.is_empty() {
            text += "wgpu    no Vulkan, Metal or DirectX 12 adapter\n";
        }
        text + &format!("auto    {auto}\n")
    };
    super::print(&text)?;
    Ok(())
}

/// An entry of `stonechat devices`.
#[derive(Debug, serde::Serialize)]
struct Listed {
    index: usize,
    name: String,
    api: &'static str,
    kind: &'static str,
    driver: String,
    subgroup_sizes: Option<(u32, u32)>,
    f16: bool,
    /// Rows and columns of cooperative matrices.
    matrices: Option<u32>,
    max_binding_bytes: u64,
    max_buffer_bytes: u64,
    workgroup_bytes: u32,
    total_memory_bytes: Option<u64>,
}

impl Listed {
    fn line(&self) -> String {
        let Self { index, name, api, kind, driver, .. } = self;
        let subgroups = match self.subgroup_sizes {
            Some((least, most)) if least == most => format!("subgroups of {least}"),
            Some((least, most)) => format!("subgroups of {least} to {most}"),
            None => "no subgroups".to_owned(),
        };
        let f16 = if self.f16 { "f16" } else { "no f16" };
        let matrices = match self.matrices {
            Some(side) => format!("cooperative matrices of {side}x{side}"),
            None => "no cooperative matrices".to_owned(),
        };
        let memory = match self.total_memory_bytes {
            Some(bytes) => format!("{} of memory", super::format_bytes(bytes)),
            None => "memory of unknown size".to_owned(),
        };
        let bytes = super::format_bytes(self.max_binding_bytes);
        format!(
            "wgpu:{index}  {name} ({api}, {kind}, {driver}): {subgroups}, {f16}, {matrices}, {memory}, buffers of at most {bytes}\n"
        )
    }
}

/// GPUs through wgpu.
#[cfg(feature = "wgpu")]
mod gpu {
    use anyhow::bail;
    use pollster::block_on;
    use stonechat::KernelCache;
    use stonechat::compute::wgpu::{Adapter, adapters, pick};
    use stonechat::nn::Wgpu;

    use super::{DeviceArgs, Listed, Work, note_time};

    pub(super) fn run<W: Work>(
        kernel_times: bool,
        index: Option<usize>,
        work: W,
    ) -> anyhow::Result<W::Output> {
        let all = block_on(adapters());
        run_on(pick(&all, index)?, kernel_times, work)
    }

    pub(super) fn auto<W: Work>(
        args: DeviceArgs,
        n_threads: usize,
        work: W,
    ) -> anyhow::Result<W::Output> {
        let all = block_on(adapters());
        match pick(&all, None) {
            Ok(adapter) => run_on(adapter, args.kernel_times, work),
            Err(_) => args.on_cpu(n_threads, work),
        }
    }

    fn run_on<W: Work>(
        adapter: &Adapter,
        kernel_times: bool,
        work: W,
    ) -> anyhow::Result<W::Output> {
        let backend = block_on(Wgpu::open(adapter, None))?;
        let _saved_on_drop = KernelCache::open(backend.gpu());
        if kernel_times && !backend.gpu().start_profile() {
            bail!("--kernel-times: `{}` has no clock", adapter.name);
        }
        let result = work.run(backend.clone())?;
        for time in backend.gpu().take_profile() {
            note_time(time.total_ms, time.runs, &time.name);
        }
        Ok(result)
    }

    pub(super) fn picked() -> Option<usize> {
        pick(&block_on(adapters()), None).ok().map(|adapter| adapter.index)
    }

    pub(super) fn list() -> Vec<Listed> {
        let listed = |adapter: Adapter| Listed {
            index: adapter.index,
            api: adapter.api,
            kind: adapter.kind,
            driver: adapter.driver,
            subgroup_sizes: adapter.subgroup_sizes,
            f16: adapter.has_f16,
            matrices: adapter.matrices.map(|matrices| matrices.side),
            max_binding_bytes: adapter.max_binding_bytes,
            max_buffer_bytes: adapter.max_buffer_bytes,
            workgroup_bytes: adapter.workgroup_bytes,
            total_memory_bytes: adapter.total_memory_bytes,
            name: adapter.name,
        };
        block_on(adapters()).into_iter().map(listed).collect()
    }
}

/// Stubs of a build without the feature `wgpu`.
#[cfg(not(feature = "wgpu"))]
mod gpu {
    use super::{DeviceArgs, Listed, Work};

    pub(super) fn run<W: Work>(_: bool, _: Option<usize>, _: W) -> anyhow::Result<W::Output> {
        anyhow::bail!("--device: this build has no GPUs (feature `wgpu`)")
    }

    pub(super) fn auto<W: Work>(
        args: DeviceArgs,
        n_threads: usize,
        work: W,
    ) -> anyhow::Result<W::Output> {
        args.on_cpu(n_threads, work)
    }

    pub(super) fn picked() -> Option<usize> {
        None
    }

    pub(super) fn list() -> Vec<Listed> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::Device;

    #[test]
    fn devices_are_named_as_they_are_listed() {
        assert_eq!("cpu".parse(), Ok(Device::Cpu));
        assert_eq!("auto".parse(), Ok(Device::Auto));
        assert_eq!("wgpu".parse(), Ok(Device::Wgpu(None)));
        assert_eq!("wgpu:12".parse(), Ok(Device::Wgpu(Some(12))));
        for wrong in ["", "gpu", "wgpu:", "wgpu:x", "cpu:1"] {
            assert!(wrong.parse::<Device>().is_err(), "{wrong}");
        }
    }
}
