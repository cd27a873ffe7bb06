//! `--device`, and `stonechat devices`.

use anyhow::bail;
#[cfg(feature = "wgpu")]
use stonechat::nn::Wgpu;
use stonechat::nn::{self, Cpu, DeviceApi};
use stonechat::{ChosenDevice, Device, DeviceNeeds, OpenDevice};

use super::console::print_note;
use super::headings::DEVICE;
use super::load::LoadArgs;

/// Flags about the device.
#[derive(Debug, Clone, Copy, clap::Args)]
#[command(next_help_heading = DEVICE)]
pub(super) struct DeviceArgs {
    /// Device to run on: auto, cpu, wgpu or wgpu:N
    ///
    /// auto is the CPU for models of less than 200 MB, which are done before a GPU has started, else the first discrete
    /// GPU: a Whisper model must fit it, of a language model as many layers as fit. wgpu is the best GPU of any kind,
    /// wgpu:N the GPU N of `stonechat devices`.
    #[arg(long, value_name = "DEVICE", default_value_t = Device::Auto)]
    device: Device,
    /// Print the time of each op (CPU) or kernel (GPU)
    ///
    /// A GPU runs slower while it is measured.
    #[arg(long)]
    kernel_times: bool,
    #[command(flatten)]
    load: LoadArgs,
}

/// A model that is not small, some layers of which any GPU can hold.
const GPU_OF_ANY_SIZE: DeviceNeeds =
    DeviceNeeds { weight_bytes: Device::AUTO_MIN_BYTES, can_split: true };

/// Open devices. Dropping them prints the profile of `--kernel-times` and saves the compiled kernels of a GPU.
#[derive(Debug)]
pub(super) struct OpenDevices {
    pub(super) device: OpenDevice,
    args: DeviceArgs,
}

impl Drop for OpenDevices {
    fn drop(&mut self) {
        if !self.args.kernel_times {
            return;
        }
        for time in self.device.cpu.iter().flat_map(Cpu::take_profile) {
            note_time(time.total.as_secs_f64() * 1e3, time.runs, &time.name);
        }
        #[cfg(feature = "wgpu")]
        for time in self.device.gpu.iter().flat_map(|gpu| gpu.gpu().take_profile()) {
            note_time(time.total_ms, time.runs, &time.name);
        }
    }
}

impl DeviceArgs {
    /// Value of `--device`.
    pub(super) fn device(self) -> Device {
        self.device
    }

    /// Chooses the device of a model; prints it if `verbose`.
    pub(super) fn choose(self, needs: DeviceNeeds, verbose: bool) -> anyhow::Result<ChosenDevice> {
        let chosen = self.device.choose(needs)?;
        if verbose {
            print_note(&chosen.to_string());
        }
        Ok(chosen)
    }

    /// Chooses a GPU, integrated ones included; the inner error tells why there is none, if none was named.
    pub(super) fn choose_gpu(
        self,
        verbose: bool,
    ) -> anyhow::Result<Result<ChosenDevice, anyhow::Error>> {
        match self.device {
            Device::Cpu => bail!("--gpu-layers: expected a GPU, got --device cpu"),
            Device::Auto => {
                let best = Self { device: Device::Wgpu(None), ..self };
                Ok(best.choose(GPU_OF_ANY_SIZE, verbose))
            }
            _ => self.choose(GPU_OF_ANY_SIZE, verbose).map(Ok),
        }
    }

    /// Opens a device, the CPU with `n_threads` threads.
    pub(super) fn open(
        self,
        device: ChosenDevice,
        n_threads: usize,
    ) -> anyhow::Result<OpenDevices> {
        let device = device.open(self.device, || self.cpu(n_threads), print_note)?;
        #[cfg(feature = "wgpu")]
        if let Some(gpu) = device.gpu.as_ref().filter(|_| self.kernel_times).map(Wgpu::gpu)
            && !gpu.start_profile()
        {
            bail!("--kernel-times: `{}` has no clock", gpu.adapter().name);
        }
        Ok(OpenDevices { device, args: self })
    }

    /// Opens the CPU.
    pub(super) fn cpu(self, n_threads: usize) -> Result<Cpu, nn::Error> {
        Ok(self.load.cpu(n_threads)?.with_profile(self.kernel_times))
    }
}

/// Prints a line of `--kernel-times`.
fn note_time(ms: f64, runs: u64, name: &str) {
    let mean_us = ms * 1e3 / runs as f64;
    print_note(&format!("{ms:10.3} ms {runs:7} x {mean_us:9.1} us  {name}"));
}

/// Arguments of `stonechat devices`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  stonechat devices\n  stonechat devices --json")]
pub(super) struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Prints every device with its features, and the choice of `--device auto` for a model that is not small.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let cpu = Cpu::new(0)?.describe();
    let gpus = gpu::list();
    let auto = match Device::Auto.choose(GPU_OF_ANY_SIZE)? {
        #[cfg(feature = "wgpu")]
        ChosenDevice::Gpu(adapter) => Device::Wgpu(Some(adapter.index)),
        _ => Device::Cpu,
    };
    let auto = auto.to_string();
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
    use pollster::block_on;
    use stonechat::compute::wgpu::{Adapter, adapters};

    use super::Listed;

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

/// A build without the feature `wgpu`.
#[cfg(not(feature = "wgpu"))]
mod gpu {
    pub(super) fn list() -> Vec<super::Listed> {
        Vec::new()
    }
}
