//! Repair of containers for the demuxers: removes metadata that they fail on, and fixes sizes past the end of the file.
//!
//! - FLAC: the stream header and the frames, without the other blocks.
//! - AIFF, CAF: the chunks that describe the sound, and the sound with the size that it has.
//! - MP4, Matroska: a box that the file's end cuts is filled with zeros, or dropped if it holds no sound.

use std::io::{Read, Seek, SeekFrom};

use super::rewind;
use super::splice::Part;
use crate::Error;

const MAX_CHUNKS: usize = 65_536;
/// The largest chunk kept in memory.
const MAX_CHUNK_BYTES: u64 = 32 << 20;
const FLAC_HEAD_BYTES: u64 = 4 + 4 + 34;

/// Repaired container.
#[derive(Debug, PartialEq)]
pub(super) struct Mended {
    pub(super) parts: Vec<Part>,
    /// Whether the file is shorter than its headers state.
    pub(super) is_cut: bool,
    /// Bytes of sound missing per byte that the file has, if known.
    pub(super) lack: Option<f64>,
}

impl Mended {
    fn whole(parts: Vec<Part>) -> Option<Self> {
        Some(Self { parts, is_cut: false, lack: None })
    }
}

/// The parts of `source`, a file that begins with `head` or a held stream; `None` if it is fine as it is. The source is
/// left at its start.
pub(super) fn mend<S: Read + Seek>(source: &mut S, head: &[u8]) -> Result<Option<Mended>, Error> {
    let mended = if head.starts_with(b"fLaC") {
        flac(source)
    } else if head.starts_with(b"FORM") {
        aiff(source)
    } else if head.starts_with(b"caff") {
        caf(source)
    } else if head.get(4..8) == Some(b"ftyp") {
        mp4(source)
    } else {
        None
    };
    rewind(source)?;
    Ok(mended)
}

fn flac<S: Read + Seek>(source: &mut S) -> Option<Mended> {
    let mut first = [0; FLAC_HEAD_BYTES as usize];
    source.read_exact(&mut first).ok()?;
    if first[4] & 0x7F != 0 || first[5..8] != [0, 0, 34] {
        return None;
    }
    let mut pos = FLAC_HEAD_BYTES;
    let mut is_last = first[4] & 0x80 != 0;
    first[4] |= 0x80;
    while !is_last {
        let mut block = [0; 4];
        if source.read_exact(&mut block).is_err() {
            break;
        }
        is_last = block[0] & 0x80 != 0;
        pos += 4 + u64::from(u32::from_be_bytes([0, block[1], block[2], block[3]]));
        source.seek(SeekFrom::Start(pos)).ok()?;
    }
    let mut frame = Vec::new();
    source.by_ref().take(16).read_to_end(&mut frame).ok()?;
    if !is_frame_of_flac(&frame) {
        // A block with the wrong length: the frames are found by their headers.
        source.seek(SeekFrom::Start(FLAC_HEAD_BYTES)).ok()?;
        let mut rest = Vec::new();
        source.by_ref().take(MAX_CHUNK_BYTES).read_to_end(&mut rest).ok()?;
        let at = (0..rest.len()).find(|&at| is_frame_of_flac(&rest[at..]));
        pos = FLAC_HEAD_BYTES + at? as u64;
    }
    Mended::whole(vec![Part::Bytes(first.to_vec()), Part::rest(pos)])
}

