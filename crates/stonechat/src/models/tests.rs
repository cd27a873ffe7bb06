//! Tests of names, lists and removal in temporary folders.

use std::fs;
use std::path::{Path, PathBuf};

use super::Models;

/// Temporary folder, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("stonechat-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn names_are_found_in_every_form() {
    let scratch = Scratch::new("find");
    let models = Models::at(&scratch.0);
    fs::create_dir(scratch.0.join("base")).unwrap();
    fs::write(scratch.0.join("base/model.bin"), b"").unwrap();
    for file in ["one.gguf", "two.bin", "ggml-tiny-q5_1.bin", "large-v3-turbo.gguf", ".hidden"] {
        fs::write(scratch.0.join(file), b"12345").unwrap();
    }
    for (name, file) in [
        ("base", "base"),
        ("one", "one.gguf"),
        ("one.gguf", "one.gguf"),
        ("two", "two.bin"),
        ("tiny-q5_1", "ggml-tiny-q5_1.bin"),
        ("turbo", "large-v3-turbo.gguf"),
    ] {
        assert_eq!(models.find(name).unwrap(), scratch.0.join(file));
    }
    let names: Vec<_> = models.installed().unwrap().into_iter().map(|m| m.name).collect();
    assert_eq!(names, ["base", "large-v3-turbo", "one", "tiny-q5_1", "two"]);
    assert_eq!(models.installed().unwrap()[2].bytes, 5);
}

#[test]
fn a_path_wins_over_a_name() {
    let scratch = Scratch::new("path");
    let path = scratch.0.join("one.gguf");
    fs::write(&path, b"").unwrap();
    let models = Models::at(scratch.0.join("nothing"));
    assert_eq!(models.find(path.to_str().unwrap()).unwrap(), path);
    assert_eq!(models.installed().unwrap(), []);
}

#[test]
fn missing_models_come_with_a_hint() {
    #[track_caller]
    fn check(name: &str, expected: &str) {
        let message = Models::at("/nonexistent").find(name).unwrap_err().to_string();
        assert!(message.contains("/nonexistent") && message.contains(expected), "{message}");
    }
    check("base", "`stonechat pull base`");
    check("qwen3:0.6b", "`stonechat pull qwen3:0.6b`");
    check("turbo", "`stonechat pull turbo`");
    check("user/repo", "`stonechat pull user/repo`");
    check("bsae", "`stonechat models` lists");
}

/// Every installed name, and whether it is in the Hugging Face cache.
fn names(models: &Models) -> Vec<(String, bool)> {
    let installed = models.installed().unwrap();
    installed.into_iter().map(|model| (model.name, model.is_in_hub_cache)).collect()
}

fn write_all(folder: &Path, files: &[&str]) {
    for file in files {
        let path = folder.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, b"12345").unwrap();
    }
}

#[test]
fn every_listed_name_is_found() {
    let scratch = Scratch::new("listed");
    let (own, hub) = (scratch.0.join("own"), scratch.0.join("hub"));
    write_all(
        &own,
        &[
            "one.gguf",
            "base/config.json",
            "base/model.safetensors",
            "mine/x.gguf",
            "two-00001-of-00002.gguf",
            "two-00002-of-00002.gguf",
            "cut-00001-of-00002.gguf",
            "user--whole/model.safetensors",
            "user--files/m-Q4_K_M.gguf",
            "user--files/m-Q8_0-00001-of-00002.gguf",
            "user--files/m-Q8_0-00002-of-00002.gguf",
            "user--files/other.gguf",
            "user--files/mmproj-F16.gguf",
            "unsloth--Qwen3-0.6B-GGUF/Qwen3-0.6B-Q4_K_M.gguf",
            "unsloth--Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf",
            ".downloads/x.gguf",
            "empty/readme.txt",
        ],
    );
    let snapshot = "models--a--b/snapshots/c0ffee";
    write_all(&hub, &[&format!("{snapshot}/model.safetensors"), "models--a--b/refs/main"]);
    fs::write(hub.join("models--a--b/refs/main"), "c0ffee").unwrap();
    write_all(&hub, &["models--a--g/snapshots/1/Q4_0/g-Q4_0.gguf"]);
    let models = Models::at(&own).with_hub_cache(&hub);
    let expected = [
        ("base", false),
        ("mine/x", false),
        ("one", false),
        ("qwen3:0.6b", false),
        ("two", false),
        ("unsloth/Qwen3-0.6B-GGUF:Q8_0", false),
        ("user/files:Q4_K_M", false),
        ("user/files:Q8_0", false),
        ("user/files:other.gguf", false),
        ("user/whole", false),
        ("a/b", true),
        ("a/g:Q4_0", true),
    ];
    let listed = names(&models);
    assert_eq!(listed, expected.map(|(name, cached)| (name.to_owned(), cached)));
    for model in models.installed().unwrap() {
        assert_eq!(models.find(&model.name).unwrap(), model.path, "{}", model.name);
    }
    for (name, path) in [
        ("qwen3", "unsloth--Qwen3-0.6B-GGUF/Qwen3-0.6B-Q4_K_M.gguf"),
        ("qwen3:0.6b-q8_0", "unsloth--Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf"),
        ("user/files", "user--files/m-Q4_K_M.gguf"),
        ("hf.co/user/files:q8_0", "user--files/m-Q8_0-00001-of-00002.gguf"),
    ] {
        assert_eq!(models.find(name).unwrap(), own.join(path), "{name}");
    }
    assert_eq!(models.find("a/b").unwrap(), hub.join(snapshot));
}

