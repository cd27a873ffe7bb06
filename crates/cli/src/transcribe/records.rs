//! Records of results: from which recording, with which model and options a result file was made.
//!
//! Each result has one JSON file in `stonechat/results` of the platform's cache folder, named after the path of the
//! result. A result is up to date if its record names the same recording, model, options and version; a digest tells
//! if it was edited since. Files without a record, edited ones and results of other recordings are never replaced
//! unasked.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::Context;
use sha2::{Digest, Sha256};
use stonechat::formats::AtomicFile;

use super::inputs::Input;

/// A file at one point in time.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct FileIdentity {
    path: String,
    bytes: u64,
    /// Nanoseconds since 1970.
    modified: u64,
}

impl FileIdentity {
    /// Identity of a file; `None` if it cannot be read or is no regular file.
    fn of(path: &Path) -> Option<Self> {
        let path = path.canonicalize().ok()?;
        let data = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
        let modified = data.modified().ok()?.duration_since(UNIX_EPOCH).unwrap_or_default();
        let modified = u64::try_from(modified.as_nanos()).unwrap_or(u64::MAX);
        Some(Self { path: path.display().to_string(), bytes: data.len(), modified })
    }

    /// Identities of a model: its file, or the files of its folder sorted by name.
    pub(super) fn of_model(path: &Path) -> Vec<Self> {
        let Ok(entries) = fs::read_dir(path) else { return Self::of(path).into_iter().collect() };
        let mut files: Vec<_> = entries.flatten().filter_map(|e| Self::of(&e.path())).collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        files
    }
}

/// Everything but the recording that decides a result.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Recipe {
    pub(super) version: String,
    pub(super) model: Vec<FileIdentity>,
    /// Decoding options, layout and channels in the form of [`Debug`].
    pub(super) options: String,
}

/// Record of one result.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Record {
    /// `None` for standard input and pipes.
    source: Option<FileIdentity>,
    recipe: Recipe,
    /// SHA-256 of the result.
    digest: String,
}

/// State of the file at the path of a result.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    /// The result of this recording and recipe.
    Current,
    /// The same, edited since.
    Edited,
    /// A result of this recording that was not edited; why it is out of date.
    Outdated(&'static str),
    /// A file that must not be replaced; why.
    Foreign(String),
}

/// Recording that the result at a path belongs to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// No record exists.
    Nobody,
    This,
    Other(String),
}

/// The folder of records.
#[derive(Debug)]
pub(super) struct Records {
    folder: Option<PathBuf>,
}

impl Records {
    /// Records of this user.
    pub(super) fn of_user() -> Self {
        Self { folder: dirs::cache_dir().map(|cache| cache.join("stonechat").join("results")) }
    }

    #[cfg(test)]
    pub(super) fn at(folder: &Path) -> Self {
        Self { folder: Some(folder.to_owned()) }
    }

    /// Recording that the result at `path` belongs to.
    pub(super) fn owner(&self, path: &Path, input: &Input) -> Owner {
        if !path.is_file() {
            return Owner::Nobody;
        }
        let Some(record) = self.read(path) else { return Owner::Nobody };
        let source = source(input).map(|source| source.path);
        match record.source {
            Some(of) if source.as_ref() != Some(&of.path) => Owner::Other(of.path),
            None if source.is_some() => Owner::Other(Input::StandardInput.name()),
            _ => Owner::This,
        }
    }

