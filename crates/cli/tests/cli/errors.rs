//! Errors of files, models and options: one line and exit code 1.

use std::fs;

use crate::run::{Folder, voice};

/// Options that make a run with a model of random weights short.
const SHORT: [&str; 6] =
    ["-m", "tiny.gguf", "--temperature-increment-on-fallback", "none", "-l", "en"];

fn transcribe<'a>(rest: &[&'a str]) -> Vec<&'a str> {
    [&["transcribe"][..], &SHORT, rest].concat()
}

#[test]
fn audio_that_cannot_be_read() {
    let folder = Folder::new("audio_that_cannot_be_read").with_tiny_model(51864);
    folder.write("text.wav", b"This is no sound, whatever its name says.\n");
    folder.write("empty.mp3", b"");
    folder.write("cut.wav", &voice(16_000)[..30]);
    fs::create_dir(folder.path("folder.wav")).unwrap();
    for (name, expected) in [
        ("missing.wav", "missing.wav"),
        ("text.wav", "text.wav"),
        ("empty.mp3", "empty.mp3"),
        ("cut.wav", "cut.wav"),
        ("folder.wav", "folder.wav"),
    ] {
        folder.run(&transcribe(&[name])).fails(expected);
    }
    let ran = folder.run_with_input(&transcribe(&["-"]), b"neither sound nor fury");
    ran.fails("standard input");
}

#[test]
fn models_that_cannot_be_read() {
    let folder = Folder::new("models_that_cannot_be_read").with_tiny_model(51864);
    let model = fs::read(folder.path("tiny.gguf")).unwrap();
    folder.write("cut.gguf", &model[..model.len() / 2]);
    folder.write("head.gguf", &model[..20]);
    folder.write("empty.gguf", b"");
    folder.write("text.bin", b"not a model\n");
    fs::create_dir(folder.path("nothing-in-it")).unwrap();
    for name in ["cut.gguf", "head.gguf", "empty.gguf", "text.bin", "nothing-in-it"] {
        folder.run(&["transcribe", "-m", name, "voice.wav"]).fails(name);
    }
    let ran = folder.run(&["transcribe", "-m", "base", "voice.wav"]);
    ran.fails("get it with `stonechat pull base`");
    folder.run(&["transcribe", "-m", "gone.gguf", "voice.wav"]).fails("gone.gguf");
}

#[test]
fn flipped_bits_in_the_header_of_a_model() {
    let folder = Folder::new("flipped_bits").with_tiny_model(51864);
    let model = fs::read(folder.path("tiny.gguf")).unwrap();
    // Magic, version, counts and the first key, with its length.
    for byte in (0..48).step_by(3) {
        for bit in [0, 6] {
            let mut damaged = model.clone();
            damaged[byte] ^= 1 << bit;
            folder.write("flipped.gguf", &damaged);
            let ran = folder.run(&["inspect", "flipped.gguf"]);
            assert!(matches!(ran.code, Some(0 | 1)), "byte {byte} bit {bit}: {ran:?}");
            if ran.code == Some(1) {
                ran.fails("");
            }
        }
    }
    let mut damaged = model;
    damaged[8] ^= 0x40;
    folder.write("flipped.gguf", &damaged);
    folder.run(&["transcribe", "-m", "flipped.gguf", "voice.wav"]).fails("flipped.gguf");
}

#[cfg(unix)]
#[test]
fn files_without_permission() {
    use std::os::unix::fs::PermissionsExt;

    let folder = Folder::new("files_without_permission").with_tiny_model(51864);
    let forbid = |name: &str| {
        fs::set_permissions(folder.path(name), fs::Permissions::from_mode(0o000)).unwrap();
    };
    fs::copy(folder.path("tiny.gguf"), folder.path("secret.gguf")).unwrap();
    forbid("secret.gguf");
    if fs::read(folder.path("secret.gguf")).is_ok() {
        println!("SKIPPED files_without_permission: this user may read everything");
        return;
    }
    forbid("voice.wav");
    folder.run(&["transcribe", "-m", "secret.gguf", "voice.wav"]).fails("ermission denied");
    folder.run(&transcribe(&["voice.wav"])).fails("ermission denied");
}

