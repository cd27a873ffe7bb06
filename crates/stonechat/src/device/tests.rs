use stonechat_nn::Cpu;

use super::registry::{self, BACKENDS};
use super::{Device, DeviceNeeds, GpuLayers, list_gpus};

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
    let needs = DeviceNeeds::whole(u64::MAX);
    let chosen = Device::Cpu.choose(needs).unwrap();
    assert_eq!((chosen.to_string().as_str(), chosen.reason()), ("device cpu", None));
    let small = DeviceNeeds::layers(Device::AUTO_MIN_BYTES - 1, None);
    for needs in [needs, small] {
        let chosen = Device::Auto.choose(needs).unwrap();
        assert!(!chosen.is_gpu() && chosen.reason().is_some(), "{chosen}");
    }
}

#[test]
fn layers_choose_the_device() {
    let chosen = |device: Device, layers| device.choose(DeviceNeeds::layers(1, Some(layers)));
    for device in [Device::Auto, Device::Cpu, Device::Cuda(Some(1)), Device::Wgpu(None)] {
        let chosen = chosen(device, GpuLayers::Last(0)).unwrap();
        assert_eq!((chosen.device(), chosen.reason()), (Device::Cpu, None));
    }
    assert!(chosen(Device::Cpu, GpuLayers::All).is_err());
    // A small model is on a GPU, too; without one, all layers are on the CPU, and the caller gets the reason.
    let chosen = chosen(Device::Auto, GpuLayers::Auto).unwrap();
    assert_eq!(chosen.is_gpu(), chosen.reason().is_none(), "{chosen}");
    if !chosen.is_gpu() {
        let mut notes = Vec::new();
        let open = chosen.open(|| Cpu::new(1), |note| notes.push(note.to_owned())).unwrap();
        assert_eq!(open.device(), Device::Cpu);
        assert!(notes[0].starts_with("all layers are on the CPU: "), "{notes:?}");
    }
}

#[test]
fn the_cpu_has_no_gpu_memory() {
    let chosen = Device::Cpu.choose(DeviceNeeds::whole(1 << 40)).unwrap();
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
