//! Open devices, and loading models on them.

use std::sync::Arc;

use stonechat_formats::ModelFile;
use stonechat_llm::{Config, Devices, Model, StateOptions, bytes_of_layers, layers_that_fit};
use stonechat_nn::Cpu;

use super::gpu::{KernelFile, OpenGpu, RESERVED_BYTES};
use super::gpu_layers::GpuLayers;
use super::name::Device;
use crate::Error;

/// An open device, or a GPU and the CPU. Dropping the last clone saves the kernels that wgpu compiled.
#[derive(Debug, Clone)]
pub struct OpenDevice {
    /// The CPU; beside a GPU, if it has layers of its own.
    pub cpu: Option<Cpu>,
    /// The GPU.
    pub gpu: Option<stonechat_nn::Device>,
    /// Name of the GPU.
    name: Device,
    kernels: Option<Arc<dyn KernelFile>>,
}

impl OpenDevice {
    /// The CPU alone.
    #[must_use]
    pub fn on_cpu(cpu: Cpu) -> Self {
        Self { cpu: Some(cpu), gpu: None, name: Device::Cpu, kernels: None }
    }

    /// A GPU alone.
    pub(super) fn on_gpu(name: Device, OpenGpu { device, kernels }: OpenGpu) -> Self {
        Self { cpu: None, gpu: Some(device), name, kernels }
    }

    /// The GPU by its name, else the CPU.
    #[must_use]
    pub fn device(&self) -> Device {
        if self.gpu.is_some() { self.name } else { Device::Cpu }
    }

    /// Saves the kernels compiled so far: a program may end without dropping the device.
    pub fn save_kernels(&self) {
        if let Some(kernels) = &self.kernels {
            kernels.save();
        }
    }

    /// Name of the GPU, and bytes of its free memory, or of all of one that tells no more; [`None`] without a GPU, or of an
    /// unknown size.
    #[must_use]
    pub fn gpu_memory(&self) -> Option<(String, Option<u64>)> {
        self.gpu.as_ref().map(|gpu| (gpu.describe(), available_bytes(gpu)))
    }

    /// Loads a speech model on the GPU, if there is one, else on the CPU.
    ///
    /// # Errors
    /// If the model cannot be loaded or the device is out of memory.
    ///
    /// # Panics
    /// If neither is open.
    pub fn load_speech_model(
        &self,
        file: &ModelFile,
        on_progress: impl FnMut(f32),
    ) -> Result<stonechat_whisper::Model, Error> {
        if let Some(gpu) = &self.gpu {
            return Ok(stonechat_whisper::Model::load(gpu.clone(), file, on_progress)?);
        }
        let cpu = self.cpu.clone().expect("the CPU without a GPU");
        Ok(stonechat_whisper::Model::load(cpu, file, on_progress)?)
    }

    /// Waits for the errors of what was loaded on the GPU: in browsers they come later than the calls.
    ///
    /// # Errors
    /// If the GPU is out of memory or was lost.
    pub async fn check_allocations(&self) -> Result<(), Error> {
        match &self.gpu {
            Some(gpu) => Ok(gpu.check_allocations().await?),
            None => Ok(()),
        }
    }

