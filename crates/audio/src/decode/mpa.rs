//! MPEG audio files (MP3, MP2, MP1): frames one after another, with tags before, between and after them.
//!
//! Own reader: symphonia ends a file where its first header (Xing, Info, VBRI) says so. Here that header gives the delay
//! and padding of the encoder only; a later one begins another part, as files joined with `cat` have.

use std::io::{self, Read};

use symphonia::core::codecs::audio::well_known::{CODEC_ID_MP1, CODEC_ID_MP2, CODEC_ID_MP3};

const MAX_FRAME_BYTES: usize = 4096;
const BLOCK_BYTES: usize = 64 << 10;
/// Bytes without a frame before the source is taken for no audio.
const MAX_JUNK: u64 = 8 << 20;
/// Delay of every MP3 decoder in samples.
const DECODER_DELAY: u64 = 529;

/// Header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) layer: u8,
    pub(super) rate: u32,
    pub(super) n_channels: u8,
    pub(super) n_frames: u16,
    pub(super) n_bytes: usize,
    is_mpeg1: bool,
}

/// Source: ISO/IEC 11172-3 §2.4.2.3, 13818-3 §2.4.2.3.
pub(super) fn header(bytes: &[u8]) -> Option<Header> {
    let &[0xFF, b, c, d, ..] = bytes else { return None };
    let (version, layer) = (b >> 3 & 3, 4 - (b >> 1 & 3));
    let (rate, index) = (usize::from(c >> 2 & 3), usize::from(c >> 4));
    if b & 0xE0 != 0xE0 || version == 1 || layer == 4 || rate == 3 || !(1..15).contains(&index) {
        return None;
    }
    let is_mpeg1 = version == 3;
    let halvings = [2, 0, 1, 0][usize::from(version)];
    let rate = [44_100, 48_000, 32_000][rate] >> halvings;
    let kbits: [u32; 14] = match (is_mpeg1, layer) {
        (true, 1) => [32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448],
        (true, 2) => [32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384],
        (true, _) => [32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320],
        (false, 1) => [32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256],
        (false, _) => [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160],
    };
    let (bits, padding) = (kbits[index - 1] * 1000, u32::from(c >> 1 & 1));
    let n_frames = match (layer, is_mpeg1) {
        (1, _) => 384,
        (3, false) => 576,
        _ => 1152,
    };
    let n_bytes = match layer {
        1 => (12 * bits / rate + padding) * 4,
        _ => u32::from(n_frames) / 8 * bits / rate + padding,
    };
    let n_channels = if d >> 6 == 3 { 1 } else { 2 };
    Some(Header { layer, rate, n_channels, n_frames, n_bytes: n_bytes as usize, is_mpeg1 })
}

impl Header {
    pub(super) fn codec(&self) -> symphonia::core::codecs::audio::AudioCodecId {
        match self.layer {
            1 => CODEC_ID_MP1,
            2 => CODEC_ID_MP2,
            _ => CODEC_ID_MP3,
        }
    }

    /// Whether frames with these headers may follow one another.
    fn is_like(&self, other: &Self) -> bool {
        let key = |h: &Self| (h.layer, h.rate, h.is_mpeg1);
        key(self) == key(other)
    }
}

/// Statements of a first frame without sound about its part of the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Info {
    /// Frames (of [`Header::n_frames`] samples) in the part, if stated.
    pub(super) n_frames: Option<u64>,
    /// Samples to drop at the start and the end.
    pub(super) delay: u64,
    pub(super) padding: u64,
}

