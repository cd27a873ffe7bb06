use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;

const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/audio");

/// A fixture of `formats/` beside the WAV that it was made from.
struct Format {
    name: &'static str,
    /// Lower bound of the signal-to-noise ratio against the WAV in dB, at most 10 % below the
    /// measured one (16-bit samples: 76.5 dB).
    least_db: f64,
    /// Encoder delay that the file does not state, in samples at 16 kHz.
    lead: usize,
    n_samples: usize,
}

const fn format(name: &'static str, least_db: f64, lead: usize, n_samples: usize) -> Format {
    Format { name, least_db, lead, n_samples }
}

/// The lengths are ffmpeg's, but for three ends: it decodes the padding after an MP4 track (47 104
/// and 46 440 samples for the `.m4a` and the `.mp4`) and drops it after an MKV one (46 218 for the
/// `.webm`, 47 323 for the MP3 in MKV).
const FORMATS: [Format; 15] = [
    format("fox.flac", 110.0, 0, 46_218),
    format("fox.aiff", 75.0, 0, 16_000),
    format("fox.caf", 110.0, 0, 16_000),
    format("fox.mp3", 21.0, 0, 46_218),
    format("fox.aac", 16.5, 1024, 48_128),
    format("fox.ogg", 20.0, 0, 46_218),
    format("fox.opus", 12.0, 0, 46_218),
    format("fox.webm", 12.0, 0, 46_296),
    format("fox.m4a", 16.5, 0, 46_218),
    format("fox_stereo.mp4", 13.0, 0, 46_218),
    format("fox_mp3.mkv", 19.0, 1105, 47_808),
    format("fox_vorbis.mkv", 18.0, 0, 46_464),
    format("fox_mulaw.wav", 16.0, 0, 46_218),
    format("fox_adpcm.wav", 23.0, 0, 46_943),
    format("fox_s24_48k_stereo.wav", 45.0, 0, 6400),
];

fn fox() -> Vec<f32> {
    decode_file(format!("{DIR}/quick_brown_fox.wav")).unwrap().samples
}

/// Signal to noise after the best gain, which a change of channels may have altered.
fn snr_db(got: &[f32], want: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum()
    };
    let cos2 = dot(got, want).powi(2) / (dot(got, got) * dot(want, want));
    10.0 * (cos2 / (1.0 - cos2).max(1e-12)).log10()
}

#[test]
fn every_format_decodes_to_the_wav_without_a_shift() {
    let want = fox();
    let decode = |name: &str| decode_file(format!("{DIR}/formats/{name}")).unwrap();
    for Format { name, least_db, lead, n_samples } in FORMATS {
        let audio = decode(name);
        let got = &audio.samples[lead..];
        let n = got.len().min(want.len());
        let at = |lag: usize| snr_db(&got[..n - lag], &want[lag..n]);
        let back = |lag: usize| snr_db(&got[lag..n], &want[..n - lag]);
        let db = at(0);
        let SourceInfo { container, codec, n_bad_packets, .. } = audio.source;
        println!("{name}: {container} {codec}, {} samples, {db:.1} dB", audio.samples.len());
        assert!(db >= least_db, "{name}: {db} dB");
        assert!(db > at(2) && db > back(2), "{name} is shifted");
        assert_eq!(audio.samples.len(), n_samples, "{name}");
        assert_eq!(n_bad_packets, 0, "{name}");
    }
}

#[test]
fn what_is_no_audio_is_refused_in_one_line() {
    let messages = [
        decode_file(DIR).unwrap_err(),
        decode_file("/no/such/file.wav").unwrap_err(),
        decode_bytes(Vec::new()).unwrap_err(),
        decode_bytes(b"hello, this is a text file called a.wav\n".to_vec()).unwrap_err(),
        decode_bytes(b"RIFF\x24\0\0\0WAVEfmt ".to_vec()).unwrap_err(),
        decode_bytes(b"fLaC\0\0\0\x22\0\0\0\0".to_vec()).unwrap_err(),
    ];
    for message in messages.map(|error| error.to_string()) {
        println!("{message}");
        assert!(!message.contains('\n') && !message.ends_with('.'), "{message}");
    }
}

