//! Detection of a format by content, and descriptions of foreign bytes.

use crate::error::{Error, Result};
use crate::format::Format;
use crate::reader::Reader;
use crate::{ctranslate2, gguf, safetensors, whisper_bin};

/// Bytes read for detection and description.
const HEAD: usize = 512;

/// Detects the format by the first bytes; the error describes foreign bytes.
pub(crate) fn detect(r: &mut Reader<'_>) -> Result<Format> {
    let len = r.len();
    let n = usize::try_from(len).map_or(HEAD, |len| len.min(HEAD));
    let head = r.peek(n, "the first bytes")?;
    if head.starts_with(&gguf::MAGIC) {
        return Ok(Format::Gguf);
    }
    if head.starts_with(&whisper_bin::MAGIC) {
        return Ok(Format::WhisperBin);
    }
    if safetensors::looks_like(head) {
        return Ok(Format::SafeTensors);
    }
    let found = describe(head, len > n as u64);
    let is_ctranslate2 = ctranslate2::looks_like(r)?;
    r.rewind();
    if is_ctranslate2 { Ok(Format::CTranslate2) } else { Err(Error::NotAModel { found }) }
}

/// First bytes of formats that people pass by mistake.
const LOOK_ALIKES: &[(&[u8], &str)] = &[
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint is one; convert it to safetensors)"),
    (b"\x80\x02", "a Python pickle (an old PyTorch checkpoint?)"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"RIFF", "a WAV or other RIFF file"),
    (b"OggS", "an Ogg audio file"),
    (b"fLaC", "a FLAC audio file"),
    (b"ID3", "an MP3 audio file"),
    (b"ggjt", "an old llama.cpp file"),
    (b"tjgg", "an old llama.cpp file (ggjt)"),
    (b"FUGG", "a big-endian GGUF file"),
    (b"\x7fELF", "a program"),
    (b"version https://git-lfs", "a Git LFS pointer (the file itself was not downloaded)"),
    (b"<!DOCTYPE", "an HTML page"),
    (b"<html", "an HTML page"),
];

/// Describes foreign bytes; `is_cut` if the file has more.
fn describe(head: &[u8], is_cut: bool) -> String {
    if head.is_empty() {
        return "an empty file".into();
    }
    if let Some((_, name)) = LOOK_ALIKES.iter().find(|(magic, _)| head.starts_with(magic)) {
        return (*name).into();
    }
    // The cut can split the last character.
    let is_text = match std::str::from_utf8(head) {
        Ok(_) => true,
        Err(e) => is_cut && e.error_len().is_none(),
    };
    if is_text && !head.iter().any(|&b| b < b' ' && !b"\t\n\r\x0c".contains(&b)) {
        let first = head.iter().find(|b| !b.is_ascii_whitespace());
        return if matches!(first, Some(b'{' | b'[')) { "JSON text" } else { "text" }.into();
    }
    let hex: Vec<String> = head.iter().take(8).map(|b| format!("{b:02x}")).collect();
    format!("unknown binary data starting with {}", hex.join(" "))
}

#[cfg(test)]
mod tests {
    use super::{Format, detect};
    use crate::error::Error;
    use crate::reader::Reader;
    use crate::storage::Storage;

    #[track_caller]
    fn check(bytes: &[u8], expected: Result<Format, &str>) {
        let storage = Storage::Memory(bytes.to_vec().into());
        let detected = detect(&mut Reader::new(&storage)).map_err(|error| match error {
            Error::NotAModel { found } => found,
            other => other.to_string(),
        });
        assert_eq!(detected, expected.map_err(String::from));
    }

    #[test]
    fn content_decides() {
        check(b"GGUF\x03", Ok(Format::Gguf));
        check(b"lmgg", Ok(Format::WhisperBin));
        check(b"\x10\0\0\0\0\0\0\0{}", Ok(Format::SafeTensors));
        check(b"\x06\0\0\0\x0c\0WhisperSpec\0", Ok(Format::CTranslate2));
        check(b"", Err("an empty file"));
        check(b"Hello.\n", Err("text"));
        check("naïve".as_bytes(), Err("text"));
        check(b" {\"a\": 1}", Err("JSON text"));
        check(b"\x00\x01\xff", Err("unknown binary data starting with 00 01 ff"));
        check(b"RIFF....WAVE", Err("a WAV or other RIFF file"));
    }
}
