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

/// Whether the container is read front to back: Ogg, FLAC, MP3, AAC, Matroska.
pub(super) fn is_sequential(head: &[u8]) -> bool {
    let magic = [&b"OggS"[..], b"fLaC", b"ID3", b"\x1A\x45\xDF\xA3"];
    let is_mpeg_frame = matches!(head, [0xFF, second, ..] if second & 0xE0 == 0xE0);
    is_mpeg_frame || magic.iter().any(|magic| head.starts_with(magic))
}

/// Errors for inputs that no reader should be tried on.
pub(super) fn refuse_non_audio(head: &[u8]) -> Result<(), Error> {
    let got = if head.is_empty() {
        "an empty file".to_owned()
    } else if head.starts_with(&[0x30, 0x26, 0xB2, 0x75, 0x8E, 0x66, 0xCF, 0x11]) {
        return Err(Error::UnsupportedContainer { container: "Windows Media (ASF: WMA, WMV)" });
    } else if head.starts_with(b"#!AMR") {
        return Err(Error::UnsupportedContainer { container: "AMR" });
    } else if head.starts_with(b"RIFX") {
        return Err(Error::UnsupportedContainer { container: "big-endian RIFF (RIFX)" });
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

/// Whether these bytes are text: printable, without the zeros every container has in its head.
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
        assert!(message(&[0; 100]).ends_with("got zeros"));
        assert!(message(&[0xFF, 0xFB, 0x90]).ends_with("got 3 bytes"));
        assert!(refuse_non_audio(b"RIFF\x24\0\0\0WAVEfmt ").is_ok());
        assert_eq!(describe(b"GGUF\x03\0\0\0"), "a GGUF model");
    }
}
