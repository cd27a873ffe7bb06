//! Bytes of one file of a model: in memory or a memory map, or read on demand.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use stonechat_compute::{AlignedBytes, SharedBytes};

use crate::error::{Error, Result};
use crate::mmap;
use crate::read_at::ReadAt;

/// Bytes of one file.
pub(crate) enum Storage {
    /// Memory map, or bytes where there are no maps. The start has no guaranteed alignment.
    Memory(SharedBytes),
    /// Random-access source and its length.
    Reader(Box<dyn ReadAt>, u64),
}

impl Storage {
    /// Maps the regular file at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        mmap::open(path).map(Self::Memory)
    }

    pub(crate) fn of_reader(reader: Box<dyn ReadAt>) -> Result<Self> {
        let len = reader.len().map_err(|source| Error::Length { source })?;
        Ok(Self::Reader(reader, len))
    }

    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::Reader(_, len) => *len,
        }
    }

    /// All bytes, if they are in memory.
    pub(crate) fn memory(&self) -> Option<&SharedBytes> {
        match self {
            Self::Memory(bytes) => Some(bytes),
            Self::Reader(..) => None,
        }
    }

    /// Fills `buf` with the bytes from `offset`; `what` names them in an error.
    ///
    /// # Panics
    /// If the range does not lie inside and the bytes are in memory.
    pub(crate) fn read_at(
        &self,
        buf: &mut [u8],
        offset: u64,
        what: impl fmt::Display,
    ) -> Result<()> {
        match self {
            Self::Memory(bytes) => {
                let start = offset as usize;
                let source = bytes.slice(start..start + buf.len());
                buf.copy_from_slice(&source);
                source.release();
                Ok(())
            }
            Self::Reader(reader, _) => reader.read_at(buf, offset).map_err(|source| {
                let (what, n_bytes) = (what.to_string(), buf.len());
                Error::Read { what, offset, n_bytes, source }
            }),
        }
    }

    /// Bytes `range`: shared if they are in memory, else read into new memory.
    pub(crate) fn load(&self, range: Range<u64>, what: impl fmt::Display) -> Result<SharedBytes> {
        match self {
            Self::Memory(bytes) => Ok(bytes.slice(range.start as usize..range.end as usize)),
            Self::Reader(..) => {
                let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
                let mut bytes = zeroed(len, &what)?;
                self.read_at(&mut bytes, range.start, what)?;
                Ok(bytes.into())
            }
        }
    }

    /// All bytes.
    pub(crate) fn load_all(&self, what: impl fmt::Display) -> Result<SharedBytes> {
        self.load(0..self.len(), what)
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(bytes) => write!(f, "Memory({} bytes)", bytes.len()),
            Self::Reader(reader, len) => write!(f, "Reader({reader:?}, {len} bytes)"),
        }
    }
}

/// Allocates `len` zeros; `what` names them in errors.
pub(crate) fn zeroed(len: usize, what: impl fmt::Display) -> Result<AlignedBytes> {
    AlignedBytes::try_zeroed(len)
        .ok_or_else(|| Error::OutOfMemory { what: what.to_string(), bytes: len })
}