#[test]
fn a_file_without_permission_is_named() {
    let path = std::env::temp_dir().join(format!("stonechat-audio-{}.wav", std::process::id()));
    std::fs::write(&path, b"RIFF").unwrap();
    let mut permissions = std::fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    #[cfg(unix)]
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0);
    std::fs::set_permissions(&path, permissions).unwrap();
    let is_readable = std::fs::File::open(&path).is_ok();
    let result = decode_file(&path);
    std::fs::remove_file(&path).unwrap();
    let message = result.unwrap_err().to_string();
    println!("{message}");
    if is_readable {
        println!("skipped a_file_without_permission_is_named: this user may read everything");
        return;
    }
    assert!(message.starts_with("cannot open `") && message.contains("ermission"), "{message}");
}

/// One byte of a Vorbis codebook that makes symphonia 0.6.1 index past a table.
#[test]
fn a_decoder_that_panics_is_an_error() {
    const AT: usize = 1092;
    let mut bytes = std::fs::read(format!("{DIR}/formats/fox_vorbis.mkv")).unwrap();
    assert_eq!(bytes[AT], 0x10);
    bytes[AT] = 0xFC;
    let message = decode_bytes(bytes).unwrap_err().to_string();
    println!("{message}");
    assert!(message.starts_with("mkv file: ") && !message.contains('\n'), "{message}");
}

/// A reader of `head` and then endless zeros, which counts the bytes read.
struct Endless<'a> {
    head: &'a [u8],
    n_read: u64,
}

impl Read for Endless<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = if self.head.is_empty() {
            out.fill(0);
            out.len()
        } else {
            self.head.read(out)?
        };
        self.n_read += n as u64;
        Ok(n)
    }
}

#[test]
fn endless_streams_of_no_audio_are_not_read() {
    for head in [&b""[..], &[b'y', b'\n'].repeat(300), b"#!AMR\n"] {
        let mut stream = Endless { head, n_read: 0 };
        let error = decode_reader(&mut stream).unwrap_err();
        println!("{error}");
        assert!(stream.n_read <= sniff::HEAD_BYTES);
    }
    let path = format!("{DIR}/formats/fox.flac");
    let from_stream = decode_reader(std::fs::File::open(&path).unwrap()).unwrap();
    assert_eq!(from_stream.samples, decode_file(path).unwrap().samples);
}

/// A reader of small blocks, which counts the bytes read.
struct Upload<'a> {
    bytes: &'a [u8],
    n_read: &'a AtomicUsize,
}

impl Read for Upload<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = out.len().min(1000);
        let n = self.bytes.read(&mut out[..n])?;
        self.n_read.fetch_add(n, Ordering::Relaxed);
        Ok(n)
    }
}

#[test]
fn streams_are_decoded_while_they_arrive() {
    let mut early = Vec::new();
    for Format { name, .. } in FORMATS {
        let bytes = std::fs::read(format!("{DIR}/formats/{name}")).unwrap();
        let n_read = AtomicUsize::new(0);
        let first_second = Cell::new(usize::MAX);
        let upload = Upload { bytes: &bytes, n_read: &n_read };
        let on_progress =
            |_| first_second.set(first_second.get().min(n_read.load(Ordering::Relaxed)));
        let audio = Decoder::new().on_progress(on_progress).reader(upload).unwrap();
        let from_file = decode_bytes(bytes.clone()).unwrap();
        assert_eq!(audio.source, from_file.source, "{name}");
        assert!(audio.samples == from_file.samples, "{name}");
        println!("{name}: {} of {} bytes before the first second", first_second.get(), bytes.len());
        if first_second.get() < bytes.len() {
            early.push(name);
        }
    }
    let late = ["fox.aiff", "fox.caf", "fox.m4a", "fox_stereo.mp4", "fox_adpcm.wav"];
    // This file is shorter than a second.
    let late = [&late[..], &["fox_s24_48k_stereo.wav"]].concat();
    let expected =
        FORMATS.map(|format| format.name).into_iter().filter(|name| !late.contains(name));
    assert_eq!(early, Vec::from_iter(expected));
}

