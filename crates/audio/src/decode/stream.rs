//! Stream that is read as the decoder needs it.
//!
//! ```text
//! read:              returns held bytes, else reads from the stream
//! seek to position:  reads the stream up to there
//! seek to the end:   reads all of it
//! ```
//!
//! Bytes are held as long as the source is seekable. Before the samples of a format without an index at its end, the
//! decoder clears that, and memory no longer grows with the stream.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use symphonia::core::io::MediaSource;

use super::sniff::HEAD_BYTES;
use crate::Error;

/// Bytes of one read.
const BLOCK_BYTES: usize = 64 << 10;
/// Consumed bytes of a source that cannot seek are dropped in blocks of this size.
const DROP_BYTES: usize = 256 << 10;

/// State of a source that the decoder and the source share.
#[derive(Debug)]
pub(super) struct SourceState {
    /// Bytes of the file, or of the stream so far.
    n_bytes: AtomicU64,
    is_seekable: AtomicBool,
    /// Whether zeros were read in the place of bytes that a cut file lacks.
    is_padded: AtomicBool,
    /// Error of the stream; the decoders take it for the end.
    error: Mutex<Option<Error>>,
}

impl SourceState {
    pub(super) fn new(n_bytes: u64) -> Arc<Self> {
        let (n_bytes, is_seekable) = (n_bytes.into(), true.into());
        let is_padded = AtomicBool::new(false);
        Arc::new(Self { n_bytes, is_seekable, is_padded, error: Mutex::default() })
    }

    /// Bytes of the file, or of the stream so far.
    pub(super) fn n_bytes(&self) -> u64 {
        self.n_bytes.load(Ordering::Relaxed)
    }

    /// Sets whether a stream holds its bytes and can seek back.
    pub(super) fn set_seekable(&self, is_seekable: bool) {
        self.is_seekable.store(is_seekable, Ordering::Relaxed);
    }

    pub(super) fn is_seekable(&self) -> bool {
        self.is_seekable.load(Ordering::Relaxed)
    }

    /// Records that zeros were read in place of missing bytes.
    pub(super) fn set_padded(&self) {
        self.is_padded.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_padded(&self) -> bool {
        self.is_padded.load(Ordering::Relaxed)
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let error = self.error.lock().unwrap_or_else(PoisonError::into_inner).take();
        error.map_or(Ok(()), Err)
    }

    fn fail(&self, error: Error) -> io::Error {
        let message = error.to_string();
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        io::Error::other(message)
    }
}

/// A reader as a source of a demuxer.
pub(super) struct StreamSource<R> {
    /// A mutex makes it `Sync`; it is never locked.
    reader: Mutex<R>,
    state: Arc<SourceState>,
    max_bytes: u64,
    /// Bytes `first..first + held.len()` of the stream.
    held: Vec<u8>,
    first: u64,
    pos: u64,
    is_ended: bool,
}

impl<R: Read + Send> StreamSource<R> {
    pub(super) fn new(reader: R, state: Arc<SourceState>, max_bytes: u64) -> Self {
        let (reader, held) = (Mutex::new(reader), Vec::new());
        Self { reader, state, max_bytes, held, first: 0, pos: 0, is_ended: false }
    }

    /// End of the held bytes.
    fn end(&self) -> u64 {
        self.first + self.held.len() as u64
    }

    #[cfg(test)]
    pub(super) fn n_held(&self) -> usize {
        self.held.len()
    }

    /// Reads until byte `end`, exclusive, or the end of the stream.
    fn read_to(&mut self, end: u64) -> io::Result<()> {
        while self.end() < end && !self.is_ended {
            self.drop_consumed();
            let n_held = self.held.len();
            // An endless stream of no audio is refused after its head.
            let n_head = HEAD_BYTES.saturating_sub(self.end()) as usize;
            self.held.resize(n_held + if n_head > 0 { n_head } else { BLOCK_BYTES }, 0);
            let reader = self.reader.get_mut().unwrap_or_else(PoisonError::into_inner);
            let result = reader.read(&mut self.held[n_held..]);
            self.held.truncate(n_held + *result.as_ref().unwrap_or(&0));
            match result {
                Ok(n) => self.is_ended = n == 0,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(source) => {
                    self.is_ended = true;
                    return Err(self.state.fail(Error::Read { source }));
                }
            }
            self.state.n_bytes.store(self.end(), Ordering::Relaxed);
            if self.end() > self.max_bytes {
                self.is_ended = true;
                let max_bytes = self.max_bytes;
                return Err(self.state.fail(Error::StreamTooLong { max_bytes }));
            }
        }
        Ok(())
    }

    fn drop_consumed(&mut self) {
        let n_consumed = (self.pos - self.first) as usize;
        if n_consumed >= DROP_BYTES && !self.is_seekable() {
            self.held.drain(..n_consumed.min(self.held.len()));
            self.first = self.pos;
        }
    }
}

impl<R: Read + Send> Read for StreamSource<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        self.read_to(self.pos + 1)?;
        let held = self.held.get((self.pos - self.first) as usize..).unwrap_or_default();
        let n = held.len().min(out.len());
        out[..n].copy_from_slice(&held[..n]);
        self.pos += n as u64;
        Ok(n)
    }
}

impl<R: Read + Send> Seek for StreamSource<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (base, offset) = match to {
            SeekFrom::Start(pos) => (pos, 0),
            SeekFrom::Current(offset) => (self.pos, offset),
            SeekFrom::End(offset) => {
                self.read_to(u64::MAX)?;
                (self.end(), offset)
            }
        };
        let pos = base.checked_add_signed(offset).filter(|&pos| pos >= self.first);
        let pos = pos.ok_or(io::Error::from(io::ErrorKind::InvalidInput))?;
        self.read_to(pos)?;
        self.pos = pos;
        Ok(pos)
    }
}

impl<R: Read + Send> MediaSource for StreamSource<R> {
    fn is_seekable(&self) -> bool {
        self.state.is_seekable()
    }

    fn byte_len(&self) -> Option<u64> {
        self.is_ended.then(|| self.end())
    }
}
