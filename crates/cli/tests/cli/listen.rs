//! `stonechat listen`: raw PCM on standard input.

use serde_json::Value;

use crate::run::{Folder, Ran, default_model_and_clip, voice};

/// Options that make a run with a model of random weights short.
const SHORT: [&str; 9] =
    ["listen", "-", "-m", "tiny.gguf", "-l", "en", "--vad", "off", "--every-chunk"];

fn listen(folder: &Folder, rest: &[&str], input: &[u8]) -> Ran {
    folder.run_with_input(&[&SHORT[..], rest].concat(), input)
}

/// Raw PCM of a WAV file written by these tests.
fn pcm(wav: &[u8]) -> &[u8] {
    &wav[44..]
}

fn events(ran: &Ran) -> Vec<Value> {
    ran.succeeds().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn events_are_lines_of_json() {
    let folder = Folder::new("events_are_lines_of_json").with_tiny_model(51864);
    let voice = voice(3 * 16_000);
    let ran = listen(&folder, &["-f", "json", "--beam-size", "1"], pcm(&voice));
    let events = events(&ran);
    let (summary, others) = events.split_last().unwrap();
    assert_eq!(summary["event"], "summary");
    assert_eq!(summary["audio_s"], 3.0);
    assert!(summary["compute_s"].as_f64().unwrap() > 0.0);
    assert_eq!(others.last().unwrap()["event"], "end");
    let n_words: usize =
        others.iter().filter_map(|event| event["words"].as_array()).map(Vec::len).sum();
    assert_eq!(summary["n_words"], n_words);
    for word in others.iter().filter_map(|event| event["words"].as_array()).flatten() {
        let number = |key: &str| word[key].as_f64().unwrap();
        assert!(0.0 <= number("start") && number("start") <= number("end"), "{word}");
        assert!(number("end") <= 3.0 && number("latency") >= 0.0, "{word}");
    }
    // The same audio in stereo, as floats, and as if at half the rate.
    let stereo: Vec<u8> = pcm(&voice)
        .chunks(2)
        .flat_map(|sample| {
            let value = f32::from(i16::from_le_bytes([sample[0], sample[1]])) / 32768.0;
            [value, value].map(f32::to_le_bytes).concat()
        })
        .collect();
    let format = ["-f", "json", "--beam-size", "1", "--format", "f32le", "--channels", "2"];
    let again = self::events(&listen(&folder, &format, &stereo));
    let text = |events: &[Value]| -> String {
        let words = events.iter().filter_map(|event| event["words"].as_array()).flatten();
        words.map(|word| word["word"].as_str().unwrap()).collect()
    };
    assert_eq!(text(&again), text(&events));
    let slow = [&format[..], &["--rate", "8000"]].concat();
    let slow = self::events(&listen(&folder, &slow, &stereo));
    assert_eq!(slow.last().unwrap()["audio_s"], 6.0);
}

#[test]
fn nothing_is_said_in_silence() {
    let folder = Folder::new("nothing_is_said_in_silence").with_tiny_model(51864);
    for silence in [&[][..], &[0; 64_000]] {
        let arguments = ["listen", "-", "-m", "tiny.gguf", "-l", "en", "--latency"];
        let ran = folder.run_with_input(&arguments, silence);
        assert_eq!(ran.succeeds(), "");
        assert!(ran.stderr.contains("s of audio, real-time factor"), "{ran:?}");
    }
}

#[test]
fn invalid_pcm_and_options_are_refused() {
    let folder = Folder::new("invalid_pcm_and_options_are_refused").with_tiny_model(51864);
    let start = ["listen", "-", "-q", "-m", "tiny.gguf"];
    for (arguments, input, expected) in [
        (&["--rate", "0"][..], &[0; 8][..], "sample rate"),
        (&["--rate", "900000"], &[0; 8], "sample rate"),
        (&["--chunk", "0"], &[0; 8], "chunk: expected 0.1 to 10 s, got 0"),
        (&["--buffer", "60"], &[0; 8], "buffer: expected 1 to 25 s, got 60"),
        (&["-l", "klingon"], &[0; 8], "language: expected"),
        (&["--format", "f32le"], &[255; 8], "expected samples as f32le, got NaN"),
        (&[], &[0; 7], "2 bytes each time, got 1 at the end"),
        (&["--channels", "2"], &[0; 7], "4 bytes each time, got 3 at the end"),
    ] {
        let ran = folder.run_with_input(&[&start[..], arguments].concat(), input);
        if arguments.is_empty() || expected.contains("each time") || expected.contains("NaN") {
            ran.fails(expected);
        } else {
            ran.misused(expected);
        }
    }
    for (file, expected) in [
        (voice(16_000), "expected raw PCM, got a WAV file"),
        (b"ID3\x04\0\0\0\0\0\0".to_vec(), "expected raw PCM, got an MP3 file"),
    ] {
        folder.run_with_input(&start, &file).fails(expected);
    }
    let german = [&start[..], &["-l", "de-AT"]].concat();
    folder.run_with_input(&german, &[0; 8]).fails("the model is English-only (`tiny.gguf`)");
    for arguments in [["--format", "s24le"], ["--channels", "0"], ["--rate", "-1"], ["-f", "srt"]] {
        let ran = folder.run_with_input(&[&start[..], &arguments].concat(), &[]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
    }
    folder.run_with_input(&["listen", "-m", "missing.gguf"], &[]).fails("missing.gguf");
}

#[cfg(not(feature = "microphone"))]
mod without_microphone {
    use crate::run::Folder;

    #[test]
    fn a_build_without_microphone_says_so() {
        let folder = Folder::new("a_build_without_microphone_says_so").with_tiny_model(51864);
        let ran = folder.run(&["listen", "USB", "-q", "-m", "tiny.gguf", "-l", "en"]);
        ran.fails("this build has no microphone (feature `microphone`)");
    }
}

#[test]
fn speech_becomes_lines() {
    let Some((model, clip)) = default_model_and_clip("speech_becomes_lines") else { return };
    let folder = Folder::new("speech_becomes_lines");
    let samples = stonechat::audio::decode_file(clip).unwrap().samples;
    let silence = vec![0.0; 40_000];
    let samples = [&samples[..], &silence, &samples].concat();
    let bytes: Vec<u8> =
        samples.iter().flat_map(|x| ((x * 32767.0) as i16).to_le_bytes()).collect();
    let arguments = ["listen", "-", "--every-chunk", "-m", &model, "-l", "en"];
    let ran = folder.run_with_input(&arguments, &bytes);
    let line = "The quick brown fox jumps over the lazy dog.";
    assert_eq!(ran.succeeds().lines().collect::<Vec<_>>(), [line, line]);
}