#[test]
fn a_stream_may_have_more_bytes_than_memory_holds() {
    let file = wav(1, &vec![1000; 600_000]);
    let state = SourceState::new(0);
    let mut source = StreamSource::new(&file[..], Arc::clone(&state), 1 << 30);
    state.set_seekable(false);
    let mut bytes = Vec::new();
    source.read_to_end(&mut bytes).unwrap();
    assert!(bytes == file && source.n_held() < 400_000, "{}", source.n_held());
    assert!(source.seek(SeekFrom::Start(0)).is_err());
    state.set_seekable(true);
    let mut source = StreamSource::new(&file[..], Arc::clone(&state), 1 << 30);
    assert_eq!(source.seek(SeekFrom::End(-4)).unwrap(), file.len() as u64 - 4);
    assert_eq!(source.seek(SeekFrom::Start(2)).unwrap(), 2);
    assert_eq!(source.read(&mut [0; 2]).unwrap(), 2);
    assert_eq!(source.seek(SeekFrom::Current(-1)).unwrap(), 3);
}

/// A reader that fails after its bytes.
struct Broken<'a>(&'a [u8]);

impl Read for Broken<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        match self.0.read(out)? {
            0 => Err(std::io::Error::other("connection lost")),
            n => Ok(n),
        }
    }
}

#[test]
fn limits_and_broken_streams_are_errors() {
    for name in ["formats/fox.flac", "formats/fox.ogg", "formats/fox.m4a", "quick_brown_fox.wav"] {
        let bytes = std::fs::read(format!("{DIR}/{name}")).unwrap();
        let message = |result: Result<Audio, Error>| result.unwrap_err().to_string();
        let decoder = || Decoder::new().max_bytes(bytes.len() as u64 - 1);
        let expected =
            format!("expected at most {} bytes of encoded audio, got more", bytes.len() - 1);
        assert_eq!(message(decoder().reader(&bytes[..])), expected);
        decoder().max_bytes(bytes.len() as u64).reader(&bytes[..]).unwrap();
        let lost = message(Decoder::new().reader(Broken(&bytes[..bytes.len() / 2])));
        assert_eq!(lost, "cannot read the audio: connection lost");
        let decoder = || Decoder::new().max_seconds(2);
        let expected = "expected at most 2 seconds of audio, got more";
        assert_eq!(message(decoder().reader(&bytes[..])), expected);
        assert_eq!(message(decoder().bytes(bytes.clone())), expected);
        decoder().max_seconds(3).bytes(bytes.clone()).unwrap();
        let n_left = Cell::new(2u32);
        let is_cancelled = || n_left.replace(n_left.get().saturating_sub(1)) == 0;
        let error = Decoder::new().cancelled_by(is_cancelled).bytes(bytes).unwrap_err();
        assert!(matches!(error, Error::Cancelled), "{error}");
    }
}

/// A FLAC file of digital silence: one stream header and `n_frames` copies of the same frame of
/// 65 535 samples.
fn silent_flac(n_frames: usize) -> Vec<u8> {
    let mut bytes = b"fLaC\x80\0\0\x22\xFF\xFF\xFF\xFF\0\0\0\0\0\0".to_vec();
    // 8 kHz, 1 channel, 16 bits, length unknown, no checksum of the samples.
    bytes.extend([0x01, 0xF4, 0x00, 0xF0, 0, 0, 0, 0]);
    bytes.extend([0; 16]);
    let mut frame = vec![0xFF, 0xF8, 0x74, 0x08, 0x00, 0xFF, 0xFE];
    frame.push(crc(&frame, 8, 0x07) as u8);
    frame.extend([0x00, 0x00, 0x00]);
    frame.extend((crc(&frame, 16, 0x8005) as u16).to_be_bytes());
    bytes.extend(frame.repeat(n_frames));
    bytes
}

/// The checksum of FLAC frames: `polynomial` of `n_bits`, most significant bit first, from 0.
fn crc(bytes: &[u8], n_bits: u32, polynomial: u32) -> u32 {
    let top = 1 << (n_bits - 1);
    bytes.iter().fold(0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte) << (n_bits - 8), |crc, _| {
            let shifted = crc << 1 & ((top << 1) - 1);
            if crc & top != 0 { shifted ^ polynomial } else { shifted }
        })
    })
}