/// Whether a FLAC frame begins here, by the checksum of its header (RFC 9639 §9.1).
fn is_frame_of_flac(bytes: &[u8]) -> bool {
    let &[0xFF, sync, sizes, format, number, ..] = bytes else { return false };
    let (block, rate) = (sizes >> 4, sizes & 15);
    if sync & 0xFE != 0xF8 || block == 0 || rate == 15 || format >> 4 > 10 || format & 1 != 0 {
        return false;
    }
    let n_number = (number.leading_ones() as usize).max(1);
    let n_block = [(6, 1), (7, 2)].iter().find(|(code, _)| *code == block).map_or(0, |pair| pair.1);
    let n_rate = match rate {
        12 => 1,
        13 | 14 => 2,
        _ => 0,
    };
    let n = 4 + n_number + n_block + n_rate;
    let sum = |bytes: &[u8]| {
        bytes.iter().fold(0u8, |sum, &byte| {
            (0..8).fold(sum ^ byte, |sum, _| sum << 1 ^ if sum >> 7 == 1 { 7 } else { 0 })
        })
    };
    bytes.get(..n).is_some_and(|head| bytes.get(n) == Some(&sum(head)))
}

/// The id, position of the body and stated size of each chunk; `head_bytes` is 8 or, with long sizes, 12.
fn chunks<S: Read + Seek>(
    source: &mut S,
    mut pos: u64,
    head_bytes: usize,
) -> Option<Vec<([u8; 4], u64, u64)>> {
    let n_bytes = source.seek(SeekFrom::End(0)).ok()?;
    let mut found = Vec::new();
    while found.len() < MAX_CHUNKS && pos.saturating_add(head_bytes as u64) <= n_bytes {
        let head = read_at(source, pos, head_bytes as u64)?;
        let size = head[4..].iter().fold(0, |size: u64, &byte| size << 8 | u64::from(byte));
        pos += head_bytes as u64;
        found.push((head[..4].try_into().ok()?, pos, size));
        // Chunks with short sizes are padded to an even length.
        let padding = if head_bytes == 8 { size % 2 } else { 0 };
        pos = pos.saturating_add(size).saturating_add(padding);
    }
    Some(found)
}

fn read_at<S: Read + Seek>(source: &mut S, pos: u64, n: u64) -> Option<Vec<u8>> {
    source.seek(SeekFrom::Start(pos)).ok()?;
    let mut bytes = Vec::new();
    source.by_ref().take(n).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 == n).then_some(bytes)
}

fn aiff<S: Read + Seek>(source: &mut S) -> Option<Mended> {
    let form = read_at(source, 8, 4)?;
    let n_bytes = source.seek(SeekFrom::End(0)).ok()?;
    let found = chunks(source, 12, 8)?;
    let find = |id: &[u8; 4]| found.iter().find(|chunk| &chunk.0 == id).copied();
    let (_, pos, size) = find(b"COMM").filter(|chunk| chunk.2 <= 4096)?;
    let comm = read_at(source, pos, size)?;
    let (_, pos, size) = find(b"SSND")?;
    let here = size.min(n_bytes - pos);
    let mut out = Vec::new();
    let n_form = 4 + 8 + comm.len() as u64 + comm.len() as u64 % 2 + 8 + here;
    out.extend(b"FORM");
    out.extend(u32::try_from(n_form).unwrap_or(u32::MAX).to_be_bytes());
    out.extend(form);
    out.extend(b"COMM");
    out.extend((comm.len() as u32).to_be_bytes());
    out.extend(&comm);
    out.resize(out.len() + comm.len() % 2, 0);
    out.extend(b"SSND");
    out.extend((here as u32).to_be_bytes());
    let sound = here.saturating_sub(8);
    let lack = (sound > 0).then(|| (size - here) as f64 / sound as f64);
    let parts = vec![Part::Bytes(out), Part::Source { start: pos, n: here }];
    Some(Mended { parts, is_cut: here < size, lack })
}

