use super::{ChosenDevice, Device, DeviceNeeds};

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