fn info(frame: &[u8], header: &Header) -> Option<Info> {
    let u32_at = |at: usize| -> Option<u32> {
        Some(u32::from_be_bytes(frame.get(at..at + 4)?.try_into().ok()?))
    };
    if header.layer != 3 {
        return None;
    }
    if frame.get(36..40) == Some(b"VBRI") {
        return Some(Info { n_frames: u32_at(50).map(u64::from), ..Info::default() });
    }
    let side = match (header.is_mpeg1, header.n_channels) {
        (true, 2) => 32,
        (true, _) | (false, 2) => 17,
        _ => 9,
    };
    let is_tag = |&at: &usize| matches!(frame.get(at..at + 4), Some(b"Xing" | b"Info"));
    let at = [4 + side, 6 + side].into_iter().find(is_tag)?;
    let flags = u32_at(at + 4)?;
    let n_frames = if flags & 1 != 0 { u32_at(at + 8).map(u64::from) } else { None };
    let sizes = [(1, 4), (2, 4), (4, 100), (8, 4)];
    let fields: usize = sizes.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, n)| n).sum();
    let encoder = frame.get(at + 8 + fields..).unwrap_or_default();
    let is_known = [b"LAME", b"Lavf", b"Lavc"].iter().any(|name| encoder.starts_with(*name));
    let trim = u32_at(at + 8 + fields + 20).filter(|_| is_known).map(|word| word & 0xFF_FFFF);
    let (delay, padding) = trim.map_or((0, 0), |trim| {
        let (delay, padding) = (u64::from(trim >> 12), u64::from(trim & 0xFFF));
        (delay + DECODER_DELAY, padding.saturating_sub(DECODER_DELAY))
    });
    Some(Info { n_frames, delay, padding })
}

/// Length of the `ID3v2` tag that `bytes` (10 or more) begin with.
pub(super) fn id3_bytes(bytes: &[u8]) -> Option<u64> {
    let &[b'I', b'D', b'3', major, minor, flags, a, b, c, d, ..] = bytes else { return None };
    let size = [a, b, c, d];
    if major == 0xFF || minor == 0xFF || size.iter().any(|&byte| byte >= 0x80) {
        return None;
    }
    let n = size.iter().fold(0, |n, &byte| n << 7 | u64::from(byte));
    Some(10 + n + if flags & 0x10 != 0 { 10 } else { 0 })
}

/// Position of the first byte that is not zero, within the junk that is passed.
pub(super) fn zeros(source: &mut impl Read) -> io::Result<Option<u64>> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut pos = 0;
    while pos < MAX_JUNK {
        let n = source.read(&mut block)?;
        if n == 0 {
            break;
        }
        if let Some(at) = block[..n].iter().position(|&byte| byte != 0) {
            return Ok(Some(pos + at as u64));
        }
        pos += n as u64;
    }
    Ok(None)
}

/// Next thing in the file.
#[derive(Debug)]
pub(super) enum Item<'a> {
    /// Start of a part, before its first frame.
    Part(Info),
    /// A frame, and the bytes skipped before it.
    Frame(Header, &'a [u8], u64),
}

/// Reader of frames.
pub(super) struct Frames<S> {
    source: S,
    buffer: Vec<u8>,
    at: usize,
    is_ended: bool,
    /// The last frame, if it ended at `at`.
    last: Option<Header>,
    /// Whether the next frame begins a part.
    is_start: bool,
    n_junk: u64,
}

impl<S: Read> Frames<S> {
    pub(super) fn new(source: S) -> Self {
        let (buffer, n_junk) = (Vec::new(), 0);
        Self { source, buffer, at: 0, is_ended: false, last: None, is_start: true, n_junk }
    }

