//! Random-access byte sources of model files that are not memory-mapped.

use std::fmt;
#[cfg(any(unix, windows))]
use std::fs::File;
use std::io;
use std::sync::Arc;

/// Random-access byte source of a model file: a file, a buffer, a blob of a browser, ranges of a
/// download.
///
/// [`ModelFile::from_reader`](crate::ModelFile::from_reader) reads the header in pieces of at most
/// 256 KiB, unless one field is longer, and each tensor when it is loaded.
#[expect(clippy::len_without_is_empty, reason = "an empty source is no model, and an error")]
pub trait ReadAt: fmt::Debug + Send + Sync {
    /// Length in bytes; constant.
    ///
    /// # Errors
    /// If the length is unknown.
    fn len(&self) -> io::Result<u64>;

    /// Fills `buf` with the bytes from `offset`.
    ///
    /// # Errors
    /// If the source fails or ends before `offset + buf.len()`; the content of `buf` is then
    /// unspecified.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
}

impl ReadAt for Vec<u8> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.as_slice().len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).ok().filter(|&start| start <= self.as_slice().len());
        let rest = start.map_or(&[][..], |start| &self[start..]);
        let source = rest.get(..buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(source);
        Ok(())
    }
}

#[cfg(any(unix, windows))]
impl ReadAt for File {
    fn len(&self) -> io::Result<u64> {
        self.metadata().map(|metadata| metadata.len())
    }

    #[cfg(unix)]
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, buf, offset)
    }

    #[cfg(windows)]
    fn read_at(&self, mut buf: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            match std::os::windows::fs::FileExt::seek_read(self, buf, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    buf = &mut buf[n..];
                    offset += n as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl<R: ReadAt + ?Sized> ReadAt for Arc<R> {
    fn len(&self) -> io::Result<u64> {
        R::len(self)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        R::read_at(self, buf, offset)
    }
}
