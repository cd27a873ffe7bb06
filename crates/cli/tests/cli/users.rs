//! Command lines that users of other programs and new users wrote, and what they answer: the exit code, and texts of standard
//! output and standard error. The sections are those of the review of users that docs/notes/findings.md lists.

use std::fs;

use crate::run::{Folder, voice, wav, workspace};

/// Command line, exit code, and a text of its output or error.
type Line = (&'static str, i32, &'static str);

/// Section 1: one recording after another.
const PODCASTER: [Line; 16] = [
    ("transcribe $M voice.wav -f srt", 0, "voice.wav: `voice.srt`, "),
    (
        "transcribe $M voice.wav -f srt",
        0,
        "voice.wav: skipped, `voice.srt` is up to date (--overwrite",
    ),
    (
        "transcribe $M voice.wav -f srt --max-line-width 20",
        0,
        "is written anew, it was made with other options",
    ),
    (
        "transcribe $M voice.mp3 -f srt",
        0,
        "voice.mp3: goes to `voice.mp3.srt`, `voice.srt` is the result of ",
    ),
    ("transcribe $M shows", 1, "shows: 1 left out that are no audio or video (1 no extension)"),
    ("transcribe $M shows", 1, "shows/w.wma: expected audio"),
    ("transcribe $M silent.wav", 0, "silent.wav: no speech found, 2.0 s of audio"),
    ("transcribe $M voice.wav -o out.txt", 0, "voice.wav: `out.txt`, "),
    (
        "transcribe $M --clip-timestamps 100,200 voice.wav",
        1,
        "expected a start within the recording",
    ),
    ("transcribe $M https://example.org/talk.mp3", 2, "no addresses are fetched"),
    (
        "transcribe $M -l german voice.wav",
        1,
        "expected en, the model is English-only (`tiny.gguf`)",
    ),
    ("transcribe $M -l german voice.wav", 1, "`stonechat pull base` gets a multilingual one"),
    ("transcribe $M -l de-DE voice.wav", 1, "language `german`: expected en"),
    ("transcribe $M -f srt, voice.wav", 0, "voice.srt"),
    ("transcribe $M --clip-timestamps 0:70 voice.wav", 2, "0:70"),
    ("inspect shows/w.wma", 1, "neither a model"),
];

/// Section 2: whisper.cpp, openai-whisper, faster-whisper and whisperx.
const WHISPER: [Line; 21] = [
    ("transcribe $M -f voice.wav", 0, "[00:00:0"),
    ("transcribe $M -ml 1 -sow -f voice.wav", 0, "[00:00:0"),
    ("transcribe $M -osrt -of out -f voice.wav", 0, "[00:00:0"),
    ("transcribe $M --max_initial_timestamp 0.5 voice.wav", 0, ""),
    (
        "transcribe $M --max_initial_timestamp 31 voice.wav",
        2,
        "max initial timestamp: expected 0 to 30 s, got 31",
    ),
    ("transcribe $M -et 2.4 voice.wav", 0, "-et is ignored: decoder failures are detected by"),
    ("transcribe $M -dl voice.wav", 0, "-dl is ignored: the language is printed with the text"),
    ("transcribe $M -owts voice.wav", 0, "-owts is ignored: use --output-format vtt"),
    (
        "transcribe $M -mc 64 voice.wav",
        0,
        "-mc 64 is ignored: all text that the model takes is given",
    ),
    ("transcribe $M --compute_type int8 voice.wav", 0, "--compute_type is ignored: weights keep"),
    ("transcribe $M --vad_filter True voice.wav", 0, ""),
    ("transcribe $M --print_colors True voice.wav", 0, "--print_colors is ignored: "),
    ("transcribe $M --diarize voice.wav", 0, "one channel: --channels split has no effect"),
    ("transcribe $M -di voice.wav", 0, "one channel: --channels split has no effect"),
    ("transcribe $M --min_speakers 2 voice.wav", 0, "--min_speakers is ignored: "),
    ("transcribe $M --model_dir models voice.wav", 0, ""),
    (
        "transcribe $M --carry_initial_prompt True voice.wav",
        0,
        "--carry_initial_prompt is ignored: ",
    ),
    (
        "transcribe $M --grammar x voice.wav",
        2,
        "--grammar is not supported: grammars are for language models",
    ),
    ("transcribe $M --beam-size 0 voice.wav", 2, "beam-size: expected 1 to 16, got 0"),
    ("transcribe $M --language xx voice.wav", 2, "language: expected auto"),
    ("transcribe $M -f docx voice.wav", 2, "got `docx`"),
];

