//! `transcribe` of many inputs: folders, patterns, result files, skipping, channels, aliases of flags.

use std::fs;
use std::io::{BufRead, BufReader};

use serde_json::Value;
use stonechat::audio::decode_file;

use crate::run::{Folder, Ran, default_model_and_clip, voice, wav};

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

/// Makes a folder `talks` with two recordings of one stem, one in a subfolder, and hidden and other files.
fn talks(test: &str) -> Folder {
    let folder = Folder::new(test).with_tiny_model(51864);
    for below in ["talks/day 2", "talks/.trash"] {
        fs::create_dir_all(folder.path(below)).unwrap();
    }
    for name in ["a.wav", "b.mp3", "b.WAV", ".hidden.wav", "day 2/c.flac", ".trash/d.wav"] {
        folder.write(&format!("talks/{name}"), &voice(8000));
    }
    folder.write("talks/notes.txt", b"not a recording");
    folder
}

fn summary(folder: &Folder) -> Value {
    serde_json::from_str(&folder.read("summary.json")).unwrap()
}

#[test]
fn a_folder_gets_its_results_beside_the_inputs() {
    let folder = talks("a_folder");
    let ran = run(&folder, &["-f", "srt,json", "--summary", "summary.json", "talks"]);
    assert_eq!(ran.succeeds(), "");
    let mut expected = vec![".hidden.wav", ".trash", "a.json", "a.srt", "a.wav"];
    expected.extend(["b.WAV", "b.WAV.json", "b.WAV.srt", "b.mp3", "b.mp3.json", "b.mp3.srt"]);
    expected.extend(["day 2", "notes.txt"]);
    assert_eq!(folder.names("talks"), expected);
    assert_eq!(folder.names("talks/day 2"), ["c.flac", "c.json", "c.srt"]);
    assert_eq!(folder.names("talks/.trash"), ["d.wav"]);
    assert!(ran.stderr.contains("b.mp3: goes to `talks/b.mp3.srt`"), "{ran:?}");
    assert!(ran.stderr.contains("\n4 done; 2.0 s of audio in "), "{ran:?}");
    let summary = summary(&folder);
    assert_eq!(
        (&summary["totals"]["done"], &summary["totals"]["audio_s"]),
        (&4.into(), &2.0.into())
    );
    let first = &summary["files"][0];
    assert_eq!((&first["input"], &first["status"]), (&"talks/a.wav".into(), &"done".into()));
    assert_eq!(first["outputs"], serde_json::json!(["talks/a.srt", "talks/a.json"]));
    assert_eq!((&first["audio_s"], &first["language"]), (&0.5.into(), &"en".into()));
}

#[test]
fn a_folder_is_mirrored_in_another() {
    let folder = talks("mirrored");
    run(&folder, &["-q", "-o", "out", "talks", "talks/*.wav", "voice.wav"]).succeeds();
    assert_eq!(folder.names("out"), ["a.txt", "b.WAV.txt", "b.mp3.txt", "day 2", "voice.txt"]);
    assert_eq!(folder.names("out/day 2"), ["c.txt"]);
}

#[test]
fn patterns_find_recordings() {
    let folder = talks("patterns");
    run(&folder, &["-q", "talks/**/*.flac"]).succeeds();
    assert_eq!(folder.names("talks/day 2"), ["c.flac", "c.txt"]);
    run(&folder, &["-q", "-o", "out", "talks/[ab]*"]).succeeds();
    assert_eq!(folder.names("out"), ["a.txt", "b.WAV.txt", "b.mp3.txt"]);
    run(&folder, &["talks/*.ogg"]).fails("no audio or video file matches `talks/*.ogg`");
    run(&folder, &["talks/***"]).fails("pattern `talks/***`");
    fs::create_dir(folder.path("empty")).unwrap();
    run(&folder, &["empty"]).fails("no audio or video file in `empty`");
}

#[test]
fn what_is_done_is_skipped_until_the_input_changes() {
    let folder = talks("skipped");
    let arguments = ["--summary", "summary.json", "-f", "txt,srt", "talks"];
    let done = |ran: Ran| {
        ran.succeeds();
        let totals = &summary(&folder)["totals"];
        (totals["done"].as_u64().unwrap(), totals["skipped"].as_u64().unwrap())
    };
    assert_eq!(done(run(&folder, &arguments)), (4, 0));
    assert_eq!(done(run(&folder, &arguments)), (0, 4));
    fs::remove_file(folder.path("talks/a.srt")).unwrap();
    folder.write("talks/day 2/c.flac", &voice(4000));
    let ran = run(&folder, &arguments);
    assert!(ran.stderr.contains("talks/b.mp3: skipped"), "{ran:?}");
    assert_eq!(done(ran), (2, 2));
    assert_eq!(done(run(&folder, &[&["--overwrite"], &arguments[..]].concat())), (4, 0));
}