#[test]
fn options_out_of_range() {
    let folder = Folder::new("options_out_of_range").with_tiny_model(51864);
    for (option, value, expected) in [
        ("--language", "klingon", "language: expected auto"),
        (
            "--output-format",
            "doc",
            "expected txt, srt, vtt, tsv, json, json-full, lrc, csv or all, got `doc`",
        ),
        ("--temperature", "3", "temperature: expected 0 to 2, got 3"),
        ("--temperature", "warm", "temperature: expected 0 to 2, got `warm`"),
        ("--best-of", "0", "best-of: expected 1 to 16, got 0"),
        ("--beam-size", "17", "beam-size: expected 1 to 16, got 17"),
        ("--patience", "0", "patience: expected "),
        ("--length-penalty", "2", "length-penalty: expected 0 to 1, got 2"),
        ("--batch-size", "0", "batch-size: expected 1 to 64, got 0"),
        ("--max-new-tokens", "0", "max-new-tokens: expected at least 1, got 0"),
        ("--suppress-tokens", "-2", "suppress-tokens: expected token ids"),
        ("--threads", "100000", "threads: expected 0 to 1024"),
        ("--jobs", "0", "jobs: expected 1 to 1024, got 0"),
        (
            "--clip-timestamps",
            "3,2",
            "clip-timestamps: expected ascending START,END pairs in seconds",
        ),
        ("--vad-threshold", "2", "vad threshold: expected 0 to 1, got 2"),
        ("--vad-max-speech-s", "0.5", "vad max-speech-s: expected twice the padding"),
        ("--hallucination-silence-threshold", "nan", "threshold: expected 0 s or more, got NaN"),
    ] {
        let arguments = ["transcribe", "-m", "tiny.gguf", option, value, "voice.wav"];
        folder.run(&arguments).misused(expected);
    }
    folder.run(&transcribe(&["--clip-timestamps", "0:70", "voice.wav"])).misused("0:70");
    // Errors that depend on the model or the recording.
    for (option, value, expected) in [
        ("--channels", "3", "voice.wav: expected a channel from 1 to 1, got 3"),
        ("--clip-timestamps", "100,200", "voice.wav: clip timestamps: expected a start within"),
        ("--offset-t", "5000", "the recording of 1.0 s, got 5 s"),
        (
            "--suppress-tokens",
            "99999",
            "suppress-tokens: expected tokens of the model's vocabulary",
        ),
        ("--max-new-tokens", "449", "max-new-tokens: expected no more than the decoder's context"),
    ] {
        folder.run(&transcribe(&[option, value, "voice.wav"])).fails(expected);
    }
    let german = ["transcribe", "-m", "tiny.gguf", "-l", "de", "voice.wav"];
    folder.run(&german).fails("language `german`: expected en, the model is English-only");
    folder.run(&german).fails("(`tiny.gguf`); `stonechat pull base` gets a multilingual one");
    let translate = ["transcribe", "-m", "tiny.gguf", "--task", "translate", "voice.wav"];
    folder.run(&translate).fails("task translate: expected transcribe, the model is English-only");
}