fn caf<S: Read + Seek>(source: &mut S) -> Option<Mended> {
    let mut out = read_at(source, 0, 8)?;
    let n_bytes = source.seek(SeekFrom::End(0)).ok()?;
    let found = chunks(source, 8, 12)?;
    let find = |id: &[u8; 4]| found.iter().find(|chunk| &chunk.0 == id).copied();
    // A packet table may follow the sound; here it precedes it.
    for id in [b"desc", b"chan", b"kuki", b"pakt"] {
        let Some((_, pos, size)) = find(id).filter(|chunk| chunk.2 <= MAX_CHUNK_BYTES) else {
            continue;
        };
        let Some(body) = read_at(source, pos, size) else { continue };
        out.extend(id);
        out.extend(size.to_be_bytes());
        out.extend(body);
    }
    let (_, pos, size) = find(b"data")?;
    let here = size.min(n_bytes - pos);
    out.extend(b"data");
    out.extend(here.to_be_bytes());
    let is_cut = here < size && size <= i64::MAX as u64;
    // A table of packets gives the length itself.
    let is_constant = is_cut && here > 4 && find(b"pakt").is_none();
    let lack = is_constant.then(|| (size - here) as f64 / (here - 4) as f64);
    let parts = vec![Part::Bytes(out), Part::Source { start: pos, n: here }];
    Some(Mended { parts, is_cut, lack })
}

fn mp4<S: Read + Seek>(source: &mut S) -> Option<Mended> {
    let n_bytes = source.seek(SeekFrom::End(0)).ok()?;
    let mut pos = 0u64;
    let cut = |n: u64, n_zeros: u64| {
        let parts = vec![Part::Source { start: 0, n }, Part::Zeros(n_zeros)];
        Some(Mended { parts, is_cut: true, lack: None })
    };
    for _ in 0..MAX_CHUNKS {
        if pos == n_bytes {
            return None;
        }
        let Some(head) = read_at(source, pos, 8) else { return cut(pos, 0) };
        let mut size = u64::from(u32::from_be_bytes([head[0], head[1], head[2], head[3]]));
        if size == 1 {
            let Some(long) = read_at(source, pos + 8, 8) else { return cut(pos, 0) };
            size = long.iter().fold(0, |size, &byte| size << 8 | u64::from(byte));
        }
        if size == 0 {
            return None;
        }
        if size < 8 {
            return cut(pos, 0);
        }
        let end = pos.checked_add(size)?;
        if end > n_bytes {
            // A cut `mdat` box may have sound in its first part. Half an index is useless.
            return match &head[4..] {
                b"mdat" => cut(n_bytes, end - n_bytes),
                _ => cut(pos, 0),
            };
        }
        pos = end;
    }
    None
}

/// Whether a Matroska file of `n_bytes` ends before its segment does.
pub(super) fn is_cut_mkv(head: &[u8], n_bytes: u64) -> bool {
    /// A variable-length size and its length; all ones are no size.
    fn size(bytes: &[u8]) -> Option<(u64, usize)> {
        let n = bytes.first()?.leading_zeros() as usize + 1;
        let bytes = bytes.get(..n).filter(|_| n <= 8)?;
        let value = bytes.iter().fold(0, |value: u64, &byte| value << 8 | u64::from(byte));
        let value = value & ((1 << (7 * n)) - 1);
        (value != (1 << (7 * n)) - 1).then_some((value, n))
    }
    let end = || {
        let (n_head, n) = size(head.get(4..)?)?;
        let at = 4 + n + usize::try_from(n_head).ok()?;
        let (n_segment, n) = size(head.get(at..)?.strip_prefix(b"\x18\x53\x80\x67")?)?;
        n_segment.checked_add((at + 4 + n) as u64)
    };
    end().is_some_and(|end: u64| end > n_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_longer_than_the_file_is_cut() {
        let file = b"\x1A\x45\xDF\xA3\x82ab\x18\x53\x80\x67\x85cdefg";
        let n_bytes = file.len() as u64;
        assert!(!is_cut_mkv(file, n_bytes) && is_cut_mkv(file, n_bytes - 1));
        // A segment of unknown length.
        assert!(!is_cut_mkv(b"\x1A\x45\xDF\xA3\x82ab\x18\x53\x80\x67\xFF", 3));
    }
}
