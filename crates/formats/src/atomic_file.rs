//! Writing a file whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Names tried for the temporary file before giving up.
const MAX_ATTEMPTS: usize = 1000;

/// Bytes gathered before they are written.
const BUFFER_BYTES: usize = 1 << 20;

/// A file that appears under its name only when [`Self::commit`] is called; until then, and if
/// it is dropped instead, a file that was there before stays as it is. The bytes go to a
/// temporary file in the same folder, which commit renames.
#[derive(Debug)]
pub struct AtomicFile {
    /// `None` once committed.
    out: Option<BufWriter<File>>,
    temporary: PathBuf,
    target: PathBuf,
}

impl AtomicFile {
    /// Creates the temporary file beside `path`.
    ///
    /// # Errors
    /// [`Error::Io`] if `path` is a folder or its folder cannot be written to.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        let target = path.as_ref();
        let io = |source| Error::Io { action: "create", path: target.into(), source };
        if target.is_dir() {
            return Err(io(io::Error::from(io::ErrorKind::IsADirectory)));
        }
        let name = target
            .file_name()
            .ok_or_else(|| io(io::Error::from(io::ErrorKind::InvalidFilename)))?;
        for attempt in 0..MAX_ATTEMPTS {
            let mut temporary_name = std::ffi::OsString::from(".");
            temporary_name.push(name);
            temporary_name.push(format!(".{attempt}.part"));
            let temporary = target.with_file_name(temporary_name);
            match OpenOptions::new().write(true).create_new(true).open(&temporary) {
                Ok(file) => {
                    let out = Some(BufWriter::with_capacity(BUFFER_BYTES, file));
                    return Ok(Self { out, temporary, target: target.into() });
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(io(e)),
            }
        }
        Err(io(io::Error::from(io::ErrorKind::AlreadyExists)))
    }

    /// Writes what is buffered through to the disk and gives the file its name.
    ///
    /// # Errors
    /// [`Error::Io`]; the temporary file is removed then.
    pub fn commit(mut self) -> Result<()> {
        let finish = |out: BufWriter<File>| -> io::Result<()> {
            // The handle is closed before the rename, which some systems ask for.
            out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
            fs::rename(&self.temporary, &self.target)
        };
        let result = self.out.take().map_or(Ok(()), finish);
        result.map_err(|source| {
            // The first error is the one to report.
            let _ = fs::remove_file(&self.temporary);
            Error::Io { action: "write", path: self.target.clone(), source }
        })
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.out {
            Some(out) => out.write(bytes),
            None => Err(io::Error::other("the file was committed")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.as_mut().map_or(Ok(()), BufWriter::flush)
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if self.out.take().is_some() {
            // Nothing was promised under this name, and drop cannot report.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}