#[test]
fn outputs_that_would_be_lost() {
    let folder = Folder::new("outputs_that_would_be_lost").with_tiny_model(51864);
    fs::create_dir(folder.path("a")).unwrap();
    fs::copy(folder.path("voice.wav"), folder.path("a/voice.wav")).unwrap();
    folder.run(&transcribe(&["-o", "out", "voice.wav", "a/voice.wav"])).fails("voice.wav.txt");
    assert!(!folder.path("out").exists());
    let printed = |rest: &[&'static str]| transcribe(&[&["-o", "-"], rest].concat());
    folder.run(&printed(&["-f", "srt,vtt", "voice.wav"])).misused("--output-dir");
    folder.run(&printed(&["-f", "srt", "voice.wav", "a/voice.wav"])).misused("--output-dir");
    folder.run(&printed(&["--jobs", "2", "voice.wav", "a/voice.wav"])).misused("jobs: expected 1");
    folder.run(&printed(&["--summary", "-", "voice.wav"])).misused("--summary -");
    folder.run(&transcribe(&["-", "voice.wav"])).misused("must be the only input");
    folder
        .run(&transcribe(&["--output-file", "x", "voice.wav", "a/voice.wav"]))
        .misused("one input");
    folder.run(&transcribe(&["-o", "voice.wav", "voice.wav"])).fails("cannot create the folder");
    folder.run(&transcribe(&["-o", "voice.wav/a", "voice.wav"])).fails("`voice.wav/a`");
    folder
        .run(&transcribe(&["-o", "o.txt", "voice.wav", "a/voice.wav"]))
        .misused("expected a folder");
    folder.run(&transcribe(&["-o", "o.txt", "-f", "srt", "voice.wav"])).misused("one format");
    // Neither a failed input nor a refused one leaves a folder.
    folder.run(&transcribe(&["-o", "zz", "missing.wav"])).fails("missing.wav");
    assert_eq!(folder.names("."), ["a", "tiny.gguf", "voice.wav"]);
}

#[test]
fn addresses_are_no_inputs() {
    let folder = Folder::new("addresses").with_tiny_model(51864);
    for address in ["https://example.org/talk.mp3", "https://example.org/watch?v=x", "s3://b/*.mp3"]
    {
        folder.run(&transcribe(&[address])).misused("no addresses are fetched");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_output_is_not_the_fault_of_an_input() {
    let folder = Folder::new("full_output").with_tiny_model(51864);
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = folder.command(&transcribe(&["-f", "vtt", "-o", "-", "voice.wav"]));
    let ran = crate::run::finish(command.stdout(full).spawn().unwrap());
    ran.fails("error: cannot write to standard output: No space left");
}

#[test]
fn usage_errors_name_the_verb_and_the_flag_of_the_user() {
    let folder = Folder::new("usage_of_verbs");
    for (arguments, usage, message) in [
        (
            &["transcribe", "--grammar", "x"][..],
            "Usage: stonechat transcribe ",
            "--grammar is not supported",
        ),
        (
            &["generate", "m", "--rope_scaling", "x"],
            "Usage: stonechat generate ",
            "--rope_scaling is not",
        ),
        (
            &["transcribe", "--some_thing", "a"],
            "Usage: stonechat transcribe ",
            "argument '--some_thing' found",
        ),
        (
            &["chat", "m", "--nothing-like-it"],
            "Usage: stonechat chat ",
            "'--nothing-like-it' found",
        ),
        (&["ps"], "Usage: stonechat ", "there is no verb `ps`"),
    ] {
        let ran = folder.run(arguments);
        ran.misused(message);
        assert!(ran.stderr.contains(usage) && !ran.stderr.contains("tip:"), "{ran:?}");
    }
    for (arguments, tip) in [
        (&["transcribe", "--beam_sise", "5"][..], "'--beam-size'"),
        (&["transcibe"], "'transcribe'"),
    ] {
        let ran = folder.run(arguments);
        assert!(ran.stderr.contains(tip) && !ran.stderr.contains("as a value"), "{ran:?}");
    }
}

#[test]
fn usage_errors_end_with_2() {
    let folder = Folder::new("usage_errors");
    for arguments in [&["transcribe"][..], &["transcribe", "--loud", "a.wav"], &["sing"], &[]] {
        let ran = folder.run(arguments);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
        assert!(ran.stderr.contains("Usage: "), "{ran:?}");
    }
}
