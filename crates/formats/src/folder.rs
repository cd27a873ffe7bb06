//! Model folders: Hugging Face's (`model.safetensors`, or its shards and their index) and
//! CTranslate2's (`model.bin`), with their companions. Readers get the files by name.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use crate::companions::companions;
use crate::error::{Error, Result, printable};
use crate::files::Files;
use crate::format::Format;
use crate::model_file::ModelFile;
use crate::split;

/// Name of the index of sharded weights.
pub const SHARD_INDEX: &str = "model.safetensors.index.json";

/// Names of files that hold all weights; the first that exists is read.
pub const WEIGHTS: &[&str] = &["model.safetensors", "model.bin", "model.gguf"];

/// Maximum number of file names in the error of a folder without a model.
const LISTED: usize = 5;

/// Opens the model of `files`.
pub(crate) fn open(files: &mut Files<'_>) -> Result<ModelFile> {
    let whole = WEIGHTS.iter().find(|name| files.contains(name));
    let mut model = match whole {
        Some(name) => ModelFile::open_in(files, name)?,
        None if files.contains(SHARD_INDEX) => open_shards(files)?,
        None => match first_weights(files)? {
            Some(name) => {
                let opened = ModelFile::open_in(files, &name)?;
                let model = split::open_all(opened, Path::new(&name), files)?;
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

/// Name of the first reader with an extension of weights. `None` for a folder, which may hold
/// several models.
fn first_weights(files: &Files<'_>) -> Result<Option<String>> {
    let Files::Readers(_) = files else { return Ok(None) };
    let is_weights = |name: &String| {
        let extension = Path::new(name).extension();
        ["gguf", "safetensors", "bin"].iter().any(|e| extension.is_some_and(|have| have == *e))
    };
    Ok(files.names()?.into_iter().find(is_weights))
}

/// Index of sharded weights: file name of each tensor.
#[derive(serde::Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Opens every shard of the index; each tensor must be in its shard.
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
        let part = ModelFile::open_in(files, shard)?;
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

/// Checks that the name of a shard is a plain file name, which cannot lead out of the folder.
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
