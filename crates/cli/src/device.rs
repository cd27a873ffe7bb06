//! `--device`, and `stonechat devices`.

use anyhow::bail;
use stonechat::Device;
use stonechat::device::{ChosenDevice, DeviceNeeds, OpenDevice};
use stonechat::nn::{self, Cpu, DeviceApi, OpTime};

use super::console::print_note;
use super::headings::DEVICE;
use super::load::LoadArgs;

/// Flags about the device.
#[derive(Debug, Clone, Copy, clap::Args)]
#[command(next_help_heading = DEVICE)]
pub(super) struct DeviceArgs {
    /// Device: auto, cpu, cuda, cuda:N, cuda:N,N, wgpu or wgpu:N
    ///
    /// auto is the CPU for models of less than 200 MB, which are done before a GPU has started, else the first discrete
    /// GPU, NVIDIA's through CUDA: a Whisper model must fit it, of a language model as many layers as fit. cuda is the
    /// first NVIDIA GPU, wgpu the best GPU of any kind through Vulkan, Metal or DirectX 12, and N the number of a GPU
    /// in `stonechat devices`. cuda:0,1 splits every layer of a language model among NVIDIA GPUs (tensor parallelism).
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
pub(super) const GPU_OF_ANY_SIZE: DeviceNeeds =
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
        let cpu = self.device.cpu.iter().flat_map(Cpu::take_profile);
        cpu.chain(self.device.gpu.iter().flat_map(|gpu| gpu.take_profile())).for_each(note_time);
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
                let best = Self { device: Device::any_gpu(), ..self };
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
        if let Some(gpu) = device.gpu.as_ref().filter(|_| self.kernel_times)
            && !gpu.start_profile()
        {
            bail!("--kernel-times: `{}` has no clock", gpu.describe());
        }
        Ok(OpenDevices { device, args: self })
    }

    /// Opens the CPU.
    pub(super) fn cpu(self, n_threads: usize) -> Result<Cpu, nn::Error> {
        Ok(self.load.cpu(n_threads)?.with_profile(self.kernel_times))
    }
}

/// Prints a line of `--kernel-times`.
fn note_time(OpTime { name, runs, total, .. }: OpTime) {
    let ms = total.as_secs_f64() * 1e3;
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
    let nvidia = cuda::list()?;
    let gpus = wgpu::list();
    let auto = Device::Auto.choose(GPU_OF_ANY_SIZE)?.device().to_string();
    let text = if args.json {
        let nvidia = nvidia.unwrap_or_default();
        let all = serde_json::json!({ "cpu": cpu, "cuda": nvidia, "wgpu": gpus, "auto": auto });
        format!("{all}\n")
    } else {
        let mut text = format!("cpu     {cpu}\n");
        match nvidia {
            Ok(gpus) => text.extend(gpus.iter().map(ListedCuda::line)),
            Err(reason) => text += &format!("cuda    {reason}\n"),
        }
        text.extend(gpus.iter().map(ListedAdapter::line));
        if gpus.is_empty() {
            text += "wgpu    no Vulkan, Metal or DirectX 12 adapter\n";
        }
        text + &format!("auto    {auto}\n")
    };
    super::print(&text)?;
    Ok(())
}

/// NVIDIA GPU of `stonechat devices`.
#[derive(Debug, serde::Serialize)]
struct ListedCuda {
    index: usize,
    name: String,
    /// Major and minor, for example `9.0`.
    compute_capability: String,
    multiprocessors: u32,
    /// Newest CUDA version of the driver.
    driver_cuda: String,
    total_memory_bytes: u64,
    /// Target of the compiled kernels.
    kernels: Option<&'static str>,
    dependent_launch: bool,
    /// GPUs whose memory its kernels can access.
    peers: Vec<usize>,
}

impl ListedCuda {
    fn line(&self) -> String {
        let Self { index, name, compute_capability, multiprocessors, driver_cuda, .. } = self;
        let kernels = match self.kernels {
            Some(target) => format!("kernels {target}"),
            None => "no kernels: compute capability 7.5 or newer is needed".to_owned(),
        };
        let launch = if self.dependent_launch { "on" } else { "off" };
        let memory = super::format_bytes(self.total_memory_bytes);
        let peers = self.peers.iter().map(|peer| format!("cuda:{peer}"));
        let peers = match peers.collect::<Vec<_>>().join(", ") {
            none if none.is_empty() => none,
            peers => format!(", peer access to {peers}"),
        };
        format!(
            "cuda:{index}  {name} (compute capability {compute_capability}, {multiprocessors} multiprocessors, driver of CUDA {driver_cuda}): {memory} of memory, {kernels}, dependent launch {launch}{peers}\n"
        )
    }
}

/// GPU through wgpu of `stonechat devices`.
#[derive(Debug, serde::Serialize)]
struct ListedAdapter {
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

impl ListedAdapter {
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

/// NVIDIA GPUs through their driver.
#[cfg(feature = "cuda")]
mod cuda {
    use stonechat::compute::cuda::{CudaDevice, devices};
    use stonechat::compute::{self, Error};
    use stonechat::nn::Cuda;

    use super::ListedCuda;

    /// The GPUs, or why there are none.
    pub(super) fn list() -> compute::Result<Result<Vec<ListedCuda>, String>> {
        match devices() {
            Ok(all) => {
                let listed = all.iter().map(|device| listed(device, &all));
                Ok(Ok(listed.collect::<Result<_, _>>()?))
            }
            Err(Error::NoCuda { reason }) => Ok(Err(reason)),
            Err(error) => Ok(Err(error.to_string())),
        }
    }

    fn listed(device: &CudaDevice, all: &[CudaDevice]) -> compute::Result<ListedCuda> {
        let mut peers = Vec::new();
        for other in all.iter().filter(|other| other.index != device.index) {
            if device.can_access(other)? {
                peers.push(other.index);
            }
        }
        let (major, minor) = device.capability;
        let version = device.driver.cuda_version;
        Ok(ListedCuda {
            index: device.index,
            compute_capability: format!("{major}.{minor}"),
            multiprocessors: device.n_multiprocessors,
            driver_cuda: format!("{}.{}", version / 1000, version % 1000 / 10),
            total_memory_bytes: device.total_memory_bytes,
            kernels: Cuda::kernels(device),
            dependent_launch: device.uses_dependent_launch()?,
            peers,
            name: device.name.clone(),
        })
    }
}

/// A build without the feature `cuda`.
#[cfg(not(feature = "cuda"))]
mod cuda {
    pub(super) fn list() -> stonechat::compute::Result<Result<Vec<super::ListedCuda>, String>> {
        Ok(Err("not in this build (feature `cuda`)".to_owned()))
    }
}

/// GPUs through wgpu.
#[cfg(feature = "wgpu")]
mod wgpu {
    use pollster::block_on;
    use stonechat::compute::wgpu::{Adapter, adapters};

    use super::ListedAdapter;

    pub(super) fn list() -> Vec<ListedAdapter> {
        let listed = |adapter: Adapter| ListedAdapter {
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
mod wgpu {
    pub(super) fn list() -> Vec<super::ListedAdapter> {
        Vec::new()
    }
}
