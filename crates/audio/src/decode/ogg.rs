//! Ogg without long comment headers: a cover in one may be larger than the demuxer takes.
//!
//! A comment header that fills its first page is replaced by an empty one; all else passes as it is.

use std::io::{self, Read, Seek, SeekFrom};

use symphonia::core::io::MediaSource;

use super::rewind;
use crate::Error;

const HEAD_BYTES: usize = 27;
const IS_CONTINUED: u8 = 1;
const IS_FIRST: u8 = 2;

/// Whether a comment header fills its first page, in a stream that begins with `head`; the source is left at its start.
pub(super) fn has_long_comment<S: Read + Seek>(source: &mut S, head: &[u8]) -> Result<bool, Error> {
    let second = HEAD_BYTES + usize::from(*head.get(HEAD_BYTES - 1).unwrap_or(&0));
    if !head.starts_with(b"OggS") {
        return Ok(false);
    }
    let lacing = head.get(HEAD_BYTES..second).unwrap_or_default();
    let n = second + lacing.iter().map(|&n| usize::from(n)).sum::<usize>();
    let mut bytes = Vec::new();
    let n_wanted = (n + HEAD_BYTES + 255) as u64;
    let read = source.by_ref().take(n_wanted).read_to_end(&mut bytes);
    read.map_err(|source| Error::Read { source })?;
    rewind(source)?;
    let page = bytes.get(n..).unwrap_or_default();
    let lacing = page.get(HEAD_BYTES..).unwrap_or_default();
    Ok(page.starts_with(b"OggS") && lacing.len() == 255 && lacing.iter().all(|&n| n == 255))
}

/// A logical stream whose comment header has not ended.
struct OpenHeaders {
    serial: [u8; 4],
    /// An empty comment header.
    comment: &'static [u8],
    is_dropping: bool,
}

/// Ogg pages without long comment headers.
pub(super) struct ShortComments<S> {
    source: S,
    open: Vec<OpenHeaders>,
    /// The bytes of a page that go out, from `at`.
    page: Vec<u8>,
    at: usize,
    /// Whether bytes are passed through unchanged, from the first one that starts no page.
    is_raw: bool,
}

impl<S: Read> ShortComments<S> {
    pub(super) fn new(source: S) -> Self {
        Self { source, open: Vec::new(), page: Vec::new(), at: 0, is_raw: false }
    }

    /// Reads the next page that is not dropped into `page`; bytes that are no page are copied unchanged.
    fn next_page(&mut self) -> io::Result<()> {
        loop {
            self.page.clear();
            self.at = 0;
            self.append(HEAD_BYTES)?;
            if self.page.len() < HEAD_BYTES || !self.page.starts_with(b"OggS\0") {
                self.is_raw = true;
                return Ok(());
            }
            self.append(self.page[HEAD_BYTES - 1].into())?;
            let n_body = self.page[HEAD_BYTES..].iter().map(|&n| usize::from(n)).sum();
            self.append(n_body)?;
            if self.keep() || self.page.is_empty() {
                return Ok(());
            }
        }
    }

    fn append(&mut self, n: usize) -> io::Result<()> {
        self.source.by_ref().take(n as u64).read_to_end(&mut self.page).map(drop)
    }

    /// Whether the page is kept; the one with the end of a long comment header is rewritten.
    fn keep(&mut self) -> bool {
        let page = &self.page;
        let n_lacing = usize::from(page[HEAD_BYTES - 1]);
        let Some(lacing) = page.get(HEAD_BYTES..HEAD_BYTES + n_lacing) else { return true };
        let body = &page[HEAD_BYTES + n_lacing..];
        let serial = [page[14], page[15], page[16], page[17]];
        if page[5] & IS_FIRST != 0 {
            let comment: &[u8] = match body {
                [b'O', b'p', b'u', b's', b'H', b'e', b'a', b'd', ..] => b"OpusTags\0\0\0\0\0\0\0\0",
                [1, b'v', b'o', b'r', b'b', b'i', b's', ..] => b"\x03vorbis\0\0\0\0\0\0\0\0\x01",
                _ => return true,
            };
            self.open.retain(|open| open.serial != serial);
            self.open.push(OpenHeaders { serial, comment, is_dropping: false });
            return true;
        }
        let Some(index) = self.open.iter().position(|open| open.serial == serial) else {
            return true;
        };
        let end = lacing.iter().position(|&n| n < 255);
        let open = &mut self.open[index];
        match end {
            None if n_lacing == 255 || open.is_dropping => {
                open.is_dropping = true;
                false
            }
            Some(end) if open.is_dropping => {
                let n_dropped: usize = lacing[..=end].iter().map(|&n| usize::from(n)).sum();
                let rest = body.get(n_dropped..).unwrap_or_default();
                let lacing = [&[open.comment.len() as u8], &lacing[end + 1..]].concat();
                let body = [open.comment, rest].concat();
                self.page = rewritten(&page[..HEAD_BYTES], &lacing, &body);
                self.open.swap_remove(index);
                true
            }
            _ => {
                self.open.swap_remove(index);
                true
            }
        }
    }
}

