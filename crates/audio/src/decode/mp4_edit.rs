//! Encoder delay and padding of an MP4 file's audio track. AAC encoders state them only here:
//!
//! - The edit list: ISO/IEC 14496-12 §8.6.6; boxes `moov/trak/{edts/elst, mdia/{mdhd, hdlr}}`.
//! - Without one, Apple's `iTunSMPB` tag, in `moov/udta/meta/ilst/----`: text of hexadecimal words,
//!   of which the second is the priming, the third the padding and the fourth the length.
//!
//! Own reader: symphonia 0.6 applies neither.

use std::io::{Read, Seek, SeekFrom};

const MAX_MOOV_BYTES: u64 = 64 << 20;
const MAX_BOXES: usize = 4096;

/// A presented part of the track, in seconds of its own time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Part {
    pub(super) start_s: f64,
    /// `None`: to the end.
    pub(super) duration_s: Option<f64>,
    /// Seconds of silence before the part.
    pub(super) pause_s: f64,
}

/// The presented parts, one after another in the track's time.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Edit {
    pub(super) parts: Vec<Part>,
}

impl Edit {
    /// Total seconds, if every part states its own.
    pub(super) fn total_s(&self) -> Option<f64> {
        self.parts.iter().map(|part| part.duration_s.map(|s| s + part.pause_s)).sum()
    }
}

/// An audio track.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AudioTrack {
    pub(super) id: u32,
    /// Whether it is one to play by default.
    pub(super) is_enabled: bool,
    /// The four characters that name its codec.
    pub(super) codec: [u8; 4],
    /// Three letters of ISO 639-2, if stated.
    pub(super) language: Option<String>,
    /// `None` if nothing states one, or if its parts do not follow the track's time.
    pub(super) edit: Option<Edit>,
    /// Length of the fragments that follow, in seconds.
    pub(super) fragments_s: Option<f64>,
}

/// The audio tracks.
pub(super) fn read<S: Read + Seek>(source: &mut S) -> Vec<AudioTrack> {
    read_moov(source).map(|moov| parse_moov(&moov)).unwrap_or_default()
}

fn parse_moov(moov: &[u8]) -> Vec<AudioTrack> {
    let traks = boxes(moov).filter(|(kind, _)| kind == b"trak");
    let mut tracks: Vec<_> = traks.filter_map(|(_, trak)| parse_track(trak, moov)).collect();
    // The file's gapless tag applies to its only track.
    if let [track] = &mut tracks[..]
        && track.1.is_none()
    {
        let tag = gapless_tag(moov);
        track.0.edit = tag.and_then(|text| parse_smpb(text, track.2));
    }
    tracks.into_iter().map(|(track, ..)| track).collect()
}

