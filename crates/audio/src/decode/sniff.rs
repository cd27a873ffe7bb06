//! Detection by the first bytes: the reader to use, or the reason for a refusal.

use std::io::{Read, Seek};

use super::rewind;
use crate::Error;

/// Bytes that detection looks at.
pub(super) const HEAD_BYTES: u64 = 512;

/// The first bytes of `source`, which is left at its start.
pub(super) fn read_head<S: Read + Seek>(source: &mut S) -> Result<Vec<u8>, Error> {
    let mut head = Vec::new();
    source
        .by_ref()
        .take(HEAD_BYTES)
        .read_to_end(&mut head)
        .map_err(|source| Error::Read { source })?;
    rewind(source)?;
    Ok(head)
}

pub(super) fn is_wav(head: &[u8]) -> bool {
    (head.starts_with(b"RIFF") || head.starts_with(b"RF64")) && head.get(8..12) == Some(b"WAVE")
}

pub(super) fn is_mp4(head: &[u8]) -> bool {
    head.get(4..8) == Some(b"ftyp")
}

pub(super) fn is_mkv(head: &[u8]) -> bool {
    head.starts_with(b"\x1A\x45\xDF\xA3")
}

/// Whether the container is read front to back: Ogg, FLAC, MP3, AAC, Matroska.
pub(super) fn is_sequential(head: &[u8]) -> bool {
    let magic = [&b"OggS"[..], b"fLaC", b"ID3", b"\x1A\x45\xDF\xA3"];
    let is_mpeg_frame = matches!(head, [0xFF, second, ..] if second & 0xE0 == 0xE0);
    is_mpeg_frame || magic.iter().any(|magic| head.starts_with(magic))
}

/// Rejects inputs that no reader can decode, by their first bytes.
pub(super) fn refuse_non_audio(head: &[u8]) -> Result<(), Error> {
    let got = if head.is_empty() {
        "an empty file".to_owned()
    } else if let Some(container) = foreign(head) {
        return Err(Error::UnsupportedContainer { container });
    } else if head.iter().all(|&b| b == 0) {
        "zeros".to_owned()
    } else if is_text(head) {
        "text".to_owned()
    } else if head.len() < 12 {
        format!("{} bytes", head.len())
    } else {
        return Ok(());
    };
    Err(Error::NotAudio { got })
}

/// Bytes of a format that is not read here, where they are, and its name.
const FOREIGN: [(&[u8], usize, &str); 44] = [
    (b"\x30\x26\xB2\x75\x8E\x66\xCF\x11", 0, "Windows Media (ASF: WMA, WMV)"),
    (b"#!AMR", 0, "AMR"),
    (b"#!SILK", 0, "SILK"),
    (b"\x02#!SILK", 0, "SILK"),
    (b"RIFX", 0, "big-endian RIFF (RIFX)"),
    (b"AVI ", 8, "AVI"),
    (b"RMID", 8, "MIDI"),
    (b"MThd", 0, "MIDI"),
    (b"FLV", 0, "Flash video (FLV)"),
    (b"FWS", 0, "Flash (SWF)"),
    (b"wvpk", 0, "WavPack"),
    (b"MAC ", 0, "Monkey's Audio (APE)"),
    (b"\x7F\xFE\x80\x01", 0, "DTS"),
    (b"\xFE\x7F\x01\x80", 0, "DTS"),
    (b"\x1F\xFF\xE8\x00", 0, "DTS"),
    (b"\xFF\x1F\x00\xE8", 0, "DTS"),
    (b"DTSHDHDR", 0, "DTS-HD"),
    (b"\xF8\x72\x6F\xBA", 4, "TrueHD"),
    (b"\xF8\x72\x6F\xBB", 4, "MLP"),
    (b"\0\0\x01\xBA", 0, "MPEG program stream (MPEG-PS)"),
    (b"\0\0\x01\xB3", 0, "MPEG video"),
    (b"\xB7\xD8\x00\x20", 0, "Windows TV (WTV)"),
    (b"TTA1", 0, "True Audio (TTA)"),
    (b"TTA2", 0, "True Audio (TTA)"),
    (b"MPCK", 0, "Musepack"),
    (b"MP+", 0, "Musepack"),
    (b".RMF", 0, "RealMedia"),
    (b".ra\xFD", 0, "RealAudio"),
    (b"OFR ", 0, "OptimFROG"),
    (b"ajkg", 0, "Shorten"),
    (b".snd", 0, "Sun audio (AU)"),
    (b"dns.", 0, "Sun audio (AU)"),
    (b"DSD ", 0, "DSD (DSF)"),
    (b"FRM8", 0, "DSD (DSDIFF)"),
    (b"8SVX", 8, "Amiga 8SVX"),
    (b"16SV", 8, "Amiga 16SV"),
    (b"NIST_1A", 0, "NIST SPHERE"),
    (b"Creative Voice File", 0, "Creative Voice (VOC)"),
    (b"riff\x2E\x91\xCF\x11", 0, "Wave64"),
    (b"caff\0\x02", 0, "CAF version 2"),
    (b"nut/multimedia container", 0, "NUT"),
    (b"Extended Module: ", 0, "tracker music (XM)"),
    (b"IMPM", 0, "tracker music (IT)"),
    (b"Speex   ", 28, "Ogg Speex"),
];

