use super::registry::{self, BACKENDS};
use super::{ChosenDevice, Device, DeviceNeeds, GpuLayers, list_gpus};

#[test]
fn devices_have_names() {
    for (name, device) in [
        ("auto", Device::Auto),
        ("cpu", Device::Cpu),
        ("cuda", Device::Cuda(None)),
        ("cuda:1", Device::Cuda(Some(1))),
        ("cuda:0,0", Device::CudaGroup("0,0".parse().unwrap())),
        ("cuda:7,6,5,4,3,2,1,0", Device::CudaGroup("7,6,5,4,3,2,1,0".parse().unwrap())),
        ("wgpu", Device::Wgpu(None)),
        ("wgpu:12", Device::Wgpu(Some(12))),
    ] {
        assert_eq!(name.parse(), Ok(device));
        assert_eq!(device.to_string(), name);
    }
    for wrong in ["", "gpu", "wgpu:", "wgpu:x", "cuda:", "cuda:-1", "cpu:1", "wgpu:0,1", "cuda:0,"]
    {
        assert!(wrong.parse::<Device>().is_err(), "{wrong}");
    }
    assert!("cuda:0,1,2,3,4,5,6,7,8".parse::<Device>().is_err(), "nine ranks");
}

#[test]
fn the_cpu_is_always_there() {
    let needs = DeviceNeeds { weight_bytes: u64::MAX, can_split: false };
    let chosen = Device::Cpu.choose(needs).unwrap();
    assert!(matches!(chosen, ChosenDevice::Cpu(None)));
    assert_eq!(chosen.to_string(), "device cpu");
    let small = DeviceNeeds { weight_bytes: Device::AUTO_MIN_BYTES - 1, can_split: true };
    for needs in [needs, small] {
        let chosen = Device::Auto.choose(needs).unwrap();
        assert!(matches!(chosen, ChosenDevice::Cpu(Some(_))), "{chosen}");
    }
}

#[test]
fn layers_choose_the_device() {
    for device in [Device::Auto, Device::Cpu, Device::Cuda(Some(1)), Device::Wgpu(None)] {
        assert_eq!(device.with_layers(None).unwrap(), device);
        assert_eq!(device.with_layers(Some(GpuLayers::Last(0))).unwrap(), Device::Cpu);
    }
    assert_eq!(Device::Wgpu(None).with_layers(Some(GpuLayers::All)).unwrap(), Device::Wgpu(None));
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

#[test]
fn every_backend_has_one_name() {
    for (backend, list) in BACKENDS.iter().zip(list_gpus()) {
        let (any, second) = ((backend.device)(None), (backend.device)(Some(1)));
        assert_eq!(any.to_string(), list.backend);
        assert_eq!(format!("{}:1", list.backend).parse(), Ok(second));
        assert_eq!(registry::api(any).is_ok(), backend.api.is_some());
        let error = "gpu".parse::<Device>().unwrap_err().to_string();
        assert!(error.contains(list.backend), "{error}");
    }
    assert!(registry::after(Device::Wgpu(None)).is_empty());
}