/// A page with the fields of `head` that begins with a whole packet.
fn rewritten(head: &[u8], lacing: &[u8], body: &[u8]) -> Vec<u8> {
    let mut page = head.to_vec();
    page[5] &= !IS_CONTINUED;
    page[22..26].fill(0);
    page[HEAD_BYTES - 1] = lacing.len() as u8;
    page.extend_from_slice(lacing);
    page.extend_from_slice(body);
    let sum = checksum(&page);
    page[22..26].copy_from_slice(&sum.to_le_bytes());
    page
}

/// The checksum of a page: CRC-32 of polynomial 0x04C11DB7, most significant bit first, from 0.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0u32, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte) << 24, |sum, _| {
            sum << 1 ^ if sum >> 31 == 1 { 0x04C1_1DB7 } else { 0 }
        })
    })
}

impl<S: Read> Read for ShortComments<S> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.at == self.page.len() {
            if self.is_raw {
                return self.source.read(out);
            }
            self.next_page()?;
        }
        let n = out.len().min(self.page.len() - self.at);
        out[..n].copy_from_slice(&self.page[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}

impl<S> Seek for ShortComments<S> {
    fn seek(&mut self, _: SeekFrom) -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl<S: Read + Send + Sync> MediaSource for ShortComments<S> {
    fn is_seekable(&self) -> bool {
        false
    }

    fn byte_len(&self) -> Option<u64> {
        None
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// `file` with a comment header of `n` bytes, in pages as they are written.
    pub(in crate::decode) fn with_comment_of(file: &[u8], n: usize) -> Vec<u8> {
        let mut reader = ShortComments::new(file);
        reader.next_page().unwrap();
        let mut out = reader.page.clone();
        reader.next_page().unwrap();
        let second = reader.page.clone();
        let n_lacing = usize::from(second[26]);
        let (lacing, body) = second[27..].split_at(n_lacing);
        let end = lacing.iter().position(|&n| n < 255).unwrap();
        let n_old: usize = lacing[..=end].iter().map(|&n| usize::from(n)).sum();
        let mut packet = if body.starts_with(b"OpusTags") {
            b"OpusTags\0\0\0\0".to_vec()
        } else {
            b"\x03vorbis\0\0\0\0".to_vec()
        };
        packet.extend([1, 0, 0, 0]);
        packet.extend((n as u32).to_le_bytes());
        packet.resize(packet.len() + n, b'A');
        packet.push(1);
        let (full, last) = packet.as_chunks::<65_025>();
        for (index, part) in full.iter().enumerate() {
            let mut page = rewritten(&second[..27], &[255; 255], part);
            page[5] |= u8::from(index > 0);
            page[22..26].fill(0);
            let sum = checksum(&page);
            page[22..26].copy_from_slice(&sum.to_le_bytes());
            out.extend(page);
        }
        let mut lacing_out = vec![255; last.len() / 255];
        lacing_out.push((last.len() % 255) as u8);
        lacing_out.extend(&lacing[end + 1..]);
        let mut page = rewritten(&second[..27], &lacing_out, &[last, &body[n_old..]].concat());
        page[5] |= u8::from(!full.is_empty());
        page[22..26].fill(0);
        let sum = checksum(&page);
        page[22..26].copy_from_slice(&sum.to_le_bytes());
        out.extend(page);
        reader.at = reader.page.len();
        reader.read_to_end(&mut out).unwrap();
        out
    }

    #[test]
    fn long_comments_become_empty_and_all_else_passes() {
        let junk = b"no pages at all, and more than a head of one";
        let mut out = Vec::new();
        ShortComments::new(&junk[..]).read_to_end(&mut out).unwrap();
        assert_eq!(out, junk);
        assert_eq!(checksum(b"\0\0\0\x01"), 0x04C1_1DB7);
    }
}