/// The name of a format that is not read here.
fn foreign(head: &[u8]) -> Option<&'static str> {
    let at = |at: usize| head.get(at).copied();
    let is_at = |(magic, at, _): &&(&[u8], usize, &str)| {
        head.get(*at..).is_some_and(|rest| rest.starts_with(magic))
    };
    let is_ts = |first: usize, step: usize| {
        (0..3).all(|i| at(first + i * step).is_none_or(|byte| byte == 0x47))
            && head.len() > first + step
    };
    match head {
        [0x0B, 0x77, _, _, _, id, ..] if id >> 3 <= 10 => Some("AC-3"),
        [0x0B, 0x77, _, _, _, id, ..] if id >> 3 <= 16 => Some("E-AC-3"),
        [0x56, second, ..] if second & 0xE0 == 0xE0 => Some("AAC in LATM (LOAS)"),
        _ if is_ts(0, 188) || is_ts(4, 192) || is_ts(0, 204) => {
            Some("MPEG transport stream (MPEG-TS)")
        }
        _ => FOREIGN.iter().find(is_at).map(|(_, _, name)| *name),
    }
}

/// The first bytes in words, for inputs that every reader refused.
pub(super) fn describe(head: &[u8]) -> String {
    let known: [(&[u8], &str); 7] = [
        (b"\x89PNG", "a PNG image"),
        (b"\xFF\xD8\xFF", "a JPEG image"),
        (b"%PDF", "a PDF document"),
        (b"PK\x03\x04", "a zip archive"),
        (b"\x1F\x8B", "a gzip archive"),
        (b"GGUF", "a GGUF model"),
        (b"\x7FELF", "a program"),
    ];
    if let Some((_, name)) = known.iter().find(|(magic, _)| head.starts_with(magic)) {
        return (*name).to_owned();
    }
    let hex: Vec<String> = head.iter().take(8).map(|b| format!("{b:02x}")).collect();
    format!("unknown data starting with {}", hex.join(" "))
}

/// Whether the bytes are text: printable, without the zeros of a container's header.
fn is_text(head: &[u8]) -> bool {
    let container = [&b"RIFF"[..], b"RF64", b"fLaC", b"OggS", b"FORM", b"ID3", b"caff"];
    let is_printable = |&b: &u8| b >= 0x20 && b != 0x7F || matches!(b, b'\n' | b'\r' | b'\t');
    let valid = match std::str::from_utf8(head) {
        Ok(_) => true,
        // A multi-byte character may be cut at the end of the head.
        Err(error) => error.error_len().is_none(),
    };
    valid && head.iter().all(is_printable) && !container.iter().any(|m| head.starts_with(m))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_what_was_found() {
        let message = |head: &[u8]| refuse_non_audio(head).unwrap_err().to_string();
        assert!(message(b"").ends_with("got an empty file"));
        assert!(message("žluťoučký kůň\n".as_bytes()).ends_with("got text"));
        assert!(message(&[0x30, 0x26, 0xB2, 0x75, 0x8E, 0x66, 0xCF, 0x11]).contains("WMA"));
        assert!(message(b"RIFF\x24\0\0\0AVI LIST").contains("AVI"));
        assert!(message(b"\x0B\x77\0\0\0\x40\0\0\0\0\0\0").contains("AC-3"));
        assert!(message(b"\x0B\x77\0\0\0\x80\0\0\0\0\0\0").contains("E-AC-3"));
        let mut packets = [1; 512];
        (packets[0], packets[188], packets[376]) = (0x47, 0x47, 0x47);
        assert!(message(&packets).contains("MPEG-TS"));
        for (magic, at, name) in FOREIGN {
            let mut head = vec![3; 100];
            head[at..at + magic.len()].copy_from_slice(magic);
            assert!(message(&head).starts_with(name), "{name}");
        }
        assert!(message(&[0; 100]).ends_with("got zeros"));
        assert!(message(&[0xFF, 0xFB, 0x90]).ends_with("got 3 bytes"));
        assert!(refuse_non_audio(b"RIFF\x24\0\0\0WAVEfmt ").is_ok());
        assert_eq!(describe(b"GGUF\x03\0\0\0"), "a GGUF model");
    }
}
