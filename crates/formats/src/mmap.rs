//! Read-only memory maps of files; files are read where there are no maps.
//!
//! This is the one file of the crate with `unsafe`.

use std::path::Path;

use stonechat_compute::SharedBytes;

use crate::error::{Error, Result};

/// Maps the regular file at `path`. The start of the bytes has no guaranteed alignment.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn open(path: &Path) -> Result<SharedBytes> {
    map(path).map_err(|source| Error::Io { action: "open", path: path.into(), source })
}

/// Reads the file at `path`.
#[cfg(target_arch = "wasm32")]
pub(crate) fn open(path: &Path) -> Result<SharedBytes> {
    let io = |source| Error::Io { action: "open", path: path.into(), source };
    std::fs::read(path).map(SharedBytes::from).map_err(io)
}

#[cfg(not(target_arch = "wasm32"))]
#[expect(unsafe_code, reason = "memory maps have no safe interface in std")]
fn map(path: &Path) -> std::io::Result<SharedBytes> {
    let file = std::fs::File::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(std::io::Error::other("expected a regular file"));
    }
    if metadata.len() == 0 {
        // Some systems refuse to map nothing.
        return Ok(SharedBytes::from(Vec::new()));
    }
    // SAFETY: the map is private and read-only, and `file` was checked to be a regular file just
    // above. It cannot be checked that no other process changes the file while it is mapped;
    // `AtomicFile`, the only writer here, replaces files by renaming and so never touches a mapped
    // one. A later change of the bytes breaks no invariant: parsing yields ranges that are
    // bounds-checked against the map's fixed length.
    let map = unsafe { memmap2::MmapOptions::new().map_copy_read_only(&file) }?;
    Ok(SharedBytes::new(std::sync::Arc::new(Map(map))))
}

/// Memory map of a whole file.
#[cfg(not(target_arch = "wasm32"))]
struct Map(memmap2::Mmap);

#[cfg(not(target_arch = "wasm32"))]
impl stonechat_compute::ByteOwner for Map {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    #[cfg(unix)]
    #[expect(unsafe_code, reason = "advice on a map is marked unsafe for maps with changes")]
    fn release(&self, range: std::ops::Range<usize>) {
        let start = range.start.min(self.0.len());
        let len = range.end.clamp(start, self.0.len()) - start;
        let advice = memmap2::UncheckedAdvice::DontNeed;
        // SAFETY: the range was cut to the map. Dropping the pages of a private map loses writes to
        // it; this map is read-only, so the file still holds every byte.
        let advised = unsafe { self.0.unchecked_advise_range(advice, start, len) };
        // A failure costs memory, not correctness.
        drop(advised);
    }
}