    /// Examines what lies at `path`, where `recipe` would write the result of `input`.
    pub(super) fn examine(&self, path: &Path, input: &Input, recipe: &Recipe) -> Found {
        if path.symlink_metadata().is_err() {
            return Found::Nothing;
        }
        if path.is_dir() {
            return Found::Foreign("it is a folder".to_owned());
        }
        let record = self.read(path);
        let (Some(record), Ok(bytes)) = (record, fs::read(path)) else {
            return Found::Foreign("it is not known as a result of this program".to_owned());
        };
        if let Owner::Other(other) = self.owner(path, input) {
            return Found::Foreign(format!("it is the result of `{other}`"));
        }
        let is_edited = digest(&bytes) != record.digest;
        let reason = if record.source.is_none() {
            Some("standard input may differ")
        } else if record.source != source(input) {
            Some("the recording has changed")
        } else if record.recipe.model != recipe.model {
            Some("it was made with another model")
        } else if record.recipe.options != recipe.options {
            Some("it was made with other options")
        } else if record.recipe.version != recipe.version {
            Some("it was made by another version")
        } else {
            None
        };
        match (reason, is_edited) {
            (None, false) => Found::Current,
            (None, true) => Found::Edited,
            (Some(reason), false) => Found::Outdated(reason),
            (Some(reason), true) => Found::Foreign(format!("it was edited, and {reason}")),
        }
    }

    /// Records that `bytes` were written to `path`.
    pub(super) fn write(
        &self,
        path: &Path,
        input: &Input,
        recipe: &Recipe,
        bytes: &[u8],
    ) -> anyhow::Result<()> {
        let folder = self.folder.as_deref().context("there is no cache folder")?;
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create the folder `{}`", folder.display()))?;
        let record =
            Record { source: source(input), recipe: recipe.clone(), digest: digest(bytes) };
        let mut file = AtomicFile::create(folder.join(file_name(path)))?;
        file.write_all(serde_json::to_string(&record)?.as_bytes())?;
        Ok(file.commit()?)
    }

    fn read(&self, path: &Path) -> Option<Record> {
        let text = fs::read(self.folder.as_ref()?.join(file_name(path))).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

/// Identity of the recording; `None` for standard input, pipes and missing files.
fn source(input: &Input) -> Option<FileIdentity> {
    FileIdentity::of(input.path()?)
}

/// Name of the record of the result at `path`.
fn file_name(path: &Path) -> String {
    let whole = || {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok()?;
        Some(folder.join(path.file_name()?))
    };
    let whole = whole().unwrap_or_else(|| path.to_owned());
    format!("{}.json", digest(whole.as_os_str().as_encoded_bytes()))
}

/// SHA-256 in hexadecimal digits.
fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::{Found, Owner, Recipe, Records};
    use crate::transcribe::inputs::Input;

    fn file(path: &Path) -> Input {
        Input::File { path: path.to_owned(), below: PathBuf::new() }
    }

    #[test]
    fn a_result_is_current_only_for_its_recording_and_recipe() {
        let folder = std::env::temp_dir().join(format!("stonechat-records-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let records = Records::at(&folder.join("records"));
        let (video, audio) = (folder.join("talk.mp4"), folder.join("talk.mp3"));
        for path in [&video, &audio] {
            fs::write(path, "sound").unwrap();
        }
        let (video, audio) = (file(&video), file(&audio));
        let result = folder.join("talk.srt");
        let recipe = |options: &str| Recipe {
            version: "1".to_owned(),
            model: Vec::new(),
            options: options.to_owned(),
        };
        let examine = |input, options| records.examine(&result, input, &recipe(options));
        assert_eq!(examine(&video, "a"), Found::Nothing);
        fs::write(&result, "text").unwrap();
        assert!(matches!(examine(&video, "a"), Found::Foreign(why) if why.contains("not known")));
        assert_eq!(records.owner(&result, &video), Owner::Nobody);
        records.write(&result, &video, &recipe("a"), b"text").unwrap();
        assert_eq!(examine(&video, "a"), Found::Current);
        assert_eq!(examine(&video, "b"), Found::Outdated("it was made with other options"));
        assert!(matches!(examine(&audio, "a"), Found::Foreign(why) if why.contains("talk.mp4")));
        assert!(matches!(records.owner(&result, &audio), Owner::Other(_)));
        fs::write(&result, "better text").unwrap();
        assert_eq!(examine(&video, "a"), Found::Edited);
        assert!(matches!(examine(&video, "b"), Found::Foreign(why) if why.contains("edited")));
        fs::write(&result, "text").unwrap();
        fs::write(folder.join("talk.mp4"), "other sound").unwrap();
        assert_eq!(examine(&video, "a"), Found::Outdated("the recording has changed"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
