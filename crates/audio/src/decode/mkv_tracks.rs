//! Default tracks of a Matroska file. An absent `FlagDefault` means on; symphonia 0.6 does not distinguish it from
//! off.
//!
//! Elements: RFC 8794 §4 (EBML), RFC 9559 §5 (Matroska).

use std::io::{Read, Seek, SeekFrom};

const SEGMENT: u64 = 0x1853_8067;
const TRACKS: u64 = 0x1654_AE6B;
const CLUSTER: u64 = 0x1F43_B675;
const TRACK_ENTRY: u64 = 0xAE;
const TRACK_NUMBER: u64 = 0xD7;
const FLAG_DEFAULT: u64 = 0x88;
const MAX_TRACKS_BYTES: u64 = 16 << 20;
const MAX_ELEMENTS: usize = 1024;

/// Numbers of the tracks without the mark of a default one.
pub(super) fn not_default<S: Read + Seek>(source: &mut S) -> Vec<u64> {
    let tracks = read_tracks(source).unwrap_or_default();
    let entries = elements(&tracks).filter(|&(id, _)| id == TRACK_ENTRY);
    let number_if_off = |(_, entry)| {
        let is_off = value(entry, FLAG_DEFAULT) == Some(0);
        value(entry, TRACK_NUMBER).filter(|_| is_off)
    };
    entries.filter_map(number_if_off).collect()
}

/// The element `Tracks`, if it comes before the sound.
fn read_tracks<S: Read + Seek>(source: &mut S) -> Option<Vec<u8>> {
    let mut pos = 0u64;
    for _ in 0..MAX_ELEMENTS {
        source.seek(SeekFrom::Start(pos)).ok()?;
        let (id, n_id) = read_number(source, false)?;
        let (size, n_size) = read_number(source, true)?;
        pos += n_id + n_size;
        match id {
            // The elements of the segment come next.
            SEGMENT => {}
            CLUSTER => return None,
            TRACKS => {
                let mut body = Vec::new();
                source.by_ref().take(size.min(MAX_TRACKS_BYTES)).read_to_end(&mut body).ok()?;
                return Some(body);
            }
            _ => pos = pos.checked_add(size)?,
        }
    }
    None
}

/// A number of variable length, with its length; without the bit that marks the length if `is_size`.
fn read_number(source: &mut impl Read, is_size: bool) -> Option<(u64, u64)> {
    let mut first = [0];
    source.read_exact(&mut first).ok()?;
    let n = first[0].leading_zeros() + 1;
    if n > 8 {
        return None;
    }
    let mut rest = [0; 7];
    let rest = &mut rest[..n as usize - 1];
    source.read_exact(rest).ok()?;
    let number = rest.iter().fold(u64::from(first[0]), |sum, &byte| sum << 8 | u64::from(byte));
    let mark = 1 << (7 * n);
    Some((if is_size { number & (mark - 1) } else { number }, n.into()))
}

/// The elements in `body`, as (id, body); stops at the first that does not fit.
fn elements(mut body: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    std::iter::from_fn(move || {
        let (id, _) = read_number(&mut body, false)?;
        let (size, _) = read_number(&mut body, true)?;
        let (element, rest) = body.split_at_checked(usize::try_from(size).ok()?)?;
        body = rest;
        Some((id, element))
    })
}

/// The value of an unsigned element in `body`.
fn value(body: &[u8], wanted: u64) -> Option<u64> {
    let (_, bytes) = elements(body).find(|&(id, _)| id == wanted)?;
    (bytes.len() <= 8).then(|| bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte)))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn a_mark_holds_unless_it_is_off() {
        let entries = [
            &b"\xAE\x86\xD7\x81\x01\x88\x81\x00"[..],
            b"\xAE\x83\xD7\x81\x02",
            b"\xAE\x86\xD7\x81\x03\x88\x81\x01",
        ]
        .concat();
        let tracks = [&b"\x16\x54\xAE\x6B"[..], &[0x80 + entries.len() as u8], &entries].concat();
        // A segment of unknown size with an element before the tracks.
        let head =
            b"\x1A\x45\xDF\xA3\x82ab\x18\x53\x80\x67\x01\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xEC\x81x";
        let file = [&head[..], &tracks].concat();
        assert_eq!(not_default(&mut Cursor::new(file)), [1]);
        assert!(not_default(&mut Cursor::new(head)).is_empty());
    }
}
