//! Model folders: Hugging Face's (`model.safetensors`, or its shards and their index) and
//! CTranslate2's (`model.bin`), with the files beside the weights; readers with the names of such
//! files.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use stonechat_compute::SharedBytes;

use crate::detect::Format;
use crate::error::{Error, Result, printable};
use crate::files::Files;
use crate::gguf;
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
    pub(crate) bytes: SharedBytes,
}

/// Opens the model of `files`.
pub(crate) fn open(files: &mut Files<'_>) -> Result<ModelFile> {
    let whole = WEIGHTS.iter().find(|name| files.contains(name));
    let mut model = match whole {
        Some(name) => open_file(files, name)?,
        None if files.contains(SHARD_INDEX) => open_shards(files)?,
        None => match first_weights(files)? {
            Some(name) => {
                let opened = open_file(files, &name)?;
                let model = gguf::split::open_all(opened, Path::new(&name), files)?;
                if let Some(other) = first_weights(files)? {
                    let [name, other] = [&name, &other].map(|name| printable(name));
                    let found = format!("{name} and {other}, which are not one model");
                    return Err(Error::NoModelInFolder { found }.in_file(files.folder()));
                }
                model
            }
            None => return Err(no_model(files)),
        },
    };
    model.set_companions(companions(files)?);
    Ok(model)
}

/// Opens one file and no companions.
pub(crate) fn open_file(files: &mut Files<'_>, name: &str) -> Result<ModelFile> {
    let storage = files.open(name)?;
    ModelFile::of_storage(storage).map_err(|e| e.in_file(files.path(name)))
}

/// Name of the first reader whose extension is that of weights. `None` for a folder, which may hold
/// several models.
fn first_weights(files: &Files<'_>) -> Result<Option<String>> {
    let Files::Readers(_) = files else { return Ok(None) };
    let is_weights = |name: &String| {
        let extension = Path::new(name).extension();
        ["gguf", "safetensors", "bin"].iter().any(|e| extension.is_some_and(|have| have == *e))
    };
    Ok(files.names()?.into_iter().find(is_weights))
}

/// Loads the files beside the weights.
pub(crate) fn companions(files: &mut Files<'_>) -> Result<Vec<Companion>> {
    let mut companions = Vec::new();
    for &name in COMPANIONS {
        if files.contains(name) {
            let bytes =
                files.open(name)?.load_all(name).map_err(|e| e.in_file(files.path(name)))?;
            companions.push(Companion { name: name.to_owned(), bytes });
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
fn open_shards(files: &mut Files<'_>) -> Result<ModelFile> {
    let index_path = &files.path(SHARD_INDEX);
    let bytes = files.open(SHARD_INDEX)?.load_all(SHARD_INDEX)?;
    let index: Index = serde_json::from_slice(&bytes)
        .map_err(|source| Error::Json { what: "the shard index".into(), source })
        .map_err(|e| e.in_file(index_path))?;
    let mut shards: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tensor, shard) in &index.weight_map {
        shards.entry(shard).or_default().push(tensor);
    }
    let mut whole: Option<ModelFile> = None;
    for (shard, tensors) in shards {
        let shard = plain_name(shard).map_err(|e| e.in_file(index_path))?;
        let path = files.path(shard);
        let part = open_file(files, shard)?;
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

fn no_model(files: &Files<'_>) -> Error {
    let names: Vec<String> = match files.names() {
        Ok(names) => names.iter().map(|name| printable(name)).collect(),
        Err(error) => return error,
    };
    let found = match names.len() {
        0 => "nothing".to_owned(),
        n if n > LISTED => format!("{} and {} more", names[..LISTED].join(", "), n - LISTED),
        _ => names.join(", "),
    };
    Error::NoModelInFolder { found }.in_file(files.folder())
}
