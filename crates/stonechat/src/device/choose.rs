//! Choice of a device, and fallbacks while it is opened.

use std::fmt;
use std::sync::Arc;

use stonechat_nn::Cpu;

use super::gpu::{FoundGpu, RESERVED_BYTES};
use super::gpu_layers::GpuLayers;
use super::name::Device;
use super::open::OpenDevice;
use super::registry::{self, BACKENDS, Backend};
use crate::Error;

/// Memory that a model needs, and its layers on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceNeeds {
    weight_bytes: u64,
    can_split: bool,
    gpu_layers: Option<GpuLayers>,
}

impl DeviceNeeds {
    /// `weight_bytes` bytes of weights that must fit the device.
    #[must_use]
    pub fn whole(weight_bytes: u64) -> Self {
        Self { weight_bytes, can_split: false, gpu_layers: None }
    }

    /// `weight_bytes` bytes of weights in layers, some of which may be on a GPU and the others on the CPU. With a number of
    /// `gpu_layers`, [`Device::Auto`] is the best GPU of any kind, whatever the size of the model.
    #[must_use]
    pub fn layers(weight_bytes: u64, gpu_layers: Option<GpuLayers>) -> Self {
        Self { weight_bytes, can_split: true, gpu_layers }
    }

    /// Bytes that a GPU must have.
    fn gpu_bytes(self) -> u64 {
        if self.can_split {
            RESERVED_BYTES
        } else {
            self.weight_bytes.saturating_add(RESERVED_BYTES)
        }
    }

    /// GPU of [`Device::Auto`]; the reason if it is the CPU.
    async fn find_gpu(self) -> Result<Arc<dyn FoundGpu>, String> {
        if self.gpu_layers.is_none() && self.weight_bytes < Device::AUTO_MIN_BYTES {
            return Err("a GPU takes longer to start than it saves with a small model".to_owned());
        }
        if !has_device_file() {
            return Err("no GPU".to_owned());
        }
        self.first_gpu(&BACKENDS).await
    }

    /// First GPU of `backends` with the memory, a discrete one unless layers were asked for; the reason of the last backend
    /// if there is none.
    async fn first_gpu(self, backends: &[Backend]) -> Result<Arc<dyn FoundGpu>, String> {
        let mut found = Err("no GPU that this build can use".to_owned());
        for api in backends.iter().filter_map(|backend| backend.api) {
            found = match self.gpu_layers {
                None => api.discrete(self.gpu_bytes()).await,
                Some(_) => api.best().await,
            };
            if found.is_ok() {
                break;
            }
        }
        found
    }

    /// Whether an open GPU has free memory for the weights that it must hold; true if it does not tell.
    fn fit(self, gpu: &stonechat_nn::Device) -> bool {
        self.can_split || gpu.free_memory_bytes().is_none_or(|free| self.gpu_bytes() <= free)
    }
}

/// Result of `Device::choose`, which is not open. `Display`: the device, or the reason for the CPU.
#[derive(Debug, Clone)]
pub struct ChosenDevice {
    /// GPU, or GPUs that compute each layer together; `None`: the CPU.
    gpu: Option<Arc<dyn FoundGpu>>,
    /// Reason for the CPU, if [`Device::Auto`] chose it.
    reason: Option<String>,
    needs: DeviceNeeds,
    /// Whether another device replaces a GPU that cannot be opened.
    is_auto: bool,
}

impl fmt::Display for ChosenDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}", self.device())?;
        let detail = self.gpu.as_ref().map(|gpu| gpu.describe());
        detail.or_else(|| self.reason.clone()).map_or(Ok(()), |text| write!(f, ": {text}"))
    }
}

impl Device {
    /// Minimum bytes of weights for [`Self::Auto`] to take a GPU: opening one takes about half a second, longer than short
    /// runs of smaller models.
    pub const AUTO_MIN_BYTES: u64 = 200_000_000;

    /// Chooses the device of a model.
    ///
    /// # Errors
    /// If the GPU that is named does not exist, the build has no GPUs, or layers on a GPU are asked for beside
    /// [`Device::Cpu`].
    #[cfg(not(target_arch = "wasm32"))]
    pub fn choose(self, needs: DeviceNeeds) -> Result<ChosenDevice, Error> {
        pollster::block_on(self.choose_async(needs))
    }

    /// As `choose`, without blocking.
    ///
    /// # Errors
    /// As `choose`.
    pub async fn choose_async(self, needs: DeviceNeeds) -> Result<ChosenDevice, Error> {
        let (gpu, reason) = match (self, needs.gpu_layers) {
            (Self::Cpu, None) | (_, Some(GpuLayers::Last(0))) => (None, None),
            (Self::Cpu, Some(_)) => {
                let (expected, got) = ("a GPU".to_owned(), "cpu".to_owned());
                let option = "gpu_layers";
                return Err(stonechat_llm::Error::Option { option, expected, got }.into());
            }
            (Self::Auto, _) => match needs.find_gpu().await {
                Ok(gpu) => (Some(gpu), None),
                Err(reason) => (None, Some(reason)),
            },
            (device, _) => (Some(registry::api(device)?.named(device).await?), None),
        };
        Ok(ChosenDevice { gpu, reason, needs, is_auto: self == Self::Auto })
    }
}

