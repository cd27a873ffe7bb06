//! Where models run: the list of devices, and a GPU that says what the CPU says.

use crate::run::{Folder, workspace};

#[test]
fn devices_are_listed() {
    let folder = Folder::new("devices");
    let text = folder.run(&["devices"]).succeeds().to_owned();
    assert!(text.starts_with("cpu     cpu "), "{text}");
    assert!(text.lines().last().unwrap().starts_with("auto    "), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(folder.run(&["devices", "--json"]).succeeds()).unwrap();
    let gpus = json["wgpu"].as_array().unwrap();
    // A processor that plays a GPU is only taken when it is asked for.
    let has_hardware = gpus.iter().any(|gpu| gpu["kind"] != "software");
    assert_eq!(json["auto"] != "cpu", has_hardware, "{json}");
}

#[test]
fn a_device_that_is_not_there_is_refused() {
    let folder = Folder::new("devices-missing");
    let model = workspace().join("test-data/golden/llm/llama.gguf");
    let model = model.to_str().unwrap();
    let generate = ["generate", "-m", model, "-p", "a", "-n", "2", "--device"];
    // Drivers may write to standard error, too.
    let ran = folder.run(&[&generate[..], &["wgpu:99"]].concat());
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
    assert!(ran.stderr.contains("error: no GPU with number 99"), "{ran:?}");
    let ran = folder.run(&[&generate[..], &["tpu"]].concat());
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.contains("expected auto, cpu, wgpu or wgpu:N"), "{ran:?}");
}

#[test]
fn a_gpu_says_what_the_cpu_says() {
    let test = "a_gpu_says_what_the_cpu_says";
    let folder = Folder::new("devices-text");
    let listed: serde_json::Value =
        serde_json::from_str(folder.run(&["devices", "--json"]).succeeds()).unwrap();
    if listed["wgpu"].as_array().unwrap().is_empty() {
        println!("SKIPPED {test}: no Vulkan, Metal or DirectX 12 adapter");
        return;
    }
    for name in ["llama", "gemma3", "gpt-oss"] {
        let model = workspace().join(format!("test-data/golden/llm/{name}.gguf"));
        let model = model.to_str().unwrap();
        let generate =
            ["generate", "-m", model, "-p", "ab", "-n", "8", "--temp", "0", "--ignore-eos"];
        let cpu = folder.run(&generate).succeeds().to_owned();
        let gpu = folder.run(&[&generate[..], &["--device", "wgpu:0"]].concat());
        assert_eq!(gpu.succeeds(), cpu, "{name}");
    }
}