#[test]
fn every_option_that_changes_a_result_makes_it_anew() {
    let folder = Folder::new("options_count").with_tiny_model(51864);
    folder.write("other.gguf", &fs::read(folder.path("tiny.gguf")).unwrap());
    let skips = |rest: &[&str]| {
        let ran = run(&folder, &[&["-f", "srt", "-o", "out", "voice.wav"], rest].concat());
        ran.succeeds();
        let (skips, anew) = (ran.stderr.contains(": skipped"), ran.stderr.contains("written anew"));
        assert!(skips != anew || rest.is_empty(), "{ran:?}");
        skips
    };
    assert!(!skips(&[]));
    assert!(skips(&["-t", "2"]));
    for options in [
        &["--max-line-width", "20"][..],
        &["--initial-prompt", "Hello"],
        &["--vad", "off"],
        &["--channels", "1"],
        &["--seed", "1"],
        &["--word-timestamps"],
    ] {
        assert!(!skips(options), "{options:?}");
        assert!(skips(options), "{options:?}");
    }
    let mut model =
        ["transcribe", "-l", "en", "-f", "srt", "-o", "out", "voice.wav", "-m", "tiny.gguf"];
    folder.run(&model).succeeds();
    model[9] = "other.gguf";
    let ran = folder.run(&model);
    ran.succeeds();
    assert!(ran.stderr.contains("it was made with another model"), "{ran:?}");
}

#[test]
fn recordings_of_one_stem_both_get_results() {
    let folder = Folder::new("one_stem").with_tiny_model(51864);
    folder.write("talk.mp4", &voice(8000));
    folder.write("talk.mp3", &voice(9000));
    for _ in 0..2 {
        for input in ["talk.mp4", "talk.mp3"] {
            run(&folder, &["-f", "srt", input]).succeeds();
        }
        run(&folder, &["-f", "srt", "."]).succeeds();
    }
    let expected = ["talk.mp3", "talk.mp3.srt", "talk.mp4", "talk.srt", "tiny.gguf"];
    assert_eq!(folder.names(".")[..5], expected);
    let ran = run(&folder, &["-f", "srt", "talk.mp3"]);
    assert!(ran.stderr.contains("`talk.srt` is the result of `"), "{ran:?}");
    assert!(ran.stderr.contains("`talk.mp3.srt` is up to date"), "{ran:?}");
    // A file that is named is refused instead.
    run(&folder, &["-q", "-o", "talk.srt", "talk.mp3"]).fails("`talk.srt` is not replaced");
}

