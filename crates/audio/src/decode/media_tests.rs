//! Files of other programs: tags, joins, cuts, damage and odd metadata.

use super::*;

const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/audio/formats");

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(format!("{DIR}/{name}")).unwrap()
}

/// Decodes a file; a stream of it gives the same.
fn decode(bytes: Vec<u8>) -> Audio {
    let from_stream = decode_reader(&bytes[..]).unwrap();
    let audio = decode_bytes(bytes).unwrap();
    assert_eq!(from_stream.source.missing_s, audio.source.missing_s);
    assert!(from_stream.samples == audio.samples);
    audio
}

/// An `ID3v2` tag with this body.
fn id3(body: &[u8]) -> Vec<u8> {
    let n = body.len() as u32;
    let size = [n >> 21, n >> 14 & 127, n >> 7 & 127, n & 127].map(|part| part as u8);
    [b"ID3\x04\0\0", &size[..], body].concat()
}

/// An `ID3v1` tag.
fn id3v1() -> Vec<u8> {
    [&b"TAG"[..], &[b'x'; 125]].concat()
}

/// `file` with `bytes` at `at`.
fn insert(file: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    [&file[..at], bytes, &file[at..]].concat()
}

#[test]
fn tags_are_skipped_whatever_is_in_them() {
    let cover = vec![0xFF; 1_200_000];
    let bodies: [&[u8]; 8] = [
        b"",
        &cover,
        &[0; 2_000_000],
        b"fLaC\0\0\0\x22",
        b"OggS\0\x02",
        b"RIFF\x24\0\0\0WAVEfmt ",
        b"caff\0\x01\0\0",
        b"\x1A\x45\xDF\xA3\x01\0\0\0",
    ];
    for name in ["fox.mp3", "fox.aac", "fox.flac", "fox.aiff"] {
        let file = bytes(name);
        let want = decode(file.clone()).samples;
        for body in bodies {
            let tagged = [id3(body), file.clone()].concat();
            assert!(decode(tagged).samples == want, "{name}, {} bytes", body.len());
        }
        let all = bodies.map(id3).concat();
        assert!(decode([all, file].concat()).samples == want, "{name} after all tags");
    }
}

#[test]
fn all_parts_of_joined_files_are_decoded() {
    let file = bytes("fox.mp3");
    let one = decode(file.clone()).samples;
    let ape = [&b"APETAGEX\xD0\x07\0\0\x28\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"[..], &[7; 40]];
    for between in [Vec::new(), id3(b"cover"), id3v1(), [id3v1(), id3(b"")].concat(), ape.concat()]
    {
        let audio = decode([&file[..], &between, &file].concat());
        assert_eq!(audio.samples.len(), 2 * one.len(), "{} bytes between", between.len());
        assert_eq!((audio.source.n_bad_packets, audio.source.is_cut), (0, false));
    }
}

#[test]
fn wrong_numbers_of_frames_do_not_end_the_file() {
    let file = bytes("fox.mp3");
    let at = file.windows(4).position(|four| four == b"Xing" || four == b"Info").unwrap();
    let n = u32::from_be_bytes(file[at + 8..at + 12].try_into().unwrap());
    let want = decode(file.clone()).samples;
    for wrong in [0, 1, 10, n / 2, n - 1, n + 100, u32::MAX] {
        let mut file = file.clone();
        file[at + 8..at + 12].copy_from_slice(&wrong.to_be_bytes());
        let audio = decode(file);
        assert!(audio.samples.len() >= want.len(), "{wrong}: {}", audio.samples.len());
        assert!(audio.samples[..want.len() - 600] == want[..want.len() - 600], "{wrong}");
    }
}

#[test]
fn damage_in_an_mp3_is_silence() {
    let mut file = bytes("fox.mp3");
    let want = decode(file.clone()).samples.len();
    let (from, to) = (file.len() / 3, file.len() / 2);
    file[from..to].fill(0);
    let audio = decode(file);
    assert!(audio.samples.len().abs_diff(want) < 2400, "{} of {want}", audio.samples.len());
    assert!(audio.source.missing_s > 0.3, "{}", audio.source.missing_s);
}

