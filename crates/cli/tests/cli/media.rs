//! `transcribe` and `inspect` of recordings with several tracks, of cut and damaged ones, and of formats for ffmpeg.

use std::fs;

use serde_json::Value;

use crate::run::{Folder, Ran, finish, voice, workspace};

/// Options that make a run with a model of random weights short.
const SHORT: [&str; 9] = [
    "transcribe",
    "-m",
    "tiny.gguf",
    "-l",
    "en",
    "--beam-size",
    "1",
    "--temperature-increment-on-fallback",
    "none",
];

fn run(folder: &Folder, rest: &[&str]) -> Ran {
    folder.run(&[&SHORT[..], rest].concat())
}

fn inspect(folder: &Folder, name: &str) -> Value {
    serde_json::from_str(folder.run(&["inspect", "--json", name]).succeeds()).unwrap()
}

fn clip(name: &str) -> Vec<u8> {
    fs::read(workspace().join("test-data/audio/formats").join(name)).unwrap()
}

/// The box `kind` of `file` and its size.
fn find(file: &[u8], kind: &[u8; 4]) -> (usize, usize) {
    let at = file.windows(4).position(|four| four == kind).unwrap() - 4;
    (at, u32::from_be_bytes(file[at..at + 4].try_into().unwrap()) as usize)
}

/// `fox.m4a` with its track twice, the second one in German.
fn two_tracks() -> Vec<u8> {
    let file = clip("fox.m4a");
    let (trak, n) = find(&file, b"trak");
    let mut second = file[trak..trak + n].to_vec();
    let (tkhd, _) = find(&second, b"tkhd");
    second[tkhd + 23] = 2;
    let (mdhd, _) = find(&second, b"mdhd");
    // Three letters of five bits.
    let language = b"deu".iter().fold(0, |code, &letter| code << 5 | u16::from(letter - 0x60));
    second[mdhd + 28..mdhd + 30].copy_from_slice(&language.to_be_bytes());
    let (moov, n_moov) = find(&file, b"moov");
    assert!(find(&file, b"mdat").0 < moov);
    let mut file = [&file[..trak + n], &second, &file[trak + n..]].concat();
    file[moov..moov + 4].copy_from_slice(&((n_moov + n) as u32).to_be_bytes());
    file
}

#[test]
fn a_track_is_chosen_by_its_number() {
    let folder = Folder::new("audio_track").with_tiny_model(51864);
    folder.write("two.m4a", &two_tracks());
    let found = inspect(&folder, "two.m4a");
    assert_eq!(found["track"], 1);
    let tracks: Vec<&str> =
        found["tracks"].as_array().unwrap().iter().map(|track| track.as_str().unwrap()).collect();
    assert!(tracks.len() == 2 && tracks[1] == "2: aac, deu", "{tracks:?}");
    let ran = folder.run(&["inspect", "two.m4a"]);
    assert!(ran.succeeds().contains("\ntrack        2: aac, deu\n"), "{ran:?}");
    let ran = run(&folder, &["-v", "--audio-track", "2", "two.m4a"]);
    ran.succeeds();
    assert!(ran.stderr.contains("two.m4a: audio track 2 of 2 ("), "{ran:?}");
    run(&folder, &["-q", "--audio-track", "3", "two.m4a"])
        .fails("two.m4a: expected an audio track from 1 to 2, got 3");
    run(&folder, &["-q", "--audio-track", "2", "voice.wav"])
        .fails("voice.wav: expected an audio track from 1 to 1, got 2");
    run(&folder, &["--audio-track", "0", "two.m4a"]).misused("--audio-track");
    // Results of one track are none of another.
    let skips = |track: &str| {
        let ran = run(&folder, &["-f", "srt", "--audio-track", track, "two.m4a"]);
        ran.succeeds();
        ran.stderr.contains(": skipped")
    };
    assert!(!skips("1") && skips("1") && !skips("2") && skips("2"));
}

#[test]
fn what_is_missing_is_said() {
    let folder = Folder::new("missing").with_tiny_model(51864);
    folder.write("cut.wav", &voice(32_000)[..32_044]);
    let ran = run(&folder, &["cut.wav"]);
    ran.succeeds();
    let note = "cut.wav: the file was cut short or damaged, 1.0 s are missing";
    assert!(ran.stderr.contains(note), "{ran:?}");
    let found = inspect(&folder, "cut.wav");
    assert_eq!((&found["is_cut"], &found["missing_s"]), (&true.into(), &1.0.into()));
    let ran = folder.run(&["inspect", "cut.wav"]);
    assert!(ran.succeeds().contains("\nmissing      1.000 s\n"), "{ran:?}");
    let mut damaged = clip("fox.mp3");
    let n = damaged.len();
    damaged[n / 3..n / 2].fill(0);
    folder.write("damaged.mp3", &damaged);
    let ran = run(&folder, &["damaged.mp3"]);
    ran.succeeds();
    assert!(ran.stderr.contains(" s are missing, silence in their place"), "{ran:?}");
    let ran = run(&folder, &["voice.wav"]);
    ran.succeeds();
    assert!(!ran.stderr.contains("missing"), "{ran:?}");
}

#[cfg(unix)]
#[test]
fn an_installed_ffmpeg_decodes_other_formats() {
    use std::os::unix::fs::PermissionsExt;

    let folder = Folder::new("other_formats").with_tiny_model(51864);
    folder.write("call.amr", &[&b"#!AMR\n"[..], &[0x3C; 600]].concat());
    fs::create_dir(folder.path("none")).unwrap();
    fs::create_dir(folder.path("bin")).unwrap();
    let script = format!("#!/bin/sh\n/bin/cat '{}'\n", folder.path("voice.wav").display());
    folder.write("bin/ffmpeg", script.as_bytes());
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(folder.path("bin/ffmpeg"), mode).unwrap();
    let run = |path: &str, arguments: &[&str]| {
        let mut command = folder.command(arguments);
        finish(command.env("PATH", folder.path(path)).spawn().unwrap())
    };
    let verbose = [&SHORT[..], &["-v", "call.amr"]].concat();
    let ran = run("bin", &verbose);
    ran.succeeds();
    assert!(ran.stderr.contains("call.amr: decoded by the installed ffmpeg (AMR"), "{ran:?}");
    let quiet = [&SHORT[..], &["-q", "call.amr"]].concat();
    run("none", &quiet).fails("call.amr: AMR needs `ffmpeg`, found none in PATH");
    run("none", &["inspect", "call.amr"]).fails("call.amr: AMR needs `ffmpeg`");
    let ran = run("bin", &["inspect", "call.amr"]);
    assert!(ran.succeeds().contains("\ndecoder      the installed ffmpeg\n"), "{ran:?}");
    // Standard input is no file for it.
    let ran = folder
        .run_with_input(&[&SHORT[..], &["-q", "-"]].concat(), b"#!AMR\n\x3C\x3C\x3C\x3C\x3C\x3C");
    ran.fails("AMR is not supported");
}
