//! Opening files and folders, their error messages, and the atomic replacement of files.

#[path = "support/sample_files.rs"]
mod sample_files;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use sample_files::safetensors_of;
use stonechat_formats::{AtomicFile, DType, Format, ModelFile};

/// A folder under the build's scratch space, emptied when made.
fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("the scratch space is writable");
    folder
}

#[track_caller]
fn refused(path: &Path, expected: &str) {
    let e = ModelFile::open(path).expect_err("no model").to_string();
    assert!(e.contains(expected), "{e}");
    assert!(e.contains(&path.display().to_string()), "names the file: {e}");
    assert!(!e.contains('\n'), "{e}");
}

#[test]
fn content_decides_not_the_extension() {
    let folder = scratch("extension");
    for (i, (name, bytes)) in sample_files::all().into_iter().enumerate() {
        let path = folder.join(format!("{i}.wav"));
        fs::write(&path, &bytes).unwrap();
        let model = ModelFile::open(&path).unwrap();
        assert_eq!(model.path(), Some(path.as_path()));
        assert_eq!(model.file_bytes(), bytes.len() as u64, "{name}");
        let in_memory = ModelFile::from_reader(bytes).unwrap();
        assert_eq!(model.metadata(), in_memory.metadata());
        for (a, b) in model.tensors().zip(in_memory.tensors()) {
            assert_eq!((a.name, a.dtype, a.shape), (b.name, b.dtype, b.shape));
            assert_eq!(*a.data.load().unwrap(), *b.data.load().unwrap());
        }
    }
}

#[test]
fn what_is_no_model_is_said() {
    let folder = scratch("no_model");
    let with = |name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let not =
        "not a model file: expected CTranslate2, GGUF, whisper.cpp .bin or safetensors; found";
    refused(&folder.join("missing.gguf"), "cannot open");
    refused(&with("empty.bin", b""), &format!("{not} an empty file"));
    refused(&with("text.gguf", b"This is a text.\n"), &format!("{not} text"));
    refused(&with("config.json", b"{\"a\": 1}"), &format!("{not} JSON text"));
    refused(&with("tiny.pt", b"PK\x03\x04...."), &format!("{not} a zip archive"));
    refused(&with("lfs.bin", b"version https://git-lfs.github.com/spec/v1\n"), "a Git LFS pointer");
    refused(&with("noise.bin", &[0xfe; 64]), "unknown binary data starting with fe fe");
    refused(&with("cut.gguf", b"GGUF\x03\0\0\0\x05"), "file ends inside number of tensors");
}

#[test]
fn a_folder_without_a_model_says_what_it_holds() {
    let folder = scratch("empty_folder");
    refused(&folder, "no model in this folder: expected model.bin, model.safetensors or");
    refused(&folder, "found nothing");
    for name in ["pytorch_model.bin", "config.json", "a", "b", "c", "d", "e"] {
        fs::write(folder.join(name), b"x").unwrap();
    }
    refused(&folder, "found a, b, c, config.json, d and 2 more");
    fs::write(folder.join("model.bin"), b"some text").unwrap();
    let e = ModelFile::open(&folder).unwrap_err().to_string();
    assert!(e.contains("model.bin`: not a model file"), "{e}");
}

#[cfg(unix)]
#[test]
fn an_unreadable_file_and_a_device_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    refused(Path::new("/dev/null"), "expected a regular file");
    let path = scratch("permission").join("secret.gguf");
    fs::write(&path, sample_files::gguf()).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read(&path).is_ok() {
        println!("skipped: an_unreadable_file, because this user reads any file");
        return;
    }
    refused(&path, "Permission denied");
}

#[test]
fn ctranslate2_folder_and_its_companions() {
    let folder = scratch("ct2_folder");
    fs::write(folder.join("model.bin"), sample_files::ctranslate2(6)).unwrap();
    fs::write(folder.join("vocabulary.txt"), b"a\nb\n").unwrap();
    fs::write(folder.join("config.json"), b"{}").unwrap();
    fs::write(folder.join("unrelated.json"), b"{}").unwrap();
    for path in [folder.clone(), folder.join("model.bin")] {
        let model = ModelFile::open(&path).unwrap();
        assert_eq!(model.format(), Format::CTranslate2);
        let names: Vec<&str> = model.companions().map(|(name, _)| name).collect();
        assert_eq!(names, ["config.json", "vocabulary.txt"]);
        assert_eq!(model.companion("vocabulary.txt"), Some(b"a\nb\n".as_slice()));
        assert_eq!(model.companion("unrelated.json"), None);
        assert_eq!(model.summary().companions.len(), 2);
    }
}

#[test]
fn a_gguf_takes_no_companions() {
    let folder = scratch("gguf_folder");
    fs::write(folder.join("config.json"), b"{}").unwrap();
    fs::write(folder.join("m.gguf"), sample_files::gguf()).unwrap();
    assert_eq!(ModelFile::open(folder.join("m.gguf")).unwrap().companions().len(), 0);
}

