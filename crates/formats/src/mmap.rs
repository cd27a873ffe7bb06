//! The bytes of a model: a read-only memory map, or a `Vec` where there are no maps.
//!
//! This is the one file of the crate with `unsafe`.

use std::fmt;
use std::ops::Deref;
use std::path::Path;

use stonechat_compute::ByteOwner;

use crate::error::{Error, Result};

/// Bytes that live as long as the model. Their start has no alignment to rely on.
pub(crate) enum Bytes {
    #[cfg(not(target_arch = "wasm32"))]
    Map(memmap2::Mmap),
    Owned(Vec<u8>),
}

impl Bytes {
    /// Maps the regular file at `path`; reads it where there are no maps.
    #[cfg(not(target_arch = "wasm32"))]
    #[expect(
        unsafe_code,
        reason = "a memory map is the one thing here that std has no safe way to make"
    )]
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let io = |source| Error::Io { action: "open", path: path.into(), source };
        let file = std::fs::File::open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Err(io(std::io::Error::other("expected a regular file")));
        }
        if metadata.len() == 0 {
            // Some systems refuse to map nothing.
            return Ok(Self::Owned(Vec::new()));
        }
        // SAFETY: the map is private and read-only, and `file` was checked to be a regular file
        // just above. It cannot be checked that no other process changes the file while it is
        // mapped; `AtomicFile`, the only writer here, replaces files by renaming and so never
        // touches a mapped one. A later change of the bytes breaks no invariant: parsing yields
        // ranges that are bounds-checked against the map's fixed length.
        let map = unsafe { memmap2::MmapOptions::new().map_copy_read_only(&file) }.map_err(io)?;
        Ok(Self::Map(map))
    }

    /// Reads the file at `path`.
    #[cfg(target_arch = "wasm32")]
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let io = |source| Error::Io { action: "open", path: path.into(), source };
        std::fs::read(path).map(Self::Owned).map_err(io)
    }
}

impl ByteOwner for Bytes {
    fn bytes(&self) -> &[u8] {
        self
    }

    #[cfg(unix)]
    #[expect(unsafe_code, reason = "advice on a map is marked unsafe for maps with changes")]
    fn release(&self, range: std::ops::Range<usize>) {
        if let Self::Map(map) = self {
            let start = range.start.min(map.len());
            let len = range.end.clamp(start, map.len()) - start;
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: the range was cut to the map. Dropping the pages of a private map loses writes
            // to it; this map is read-only, so the file still holds every byte.
            let advised = unsafe { map.unchecked_advise_range(advice, start, len) };
            // Advice that the system does not take costs memory, not correctness.
            drop(advised);
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            #[cfg(not(target_arch = "wasm32"))]
            Self::Map(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({} bytes)", self.len())
    }
}
