//! `devices`, `--device`, `--gpu-layers`: equal text on the CPU and a GPU.

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
    let nvidia = json["cuda"].as_array().unwrap();
    assert_eq!(text.contains("\ncuda    "), nvidia.is_empty(), "{text}");
    assert_eq!(text.contains("\ncuda:0  "), !nvidia.is_empty(), "{text}");
    // Software and integrated adapters are only used if named; cards without compiled kernels never.
    let has_discrete = gpus.iter().any(|gpu| gpu["kind"] == "discrete");
    let cuda = nvidia.iter().find(|gpu| !gpu["kernels"].is_null());
    // A reason is given where the first choice is not used.
    let reason = json["auto_reason"].as_str();
    if let (Some(gpu), None) = (cuda, reason) {
        assert_eq!(json["auto"], format!("cuda:{}", gpu["index"]), "{json}");
    }
    assert!(json["auto"] != "cpu" || reason.is_some(), "{json}");
    let is_cpu = !has_discrete && cuda.is_none();
    assert!(!is_cpu || json["auto"] == "cpu", "{json}");
    let ending = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    assert!(
        text.ends_with(&format!("auto    {}{ending}\n", json["auto"].as_str().unwrap())),
        "{text}"
    );
}

#[test]
fn a_small_model_runs_on_the_cpu_by_default() {
    let folder = Folder::new("devices-default");
    let model = golden("llama.gguf");
    let generate = ["generate", "-m", &model, "-p", "a", "-n", "2", "-v"];
    let ran = folder.run(&generate);
    ran.succeeds();
    let reason = "device cpu: a GPU takes longer to start than it saves with a small model\n";
    assert!(ran.stderr.starts_with(reason), "{ran:?}");
    let ran = folder.run(&[&generate[..], &["--device", "cpu"]].concat());
    assert!(ran.stderr.starts_with("device cpu\n"), "{ran:?}");
}

#[test]
fn a_device_that_is_not_there_is_refused() {
    let folder = Folder::new("devices-missing");
    let model = golden("llama.gguf");
    let generate = ["generate", "-m", &model, "-p", "a", "-n", "2", "--device"];
    // Drivers may write to standard error, too.
    let ran = folder.run(&[&generate[..], &["wgpu:99"]].concat());
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
    assert!(ran.stderr.contains("error: no GPU with number 99"), "{ran:?}");
    // Without a driver, too.
    let ran = folder.run(&[&generate[..], &["cuda:99"]].concat());
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
    let reasons = ["error: no GPU with number 99", "error: no CUDA device: "];
    assert!(reasons.iter().any(|reason| ran.stderr.contains(reason)), "{ran:?}");
    let ran = folder.run(&[&generate[..], &["tpu"]].concat());
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(
        ran.stderr.contains("expected auto, cpu, cuda, cuda:N, cuda:N,N,..., wgpu or wgpu:N"),
        "{ran:?}"
    );
}

/// Tells if there is an adapter, also in software; prints why `test` is skipped otherwise.
fn has_gpu(folder: &Folder, test: &str) -> bool {
    let listed: serde_json::Value =
        serde_json::from_str(folder.run(&["devices", "--json"]).succeeds()).unwrap();
    let is_there = !listed["wgpu"].as_array().unwrap().is_empty();
    if !is_there {
        println!("SKIPPED {test}: no Vulkan, Metal or DirectX 12 adapter");
    }
    is_there
}

fn golden(name: &str) -> String {
    workspace().join("test-data/golden/llm").join(name).to_str().unwrap().to_owned()
}

