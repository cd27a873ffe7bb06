use proptest::prelude::*;

use super::*;

const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/audio");

/// File, least signal-to-noise ratio in dB against the WAV, allowed extra samples at the end.
const FORMATS: [(&str, f64, usize); 12] = [
    ("fox.flac", 80.0, 0),
    ("fox.aiff", 80.0, 0),
    ("fox.caf", 80.0, 0),
    ("fox.mp3", 8.0, 0),
    ("fox.ogg", 8.0, 0),
    ("fox.opus", 2.0, 0),
    ("fox.webm", 2.0, 320),
    ("fox.m4a", 8.0, 16),
    ("fox_vorbis.mkv", 8.0, 0),
    ("fox_mulaw.wav", 5.0, 2),
    ("fox_adpcm.wav", 8.0, 1024),
    ("fox_s24_48k_stereo.wav", 20.0, 2),
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
    for (name, least_db, surplus) in FORMATS {
        let audio = decode_file(format!("{DIR}/formats/{name}")).unwrap();
        let got = &audio.samples;
        let n = got.len().min(want.len());
        let at = |lag: usize| snr_db(&got[..n - lag], &want[lag..n]);
        let back = |lag: usize| snr_db(&got[lag..n], &want[..n - lag]);
        let db = at(0);
        println!("{name}: {} {} {db:.1} dB", audio.source.container, audio.source.codec);
        assert!(db >= least_db, "{name}: {db} dB");
        assert!(db > at(2) && db > back(2), "{name} is shifted");
        assert!(got.len() <= want.len() + surplus, "{name}: {} samples", got.len());
        assert_eq!(audio.source.n_bad_packets, 0, "{name}");
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Ends in `Ok` or `Err` (the harness catches panics), and stays within what the file holds.
    #[test]
    fn damaged_files_never_panic(
        file in 0..FORMATS.len(),
        cut in 0.0..1.0f64,
        flips in prop::collection::vec((0.0..1.0f64, 0..8u32), 0..24),
        in_head in any::<bool>(),
    ) {
        let mut bytes = std::fs::read(format!("{DIR}/formats/{}", FORMATS[file].0)).unwrap();
        bytes.truncate(32 + (bytes.len() as f64 * cut) as usize);
        let span = if in_head { bytes.len().min(512) } else { bytes.len() };
        for (at, bit) in flips {
            let at = (span as f64 * at) as usize;
            bytes[at] ^= 1 << bit;
        }
        if let Ok(audio) = decode_bytes(bytes) {
            prop_assert!(audio.samples.iter().all(|x| x.is_finite()));
        }
    }
}
