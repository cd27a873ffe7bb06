//! `--device`, and `stonechat devices`.

use anyhow::bail;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use stonechat::Device;
use stonechat::device::{DeviceNeeds, GpuInfo, GpuList, OpenDevice, list_gpus};
use stonechat::nn::{self, Cpu, DeviceApi, OpTime, Repack};

use super::console::{Console, print_note};
use super::headings::DEVICE;

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
    /// Repack quantized weights
    ///
    /// on computes three to five times as fast. off starts at once, from the memory-mapped file.
    #[arg(long, value_parser = PossibleValuesParser::new(["on", "off"]).map(repack), default_value = "on")]
    repack: Repack,
}

fn repack(name: String) -> Repack {
    if name == "off" { Repack::Off } else { Repack::On }
}

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

    /// Opens the device of a model, the CPU with `n_threads` threads; prints it if `verbose`.
    pub(super) fn open(
        self,
        needs: DeviceNeeds,
        n_threads: usize,
        console: &Console,
        verbose: bool,
    ) -> anyhow::Result<OpenDevices> {
        let chosen = self.device.choose(needs)?;
        if verbose {
            console.note(&chosen.to_string());
        }
        let device = chosen.open(|| self.cpu(n_threads), |note| console.note(note))?;
        if let Some(gpu) = device.gpu.as_ref().filter(|_| self.kernel_times)
            && !gpu.start_profile()
        {
            bail!("--kernel-times: `{}` has no clock", gpu.describe());
        }
        Ok(OpenDevices { device, args: self })
    }

    /// Opens the CPU.
    pub(super) fn cpu(self, n_threads: usize) -> Result<Cpu, nn::Error> {
        let cpu = Cpu::new(n_threads)?.with_repack(self.repack);
        Ok(cpu.with_profile(self.kernel_times))
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

/// Prints every device with its features, and the device that `--device auto` opens for a model that is not small.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let open_cpu = Cpu::new(0)?;
    let cpu = open_cpu.describe();
    let lists = list_gpus();
    let chosen = Device::Auto.choose(DeviceNeeds::layers(Device::AUTO_MIN_BYTES, None))?;
    let mut reasons: Vec<String> = chosen.reason().map(str::to_owned).into_iter().collect();
    let open = chosen.open(|| Ok(open_cpu), |reason| reasons.push(reason.to_owned()))?;
    let (auto, reasons) = (open.device().to_string(), reasons.join("; "));
    if args.json {
        let mut all = serde_json::Map::from_iter([("cpu".to_owned(), cpu.into())]);
        for GpuList { backend, gpus, .. } in lists {
            let gpus = gpus.unwrap_or_default().into_iter().map(|gpu| gpu.json);
            all.insert(backend.to_owned(), gpus.collect());
        }
        all.insert("auto".to_owned(), auto.into());
        if !reasons.is_empty() {
            all.insert("auto_reason".to_owned(), reasons.into());
        }
        return Ok(super::print(&format!("{}\n", serde_json::Value::from(all)))?);
    }
    let mut text = format!("cpu     {cpu}\n");
    for GpuList { backend, gpus, .. } in lists {
        match gpus {
            Ok(gpus) => text.extend(gpus.iter().map(|gpu| {
                let GpuInfo { index, name, identity, features, .. } = gpu;
                format!("{backend}:{index}  {name} ({identity}): {features}\n")
            })),
            Err(reason) => text += &format!("{backend:6}  {reason}\n"),
        }
    }
    let reasons = if reasons.is_empty() { reasons } else { format!(": {reasons}") };
    Ok(super::print(&format!("{text}auto    {auto}{reasons}\n"))?)
}