    /// Number of layers of the model in `file` that are on the GPU, at most [`GpuLayers::total`], with a state of these sizes
    /// and `beside` bytes of other models; 0 without a GPU.
    ///
    /// # Errors
    /// If the file has no configuration of a supported model, or [`Error::GpuMemory`] if the layers that were asked for
    /// take more than the free memory of the GPU, or than all of one that tells no more.
    pub fn n_gpu_layers(
        &self,
        layers: GpuLayers,
        file: &ModelFile,
        config: &Config,
        options: &StateOptions,
        beside: u64,
    ) -> Result<usize, Error> {
        let Some(gpu) = &self.gpu else { return Ok(0) };
        let all = GpuLayers::total(config);
        let asked = if let GpuLayers::Last(n) = layers { n.min(all) } else { all };
        // Other programs, and models that are open, use memory as well.
        let Some(available) = available_bytes(gpu) else { return Ok(asked) };
        let bytes_left = available.saturating_sub(RESERVED_BYTES + beside);
        if layers == GpuLayers::Auto {
            let n = layers_that_fit(gpu, file, options, bytes_left)?;
            tracing::info!("{n} of {all} layers fit in {available} bytes of GPU memory");
            return Ok(n);
        }
        let needed = bytes_of_layers(gpu, file, options, asked)? + beside;
        if needed <= available {
            return Ok(asked);
        }
        let fitting = layers_that_fit(gpu, file, options, bytes_left)?;
        Err(Error::GpuMemory { gpu: gpu.describe(), asked, all, needed, available, fitting })
    }

    /// Loads a language model, its last `n_gpu` layers on the GPU, the others on the CPU of `open_cpu`. A GPU without
    /// layers is closed.
    ///
    /// # Errors
    /// If the model cannot be loaded or a device is out of memory.
    pub fn load_language_model(
        &mut self,
        file: &ModelFile,
        n_gpu: usize,
        open_cpu: impl FnOnce() -> Result<Cpu, stonechat_nn::Error>,
        on_progress: impl FnMut(f32),
    ) -> Result<Model, Error> {
        if let Some(gpu) = self.gpu.take() {
            let n_cpu = GpuLayers::total(&Config::from_file(file)?).saturating_sub(n_gpu);
            if n_cpu == 0 {
                self.gpu = Some(gpu.clone());
                return Ok(Model::load(gpu, file, on_progress)?);
            }
            let cpu = open_cpu()?;
            self.cpu = Some(cpu.clone());
            if n_gpu == 0 {
                self.kernels = None;
                return Ok(Model::load(cpu, file, on_progress)?);
            }
            self.gpu = Some(gpu.clone());
            return Ok(Model::load(Devices::from(cpu).split(n_cpu, gpu), file, on_progress)?);
        }
        let cpu = match &self.cpu {
            Some(cpu) => cpu.clone(),
            None => self.cpu.insert(open_cpu()?).clone(),
        };
        Ok(Model::load(cpu, file, on_progress)?)
    }
}

/// Free bytes of a GPU, or all of one that tells no more.
fn available_bytes(gpu: &stonechat_nn::Device) -> Option<u64> {
    gpu.free_memory_bytes().or_else(|| gpu.total_memory_bytes())
}

#[cfg(test)]
mod tests {
    use stonechat_formats::ModelFile;
    use stonechat_llm::{Config, StateOptions};
    use stonechat_testkit::{Adapted, Reference};

    use super::{Device, GpuLayers, OpenDevice, OpenGpu, RESERVED_BYTES};
    use crate::Error;

    #[test]
    fn layers_fit_the_free_memory() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/llm/llama.gguf");
        let file = ModelFile::open(path).unwrap();
        let config = Config::from_file(&file).unwrap();
        let state = StateOptions::new(64);
        let all = GpuLayers::total(&config);
        let count = |layers: GpuLayers, free: u64| {
            let device = Adapted::with_memory(Reference, 80 << 30, free);
            let open = OpenGpu { device, kernels: None };
            let open = OpenDevice::on_gpu(Device::Cuda(None), open);
            open.n_gpu_layers(layers, &file, &config, &state, 0)
        };
        assert_eq!(count(GpuLayers::Auto, 80 << 30).unwrap(), all);
        // Another program uses the rest.
        assert_eq!(count(GpuLayers::Auto, RESERVED_BYTES).unwrap(), 0);
        assert_eq!(count(GpuLayers::All, 1 << 30).unwrap(), all);
        let error = count(GpuLayers::All, 1000).unwrap_err();
        assert!(matches!(error, Error::GpuMemory { available: 1000, .. }), "{error}");
    }
}