fn shard(name: &str, first: u8) -> Vec<u8> {
    let header = format!(r#"{{"{name}":{{"dtype":"I8","shape":[3],"data_offsets":[0,3]}}}}"#);
    let mut bytes = safetensors_of(&header, 3);
    let at = bytes.len() - 3;
    bytes[at] = first;
    bytes
}

#[test]
fn hugging_face_folders() {
    let folder = scratch("hf_folder");
    fs::write(folder.join("tokenizer.json"), b"{}").unwrap();
    fs::write(folder.join("model-00001-of-00002.safetensors"), shard("a", 1)).unwrap();
    fs::write(folder.join("model-00002-of-00002.safetensors"), shard("b", 2)).unwrap();
    let index = folder.join("model.safetensors.index.json");
    let map = r#"{"metadata":{"total_size":6},"weight_map":{
        "b":"model-00002-of-00002.safetensors","a":"model-00001-of-00002.safetensors"}}"#;
    fs::write(&index, map).unwrap();
    let model = ModelFile::open(&folder).unwrap();
    assert_eq!(model.format(), Format::SafeTensors);
    assert_eq!(model.require("a").unwrap().data.load().unwrap()[0], 1);
    assert_eq!(model.require("b").unwrap().data.load().unwrap()[0], 2);
    assert_eq!(model.companion("tokenizer.json"), Some(b"{}".as_slice()));

    let refuse_index = |map: &str, expected: &str| {
        fs::write(&index, map).unwrap();
        let e = ModelFile::open(&folder).unwrap_err().to_string();
        assert!(e.contains(expected) && !e.contains('\n'), "{e}");
    };
    refuse_index("{", "index.json`: invalid JSON in the shard index");
    refuse_index(r#"{"weight_map":{}}"#, "found an index of no tensors");
    let outside = r#"{"weight_map":{"a":"../x.safetensors"}}"#;
    refuse_index(outside, "expected names of files in the same folder, got ../x.safetensors");
    refuse_index(r#"{"weight_map":{"a":"gone.safetensors"}}"#, "cannot open");
    let elsewhere = r#"{"weight_map":{"b":"model-00001-of-00002.safetensors"}}"#;
    refuse_index(elsewhere, "model-00001-of-00002.safetensors`: tensor `b` is missing");
    fs::write(folder.join("other.gguf"), sample_files::gguf()).unwrap();
    refuse_index(r#"{"weight_map":{"a":"other.gguf"}}"#, "found GGUF");

    fs::write(folder.join("model.safetensors"), sample_files::safetensors()).unwrap();
    let model = ModelFile::open(&folder).unwrap();
    assert!(model.tensor("model.norm.weight").is_some(), "the whole file counts, not the index");
}

#[test]
fn a_file_is_replaced_whole_or_not_at_all() {
    let folder = scratch("atomic");
    let path = folder.join("m.gguf");
    let names = || {
        let mut names: Vec<_> =
            fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names
    };
    fs::write(&path, b"old").unwrap();

    let mut out = AtomicFile::create(&path).unwrap();
    out.write_all(&[7; 3 << 20]).unwrap();
    assert_eq!(names().len(), 2);
    assert_eq!(fs::read(&path).unwrap(), b"old");
    drop(out);
    assert_eq!(names(), ["m.gguf"]);
    assert_eq!(fs::read(&path).unwrap(), b"old");

    // A model may be rewritten in place: the open one keeps its bytes.
    fs::write(&path, sample_files::gguf()).unwrap();
    let open = ModelFile::open(&path).unwrap();
    let mut out = AtomicFile::create(&path).unwrap();
    out.write_all(b"new").unwrap();
    out.commit().unwrap();
    assert_eq!(names(), ["m.gguf"]);
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(
        *open.require("norm.weight").unwrap().data.load().unwrap(),
        sample_files::pattern(28)
    );

    assert!(AtomicFile::create(&folder).is_err());
    let nowhere = folder.join("missing").join("m.gguf");
    let e = AtomicFile::create(&nowhere).unwrap_err().to_string();
    assert!(e.starts_with("cannot create") && e.contains("m.gguf"), "{e}");
}

#[cfg(unix)]
#[test]
fn a_file_has_the_permissions_of_any_other() {
    use std::os::unix::fs::PermissionsExt;
    let folder = scratch("atomic_permissions");
    let mode = |name: &str| fs::metadata(folder.join(name)).unwrap().permissions().mode();
    fs::write(folder.join("plain"), b"x").unwrap();
    AtomicFile::create(folder.join("atomic")).unwrap().commit().unwrap();
    assert_eq!(mode("atomic"), mode("plain"));
    let e = AtomicFile::create(folder.join("missing/m.gguf")).unwrap_err().to_string();
    assert!(e.ends_with("m.gguf`: No such file or directory (os error 2)"), "{e}");
}

/// A real tiny.en, where the models are installed.
#[test]
fn real_ctranslate2_model() {
    let Some(path) = real_model() else {
        println!("skipped: real_ctranslate2_model, set STONECHAT_TEST_CT2 to a model folder");
        return;
    };
    let model = ModelFile::open(&path).unwrap();
    assert_eq!(model.format(), Format::CTranslate2);
    assert_eq!(model.metadata().str("ctranslate2.spec").unwrap(), "WhisperSpec");
    let conv = model.require("encoder/conv1/weight").unwrap();
    assert!(matches!(conv.dtype, DType::F16 | DType::F32 | DType::BF16 | DType::I8));
    assert_eq!(conv.shape[2], 3);
    let embedding = model.require("decoder/embeddings/weight").unwrap();
    let projection = model.require("decoder/projection/weight").unwrap();
    let [embedding, projection] = [embedding, projection].map(|t| t.data.load().unwrap());
    assert_eq!(embedding.as_ptr(), projection.as_ptr(), "one is the other's alias");
    assert!(model.companion("config.json").is_some());
    println!("read {} with {} tensors", path.display(), model.tensors().len());
}

fn real_model() -> Option<PathBuf> {
    std::env::var_os("STONECHAT_TEST_CT2").map(PathBuf::from)
}