/// A CAF file of a second of 16-bit samples at 16 kHz, with this size of the data.
fn pcm_caf(data_bytes: u64) -> Vec<u8> {
    let mut file = b"caff\0\x01\0\0desc\0\0\0\0\0\0\0\x20".to_vec();
    file.extend(16_000f64.to_be_bytes());
    file.extend(b"lpcm\0\0\0\x02\0\0\0\x02\0\0\0\x01\0\0\0\x01\0\0\0\x10data");
    file.extend(data_bytes.to_be_bytes());
    file.extend([0; 4]);
    file.extend([100, 1].repeat(16_000));
    file
}

#[test]
fn cut_files_give_what_is_there() {
    let mut names = vec!["fox.aiff", "pcm.caf", "fox_vorbis.mkv", "fox_mp3.mkv", "fox.webm"];
    names.extend(["fox.flac", "fox_mulaw.wav", "fox_s24_48k_stereo.wav", "fox_adpcm.wav"]);
    for name in names {
        let file = if name == "pcm.caf" { pcm_caf(32_004) } else { bytes(name) };
        let want = decode(file.clone()).duration_s();
        for part in [0.5, 0.9] {
            let cut = file[..(file.len() as f64 * part) as usize].to_vec();
            let audio = decode_bytes(cut).unwrap();
            let got = audio.duration_s();
            println!("{name} cut at {part}: {got:.2} of {want:.2} s");
            assert!(got > want * (part - 0.3) && got < want, "{name}: {got} of {want} s");
            let SourceInfo { is_cut, missing_s, .. } = audio.source;
            assert!(is_cut, "{name}");
            let sum = got + missing_s;
            assert!((sum - want).abs() < 0.15 * want, "{name}: {got} + {missing_s} of {want} s");
        }
    }
}

#[test]
fn metadata_never_refuses_sound() {
    let flac = bytes("fox.flac");
    let want = decode(flac.clone()).samples;
    let first_is_last = flac[4] & 0x80 != 0;
    assert!(!first_is_last);
    // Stated length and body of a cue sheet, a picture and comments.
    let odd: [(u8, u32, &[u8]); 4] = [
        (5, 9, b"cue sheet"),
        (6, 20, b"\0\0\0\x03\0\0\xFF\xFFimage/jpegxx"),
        (4, 12, b"\xFF\xFF\xFF\x7Fvendor!!"),
        (6, 3_000_000, b"cut"),
    ];
    for (kind, n, body) in odd {
        let head = (u32::from(kind) << 24 | n).to_be_bytes();
        let file = insert(&flac, 42, &[&head, body].concat());
        assert!(decode(file).samples == want, "block {kind}");
    }
    let aiff = bytes("fox.aiff");
    let want = decode(aiff.clone()).samples;
    let odd: [&[u8]; 3] =
        [b"ID3 \0\0\0\0", b"ID3 \0\0\0\x04abcd", b"ID3 \0\0\0\x10ID3\x04\0\0\0\0\x7F\x7FTIT2\0\0"];
    for chunk in odd {
        for at in [12, aiff.len()] {
            let mut file = insert(&aiff, at, chunk);
            let n = file.len() as u32 - 8;
            file[4..8].copy_from_slice(&n.to_be_bytes());
            assert!(decode(file).samples == want);
        }
    }
    let audio = decode(pcm_caf(u64::MAX));
    assert_eq!((audio.samples.len(), audio.source.is_cut), (16_000, false));
    // The table of packets of this file stands at its end.
    let mut caf = bytes("fox.caf");
    caf.truncate(20_000);
    let message = decode_bytes(caf).unwrap_err().to_string();
    assert!(message.contains("index"), "{message}");
}