#[test]
fn removal_leaves_the_other_models_of_a_folder() {
    let scratch = Scratch::new("remove");
    let (own, hub) = (scratch.0.join("own"), scratch.0.join("hub"));
    let files = ["u--r/m-Q4_0.gguf", "u--r/m-Q8_0.gguf", "u--r/README.md", "base/model.bin"];
    write_all(&own, &files);
    write_all(&hub, &["models--a--b/snapshots/1/model.safetensors"]);
    let models = Models::at(&own).with_hub_cache(&hub);
    assert_eq!(models.remove("u/r:Q8_0").unwrap().bytes, 5);
    assert_eq!(names(&models).len(), 3);
    models.remove("u/r").unwrap();
    // A file that no download brought.
    assert_eq!(fs::read_dir(own.join("u--r")).unwrap().count(), 1);
    fs::remove_dir_all(own.join("u--r")).unwrap();
    // GGUF files beside a whole model stay, and the other way round.
    write_all(&own, &["a--b/config.json", "a--b/model.safetensors", "a--b/m-Q4_0.gguf"]);
    assert_eq!(models.remove("a/b").unwrap().bytes, 10);
    assert!(own.join("a--b/m-Q4_0.gguf").exists());
    write_all(&own, &["a--b/model.safetensors"]);
    models.remove("a/b:Q4_0").unwrap();
    assert!(own.join("a--b/model.safetensors").exists());
    models.remove("a/b").unwrap();
    assert!(!own.join("a--b").exists());
    models.remove("base").unwrap();
    assert!(models.remove("base").unwrap_err().to_string().contains("no model `base`"));
    let error = models.remove("a/b").unwrap_err().to_string();
    assert!(error.contains("not in the models folder"), "{error}");
    assert_eq!(names(&models), [("a/b".to_owned(), true)]);
}

#[test]
fn removal_leaves_files_that_are_not_the_models() {
    let scratch = Scratch::new("foreign");
    let own = scratch.0.join("own");
    let foreign = [
        "mine/notes.txt",
        "mine/.hidden",
        "mine/deep/er/y.gguf",
        "mine/hf/model.safetensors",
        "base/notes.txt",
        "base/runs/log.txt",
        "base/adapter.safetensors",
        "q/a/readme.md",
    ];
    let models_files = [
        "mine/x.gguf",
        "base/config.json",
        "base/tokenizer.json",
        "base/part-1.safetensors",
        "q/a/m-Q4_0.gguf",
        "q/b/m-Q8_0.gguf",
    ];
    write_all(&own, &foreign);
    write_all(&own, &models_files);
    fs::write(own.join("base/model.safetensors.index.json"), r#"{"w": "part-1.safetensors"}"#)
        .unwrap();
    let models = Models::at(&own);
    let all = models.installed().unwrap();
    for model in all.iter().filter(|model| !model.name.contains("hf")) {
        models.remove(&model.name).unwrap();
    }
    for file in foreign {
        assert!(own.join(file).exists(), "{file}");
    }
    for file in models_files {
        assert!(!own.join(file).exists(), "{file}");
    }
    assert!(!own.join("base/model.safetensors.index.json").exists());
    assert!(own.join("q/a").exists() && !own.join("q/b").exists());
}
