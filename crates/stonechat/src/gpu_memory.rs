//! Memory of GPUs for models.

#[cfg(feature = "cuda")]
mod cuda;

#[cfg(feature = "cuda")]
pub(crate) use cuda::free_bytes;

use crate::device::ChosenDevice;
use crate::{Device, Error, GpuLayers};

impl Device {
    /// Device of a language model with so many layers on a GPU.
    ///
    /// # Errors
    /// If layers on a GPU are asked for beside [`Device::Cpu`].
    pub fn with_layers(self, layers: Option<GpuLayers>) -> Result<Self, Error> {
        match (self, layers) {
            (device, None) => Ok(device),
            (_, Some(GpuLayers::Last(0))) => Ok(Self::Cpu),
            (Self::Auto, Some(_)) => Ok(Self::any_gpu()),
            (Self::Cpu, Some(_)) => {
                let (expected, got) = ("a GPU".to_owned(), "cpu".to_owned());
                Err(stonechat_llm::Error::Option { option: "gpu_layers", expected, got }.into())
            }
            (device, Some(_)) => Ok(device),
        }
    }
}

impl ChosenDevice {
    /// Whether it is a GPU.
    #[must_use]
    pub fn is_gpu(&self) -> bool {
        !matches!(self, Self::Cpu(_))
    }
}

#[cfg(test)]
mod tests {
    use crate::device::DeviceNeeds;
    use crate::{Device, GpuLayers};

    #[test]
    fn layers_choose_the_device() {
        for device in [Device::Auto, Device::Cpu, Device::Cuda(Some(1)), Device::Wgpu(None)] {
            assert_eq!(device.with_layers(None).unwrap(), device);
            assert_eq!(device.with_layers(Some(GpuLayers::Last(0))).unwrap(), Device::Cpu);
        }
        assert_eq!(
            Device::Wgpu(None).with_layers(Some(GpuLayers::All)).unwrap(),
            Device::Wgpu(None)
        );
        assert_ne!(Device::Auto.with_layers(Some(GpuLayers::Auto)).unwrap(), Device::Auto);
        assert!(Device::Cpu.with_layers(Some(GpuLayers::All)).is_err());
    }

    #[test]
    fn the_cpu_has_no_gpu_memory() {
        let needs = DeviceNeeds { weight_bytes: 1 << 40, can_split: false };
        let chosen = Device::Cpu.placement(needs).unwrap();
        assert!(!chosen.is_gpu());
        assert_eq!(chosen.memory_for_models(), None);
    }
}