#[test]
fn long_comment_headers_are_skipped() {
    for name in ["fox.ogg", "fox.opus"] {
        let file = bytes(name);
        let want = decode(file.clone()).samples;
        for n in [10, 300_000, 17_000_000] {
            let file = ogg::tests::with_comment_of(&file, n);
            assert!(decode(file).samples == want, "{name}, {n} bytes");
        }
    }
}

#[test]
fn a_track_that_is_not_there_is_refused() {
    for name in ["fox.m4a", "fox.webm", "fox.mp3"] {
        let decoder = Decoder::new().track(2);
        let message = decoder.bytes(bytes(name)).unwrap_err().to_string();
        assert_eq!(message, "expected an audio track from 1 to 1, got 2", "{name}");
        assert!(Decoder::new().track(1).bytes(bytes(name)).is_ok());
    }
}

/// The box `kind` of `file` is at the returned position.
fn box_at(file: &[u8], kind: &[u8; 4]) -> usize {
    file.windows(4).position(|four| four == kind).unwrap() - 4
}

fn u32_at(file: &[u8], kind: &[u8; 4], at: usize) -> u32 {
    let at = box_at(file, kind) + at;
    u32::from_be_bytes(file[at..at + 4].try_into().unwrap())
}

/// An MP4 file of one edit with these ones, each with its duration and start.
fn with_edits(file: &[u8], edits: &[(u32, i32)]) -> Vec<u8> {
    assert_eq!(u32_at(file, b"elst", 12), 1);
    // The sound is before the index, and does not move.
    assert!(box_at(file, b"mdat") < box_at(file, b"moov"));
    let entry = |&(duration, start): &(u32, i32)| {
        [duration.to_be_bytes(), start.to_be_bytes(), [0, 1, 0, 0]].concat()
    };
    let entries: Vec<u8> = edits.iter().flat_map(entry).collect();
    let list = box_at(file, b"elst");
    let mut out = [&file[..list + 16], &entries, &file[list + 28..]].concat();
    out[list + 15] = edits.len() as u8;
    for kind in [b"moov", b"trak", b"edts", b"elst"] {
        let n = u32_at(file, kind, 0) + entries.len() as u32 - 12;
        let at = box_at(file, kind);
        out[at..at + 4].copy_from_slice(&n.to_be_bytes());
    }
    out
}

#[test]
fn the_parts_of_an_mp4_edit_list_are_joined() {
    let file = bytes("fox.m4a");
    let want = decode(file.clone()).samples;
    let (scale, media) = (u32_at(&file, b"mvhd", 20), u32_at(&file, b"mdhd", 20).cast_signed());
    let first = u32_at(&file, b"elst", 20).cast_signed();
    // The first second, a pause of a half, and the second from 1.5 s on.
    let edits = [(scale, first), (scale / 2, -1), (scale, first + media + media / 2)];
    let audio = decode(with_edits(&file, &edits));
    let got = &audio.samples;
    assert!(got.len().abs_diff(40_000) <= 2, "{}", got.len());
    assert_eq!(audio.source.missing_s, 0.0);
    let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 0.02);
    assert!(close(&got[..15_900], &want[..15_900]));
    assert!(got[16_100..23_900].iter().all(|x| x.abs() < 1e-3));
    assert!(close(&got[24_100..39_900], &want[24_100..39_900]));
}

/// A WAV file of this format tag.
fn wav_of(tag: u16, data: &[u8]) -> Vec<u8> {
    let mut file = b"RIFF".to_vec();
    file.extend((36 + data.len() as u32).to_le_bytes());
    file.extend(b"WAVEfmt \x10\0\0\0");
    file.extend(tag.to_le_bytes());
    file.extend(b"\x01\0\x80\xBB\0\0\x80\x3E\0\0\x01\0\0\0data");
    file.extend((data.len() as u32).to_le_bytes());
    file.extend(data);
    file
}

