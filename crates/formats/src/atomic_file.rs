//! Writing a file whole or not at all: a temporary file of [`tempfile`] that takes the target's name at the end.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::TempPath;

use crate::error::{Error, Result};

/// Bytes of the write buffer.
const BUFFER_BYTES: usize = 1 << 20;

/// File that is replaced as a whole by [`Self::commit`]. Until then, and if it is dropped instead, the
/// previous file stays unchanged. The bytes are written to a temporary file in the same folder, which
/// `commit` renames.
#[derive(Debug)]
pub struct AtomicFile {
    // Dropped before `temporary`: some systems remove no open file.
    out: BufWriter<File>,
    /// Removes its file when dropped.
    temporary: TempPath,
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
        let mut prefix = OsString::from(".");
        prefix.push(name);
        prefix.push(".");
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(".part");
        // The mode of any new file, before the umask; the default of `tempfile` is 0o600.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let folder = target.parent().unwrap_or(Path::new(""));
        let file = builder.tempfile_in(folder).map_err(|e| io(without_temporary_name(e)))?;
        let (file, temporary) = file.into_parts();
        let out = BufWriter::with_capacity(BUFFER_BYTES, file);
        Ok(Self { out, temporary, target: target.into() })
    }

    /// Flushes the buffer, syncs the file to the disk and renames it to the target.
    ///
    /// # Errors
    /// [`Error::Io`]; the temporary file is removed then.
    pub fn commit(self) -> Result<()> {
        let Self { out, temporary, target } = self;
        let finish = || -> io::Result<()> {
            // The handle is closed before the rename, which some systems require.
            out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
            temporary.persist(&target).map_err(|e| e.error)
        };
        finish().map_err(|source| Error::Io { action: "write", path: target.clone(), source })
    }
}

/// The system's error without the temporary path that `tempfile` appends to its text. The error itself is not reachable:
/// `tempfile` skips it in the chain of sources.
fn without_temporary_name(error: io::Error) -> io::Error {
    match error.to_string().rsplit_once(" at path ") {
        Some((text, _)) => io::Error::new(error.kind(), text),
        None => error,
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