    /// The bytes from here, at least `n` unless the source ends.
    fn peek(&mut self, n: usize) -> io::Result<&[u8]> {
        if self.buffer.len() - self.at < n && !self.is_ended {
            self.buffer.drain(..self.at);
            self.at = 0;
            while self.buffer.len() < n && !self.is_ended {
                let n_before = self.buffer.len();
                self.buffer.resize(n_before + BLOCK_BYTES, 0);
                let result = self.source.read(&mut self.buffer[n_before..]);
                self.buffer.truncate(n_before + *result.as_ref().unwrap_or(&0));
                match result {
                    Ok(n) => self.is_ended = n == 0,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(&self.buffer[self.at..])
    }

    fn skip(&mut self, mut n: u64) -> io::Result<()> {
        while n > 0 {
            let n_here = self.peek(1)?.len() as u64;
            if n_here == 0 {
                break;
            }
            let step = n_here.min(n);
            self.at += step as usize;
            n -= step;
        }
        Ok(())
    }

    /// Length of the tag that begins here.
    fn tag_bytes(&mut self) -> io::Result<Option<u64>> {
        let bytes = self.peek(32)?;
        if bytes.starts_with(b"TAG") && bytes.get(3) != Some(&b'+') {
            return Ok(Some(128));
        }
        if let (true, Some(&[a, b, c, d])) = (bytes.starts_with(b"APETAGEX"), bytes.get(12..16)) {
            // The size counts the footer, but not the header of 32 bytes, which is here.
            return Ok(Some(u64::from(u32::from_le_bytes([a, b, c, d])) + 32));
        }
        Ok(id3_bytes(bytes))
    }

    /// Whether a frame with this header is here: it follows a frame, or another follows it.
    fn is_frame(&mut self, found: &Header) -> io::Result<bool> {
        if self.last.is_some_and(|last| last.is_like(found)) {
            return Ok(true);
        }
        let bytes = self.peek(found.n_bytes + 10)?;
        let Some(next) = bytes.get(found.n_bytes..).filter(|next| !next.is_empty()) else {
            return Ok(bytes.len() == found.n_bytes);
        };
        let is_tag = next.starts_with(b"TAG") || next.starts_with(b"APETAGEX");
        let is_next = header(next).is_some_and(|next| next.is_like(found));
        Ok(is_next || is_tag || id3_bytes(next).is_some())
    }

    /// The next part or frame; `None` at the end.
    pub(super) fn next_item(&mut self) -> io::Result<Option<Item<'_>>> {
        loop {
            let bytes = self.peek(MAX_FRAME_BYTES)?;
            if bytes.is_empty() {
                return Ok(None);
            }
            let n_here = bytes.len();
            let found = header(bytes).filter(|found| found.n_bytes <= n_here);
            if let Some(found) = found
                && self.is_frame(&found)?
            {
                let frame = &self.buffer[self.at..self.at + found.n_bytes];
                let differs = self.last.is_some_and(|last| !last.is_like(&found));
                let info = info(frame, &found);
                if let Some(info) = info {
                    (self.is_start, self.n_junk) = (false, 0);
                    self.at += found.n_bytes;
                    self.last = Some(found);
                    return Ok(Some(Item::Part(info)));
                }
                if std::mem::take(&mut self.is_start) || differs {
                    (self.last, self.n_junk) = (Some(found), 0);
                    return Ok(Some(Item::Part(Info::default())));
                }
                let n_junk = std::mem::take(&mut self.n_junk);
                self.last = Some(found);
                self.at += found.n_bytes;
                let frame = &self.buffer[self.at - found.n_bytes..self.at];
                return Ok(Some(Item::Frame(found, frame, n_junk)));
            }
            if let Some(n) = self.tag_bytes()? {
                self.skip(n)?;
                // Junk before a tag is padding.
                (self.is_start, self.last, self.n_junk) = (true, None, 0);
                continue;
            }
            self.at += 1;
            self.n_junk += 1;
            self.last = None;
            if self.n_junk > MAX_JUNK {
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_their_lengths() {
        let of = |bytes: [u8; 4]| header(&bytes).map(|h| (h.layer, h.rate, h.n_frames, h.n_bytes));
        assert_eq!(of([0xFF, 0xFB, 0x90, 0x00]), Some((3, 44_100, 1152, 417)));
        assert_eq!(of([0xFF, 0xF3, 0x48, 0xC0]), Some((3, 16_000, 576, 144)));
        assert_eq!(of([0xFF, 0xFD, 0x84, 0x00]), Some((2, 48_000, 1152, 384)));
        assert_eq!(of([0xFF, 0xFF, 0x14, 0x00]), Some((1, 48_000, 384, 32)));
        for wrong in [[0xFF, 0xF1, 0x50, 0x80], [0xFF, 0xFB, 0xF0, 0], [0xFF, 0xFB, 0x9C, 0]] {
            assert_eq!(of(wrong), None);
        }
    }

    #[test]
    fn tags_have_their_lengths() {
        assert_eq!(id3_bytes(b"ID3\x04\0\0\0\0\x02\x01abc"), Some(10 + 257));
        assert_eq!(id3_bytes(b"ID3\x04\0\x10\0\0\x02\x01abc"), Some(20 + 257));
        assert_eq!(id3_bytes(b"ID3\x04\0\0\0\0\x82\x01abc"), None);
        assert_eq!(id3_bytes(b"ID3"), None);
    }
}
