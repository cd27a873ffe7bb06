//! Names of containers in messages, by the first bytes of a file.

use super::{mpa, sniff};

/// Name of the audio or video container that starts with `bytes`, with its article: `an MP3 file`.
///
/// MPEG audio without a tag starts with 11 set bits, as PCM may: two frames in a row must agree.
pub fn container_name(bytes: &[u8]) -> Option<&'static str> {
    let at = |from: usize, magic: &[u8]| bytes.get(from..).is_some_and(|b| b.starts_with(magic));
    let starts: [(usize, &[u8], &'static str); 10] = [
        (0, b"ID3", "an MP3 file"),
        (0, b"fLaC", "a FLAC file"),
        (0, b"OggS", "an OGG file"),
        (4, b"ftyp", "an MP4 file"),
        (0, &[0x1a, 0x45, 0xdf, 0xa3], "an MKV or WebM file"),
        (0, b"caff", "a CAF file"),
        (0, b"#!AMR", "an AMR file"),
        (0, b".snd", "an AU file"),
        (0, &[0x30, 0x26, 0xb2, 0x75, 0x8e, 0x66, 0xcf, 0x11], "a WMA file"),
        (0, b"wvpk", "a WavPack file"),
    ];
    if sniff::is_wav(bytes) {
        return Some("a WAV file");
    }
    if (at(0, b"RIFF") || at(0, b"RF64")) && at(8, b"AVI ") {
        return Some("an AVI file");
    }
    if at(0, b"FORM") && (at(8, b"AIFF") || at(8, b"AIFC")) {
        return Some("an AIFF file");
    }
    let named = starts.iter().find(|(from, magic, _)| at(*from, magic)).map(|(_, _, name)| *name);
    named.or_else(|| mpeg_frames(bytes))
}

/// Recognizes two frames of MP3 or AAC in a row.
fn mpeg_frames(bytes: &[u8]) -> Option<&'static str> {
    let &[0xff, second, _, fourth, fifth, sixth, ..] = bytes else { return None };
    let (length, name) = match second & 0xf6 {
        0xf0 => {
            let high = usize::from(fourth & 3) << 11 | usize::from(fifth) << 3;
            (high | usize::from(sixth >> 5), "an AAC file")
        }
        // Layer III of MPEG 1 and 2; 2.5 has no bit 0x10.
        0xf2 => (mpa::header(bytes)?.n_bytes, "an MP3 file"),
        _ => return None,
    };
    let is_next = length > 6 && bytes.get(length..length + 2)? == [0xff, second].as_slice();
    is_next.then_some(name)
}

#[cfg(test)]
mod tests {
    use super::container_name;

    #[test]
    fn containers_are_told_from_pcm() {
        assert_eq!(container_name(b"ID3\x04"), Some("an MP3 file"));
        assert_eq!(container_name(b"RIFF\0\0\0\0WAVEfmt "), Some("a WAV file"));
        assert_eq!(container_name(b"RIFF\0\0\0\0WEBP"), None);
        assert_eq!(container_name(b"\0\0\0\x20ftypM4A "), Some("an MP4 file"));
        // 128 kbit/s at 44.1 kHz: frames of 417 bytes.
        let mut mp3 = vec![0; 900];
        for at in [0, 417] {
            mp3[at..at + 3].copy_from_slice(&[0xff, 0xfb, 0x90]);
        }
        assert_eq!(container_name(&mp3), Some("an MP3 file"));
        mp3[417] = 0;
        assert_eq!(container_name(&mp3), None);
        for pcm in [&[][..], &[0; 960], &[0xff; 960], &[0xff, 0xfb]] {
            assert_eq!(container_name(pcm), None);
        }
    }
}