impl ChosenDevice {
    /// Whether the device is a GPU.
    #[must_use]
    pub fn is_gpu(&self) -> bool {
        self.gpu.is_some()
    }

    /// Bytes of the GPU for models: those that no program uses, less a reserve. wgpu does not tell how many are in use: all of
    /// them, less the reserve. `None` for the CPU, and for a GPU of an unknown size.
    #[must_use]
    pub fn memory_for_models(&self) -> Option<u64> {
        Some(self.gpu.as_ref()?.memory_bytes()?.saturating_sub(RESERVED_BYTES))
    }

    /// The device by its name.
    #[must_use]
    pub fn device(&self) -> Device {
        self.gpu.as_ref().map_or(Device::Cpu, |gpu| gpu.device())
    }

    /// Reason for the CPU, if [`Device::Auto`] chose it.
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.reason.as_deref()
    }

    /// Opens the device. A GPU that was not asked for by name and cannot be opened is replaced: an NVIDIA GPU by one through
    /// wgpu, that by the CPU of `open_cpu`; `on_fallback` gets the reason. It also gets the reason why layers that were asked
    /// for are on no GPU.
    ///
    /// # Errors
    /// If the device cannot be opened.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn open(
        self,
        open_cpu: impl FnOnce() -> Result<Cpu, stonechat_nn::Error>,
        on_fallback: impl FnMut(&str),
    ) -> Result<OpenDevice, Error> {
        pollster::block_on(self.open_async(open_cpu, on_fallback))
    }

    /// As `open`, without blocking.
    ///
    /// # Errors
    /// As `open`.
    pub async fn open_async(
        self,
        open_cpu: impl FnOnce() -> Result<Cpu, stonechat_nn::Error>,
        mut on_fallback: impl FnMut(&str),
    ) -> Result<OpenDevice, Error> {
        tracing::info!("{self}");
        let Self { mut gpu, reason, needs, is_auto } = self;
        if let (Some(reason), Some(_)) = (reason, needs.gpu_layers) {
            on_fallback(&format!("all layers are on the CPU: {reason}"));
        }
        while let Some(found) = gpu {
            gpu = match found.open().await {
                Err(error) if is_auto => {
                    let next = needs.first_gpu(registry::after(found.device())).await.ok();
                    let other = next.as_ref().map(|next| next.device().to_string());
                    let other = other.as_deref().unwrap_or("the CPU");
                    let (name, device) = (found.name(), found.device());
                    on_fallback(&format!(
                        "`{name}` ({device}) cannot be opened, so {other} is used: {error}"
                    ));
                    next
                }
                Ok(open) if is_auto && !needs.fit(&open.device) => {
                    on_fallback(&format!(
                        "the weights do not fit the free memory of `{}`, so the CPU is used",
                        found.name()
                    ));
                    None
                }
                open => return Ok(OpenDevice::on_gpu(found.device(), open?)),
            };
        }
        Ok(OpenDevice::on_cpu(open_cpu()?))
    }
}

/// Whether a GPU driver has a device file: the drivers are loaded for nothing otherwise.
#[cfg(target_os = "linux")]
fn has_device_file() -> bool {
    let has = |folder: &str, prefix: &str| {
        let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
        names.map(|file| file.file_name()).any(|name| name.to_string_lossy().starts_with(prefix))
    };
    // Render nodes of the kernel, NVIDIA's own driver, the driver of WSL.
    has("/dev/dri", "renderD") || has("/dev", "nvidia") || has("/dev", "dxg")
}

/// Other systems have no such files.
#[cfg(not(target_os = "linux"))]
fn has_device_file() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use stonechat_nn::BoxFuture;

    use super::super::gpu::OpenGpu;
    use super::{Arc, ChosenDevice, Cpu, Device, DeviceNeeds, Error, FoundGpu};

    /// GPU whose kernels the driver refuses.
    #[derive(Debug)]
    struct Refused;

    impl FoundGpu for Refused {
        fn device(&self) -> Device {
            Device::Wgpu(Some(9))
        }

        fn describe(&self) -> String {
            "a card".to_owned()
        }

        fn name(&self) -> &str {
            "card"
        }

        fn memory_bytes(&self) -> Option<u64> {
            None
        }

        fn open(&self) -> BoxFuture<'_, Result<OpenGpu, Error>> {
            Box::pin(ready(Err(Error::NoGpuSupport { feature: "wgpu" })))
        }
    }

    #[test]
    fn a_gpu_that_cannot_be_opened_is_replaced_unless_it_was_named() {
        let open = |is_auto| {
            let needs = DeviceNeeds::layers(1, None);
            let gpu: Option<Arc<dyn FoundGpu>> = Some(Arc::new(Refused));
            let chosen = ChosenDevice { gpu, reason: None, needs, is_auto };
            assert_eq!(chosen.to_string(), "device wgpu:9: a card");
            let mut notes = Vec::new();
            let opened = chosen.open(|| Cpu::new(1), |note| notes.push(note.to_owned()));
            (opened.map(|open| open.device()), notes)
        };
        let (opened, notes) = open(true);
        assert_eq!(opened.unwrap(), Device::Cpu);
        let expected = "`card` (wgpu:9) cannot be opened, so the CPU is used: ";
        assert!(notes[0].starts_with(expected), "{notes:?}");
        assert!(open(false).0.is_err());
    }
}