#[test]
fn files_of_the_user_are_kept() {
    let folder = Folder::new("kept").with_tiny_model(51864);
    folder.write("voice.txt", b"my notes");
    run(&folder, &["-q", "-f", "txt", "voice.wav"]).fails("`voice.txt` is not replaced, it ");
    assert_eq!(folder.read("voice.txt"), "my notes");
    run(&folder, &["--overwrite", "-f", "txt", "voice.wav"]).succeeds();
    assert_ne!(folder.read("voice.txt"), "my notes");
    folder.write("voice.txt", b"corrected");
    let ran = run(&folder, &["-f", "txt", "voice.wav"]);
    ran.succeeds();
    assert!(ran.stderr.contains("`voice.txt` was edited and is kept"), "{ran:?}");
    let ran = run(&folder, &["-f", "txt", "--vad", "off", "--summary", "-", "voice.wav"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("it was edited, and it was made with other options"), "{ran:?}");
    assert!(ran.stdout.contains("\"status\": \"failed\""), "{ran:?}");
    assert_eq!(folder.read("voice.txt"), "corrected");
    // Other formats beside an edited one are written.
    run(&folder, &["-f", "txt,json", "voice.wav"]).succeeds();
    assert_eq!(folder.read("voice.txt"), "corrected");
    assert!(folder.path("voice.json").exists());
}

#[test]
fn what_a_folder_leaves_out_is_reported() {
    let folder = talks("left_out");
    folder.write("talks/w.wma", b"neither sound nor fury");
    folder.write("talks/noext", &voice(100));
    folder.write("talks/code.ts", b"export default 1;");
    let ran = run(&folder, &["talks"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for expected in [
        "error: talks/w.wma: ",
        "talks/noext: left out, it looks like a WAV file without an extension",
        "talks: 2 left out that are no audio or video (1 .ts, 1 .txt)\n",
        "talks: 2 left out that are hidden\n",
        "\n4 done, 1 failed; ",
    ] {
        assert!(ran.stderr.contains(expected), "{expected}: {ran:?}");
    }
}

#[test]
fn every_run_says_what_was_written() {
    let folder = Folder::new("says").with_tiny_model(51864);
    let ran = run(&folder, &["-f", "srt,json,", "voice.wav"]);
    assert_eq!(ran.succeeds(), "");
    assert!(
        ran.stderr.starts_with("voice.wav: `voice.srt`, `voice.json`, 1.0 s of audio in "),
        "{ran:?}"
    );
    let ran = run(&folder, &["-o", "out.vtt", "voice.wav"]);
    ran.succeeds();
    assert!(folder.read("out.vtt").starts_with("WEBVTT"));
    assert!(ran.stderr.starts_with("voice.wav: `out.vtt`, "), "{ran:?}");
    let ran = run(&folder, &["-f", "lrc", "--word-timestamps", "-di", "-o", "-", "voice.wav"]);
    ran.succeeds();
    assert!(ran.stderr.contains("lrc have no times of words"), "{ran:?}");
    assert!(
        ran.stderr.contains("voice.wav: one channel: --channels split has no effect"),
        "{ran:?}"
    );
    run(&folder, &["--clip-timestamps", "0:00,0:00.5", "voice.wav"]).succeeds();
}

#[test]
fn one_failure_is_reported_and_the_others_are_done() {
    let folder = talks("one_failure");
    folder.write("talks/b.mp3", b"neither sound nor fury");
    for jobs in ["1", "3"] {
        let ran =
            run(&folder, &["--overwrite", "--jobs", jobs, "-t", "2", "--summary", "-", "talks"]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let errors: Vec<&str> = ran.stderr.lines().filter(|l| l.starts_with("error: ")).collect();
        assert!(matches!(errors[..], [error] if error.contains("talks/b.mp3")), "{errors:?}");
        let summary: Value = serde_json::from_str(&ran.stdout).unwrap();
        let statuses: Vec<&str> = summary["files"]
            .as_array()
            .unwrap()
            .iter()
            .map(|f| f["status"].as_str().unwrap())
            .collect();
        assert_eq!(statuses, ["done", "done", "failed", "done"]);
        assert!(summary["files"][2]["error"].as_str().unwrap().contains("got text"), "{summary}");
        assert_eq!(summary["totals"]["failed"], 1);
    }
    assert!(!folder.path("talks/b.mp3.txt").exists());
}

#[test]
fn jobs_give_what_one_after_the_other_gives() {
    let folder = talks("jobs");
    for (jobs, out) in [("1", "one"), ("2", "two")] {
        run(&folder, &["-q", "-f", "json", "--jobs", jobs, "-t", "2", "-o", out, "talks"])
            .succeeds();
    }
    for name in ["a", "b.WAV", "b.mp3", "day 2/c"] {
        assert_eq!(
            folder.read(&format!("one/{name}.json")),
            folder.read(&format!("two/{name}.json"))
        );
    }
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_what_is_finished() {
    let folder = Folder::new("ctrl_c").with_tiny_model(51864);
    fs::create_dir(folder.path("talks")).unwrap();
    folder.write("talks/a.wav", &voice(8000));
    // Long enough for the signal to come first.
    folder.write("talks/b.wav", &voice(16_000 * 1800));
    let child = folder
        .command(&[&SHORT[..], &["--vad", "off", "--summary", "summary.json", "talks"]].concat())
        .spawn()
        .unwrap();
    while !folder.path("talks/a.txt").exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let kill = ["-INT", &child.id().to_string()].map(str::to_owned);
    assert!(std::process::Command::new("kill").args(kill).status().unwrap().success());
    let ran = crate::run::finish(child);
    assert_eq!(ran.code, Some(130), "{ran:?}");
    // The signal may come before there is text.
    let mut names = folder.names("talks");
    names.retain(|name| name != "b.partial.txt");
    assert_eq!(names, ["a.txt", "a.wav", "b.wav"]);
    let summary = summary(&folder);
    assert_eq!((&summary["totals"]["done"], &summary["totals"]["stopped"]), (&1.into(), &1.into()));
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_the_text_of_an_unfinished_recording() {
    let folder = Folder::new("partial").with_tiny_model(51864);
    folder.write("talk.wav", &voice(16_000 * 1800));
    let interrupted = || {
        let arguments = ["-f", "txt,srt", "--vad", "off", "--print-timestamps", "talk.wav"];
        let mut child = folder.command(&[&SHORT[..], &arguments].concat()).spawn().unwrap();
        // The text of two windows.
        let mut line = String::new();
        let mut printed = BufReader::new(child.stdout.take().unwrap());
        while !line.contains("[00:01:") {
            assert_ne!(printed.read_line(&mut line).unwrap(), 0, "{line}");
        }
        let kill = ["-INT", &child.id().to_string()].map(str::to_owned);
        assert!(std::process::Command::new("kill").args(kill).status().unwrap().success());
        // The pipe stays open until the end.
        let rest = std::thread::spawn(move || printed.lines().count());
        let ran = crate::run::finish(child);
        rest.join().unwrap();
        ran
    };
    let ran = interrupted();
    assert_eq!(ran.code, Some(130), "{ran:?}");
    let expected =
        "talk.wav: stopped, `talk.partial.txt`, `talk.partial.srt` has the text of the first ";
    assert!(ran.stderr.contains(expected), "{ran:?}");
    let names = ["talk.partial.srt", "talk.partial.txt", "talk.wav", "tiny.gguf", "voice.wav"];
    assert_eq!(folder.names("."), names);
    let first = folder.read("talk.partial.srt");
    assert!(first.starts_with("1\n00:00:00,060 --> "), "{first}");
    // Another run replaces it, but not what the user wrote.
    folder.write("talk.partial.txt", b"mine");
    let ran = interrupted();
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!(ran.stderr.contains("error: talk.wav: `talk.partial.txt` is not replaced"), "{ran:?}");
    assert_eq!(folder.read("talk.partial.txt"), "mine");
    // A whole result takes the place of the partial one.
    folder.write("talk.wav", &voice(8000));
    run(&folder, &["-f", "txt,srt", "talk.wav"]).succeeds();
    let names = ["talk.partial.txt", "talk.srt", "talk.txt", "talk.wav", "tiny.gguf", "voice.wav"];
    assert_eq!(folder.names("."), names);
}

/// Stereo WAV file: the clip in the left channel, then in the right one.
fn dialogue(clip: &str) -> Vec<u8> {
    let samples = decode_file(clip).unwrap().samples;
    let silence = vec![0.0; samples.len()];
    let left = [&samples[..], &silence].concat();
    let right = [&silence[..], &samples].concat();
    let frames = left.iter().zip(&right).flat_map(|(&l, &r)| [l, r]);
    wav(2, &frames.map(|sample| (sample * 32_767.0) as i16).collect::<Vec<_>>())
}

#[test]
fn channels_are_speakers() {
    let Some((model, clip)) = default_model_and_clip("channels_are_speakers") else { return };
    let folder = Folder::new("channels");
    folder.write("call.wav", &dialogue(&clip));
    let run = |rest: &[&str]| {
        let arguments =
            [&["transcribe", "-q", "-m", &model, "-o", "-"], rest, &["call.wav"]].concat();
        folder.run(&arguments).succeeds().to_owned()
    };
    const FOX: &str = "The quick brown fox jumps over the lazy dog.";
    assert_eq!(run(&["-di"]), format!("[left] {FOX}\n[right] {FOX}\n"));
    assert_eq!(run(&["--channels", "2"]), format!("{FOX}\n"));
    let split = ["--channels", "split", "-f"];
    let json: Value = serde_json::from_str(&run(&[&split[..], &["json"]].concat())).unwrap();
    let speakers: Vec<_> =
        json["segments"].as_array().unwrap().iter().map(|s| &s["speaker"]).collect();
    assert_eq!(speakers, ["left", "right"]);
    assert!(json["segments"][1]["start"].as_f64().unwrap() > 2.5, "{json}");
    let vtt = run(&[&split[..], &["vtt"]].concat());
    assert!(vtt.contains(&format!("\n<v right>{FOX}\n")), "{vtt}");
    let srt = run(&[&split[..], &["srt", "--max-line-width", "20"]].concat());
    assert!(srt.contains("\n[left] The quick brown fox\n"), "{srt}");
    let full: Value = serde_json::from_str(&run(&[&split[..], &["json-full"]].concat())).unwrap();
    let part = &full["transcription"][1];
    assert_eq!(part["speaker"], "right");
    let tokens = part["tokens"].as_array().unwrap();
    let texts: String = tokens.iter().map(|token| token["text"].as_str().unwrap()).collect();
    assert!(texts.starts_with("<|") && texts.contains(FOX), "{texts}");
    assert!(tokens.iter().all(|token| (0.0..=1.0).contains(&token["p"].as_f64().unwrap())));
}

#[test]
fn only_clips_are_transcribed() {
    let Some((model, clip)) = default_model_and_clip("only_clips_are_transcribed") else { return };
    let folder = Folder::new("clips");
    let samples = decode_file(&clip).unwrap().samples;
    let seconds = samples.len() as f64 / 16_000.0;
    let samples: Vec<i16> = samples.iter().map(|sample| (sample * 32_767.0) as i16).collect();
    folder.write("thrice.wav", &wav(1, &samples.repeat(3)));
    let json = |rest: &[&str]| -> Value {
        let arguments = ["transcribe", "-q", "-m", &model, "-o", "-", "-f", "json", "thrice.wav"];
        serde_json::from_str(folder.run(&[&arguments[..], rest].concat()).succeeds()).unwrap()
    };
    let once = format!("{seconds},{}", 2.0 * seconds);
    for rest in [
        ["--clip_timestamps", &once].as_slice(),
        &["-ot", &format!("{:.0}", seconds * 1e3), "-d", &format!("{:.0}", seconds * 1e3)],
    ] {
        let transcript = json(rest);
        assert_eq!(transcript["text"], " The quick brown fox jumps over the lazy dog.");
        let segments = transcript["segments"].as_array().unwrap();
        let (start, end) = (&segments[0]["start"], &segments[segments.len() - 1]["end"]);
        assert!(start.as_f64().unwrap() >= seconds - 0.01, "{transcript}");
        assert!(end.as_f64().unwrap() <= 2.0 * seconds + 0.01, "{transcript}");
    }
}

#[test]
fn flags_of_other_programs_work_or_are_refused_with_a_hint() {
    let folder = Folder::new("flags").with_tiny_model(51864);
    let ran = folder.run(&[
        "transcribe",
        "-m",
        "tiny.gguf",
        "--file",
        "voice.wav",
        "-osrt",
        "-of",
        "out/x",
        "-p",
        "4",
        "-bs",
        "1",
        "-bo",
        "2",
        "-mc",
        "0",
        "-nf",
        "-fa",
        "-pp",
    ]);
    // whisper-cli prints what it writes.
    let printed = ran.succeeds();
    assert!(printed.starts_with("[00:00:00.060 --> 00:00:0"), "{ran:?}");
    assert_eq!(folder.names("out"), ["x.srt"]);
    assert!(ran.stderr.starts_with("-p is ignored: use --jobs"), "{ran:?}");
    assert_eq!(ran.stderr.lines().filter(|line| line.contains(" is ignored: ")).count(), 3);
    // whisper-cli's JSON, beside the input of its `-f`.
    folder
        .run(&["transcribe", "-m", "tiny.gguf", "-f", "voice.wav", "-ojf", "-of", "out/full"])
        .succeeds();
    assert_eq!(folder.names("out"), ["full.json", "x.srt"]);
    let openai = [
        "--output_dir",
        "all",
        "--output_format",
        "all",
        "--word_timestamps",
        "True",
        "--fp16",
        "False",
        "--verbose",
        "False",
        "voice.wav",
    ];
    run(&folder, &openai).succeeds();
    assert_eq!(
        folder.names("all"),
        ["json", "srt", "tsv", "txt", "vtt"].map(|e| format!("voice.{e}"))
    );
    for (refused, expected) in [
        (["-mc", "some"], "-mc: expected a number of tokens"),
        (["--live_transcribe", "True"], "see `stonechat listen`"),
        (["-f", "docx"], "-f is the output format here; inputs are positional"),
    ] {
        let ran = run(&folder, &[&refused[..], &["voice.wav"]].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
        assert!(ran.stderr.contains(expected), "{ran:?}");
    }
}
