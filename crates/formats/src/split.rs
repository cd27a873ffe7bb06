//! GGUF models in several files, `NAME-00001-of-00003.gguf` and so on.
//!
//! Each part is a GGUF file of its own with the entries `split.no` (from 0), `split.count` and
//! `split.tensors.count` (of the whole). The first has all metadata of the model; any may have
//! tensors. Source: `gguf-split` and `llama_model_loader` of llama.cpp.

use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, printable};
use crate::files::Files;
use crate::format::Format;
use crate::model_file::ModelFile;

const NO: &str = "split.no";
const COUNT: &str = "split.count";
const N_TENSORS: &str = "split.tensors.count";

/// The split entries of a part's metadata.
#[derive(Clone, Copy, PartialEq)]
struct Part {
    no: usize,
    count: usize,
    n_tensors: usize,
}

/// Split entries of `file`; `None` for a whole model.
fn part(file: &ModelFile) -> Result<Option<Part>> {
    let metadata = file.metadata();
    if file.format() != Format::Gguf || metadata.get(COUNT).is_none() {
        return Ok(None);
    }
    let count = metadata.usize(COUNT)?;
    if count < 2 {
        return Ok(None);
    }
    let no = metadata.usize(NO)?;
    if no >= count {
        return Err(Error::metadata(NO, format!("a number below {count}"), no.to_string()));
    }
    Ok(Some(Part { no, count, n_tensors: metadata.usize(N_TENSORS)? }))
}

/// Refuses a part of a model: one reader cannot open the other parts.
pub(crate) fn check_whole(file: &ModelFile) -> Result<()> {
    match part(file)? {
        None => Ok(()),
        Some(Part { no, count, .. }) => Err(Error::metadata(
            COUNT,
            "a model in one file, or all its parts",
            format!("part {} of {count}", no + 1),
        )),
    }
}

/// Joins the parts of the model that `opened` is a part of; a whole model is returned unchanged.
/// `path`: file of `opened`. The other parts must be among `files`.
pub(crate) fn open_all(opened: ModelFile, path: &Path, files: &mut Files<'_>) -> Result<ModelFile> {
    let Some(this) = part(&opened).map_err(|e| e.in_file(path))? else {
        return Ok(opened);
    };
    let prefix = prefix(path, this).map_err(|e| e.in_file(path))?;
    let mut opened = Some(opened);
    let parts = (0..this.count).map(|no| {
        let name = format!("{prefix}{}", suffix(no, this.count));
        let file = match opened.take_if(|_| no == this.no) {
            Some(file) => file,
            None => open_part(files, &name, this.count)?,
        };
        Ok((file, files.path(&name)))
    });
    join(parts)
}

/// Joins as many parts as the first one counts.
fn join(parts: impl Iterator<Item = Result<(ModelFile, PathBuf)>>) -> Result<ModelFile> {
    let mut whole: Option<(ModelFile, Part)> = None;
    for (no, next) in parts.enumerate() {
        let (file, path) = next?;
        let first = whole.as_ref().map(|(_, first)| *first);
        let checked = check_part(&file, no, first);
        let in_file = |e: Error| e.in_file(&path);
        let part = checked.map_err(in_file)?;
        match &mut whole {
            Some((model, _)) => model.append_shard(file).map_err(in_file)?,
            None => whole = Some((file, part)),
        }
    }
    let Some((mut model, part)) = whole else {
        return Err(Error::metadata(COUNT, "two or more parts", "none"));
    };
    let n_tensors = model.tensors().len();
    if n_tensors != part.n_tensors {
        let expected = format!("{} tensors in all parts", part.n_tensors);
        return Err(Error::metadata(N_TENSORS, expected, n_tensors.to_string()));
    }
    for key in [NO, COUNT, N_TENSORS] {
        model.remove_metadata(key);
    }
    Ok(model)
}

/// Checks that `file` is part `no` of the model whose first part has the entries `first`.
fn check_part(file: &ModelFile, no: usize, first: Option<Part>) -> Result<Part> {
    if file.format() != Format::Gguf {
        return Err(Error::NotAModel { found: format!("{} beside GGUF parts", file.format()) });
    }
    let Some(part) = part(file)? else {
        return Err(Error::metadata(COUNT, "a part of a split model", "a whole one"));
    };
    let first = first.unwrap_or(part);
    let expected = Part { no, ..first };
    if part == expected {
        return Ok(part);
    }
    let of = |part: Part| {
        format!("part {} of {} with {} tensors", part.no + 1, part.count, part.n_tensors)
    };
    Err(Error::metadata(NO, of(expected), of(part)))
}

fn open_part(files: &mut Files<'_>, name: &str, count: usize) -> Result<ModelFile> {
    ModelFile::open_in(files, name).map_err(|e| match e {
        Error::Io { action, path, source } if source.kind() == io::ErrorKind::NotFound => {
            let message = format!("all {count} parts of a split model must be in one folder");
            Error::Io { action, path, source: io::Error::new(source.kind(), message) }
        }
        other => other,
    })
}

fn suffix(no: usize, count: usize) -> String {
    format!("-{:05}-of-{count:05}.gguf", no + 1)
}

/// The name of the part at `path` without its suffix.
fn prefix(path: &Path, part: Part) -> Result<String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let suffix = suffix(part.no, part.count);
    match path.file_name().and_then(|name| name.to_str()?.strip_suffix(&suffix)) {
        Some(prefix) => Ok(prefix.to_owned()),
        None => {
            let expected = format!("a file name that ends in {suffix}");
            Err(Error::metadata(NO, expected, printable(&name)))
        }
    }
}