#[test]
fn layers_that_are_no_number_are_refused() {
    let folder = Folder::new("layers-refused");
    let model = golden("llama.gguf");
    let generate = ["generate", "-m", &model, "-p", "a", "-n", "2"];
    for wrong in ["-1", "most", "2.5", ""] {
        let ran = folder.run(&[&generate[..], &["-ngl", wrong]].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
        let expected = format!("expected a number of layers, auto or all, got `{wrong}`");
        assert!(wrong.is_empty() || ran.stderr.contains(&expected), "{ran:?}");
    }
    let ran = folder.run(&[&generate[..], &["-ngl", "2", "--device", "cpu"]].concat());
    ran.fails("gpu_layers: expected a GPU, got cpu");
    // Zero layers need no GPU.
    let none = folder.run(&[&generate[..], &["-ngl", "0", "--temp", "0"]].concat());
    assert_eq!(none.succeeds(), folder.run(&[&generate[..], &["--temp", "0"]].concat()).succeeds());
    assert!(none.stderr.contains("cpu: embedding, layers 0 to 1, output: "), "{none:?}");
}

#[test]
fn a_split_model_gives_the_text_of_the_cpu_and_its_placement() {
    let folder = Folder::new("layers-split");
    if !has_gpu(&folder, "a_split_model_gives_the_text_of_the_cpu_and_its_placement") {
        return;
    }
    let model = golden("gemma3.gguf");
    let options = ["-m", &model, "-p", "ab", "-n", "8", "--temp", "0", "--device", "wgpu:0"];
    let generate = [&["generate", "--ignore-eos"], &options[..]].concat();
    let expected = folder.run(&[&generate[..generate.len() - 2], &["-q"]].concat());
    for (layers, cpu, gpu) in [
        ("1", "embedding, layers 0 to 5", "output"),
        ("2", "embedding, layers 0 to 4", "layer 5, output"),
        ("4", "embedding, layers 0 to 2", "layers 3 to 5, output"),
        ("6", "embedding, layer 0", "layers 1 to 5, output"),
        ("7", "", "embedding, layers 0 to 5, output"),
        ("999", "", "embedding, layers 0 to 5, output"),
        ("all", "", "embedding, layers 0 to 5, output"),
    ] {
        let ran = folder.run(&[&generate[..], &["--n-gpu-layers", layers]].concat());
        assert_eq!(ran.succeeds(), expected.stdout, "{layers}");
        let has = |device: &str, parts: &str| {
            let line = format!("{device}: {parts}: ");
            let found = ran.stderr.lines().find(|l| l.starts_with(&line));
            found.is_some_and(|line| line.contains(": weights ") && line.contains(", KV cache "))
        };
        assert!(has("wgpu", gpu), "{layers}: {ran:?}");
        assert_eq!(has("cpu", cpu), !cpu.is_empty(), "{layers}: {ran:?}");
    }
    // A tiny model fits in any memory.
    let auto = folder.run(&[&generate[..], &["-ngl", "auto"]].concat());
    assert_eq!(auto.succeeds(), expected.stdout);
    assert!(auto.stderr.contains("--gpu-layers auto: 7 of 7 layers fit in "), "{auto:?}");
    assert!(auto.stderr.contains("\nwgpu: embedding, layers 0 to 5, output: "), "{auto:?}");

    let bench = ["bench", "-m", &model, "-p", "8", "-n", "2", "-r", "1", "-o", "json"];
    let ran = folder.run(&[&bench[..], &["-ngl", "3", "--device", "wgpu:0"]].concat());
    let json: serde_json::Value = serde_json::from_str(ran.succeeds()).unwrap();
    let parts = ["cpu: embedding, layers 0 to 3", "wgpu: layers 4 to 5, output"];
    assert_eq!(json[0]["placement"], serde_json::json!(parts));
    assert!(json[0]["backend"].as_str().unwrap().contains(" + wgpu "), "{json}");
}

#[test]
fn a_gpu_gives_the_text_of_the_cpu() {
    let folder = Folder::new("devices-text");
    if !has_gpu(&folder, "a_gpu_gives_the_text_of_the_cpu") {
        return;
    }
    for name in ["llama", "gemma3", "gpt-oss"] {
        let model = golden(&format!("{name}.gguf"));
        let generate =
            ["generate", "-m", &model, "-p", "ab", "-n", "8", "--temp", "0", "--ignore-eos"];
        let cpu = folder.run(&generate).succeeds().to_owned();
        let gpu = folder.run(&[&generate[..], &["--device", "wgpu:0"]].concat());
        assert_eq!(gpu.succeeds(), cpu, "{name}");
    }
}