#[test]
fn small_files_do_not_unpack_to_hours() {
    let audio = decode_bytes(silent_flac(4)).unwrap();
    assert_eq!(audio.samples.len(), 4 * 65_535 * 2);
    let error = decode_bytes(silent_flac(1000)).unwrap_err();
    println!("{error}");
    assert!(matches!(error, Error::Inflated { .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// Ends in `Ok` or `Err` (the harness catches panics), within the limit of such a file.
    #[test]
    fn damaged_files_never_panic(
        file in 0..FORMATS.len(),
        cut in 0.0..1.0f64,
        flips in prop::collection::vec((0.0..1.0f64, 0..8u32), 0..24),
        in_head in any::<bool>(),
    ) {
        let mut bytes = std::fs::read(format!("{DIR}/formats/{}", FORMATS[file].name)).unwrap();
        bytes.truncate(32 + (bytes.len() as f64 * cut) as usize);
        let span = if in_head { bytes.len().min(512) } else { bytes.len() };
        for (at, bit) in flips {
            let at = (span as f64 * at) as usize;
            bytes[at] ^= 1 << bit;
        }
        let max_s = sink::max_seconds(bytes.len() as u64) as f64;
        if let Ok(audio) = decode_bytes(bytes) {
            prop_assert!(audio.duration_s() <= max_s);
            prop_assert!(audio.samples.iter().all(|x| x.is_finite()));
        }
    }
}

/// A 16-bit WAV file at 16 kHz of these frames.
fn wav(n_channels: u16, frames: &[i16]) -> Vec<u8> {
    let spec = hound::WavSpec {
        channels: n_channels,
        sample_rate: 16_000,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut bytes = Cursor::new(Vec::new());
    let mut writer = hound::WavWriter::new(&mut bytes, spec).unwrap();
    for &sample in frames {
        writer.write_sample(sample).unwrap();
    }
    writer.finalize().unwrap();
    bytes.into_inner()
}

#[test]
fn channels_are_mixed_chosen_or_kept_apart() {
    let file = wav(2, &[8192, 0, 16384, -16384, 0, 8192]);
    let signals = |channels: Channels| -> Vec<Vec<f32>> {
        let decoder = Decoder::new().channels(channels);
        let signals = decoder.reader_channels(&file[..]).unwrap();
        assert!(signals.iter().all(|one| one.source.channels == 2));
        signals.into_iter().map(|one| one.samples).collect()
    };
    let (left, right) = (vec![0.25, 0.5, 0.0], vec![0.0, -0.5, 0.25]);
    assert_eq!(signals(Channels::Mix), [vec![0.125, 0.0, 0.125]]);
    assert_eq!(signals(Channels::One(1)), std::slice::from_ref(&left));
    assert_eq!(signals(Channels::One(2)), std::slice::from_ref(&right));
    assert_eq!(signals(Channels::Each), [left, right]);
    for number in [0, 3] {
        let error = Decoder::new().channels(Channels::One(number)).bytes(file.clone()).unwrap_err();
        assert_eq!(error.to_string(), format!("expected a channel from 1 to 2, got {number}"));
    }
}

#[test]
fn channels_that_come_later_begin_with_silence() {
    let mut sink = Sink::new(SourceState::new(1 << 20), Decoder::new().channels(Channels::Each));
    sink.push(&[0.5; 100], 1, 16_000).unwrap();
    sink.push(&[0.25; 200], 2, 16_000).unwrap();
    sink.push(&[0.75; 100], 1, 16_000).unwrap();
    let signals = sink.finish();
    let lengths: Vec<usize> = signals.iter().map(|one| one.samples.len()).collect();
    assert_eq!(lengths, [300, 300]);
    let at = |i: usize| signals.iter().map(|one| one.samples[i]).collect::<Vec<_>>();
    assert_eq!([at(50), at(150), at(250)], [[0.5, 0.0], [0.25, 0.25], [0.75, 0.0]]);
}
