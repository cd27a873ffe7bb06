//! Containers of audio by the first bytes of a file.

/// Name of the audio or video container that starts with `bytes`.
///
/// MPEG audio without a tag starts with 11 set bits, as PCM may: two frames in a row must agree.
pub(super) fn container(bytes: &[u8]) -> Option<&'static str> {
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
    let riff = |kind: &[u8]| (at(0, b"RIFF") || at(0, b"RF64")) && at(8, kind);
    if riff(b"WAVE") {
        return Some("a WAV file");
    }
    if riff(b"AVI ") {
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
    let &[0xff, second, third, fourth, fifth, sixth, ..] = bytes else { return None };
    let (length, name) = match second & 0xf6 {
        0xf0 => {
            let high = usize::from(fourth & 3) << 11 | usize::from(fifth) << 3;
            (high | usize::from(sixth >> 5), "an AAC file")
        }
        // Layer III of MPEG 1 and 2; 2.5 has no bit 0x10.
        0xf2 => (mp3_frame_bytes(second, third)?, "an MP3 file"),
        _ => return None,
    };
    let is_next = length > 6 && bytes.get(length..length + 2)? == [0xff, second].as_slice();
    is_next.then_some(name)
}

fn mp3_frame_bytes(second: u8, third: u8) -> Option<usize> {
    const KBITS: [[usize; 15]; 2] = [
        [0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320],
        [0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160],
    ];
    let is_mpeg_2 = second & 0x08 == 0;
    let kbits = *KBITS[usize::from(is_mpeg_2)].get(usize::from(third >> 4))?;
    let rate = *[44_100, 48_000, 32_000].get(usize::from(third >> 2 & 3))?;
    let (rate, per_frame) = if is_mpeg_2 { (rate / 2, 72) } else { (rate, 144) };
    Some(per_frame * kbits * 1000 / rate + usize::from(third >> 1 & 1)).filter(|_| kbits > 0)
}

#[cfg(test)]
mod tests {
    use super::container;

    #[test]
    fn containers_are_told_from_pcm() {
        assert_eq!(container(b"ID3\x04"), Some("an MP3 file"));
        assert_eq!(container(b"RIFF\0\0\0\0WAVEfmt "), Some("a WAV file"));
        assert_eq!(container(b"RIFF\0\0\0\0WEBP"), None);
        assert_eq!(container(b"\0\0\0\x20ftypM4A "), Some("an MP4 file"));
        // 128 kbit/s at 44.1 kHz: frames of 417 bytes.
        let mut mp3 = vec![0; 900];
        for at in [0, 417] {
            mp3[at..at + 3].copy_from_slice(&[0xff, 0xfb, 0x90]);
        }
        assert_eq!(container(&mp3), Some("an MP3 file"));
        mp3[417] = 0;
        assert_eq!(container(&mp3), None);
        for pcm in [&[][..], &[0; 960], &[0xff; 960], &[0xff, 0xfb]] {
            assert_eq!(container(pcm), None);
        }
    }
}
