//! Model files of the host: a file of the origin's private file system, a blob, or bytes.

use std::io;

use js_sys::Uint8Array;
use stonechat::formats::{ModelFile, ReadAt};
use wasm_bindgen::prelude::*;

use crate::error::message;
use crate::host::HostObject;

/// Bytes that are copied from JavaScript's memory at a time.
const CHUNK: usize = 4 << 20;

#[wasm_bindgen]
extern "C" {
    /// File that can be read at any offset, synchronously.
    pub type SourceFile;

    #[wasm_bindgen(method, getter)]
    fn name(this: &SourceFile) -> String;

    #[wasm_bindgen(method, getter)]
    fn size(this: &SourceFile) -> f64;

    /// Fills `into` with the bytes from `offset`.
    #[wasm_bindgen(method, catch)]
    fn read(this: &SourceFile, offset: f64, into: &Uint8Array) -> Result<(), JsValue>;
}

/// File that the thread which opened it can read.
#[derive(Debug)]
struct HostFile {
    file: HostObject,
    len: u64,
}

impl HostFile {
    fn open(file: SourceFile) -> Self {
        Self { len: file.size() as u64, file: HostObject::new(file) }
    }
}

impl ReadAt for HostFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let file = self.file.get().ok_or_else(|| io::Error::other("a file of another thread"))?;
        let file: SourceFile = file.unchecked_into();
        // A view of this module's memory would need `unsafe`, and some sources refuse one of shared memory.
        let chunk = Uint8Array::new_with_length(buf.len().min(CHUNK) as u32);
        let mut at = offset;
        for part in buf.chunks_mut(CHUNK) {
            let into = chunk.subarray(0, part.len() as u32);
            file.read(at as f64, &into).map_err(|error| io::Error::other(message(&error)))?;
            into.copy_to(part);
            at += part.len() as u64;
        }
        Ok(())
    }
}

/// Opens the model of `files`: one file, the parts of a split one, or a folder.
///
/// # Errors
/// As [`ModelFile::from_readers`].
pub(crate) fn open(mut files: Vec<SourceFile>) -> Result<ModelFile, stonechat::formats::Error> {
    if files.len() == 1
        && let Some(file) = files.pop()
    {
        return ModelFile::from_reader(HostFile::open(file));
    }
    ModelFile::from_readers(files.into_iter().map(|file| {
        let name = file.name();
        (name, Box::new(HostFile::open(file)) as Box<dyn ReadAt>)
    }))
}
