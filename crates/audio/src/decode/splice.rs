//! Source made of parts of another one, of bytes in memory and of zeros.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use symphonia::core::io::MediaSource;

use super::stream::SourceState;

/// Part of a spliced source.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    Bytes(Vec<u8>),
    /// Bytes `start..start + n` of the inner source; `u64::MAX` reaches its end.
    Source {
        start: u64,
        n: u64,
    },
    /// Zeros in place of bytes that the inner source lacks.
    Zeros(u64),
}

impl Part {
    /// The inner source from `start` to its end.
    pub(super) fn rest(start: u64) -> Self {
        Self::Source { start, n: u64::MAX }
    }

    fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            &Self::Source { n, .. } | &Self::Zeros(n) => n,
        }
    }
}

/// Parts one after another; an open-ended one is the last.
pub(super) struct Spliced<'a> {
    inner: Box<dyn MediaSource + 'a>,
    inner_pos: Option<u64>,
    parts: Vec<Part>,
    pos: u64,
    state: Arc<SourceState>,
}

impl<'a> Spliced<'a> {
    pub(super) fn new(
        inner: Box<dyn MediaSource + 'a>,
        parts: Vec<Part>,
        state: &Arc<SourceState>,
    ) -> Self {
        Self { inner, inner_pos: None, parts, pos: 0, state: Arc::clone(state) }
    }

    /// The length, given that of the inner source.
    fn length(&self, inner_bytes: u64) -> u64 {
        self.parts.iter().fold(0, |sum: u64, part| {
            sum.saturating_add(match *part {
                Part::Source { start, n } => n.min(inner_bytes.saturating_sub(start)),
                _ => part.len(),
            })
        })
    }
}

impl Read for Spliced<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut at = self.pos;
        for part in &self.parts {
            let left = part.len().saturating_sub(at);
            if left == 0 {
                at -= part.len();
                continue;
            }
            let n = usize::try_from(left).unwrap_or(usize::MAX).min(out.len());
            let out = &mut out[..n];
            let n = match part {
                Part::Bytes(bytes) => {
                    out.copy_from_slice(&bytes[at as usize..at as usize + n]);
                    n
                }
                Part::Zeros(_) => {
                    self.state.set_padded();
                    out.fill(0);
                    n
                }
                Part::Source { start, .. } => {
                    let wanted = start.saturating_add(at);
                    if self.inner_pos != Some(wanted) {
                        self.inner_pos = None;
                        self.inner.seek(SeekFrom::Start(wanted))?;
                    }
                    let n = self.inner.read(out)?;
                    self.inner_pos = Some(wanted + n as u64);
                    n
                }
            };
            self.pos += n as u64;
            return Ok(n);
        }
        Ok(0)
    }
}

impl Seek for Spliced<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (base, offset) = match to {
            SeekFrom::Start(pos) => (pos, 0),
            SeekFrom::Current(offset) => (self.pos, offset),
            SeekFrom::End(offset) => {
                self.inner_pos = None;
                let inner_bytes = self.inner.seek(SeekFrom::End(0))?;
                (self.length(inner_bytes), offset)
            }
        };
        let pos = base.checked_add_signed(offset);
        self.pos = pos.ok_or(io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.pos)
    }
}

impl MediaSource for Spliced<'_> {
    fn is_seekable(&self) -> bool {
        self.state.is_seekable() && self.inner.is_seekable()
    }

    fn byte_len(&self) -> Option<u64> {
        if !self.state.is_seekable() {
            return None;
        }
        let is_open = self.parts.iter().any(|part| part.len() == u64::MAX);
        let inner_bytes = if is_open { self.inner.byte_len()? } else { u64::MAX };
        Some(self.length(inner_bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn parts_are_read_one_after_another_and_zeros_are_noted() {
        let state = SourceState::new(0);
        let inner = Box::new(Cursor::new(b"0123456789".to_vec()));
        let parts = vec![
            Part::Bytes(b"ab".to_vec()),
            Part::Source { start: 3, n: 2 },
            Part::Bytes(Vec::new()),
            Part::Source { start: 8, n: 2 },
            Part::Zeros(2),
        ];
        let mut source = Spliced::new(inner, parts, &state);
        assert_eq!(source.byte_len(), Some(8));
        let mut bytes = vec![0; 6];
        source.read_exact(&mut bytes).unwrap();
        assert_eq!((bytes.as_slice(), state.is_padded()), (&b"ab3489"[..], false));
        bytes.clear();
        source.read_to_end(&mut bytes).unwrap();
        assert_eq!((bytes.as_slice(), state.is_padded()), (&[0, 0][..], true));
        assert_eq!(source.seek(SeekFrom::End(-5)).unwrap(), 3);
        bytes.clear();
        source.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, b"489\0\0");
        let inner = Box::new(Cursor::new(b"0123456789".to_vec()));
        let mut source = Spliced::new(inner, vec![Part::rest(7)], &state);
        assert_eq!((source.byte_len(), source.seek(SeekFrom::End(0)).unwrap()), (Some(3), 3));
    }
}