/// An audio track, its edit list and the units per second of its clock.
fn parse_track<'a>(trak: &'a [u8], moov: &[u8]) -> Option<(AudioTrack, Option<&'a [u8]>, f64)> {
    let mdia = find(trak, b"mdia")?;
    if find(mdia, b"hdlr")?.get(8..12)? != b"soun" {
        return None;
    }
    let media_header = find(mdia, b"mdhd")?;
    let media = clock(media_header)?;
    let header = find(trak, b"tkhd").unwrap_or_default();
    let is_long = header.first() == Some(&1);
    let id = u32_at(header, if is_long { 20 } else { 12 }).unwrap_or_default();
    let is_enabled = header.get(3).is_some_and(|flags| flags & 1 != 0);
    let description = find(mdia, b"minf")
        .and_then(|minf| find(find(minf, b"stbl")?, b"stsd"))
        .and_then(|stsd| stsd.get(12..16)?.try_into().ok());
    let list = find(trak, b"edts").and_then(|edts| find(edts, b"elst"));
    let movie = find(moov, b"mvhd").and_then(clock);
    let edit = list.and_then(|list| parse_list(list, movie?.scale, media));
    let codec = description.unwrap_or_default();
    let fragments = find(moov, b"mvex").and_then(|mvex| find(mvex, b"mehd")).and_then(|mehd| {
        let is_long = *mehd.first()? == 1;
        if is_long { u64_at(mehd, 4) } else { u32_at(mehd, 4).map(u64::from) }
    });
    let fragments_s = fragments.zip(movie).map(|(n, movie)| n as f64 / movie.scale);
    let language = language(media_header);
    let track = AudioTrack { id, is_enabled, codec, language, edit, fragments_s };
    Some((track, list, media.scale))
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

/// The clock of `mvhd` or `mdhd`.
#[derive(Clone, Copy)]
struct Clock {
    /// Units per second (timescale).
    scale: f64,
    /// Duration in these units.
    duration: f64,
}

fn clock(body: &[u8]) -> Option<Clock> {
    let is_long = *body.first()? == 1;
    let scale = u32_at(body, if is_long { 20 } else { 12 }).filter(|&scale| scale > 0)?;
    let duration = if is_long { u64_at(body, 24)? as f64 } else { f64::from(u32_at(body, 16)?) };
    Some(Clock { scale: f64::from(scale), duration })
}

/// The language of `mdhd`: three letters of five bits; `None` if it is undetermined.
fn language(mdhd: &[u8]) -> Option<String> {
    let at = if *mdhd.first()? == 1 { 32 } else { 20 };
    let code = u16::from_be_bytes(mdhd.get(at..at + 2)?.try_into().ok()?);
    let letters = [10, 5, 0].map(|shift| 0x60 + (code >> shift & 31) as u8);
    let is_known = letters.iter().all(u8::is_ascii_lowercase) && &letters != b"und";
    is_known.then(|| letters.iter().map(|&letter| char::from(letter)).collect())
}

fn parse_list(list: &[u8], movie_scale: f64, media: Clock) -> Option<Edit> {
    let is_long = *list.first()? == 1;
    let entry_bytes = if is_long { 20 } else { 12 };
    let n_entries = u32_at(list, 4)? as usize;
    let mut parts: Vec<Part> = Vec::new();
    let (mut pause_s, mut end_s) = (0.0, 0.0);
    for entry in list.get(8..)?.chunks_exact(entry_bytes).take(n_entries) {
        let (duration, start) = if is_long {
            (u64_at(entry, 0)?, u64_at(entry, 8)?.cast_signed())
        } else {
            (u64::from(u32_at(entry, 0)?), i64::from(u32_at(entry, 4)?.cast_signed()))
        };
        let duration_s = duration as f64 / movie_scale;
        // An edit with a start of -1 is silence.
        if start < 0 {
            pause_s += duration_s;
            continue;
        }
        let start = start as f64;
        let start_s = start / media.scale;
        if start_s + 1.0 / movie_scale < end_s {
            return None;
        }
        // The list counts in units of the movie, often milliseconds; the track has its exact end.
        let exact_s = (media.duration - start) / media.scale;
        let agree = (exact_s - duration_s).abs() <= 1.0 / movie_scale;
        let duration_s = (duration > 0).then_some(if agree { exact_s } else { duration_s });
        parts.push(Part { start_s, duration_s, pause_s: std::mem::take(&mut pause_s) });
        // A part without a duration is the last one.
        end_s = start_s + duration_s.unwrap_or(f64::INFINITY);
    }
    (!parts.is_empty()).then_some(Edit { parts })
}

/// The text of the `iTunSMPB` tag.
fn gapless_tag(moov: &[u8]) -> Option<&str> {
    let meta = find(find(moov, b"udta")?, b"meta")?;
    // `meta` has a version and flags before its boxes; so have `name` and `data` (and a locale).
    boxes(find(meta.get(4..)?, b"ilst")?)
        .filter(|(kind, _)| kind == b"----")
        .find(|(_, tag)| find(tag, b"name").and_then(|name| name.get(4..)) == Some(b"iTunSMPB"))
        .and_then(|(_, tag)| std::str::from_utf8(find(tag, b"data")?.get(8..)?).ok())
}

fn parse_smpb(text: &str, media_scale: f64) -> Option<Edit> {
    let mut words = text.split_ascii_whitespace().map(|word| u64::from_str_radix(word, 16).ok());
    let (_, priming, _padding, length) =
        (words.next()??, words.next()??, words.next()??, words.next()??);
    let part = Part {
        start_s: priming as f64 / media_scale,
        duration_s: (length > 0).then_some(length as f64 / media_scale),
        pause_s: 0.0,
    };
    Some(Edit { parts: vec![part] })
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(kind: &[u8; 4], parts: &[&[u8]]) -> Vec<u8> {
        let body = parts.concat();
        [&(body.len() as u32 + 8).to_be_bytes()[..], kind, &body].concat()
    }

    /// Version 0 of `mvhd` or `mdhd`, up to the duration.
    fn header(kind: &[u8; 4], scale: u32, duration: u32) -> Vec<u8> {
        make(kind, &[&[0; 12], &scale.to_be_bytes(), &duration.to_be_bytes()])
    }

    fn moov(list: Option<(u32, i32)>, media: (u32, u32), tag: &str) -> Vec<u8> {
        let hdlr = make(b"hdlr", &[&[0; 8], b"soun"]);
        let mdia = make(b"mdia", &[&hdlr, &header(b"mdhd", media.0, media.1)]);
        let edts = list.map(|(duration, start)| {
            let entry = [&duration.to_be_bytes()[..], &start.to_be_bytes(), &[0, 1, 0, 0]].concat();
            make(b"edts", &[&make(b"elst", &[&[0, 0, 0, 0, 0, 0, 0, 1], &entry])])
        });
        let name = make(b"name", &[&[0; 4], b"iTunSMPB"]);
        let tag = make(b"----", &[&name, &make(b"data", &[&[0; 8], tag.as_bytes()])]);
        let meta = make(b"meta", &[&[0; 4], &make(b"ilst", &[&tag])]);
        [
            header(b"mvhd", 1000, 0),
            make(b"trak", &[&mdia, &edts.unwrap_or_default()]),
            make(b"udta", &[&meta]),
        ]
        .concat()
    }

    const TAG: &str = " 00000000 00000840 000000D4 00000000000766EC 00000000 00000000";

    fn edit(list: Option<(u32, i32)>, media: (u32, u32), tag: &str) -> Option<Part> {
        let edit = parse_moov(&moov(list, media, tag))[0].edit.clone()?;
        assert_eq!(edit.parts.len(), 1);
        Some(edit.parts[0])
    }

    fn seconds(units: u32, scale: u32) -> f64 {
        f64::from(units) / f64::from(scale)
    }

    #[test]
    fn the_list_goes_before_the_tag_and_is_made_exact() {
        let found = edit(Some((2888, 1024)), (44_100, 128_413), TAG).unwrap();
        let exact = seconds(128_413 - 1024, 44_100);
        assert_eq!(
            found,
            Part { start_s: seconds(1024, 44_100), duration_s: Some(exact), pause_s: 0.0 }
        );
        // A list of less than the whole track is exact as it is.
        let found = edit(Some((1500, 0)), (44_100, 128_413), TAG).unwrap();
        assert_eq!(found, Part { start_s: 0.0, duration_s: Some(1.5), pause_s: 0.0 });
        let found = edit(Some((0, 1024)), (44_100, 0), TAG).unwrap();
        assert_eq!(found.duration_s, None);
    }

    #[test]
    fn the_tag_is_read_where_there_is_no_list() {
        let found = edit(None, (44_100, 487_424), TAG).unwrap();
        let (start_s, length_s) = (seconds(2112, 44_100), seconds(485_100, 44_100));
        assert_eq!(found, Part { start_s, duration_s: Some(length_s), pause_s: 0.0 });
        for broken in ["", " 00000000 xyz", " 0 0 0", " 0 0 0 fffffffffffffffff"] {
            assert_eq!(edit(None, (44_100, 0), broken), None, "{broken:?}");
        }
    }

    #[test]
    fn lists_of_several_parts_follow_the_track() {
        let list = |entries: &[(u32, i32)]| {
            let entry = |&(duration, start): &(u32, i32)| {
                [&duration.to_be_bytes()[..], &start.to_be_bytes(), &[0, 1, 0, 0]].concat()
            };
            let n = (entries.len() as u32).to_be_bytes();
            let list =
                [&[0; 4], &n[..], &entries.iter().flat_map(entry).collect::<Vec<_>>()].concat();
            parse_list(&list, 1000.0, Clock { scale: 16_000.0, duration: 160_000.0 })
        };
        let part = |start_s, duration_s, pause_s| Part { start_s, duration_s, pause_s };
        let edit = list(&[(500, -1), (1000, 1600), (250, -1), (2000, 32_000)]).unwrap();
        assert_eq!(edit.parts, [part(0.1, Some(1.0), 0.5), part(2.0, Some(2.0), 0.25)]);
        assert_eq!(edit.total_s(), Some(3.75));
        let edit = list(&[(1000, 0), (0, 16_000)]).unwrap();
        assert_eq!((edit.parts[1], edit.total_s()), (part(1.0, None, 0.0), None));
        // Parts that repeat or go back.
        assert_eq!(list(&[(1000, 16_000), (1000, 0)]), None);
        assert_eq!(list(&[(0, 0), (1000, 32_000)]), None);
        assert_eq!(list(&[(500, -1)]), None);
    }

    #[test]
    fn fragments_have_a_length() {
        let mehd = |body: &[u8]| make(b"mvex", &[&make(b"mehd", &[body])]);
        for body in
            [&[0, 0, 0, 0, 0, 0, 0x0B, 0xB8][..], &[1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0B, 0xB8]]
        {
            let moov = [moov(None, (44_100, 0), ""), mehd(body)].concat();
            assert_eq!(parse_moov(&moov)[0].fragments_s, Some(3.0));
        }
    }

    #[test]
    fn languages_are_three_letters() {
        let mdhd = |code: [u8; 2]| [&[0; 20][..], &code].concat();
        assert_eq!(language(&mdhd([0x10, 0xB5])).as_deref(), Some("deu"));
        // `und`, Macintosh codes and none.
        for code in [[0x55, 0xC4], [0, 3], [0x7F, 0xFF]] {
            assert_eq!(language(&mdhd(code)), None);
        }
        assert_eq!(language(&[0; 20]), None);
    }
}
