//! Model folders: Hugging Face's (`model.safetensors`, or its shards and their index) and
//! CTranslate2's (`model.bin`), with the files beside the weights.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use crate::detect::Format;
use crate::error::{Error, Result, printable};
use crate::mmap::Bytes;
use crate::model_file::ModelFile;

/// Names of the files that belong to a model beside its weights.
pub const COMPANIONS: &[&str] = &[
    "config.json",
    "tokenizer.json",
    "vocabulary.txt",
    "vocabulary.json",
    "preprocessor_config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
];

/// Name of the index of sharded weights.
pub const SHARD_INDEX: &str = "model.safetensors.index.json";

/// Names of files that hold all weights; the first that exists counts.
pub const WEIGHTS: &[&str] = &["model.safetensors", "model.bin", "model.gguf"];

/// Names of a modelless folder that its error lists.
const LISTED: usize = 5;

/// A file beside the weights.
#[derive(Debug)]
pub(crate) struct Companion {
    pub(crate) name: String,
    pub(crate) bytes: Bytes,
}

/// Opens the model in `folder`.
pub(crate) fn open(folder: &Path) -> Result<ModelFile> {
    let whole = WEIGHTS.iter().map(|name| folder.join(name)).find(|path| path.exists());
    let index = folder.join(SHARD_INDEX);
    let mut model = match whole {
        Some(path) => ModelFile::open_file(&path)?,
        None if index.exists() => open_shards(folder, &index)?,
        None => return Err(no_model(folder)),
    };
    model.set_companions(companions_in(folder)?);
    Ok(model)
}

/// The files beside the weights `file`.
pub(crate) fn companions_of(file: &Path) -> Result<Vec<Companion>> {
    match file.parent() {
        Some(folder) if folder.as_os_str().is_empty() => companions_in(Path::new(".")),
        Some(folder) => companions_in(folder),
        None => Ok(Vec::new()),
    }
}

fn companions_in(folder: &Path) -> Result<Vec<Companion>> {
    let mut companions = Vec::new();
    for &name in COMPANIONS {
        let path = folder.join(name);
        if path.is_file() {
            companions.push(Companion { name: name.to_owned(), bytes: Bytes::open(&path)? });
        }
    }
    Ok(companions)
}

/// The part of the index that says where each tensor is.
#[derive(serde::Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Opens every shard that the index names; each tensor must be in the shard that it says.
fn open_shards(folder: &Path, index_path: &Path) -> Result<ModelFile> {
    let bytes = Bytes::open(index_path)?;
    let index: Index = serde_json::from_slice(&bytes)
        .map_err(|source| Error::Json { what: "the shard index".into(), source })
        .map_err(|e| e.in_file(index_path))?;
    let mut shards: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tensor, shard) in &index.weight_map {
        shards.entry(shard).or_default().push(tensor);
    }
    let mut whole: Option<ModelFile> = None;
    for (shard, tensors) in shards {
        let path = folder.join(plain_name(shard).map_err(|e| e.in_file(index_path))?);
        let part = ModelFile::open_file(&path)?;
        if part.format() != Format::SafeTensors {
            let found = part.format().to_string();
            return Err(Error::NotAModel { found }.in_file(path));
        }
        for tensor in tensors {
            part.require(tensor).map_err(|e| e.in_file(&path))?;
        }
        match &mut whole {
            Some(model) => model.append_shard(part).map_err(|e| e.in_file(&path))?,
            None => whole = Some(part),
        }
    }
    whole.ok_or_else(|| {
        let found = "an index of no tensors".to_owned();
        Error::NoModelInFolder { found }.in_file(index_path)
    })
}

/// A shard's name, which must not lead out of the folder.
fn plain_name(name: &str) -> Result<&str> {
    let mut components = Path::new(name).components();
    match (components.next(), components.next()) {
        (Some(Component::Normal(_)), None) => Ok(name),
        _ => Err(Error::Metadata {
            key: "weight_map".into(),
            expected: "names of files in the same folder".into(),
            got: printable(name),
        }),
    }
}

fn no_model(folder: &Path) -> Error {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(source) => return Error::Io { action: "read", path: folder.into(), source },
    };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| printable(&entry.file_name().to_string_lossy())).collect();
    names.sort();
    let found = match names.len() {
        0 => "nothing".to_owned(),
        n if n > LISTED => format!("{} and {} more", names[..LISTED].join(", "), n - LISTED),
        _ => names.join(", "),
    };
    Error::NoModelInFolder { found }.in_file(folder)
}