/// Section 3: Ollama and llama.cpp.
const CHAT: [Line; 19] = [
    ("run gemma4 hi", 1, "`gemma4` does not run here yet: expected an architecture of llama, "),
    ("run qwen3.5 hi", 1, "got that of Qwen3.5"),
    (
        "run llama.gguf hi -n 2 --keepalive 5m",
        0,
        "--keepalive is ignored: the model is gone with the command",
    ),
    ("run llama.gguf hi -n 2 --think=false", 0, ""),
    (
        "run voice-model hi",
        1,
        "is a speech model: expected a language model; `stonechat transcribe -m`",
    ),
    ("ps", 2, "there is no verb `ps`: a model is gone with its command"),
    ("stop", 2, "there is no verb `stop`: "),
    ("cp a b", 2, "there is no verb `cp`: "),
    ("create x", 2, "there is no verb `create`: "),
    (
        "generate llama.gguf -p hi -n 2 --numa distribute",
        0,
        "--numa is ignored: the system places threads",
    ),
    ("generate llama.gguf -p hi -n 2 -mg 0", 0, "-mg is ignored: "),
    ("generate llama.gguf -p hi -n 2 -jf s.json", 2, "-jf: cannot read `s.json`"),
    (
        "generate llama.gguf -f long.txt -n 2 -c 8 --context-shift",
        1,
        "shorten the prompt, or raise --ctx-size, up to ",
    ),
    (
        "generate llama.gguf -p hi -n 2 --spec-type ngram-mod --spec-draft-n-max 999",
        2,
        "at most 256",
    ),
    ("embed llama.gguf", 2, "no text: expected TEXT"),
    ("pull nosuchname", 1, "no model to pull is called `nosuchname`: expected user/repo"),
    ("pull qwen3:0.6", 1, "expected one of qwen3:0.6b, "),
    ("pull https://example.org/x.gguf", 1, "is an address: expected user/repo"),
    ("pull base", 1, "it cannot be reached; is there a network? ("),
];

/// Section 6: operation.
const SYSADMIN: [Line; 2] =
    [("models", 0, "no models in "), ("--models-dir /nosuch/models serve", 1, "/nosuch/models")];

/// Folder with what the lines name.
fn folder(name: &str) -> Folder {
    let folder = Folder::new(name).with_tiny_model(51_864);
    folder.write("voice.mp3", &voice(16_000));
    folder.write("silent.wav", &wav(1, &[0; 32_000]));
    folder.write("long.txt", "many words ".repeat(40).as_bytes());
    let llama = workspace().join("test-data/golden/llm/llama.gguf");
    fs::copy(llama, folder.path("llama.gguf")).unwrap();
    fs::create_dir(folder.path("shows")).unwrap();
    for file in ["shows/noext", "shows/w.wma"] {
        folder.write(file, b"not sound\n");
    }
    folder
}

#[track_caller]
fn check(folder: &Folder, lines: &[Line]) {
    for (line, code, expected) in lines {
        let line = line.replace("$M", "-m tiny.gguf --temperature_increment_on_fallback None");
        let arguments: Vec<&str> = line.split(' ').collect();
        let mut command = folder.command(&arguments);
        // Nothing listens on the port of the discard protocol.
        let ran =
            crate::run::finish(command.env("HF_ENDPOINT", "http://127.0.0.1:9").spawn().unwrap());
        assert_eq!(ran.code, Some(*code), "{line}: {ran:?}");
        let found = ran.stdout.contains(expected) || ran.stderr.contains(expected);
        assert!(found, "{line}: expected `{expected}` in {ran:?}");
        // Tips of flags that only look alike misled.
        assert!(!ran.stderr.contains("as a value"), "{line}: {ran:?}");
    }
}

#[test]
fn recordings_are_kept_and_explained() {
    check(&folder("users-podcaster"), &PODCASTER);
}

#[test]
fn command_lines_of_whisper_programs_run_or_are_explained() {
    check(&folder("users-whisper"), &WHISPER);
}

#[test]
fn command_lines_of_chat_programs_run_or_are_explained() {
    let folder = folder("users-chat");
    fs::create_dir(folder.path("models")).unwrap();
    fs::copy(folder.path("tiny.gguf"), folder.path("models/voice-model.gguf")).unwrap();
    check(&folder, &CHAT);
}

#[test]
fn operation_is_explained() {
    let folder = folder("users-sysadmin");
    check(&folder, &SYSADMIN);
    for (name, value, expected) in [
        ("STONECHAT_THREADS", "abc", "the variable STONECHAT_THREADS is `abc`"),
        ("STONECHAT_FOO", "1", "warning: STONECHAT_FOO: there is no flag of this variable"),
    ] {
        let mut command = folder.command(&["transcribe", "-m", "tiny.gguf", "missing.wav"]);
        let ran = crate::run::finish(command.env(name, value).spawn().unwrap());
        assert!(ran.code != Some(0) && ran.stderr.contains(expected), "{ran:?}");
    }
    if cfg!(unix) {
        for keys in ["", ","] {
            let ran = folder.run(&["serve", "tiny.gguf", "--api-key", keys]);
            ran.misused("--api-key: expected keys, got an empty one");
        }
    }
}
