//! Bytes of a tensor in an open file, loaded on demand.

use std::fmt;
use std::ops::Range;

use stonechat_compute::SharedBytes;

use crate::error::{Result, printable};
use crate::storage::{Storage, zeroed};

/// Bytes of a tensor, or a range of them: little-endian elements or blocks. They are not read
/// before [`load`](Self::load) or [`read_into`](Self::read_into).
#[derive(Clone, Copy)]
pub struct TensorData<'a> {
    /// Name of the tensor, for error messages.
    name: &'a str,
    storage: &'a Storage,
    /// Offset in the file.
    start: u64,
    len: usize,
}

impl<'a> TensorData<'a> {
    pub(crate) fn new(name: &'a str, storage: &'a Storage, start: u64, len: usize) -> Self {
        Self { name, storage, start, len }
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Subrange `range`.
    ///
    /// # Panics
    /// If `range` does not lie inside.
    #[must_use]
    #[track_caller]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let Range { start, end } = range;
        assert!(start <= end && end <= self.len, "bytes {start}..{end} of {}", self.len);
        Self { start: self.start + start as u64, len: end - start, ..*self }
    }

    /// Loads the bytes: a reference to the memory map, of any alignment, or new memory that is read
    /// from the source and aligned to 64 bytes. They may outlive the model file.
    ///
    /// # Errors
    /// [`Error::Read`](crate::Error::Read) if the source fails,
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn load(&self) -> Result<SharedBytes> {
        self.storage.load(self.start..self.start + self.len as u64, TensorName(self.name))
    }

    /// Copies the bytes to `buf`, and releases the pages of a memory map.
    ///
    /// # Errors
    /// [`Error::Read`](crate::Error::Read) if the source fails.
    ///
    /// # Panics
    /// If `buf` has another length.
    #[track_caller]
    pub fn read_into(&self, buf: &mut [u8]) -> Result<()> {
        assert_eq!(buf.len(), self.len, "length of the buffer");
        self.storage.read_at(buf, self.start, TensorName(self.name))
    }

    /// Concatenates `parts`: without a copy if they are adjacent in one memory map, else in new
    /// memory, part by part.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn joined(parts: &[Self]) -> Result<SharedBytes> {
        if let [part] = parts {
            return part.load();
        }
        // True without parts, too.
        if parts.iter().all(|part| part.storage.memory().is_some()) {
            let parts = parts.iter().map(Self::load).collect::<Result<Vec<_>>>()?;
            return Ok(SharedBytes::joined(&parts));
        }
        let len = parts.iter().map(Self::len).sum();
        let mut bytes = zeroed(len, TensorName(parts[0].name))?;
        let mut rest = &mut *bytes;
        for part in parts {
            let (buf, after) = rest.split_at_mut(part.len());
            part.read_into(buf)?;
            rest = after;
        }
        Ok(bytes.into())
    }

    /// Identity of the bytes, equal for aliases.
    pub(crate) fn place(&self) -> (*const Storage, u64, usize) {
        (self.storage, self.start, self.len)
    }
}

impl fmt::Debug for TensorData<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorData({} bytes at {})", self.len, self.start)
    }
}

/// Name of a tensor in an error message.
struct TensorName<'a>(&'a str);

impl fmt::Display for TensorName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tensor `{}`", printable(self.0))
    }
}