#[test]
fn compressed_wav_files_are_decoded_or_named() {
    let mp3 = bytes("fox.mp3");
    let want = decode(mp3.clone()).samples;
    let audio = decode(wav_of(0x55, &mp3));
    assert!(audio.samples == want);
    assert_eq!((&*audio.source.container, &*audio.source.codec), ("wav", "mp3"));
    for (tag, name) in [(0x2000, "AC-3"), (0x2001, "DTS"), (0x31, "GSM"), (0xFF, "AAC")] {
        let message = decode_bytes(wav_of(tag, &[7; 600])).unwrap_err().to_string();
        assert_eq!(message, format!("wav file: codec {name} is not supported"));
    }
}

#[test]
fn sizes_of_streaming_writers_are_no_cuts() {
    let file = wav_of(1, &[0; 2000]);
    // The tag of 1 has samples of one byte here.
    for stated in [2000, 2020, 0x7FFF_0000, 0x7FFF_FFFF, 0xFFFF_FFDB, u32::MAX] {
        let mut file = file.clone();
        file[40..44].copy_from_slice(&stated.to_le_bytes());
        let audio = decode(file);
        assert_eq!((audio.samples.len(), audio.source.is_cut), (667, false), "{stated}");
    }
}

#[test]
fn a_pause_before_an_mp4_track_is_silence() {
    let file = bytes("fox.m4a");
    let want = decode(file.clone()).samples;
    // An empty edit of three seconds of the movie's clock before the one that is there.
    let whole = (u32_at(&file, b"elst", 16), u32_at(&file, b"elst", 20).cast_signed());
    let late = with_edits(&file, &[(3 * u32_at(&file, b"mvhd", 20), -1), whole]);
    let audio = decode(late);
    let n_pause = audio.samples.len() - want.len();
    assert!(n_pause.abs_diff(48_000) <= 2, "{n_pause}");
    assert!(audio.samples[..47_000].iter().all(|&x| x == 0.0) && audio.source.missing_s == 0.0);
}

#[test]
fn damaged_packets_are_silence_of_their_length() {
    let file = bytes("fox.webm");
    let want = decode(file.clone()).samples;
    let mut damaged = file.clone();
    let mut n_damaged = 0;
    for at in file.len() / 2..file.len() * 2 / 3 {
        // A block: its id, its size in one or two bytes, the track, the time, the flags.
        let track = at + if file[at + 1] >= 0x80 { 2 } else { 3 };
        if (file[at], file[track], file[track + 3]) == (0xA3, 0x81, 0x80) {
            // An Opus packet of no frames.
            damaged[track + 4] |= 3;
            damaged[track + 5] = 0;
            n_damaged += 1;
        }
    }
    let audio = decode(damaged);
    assert!(n_damaged > 5 && audio.source.n_bad_packets == n_damaged, "{n_damaged}");
    assert!((audio.source.missing_s - 0.02 * n_damaged as f64).abs() < 1e-6);
    assert!(audio.samples.len().abs_diff(want.len()) <= 1);
    // Sound after the damage is where it was.
    let tail = want.len() - 8000..want.len();
    let (got, want) = (&audio.samples[tail.clone()], &want[tail]);
    let error: f32 = got.iter().zip(want).map(|(a, b)| (a - b).powi(2)).sum();
    let energy: f32 = want.iter().map(|x| x * x).sum();
    assert!(error < 0.1 * energy, "{error} of {energy}");
}

#[test]
fn foreign_formats_are_named() {
    for (head, name) in [
        (&b"RIFF\x24\0\0\0AVI LIST"[..], "AVI"),
        (b"wvpk\0\0\0\0\0\0\0\0", "WavPack"),
        (b"MAC \x96\x0F\0\0\0\0\0\0", "Monkey's Audio (APE)"),
        (b"FLV\x01\x05\0\0\0\x09\0\0\0", "Flash video (FLV)"),
    ] {
        let file = [head, &[9; 600]].concat();
        for file in [file.clone(), [id3(b"tag"), file].concat()] {
            let message = decode_bytes(file).unwrap_err().to_string();
            assert!(message.starts_with(&format!("{name} is not supported")), "{message}");
        }
    }
}
