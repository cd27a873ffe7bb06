//! Files of a model by name: files of a folder, or readers.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::read_at::ReadAt;
use crate::storage::Storage;

/// Files by name.
#[derive(Debug)]
pub(crate) enum Files<'a> {
    /// Files of a folder, memory-mapped when opened.
    Folder(&'a Path),
    /// Readers; opening one takes it out.
    Readers(BTreeMap<String, Box<dyn ReadAt>>),
}

impl Files<'_> {
    /// Path of the file `name` for error messages.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        match self {
            Self::Folder(folder) => folder.join(name),
            Self::Readers(_) => name.into(),
        }
    }

    /// Path of all files for error messages.
    pub(crate) fn folder(&self) -> PathBuf {
        match self {
            Self::Folder(folder) => (*folder).into(),
            Self::Readers(_) => ".".into(),
        }
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        match self {
            Self::Folder(folder) => folder.join(name).is_file(),
            Self::Readers(readers) => readers.contains_key(name),
        }
    }

    /// Opens the file `name`; errors name it.
    pub(crate) fn open(&mut self, name: &str) -> Result<Storage> {
        match self {
            Self::Folder(folder) => Storage::open(&folder.join(name)),
            Self::Readers(readers) => {
                let missing = || Error::Io {
                    action: "open",
                    path: name.into(),
                    source: io::Error::new(io::ErrorKind::NotFound, "no reader of this name"),
                };
                let reader = readers.remove(name).ok_or_else(missing)?;
                Storage::of_reader(reader).map_err(|e| e.in_file(name))
            }
        }
    }

    /// Sorted names of all files.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        match self {
            Self::Folder(folder) => {
                let entries = std::fs::read_dir(folder).map_err(|source| Error::Io {
                    action: "read",
                    path: (*folder).into(),
                    source,
                })?;
                let name = |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().into();
                let mut names: Vec<String> = entries.flatten().map(name).collect();
                names.sort();
                Ok(names)
            }
            Self::Readers(readers) => Ok(readers.keys().cloned().collect()),
        }
    }
}
