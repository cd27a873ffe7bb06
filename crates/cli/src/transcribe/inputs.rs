//! Expands the positional arguments: files, folders, glob patterns and standard input.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use stonechat::audio::decode::EXTENSIONS;
use walkdir::{DirEntry, WalkDir};

use super::left_out::{Files, LeftOut, has_extension};

/// Source of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Input {
    StandardInput,
    File {
        path: PathBuf,
        /// Path of the file's folder relative to the folder argument.
        below: PathBuf,
    },
}

impl Input {
    fn file(path: impl Into<PathBuf>) -> Self {
        Self::File { path: path.into(), below: PathBuf::new() }
    }

    /// Name in messages.
    pub(super) fn name(&self) -> String {
        match self {
            Self::StandardInput => "standard input".to_owned(),
            Self::File { path, .. } => path.display().to_string(),
        }
    }

    /// Path of the file; `None` for standard input.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::StandardInput => None,
            Self::File { path, .. } => Some(path),
        }
    }

    /// Whether reading may block until another program writes: anything but a regular file.
    pub(super) fn may_block(&self) -> bool {
        !self.path().is_some_and(Path::is_file)
    }

    /// Name of the results without extension.
    pub(super) fn stem(&self) -> OsString {
        let path = self.path().unwrap_or(Path::new("stdin"));
        path.file_stem().unwrap_or(path.as_os_str()).to_owned()
    }
}

/// Expanded arguments.
#[derive(Debug)]
pub(super) struct Inputs {
    /// Inputs in the order of the arguments, those of a folder or pattern sorted by name; each file once.
    pub(super) all: Vec<Input>,
    /// Set for several arguments, a folder or a pattern, whatever the number of files.
    pub(super) is_batch: bool,
    pub(super) left_out: LeftOut,
}

impl Inputs {
    /// Expands `arguments`. A file argument need not exist.
    pub(super) fn find(arguments: &[PathBuf]) -> anyhow::Result<Self> {
        let is_standard = |argument: &PathBuf| argument.as_os_str() == "-";
        let alone = || usage_error!("standard input (`-`) must be the only input");
        ensure!(arguments.len() == 1 || !arguments.iter().any(is_standard), alone());
        let (mut all, mut left_out) = (Vec::new(), LeftOut::default());
        let mut is_batch = arguments.len() > 1;
        for argument in arguments {
            if is_standard(argument) {
                all.push(Input::StandardInput);
            } else if argument.is_dir() {
                is_batch = true;
                all.extend(in_folder(argument, &mut left_out)?);
            } else if argument.exists() {
                all.push(Input::file(argument));
            } else if is_address(argument) {
                let expected = "expected a file or folder: no addresses are fetched";
                bail!(usage_error!("`{}`: {expected}", argument.display()));
            } else if !is_pattern(argument) {
                all.push(Input::file(argument));
            } else {
                is_batch = true;
                all.extend(matching(argument, &mut left_out)?);
            }
        }
        // Missing files cannot be canonicalized: they are compared by name.
        let mut seen = HashSet::new();
        all.retain(|input| {
            let path = input.path().map(|path| path.canonicalize().unwrap_or(path.to_owned()));
            seen.insert(path)
        });
        Ok(Self { all, is_batch, left_out })
    }
}

fn is_pattern(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().iter().any(|byte| b"*?[".contains(byte))
}

/// Tells if a path has the form of an address: `scheme://`.
fn is_address(path: &Path) -> bool {
    let scheme = path.to_str().and_then(|text| text.split_once("://")).map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| {
        !scheme.is_empty()
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    })
}

/// Lists the recordings in `folder` and below, without hidden ones.
fn in_folder(folder: &Path, left_out: &mut LeftOut) -> anyhow::Result<Vec<Input>> {
    let mut files = Files::of(folder.display().to_string());
    let mut n_hidden = 0;
    let is_shown = |entry: &DirEntry| {
        let is_hidden = entry.depth() > 0 && is_hidden(entry.file_name());
        if is_hidden && (entry.file_type().is_dir() || has_extension(entry.path(), EXTENSIONS)) {
            n_hidden += 1;
        }
        !is_hidden
    };
    let walk = WalkDir::new(folder).sort_by_file_name().into_iter().filter_entry(is_shown);
    let mut inputs = Vec::new();
    for entry in walk {
        let entry = match entry {
            Ok(entry) => entry,
            // The folder itself.
            Err(error) if error.depth() == 0 => {
                return Err(error).with_context(|| format!("cannot list `{}`", folder.display()));
            }
            Err(error) => {
                left_out.unreadable.push(error.to_string());
                continue;
            }
        };
        let path = entry.path();
        if !entry.file_type().is_dir() && files.takes(path) {
            let within = path.strip_prefix(folder).unwrap_or(path);
            let below = within.parent().unwrap_or(Path::new("")).to_owned();
            inputs.push(Input::File { path: path.to_owned(), below });
        }
    }
    ensure!(!inputs.is_empty(), "no audio or video file in `{}`", folder.display());
    files.n_hidden = n_hidden;
    left_out.notes.extend(files.notes());
    Ok(inputs)
}

/// Lists the recordings that match `pattern`; hidden files only if the pattern has the dot.
fn matching(pattern: &Path, left_out: &mut LeftOut) -> anyhow::Result<Vec<Input>> {
    let text = pattern.to_str();
    let text = text.with_context(|| format!("pattern `{}`: expected UTF-8", pattern.display()))?;
    let options = glob::MatchOptions {
        case_sensitive: true,
        require_literal_separator: true,
        require_literal_leading_dot: true,
    };
    let paths = glob::glob_with(text, options)
        .map_err(|error| anyhow!("pattern `{text}`: {} at character {}", error.msg, error.pos))?;
    let mut files = Files::of(text.to_owned());
    let mut inputs = Vec::new();
    for path in paths {
        let path = path.with_context(|| format!("pattern `{text}`"))?;
        if !path.is_dir() && files.takes(&path) {
            inputs.push(Input::file(path));
        }
    }
    ensure!(!inputs.is_empty(), "no audio or video file matches `{text}`");
    left_out.notes.extend(files.notes());
    Ok(inputs)
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{Input, is_address};

    #[test]
    fn addresses_have_a_scheme() {
        for address in ["https://example.org/talk.mp3", "rtsp://camera", "s3://bucket/*.mp3"] {
            assert!(is_address(Path::new(address)), "{address}");
        }
        for path in ["talk.mp3", "a b://c", "://c", "C:/talk.mp3", "talks/*.mp3"] {
            assert!(!is_address(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn results_are_named_after_the_input() {
        assert_eq!(Input::file("a/talk.v2.mp3").stem(), "talk.v2");
        assert_eq!(Input::StandardInput.stem(), "stdin");
    }
}
