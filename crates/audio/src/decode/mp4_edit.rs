//! The edit list of an MP4 file's audio track: which part of the decoded track is meant.
//!
//! Encoders of AAC put a priming delay before the sound and say so only here. Source:
//! ISO/IEC 14496-12 §8.6.6; boxes `moov/trak/{edts/elst, mdia/{mdhd, hdlr}}`.

use std::io::{Read, Seek, SeekFrom};

const MAX_MOOV_BYTES: u64 = 64 << 20;
const MAX_BOXES: usize = 4096;

/// The presented part of the track, in seconds of its own time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Edit {
    pub(super) start_s: f64,
    pub(super) duration_s: Option<f64>,
}

/// The edit of the first audio track; `None` without one, or with a list of several parts.
pub(super) fn read<S: Read + Seek>(source: &mut S) -> Option<Edit> {
    let moov = read_moov(source)?;
    let movie_scale = find(&moov, b"mvhd").and_then(timescale)?;
    boxes(&moov)
        .filter(|(kind, _)| kind == b"trak")
        .find_map(|(_, trak)| {
            let mdia = find(trak, b"mdia")?;
            let is_audio = find(mdia, b"hdlr")?.get(8..12)? == b"soun";
            is_audio.then_some((trak, mdia))
        })
        .and_then(|(trak, mdia)| {
            let media_scale = find(mdia, b"mdhd").and_then(timescale)?;
            let list = find(find(trak, b"edts")?, b"elst")?;
            parse_list(list, movie_scale, media_scale)
        })
}

fn read_moov<S: Read + Seek>(source: &mut S) -> Option<Vec<u8>> {
    let mut pos = 0u64;
    for _ in 0..MAX_BOXES {
        source.seek(SeekFrom::Start(pos)).ok()?;
        let mut head = [0u8; 8];
        source.read_exact(&mut head).ok()?;
        let (mut size, mut head_bytes) = (u64::from(u32_at(&head, 0)?), 8);
        if size == 1 {
            let mut long = [0u8; 8];
            source.read_exact(&mut long).ok()?;
            (size, head_bytes) = (u64::from_be_bytes(long), 16);
        }
        let body_bytes = size.checked_sub(head_bytes)?;
        if &head[4..] == b"moov" {
            let mut moov = Vec::new();
            let wanted = body_bytes.min(MAX_MOOV_BYTES);
            source.take(wanted).read_to_end(&mut moov).ok()?;
            return Some(moov);
        }
        pos = pos.checked_add(size)?;
    }
    None
}

/// The boxes inside `parent`, as (kind, body); stops at the first that does not fit.
fn boxes(parent: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    let mut rest = parent;
    std::iter::from_fn(move || {
        let size = u32_at(rest, 0)? as usize;
        let kind: [u8; 4] = rest.get(4..8)?.try_into().ok()?;
        let body = rest.get(8..size)?;
        rest = &rest[size..];
        Some((kind, body))
    })
}

fn find<'a>(parent: &'a [u8], kind: &[u8; 4]) -> Option<&'a [u8]> {
    boxes(parent).find(|(found, _)| found == kind).map(|(_, body)| body)
}

/// Units a second, of `mvhd` or `mdhd`.
fn timescale(body: &[u8]) -> Option<f64> {
    let at = if *body.first()? == 1 { 20 } else { 12 };
    u32_at(body, at).filter(|&scale| scale > 0).map(f64::from)
}

fn parse_list(list: &[u8], movie_scale: f64, media_scale: f64) -> Option<Edit> {
    let is_long = *list.first()? == 1;
    let entry_bytes = if is_long { 20 } else { 12 };
    let n_entries = u32_at(list, 4)? as usize;
    let mut edits = list.get(8..)?.chunks_exact(entry_bytes).take(n_entries).filter_map(|entry| {
        let (duration, start) = if is_long {
            (u64_at(entry, 0)?, u64_at(entry, 8)?.cast_signed())
        } else {
            (u64::from(u32_at(entry, 0)?), i64::from(u32_at(entry, 4)?.cast_signed()))
        };
        // A start of -1 is a pause before the track, not a part of it.
        (start >= 0).then_some((duration, start))
    });
    let (duration, start) = edits.next()?;
    if edits.next().is_some() {
        return None;
    }
    let duration_s = (duration > 0).then_some(duration as f64 / movie_scale);
    Some(Edit { start_s: start as f64 / media_scale, duration_s })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
