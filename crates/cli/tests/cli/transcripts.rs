//! Text, subtitles and JSON from recordings.

use std::io::Read;

use crate::run::{Folder, default_model_and_clip, finish, voice};

const FOX: &str = "The quick brown fox jumps over the lazy dog.";

#[test]
fn the_fox_is_printed() {
    let Some((model, clip)) = default_model_and_clip("the_fox_is_printed") else { return };
    let folder = Folder::new("voice");
    let ran = folder.run(&["transcribe", "-m", &model, &clip]);
    assert_eq!(ran.succeeds(), format!("{FOX}\n"));
    let ran = folder.run(&["transcribe", "-m", &model, "--repack", "off", "-v", &clip]);
    assert_eq!(ran.succeeds(), format!("{FOX}\n"));
    assert!(ran.stderr.contains(" memory-mapped\n"), "{ran:?}");
    // Without a model: that of the checkout above the binary or the working directory.
    let mut command = folder.command(&["transcribe", &clip]);
    let ran = finish(command.current_dir(crate::run::workspace()).spawn().unwrap());
    assert_eq!(ran.succeeds(), format!("{FOX}\n"));
    let ran = folder.run(&["transcribe", "-q", "-m", &model, &clip]);
    assert_eq!((ran.succeeds(), ran.stderr.as_str()), (&*format!("{FOX}\n"), ""));
}

#[test]
fn the_fox_in_every_format() {
    let Some((model, clip)) = default_model_and_clip("the_fox_in_every_format") else { return };
    let folder = Folder::new("formats");
    let formats = ["-f", "txt,srt", "-f", "vtt,tsv,json", "-o", "out/put"];
    let ran = folder.run(&[&["transcribe", "-m", &model][..], &formats, &[&clip]].concat());
    assert_eq!(ran.succeeds(), "");
    let stem = "out/put/quick_brown_fox";
    assert_eq!(
        folder.names("out/put"),
        ["json", "srt", "tsv", "txt", "vtt"].map(|e| format!("quick_brown_fox.{e}"))
    );
    assert_eq!(folder.read(&format!("{stem}.txt")), format!("{FOX}\n"));
    let srt = folder.read(&format!("{stem}.srt"));
    assert!(srt.starts_with("1\n00:00:00,"), "{srt}");
    assert!(srt.contains(" --> 00:00:0") && srt.ends_with(&format!("{FOX}\n\n")), "{srt}");
    let vtt = folder.read(&format!("{stem}.vtt"));
    assert!(vtt.starts_with("WEBVTT\n\n00:0") && vtt.ends_with(&format!("{FOX}\n\n")), "{vtt}");
    let tsv = folder.read(&format!("{stem}.tsv"));
    assert!(tsv.starts_with("start\tend\ttext\n0\t") && tsv.contains(FOX), "{tsv}");
    let json: serde_json::Value =
        serde_json::from_str(&folder.read(&format!("{stem}.json"))).unwrap();
    assert_eq!((&json["text"], &json["language"]), (&format!(" {FOX}").into(), &"en".into()));
    assert_eq!(json["segments"][0]["id"], 0);
    assert!(json["segments"][0]["avg_logprob"].as_f64().unwrap() < 0.0);
}

#[test]
fn words_have_times_and_subtitles_have_lines() {
    let Some((model, clip)) = default_model_and_clip("words_have_times_and_subtitles_have_lines")
    else {
        return;
    };
    let folder = Folder::new("words");
    let run = |arguments: &[&str]| {
        let common = ["transcribe", "-m", &model, "-o", "-"];
        let ran = folder.run(&[&common[..], arguments, &[&clip]].concat());
        ran.succeeds().to_owned()
    };
    let json = run(&["-oj", "--word-timestamps", "--vad"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let words = json["segments"][0]["words"].as_array().unwrap();
    let texts: Vec<&str> = words.iter().map(|word| word["word"].as_str().unwrap()).collect();
    assert_eq!(texts.concat(), format!(" {FOX}"));
    assert!(words.iter().all(|w| w["start"].as_f64().unwrap() <= w["end"].as_f64().unwrap()));

    let srt = run(&["-osrt", "--max-line-width", "20", "--max-line-count", "1"]);
    let lines: Vec<&str> = srt.lines().skip(2).step_by(4).collect();
    assert_eq!(lines, ["The quick brown fox", "jumps over the lazy", "dog."]);
    let vtt = run(&["-ovtt", "--highlight-words", "--vad", "off"]);
    assert!(vtt.contains("\nThe <u>quick</u> brown fox jumps"), "{vtt}");
    let lyrics = run(&["-olrc"]);
    assert!(lyrics.starts_with("[00:0") && lyrics.ends_with(&format!("]{FOX}\n")), "{lyrics}");
}

#[test]
fn recordings_come_from_standard_input() {
    let Some((model, clip)) = default_model_and_clip("recordings_come_from_standard_input") else {
        return;
    };
    let folder = Folder::new("stdin");
    let wav = std::fs::read(&clip).unwrap();
    let ran = folder.run_with_input(&["transcribe", "-m", &model, "-"], &wav);
    assert_eq!(ran.succeeds(), format!("{FOX}\n"));
    let arguments = ["transcribe", "-m", &model, "-f", "srt", "-o", ".", "-"];
    folder.run_with_input(&arguments, &wav).succeeds();
    assert_eq!(folder.names("."), ["stdin.srt"]);
}

#[test]
fn a_bad_input_does_not_stop_the_others() {
    let Some((model, clip)) = default_model_and_clip("a_bad_input_does_not_stop_the_others") else {
        return;
    };
    let folder = Folder::new("several");
    folder.write("bad.wav", b"RIFF");
    std::fs::copy(&clip, folder.path("voice.wav")).unwrap();
    let ran = folder.run(&["transcribe", "-m", &model, "-o", "-", &clip, "bad.wav", "voice.wav"]);
    assert_eq!((ran.code, ran.stdout), (Some(1), format!("{FOX}\n{FOX}\n")));
    let errors: Vec<&str> = ran.stderr.lines().filter(|l| l.starts_with("error: ")).collect();
    assert!(matches!(errors[..], [error] if error.contains("bad.wav")), "{errors:?}");
    let arguments = ["transcribe", "-m", &model, "-f", "json", "-o", "-", "voice.wav", &clip];
    let ran = folder.run(&arguments);
    let lines: Vec<serde_json::Value> =
        ran.succeeds().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!((&lines[1]["file"], &lines[1]["text"]), (&clip.into(), &format!(" {FOX}").into()));
}

#[test]
fn verbose_prints_every_stage() {
    let folder = Folder::new("verbose").with_tiny_model(51864);
    let ran = folder.run(&[
        "transcribe",
        "-v",
        "-m",
        "tiny.gguf",
        "--temperature",
        "0",
        "--temperature-increment-on-fallback",
        "none",
        "--kv-type",
        "f32",
        "-t",
        "1",
        "voice.wav",
    ]);
    ran.succeeds();
    for stage in ["device", "load", "audio", "mel", "encode", "decode", "total"] {
        assert!(ran.stderr.lines().any(|line| line.starts_with(stage)), "{stage}: {ran:?}");
    }
    assert!(ran.stderr.contains("real-time factor"), "{ran:?}");
}

#[test]
fn the_language_is_printed_unless_quiet() {
    let folder = Folder::new("language").with_tiny_model(51865);
    let once = ["--temperature-increment-on-fallback", "none"];
    let ran = folder.run(&[&["transcribe", "-m", "tiny.gguf"][..], &once, &["voice.wav"]].concat());
    ran.succeeds();
    assert!(ran.stderr.starts_with("detected language: "), "{ran:?}");
    let quiet = ["transcribe", "-q", "-m", "tiny.gguf", once[0], once[1], "voice.wav"];
    let ran = folder.run(&quiet);
    ran.succeeds();
    assert_eq!(ran.stderr, "");
}

#[test]
fn a_closed_pipe_is_no_error() {
    let folder = Folder::new("pipe").with_tiny_model(51864);
    let mut child = folder.command(&["inspect", "tiny.gguf"]).spawn().unwrap();
    // The pipe is closed after the first byte, or before anything is written.
    let mut first = [0; 1];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    let ran = finish(child);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let mut child = folder
        .command(&["transcribe", "-m", "tiny.gguf", "-f", "vtt", "-o", "-", "voice.wav"])
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let ran = finish(child);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
}

#[test]
fn silence_has_no_text() {
    let Some((model, _)) = default_model_and_clip("silence_has_no_text") else { return };
    let folder = Folder::new("silence");
    for seconds in [0, 1, 40] {
        let mut wav = voice(seconds * 16_000);
        let samples = wav.len() - seconds as usize * 32_000;
        wav[samples..].fill(0);
        folder.write("silence.wav", &wav);
        let ran = folder.run(&["transcribe", "-q", "-m", &model, "silence.wav"]);
        assert_eq!((ran.succeeds(), ran.stderr.as_str()), ("", ""), "{seconds} s of silence");
        let ran = folder.run(&["transcribe", "-m", &model, "silence.wav"]);
        assert!(ran.stderr.starts_with("silence.wav: no speech found, "), "{ran:?}");
        let ran = folder.run(&["transcribe", "-m", &model, "-f", "srt,vtt", "silence.wav"]);
        ran.succeeds();
        assert!(!folder.path("silence.srt").exists());
        assert_eq!(folder.read("silence.vtt"), "WEBVTT\n\n");
        assert!(ran.stderr.contains("silence.wav: no speech found, `silence.vtt`, "), "{ran:?}");
        let srt = ["-f", "srt", "--summary", "-", "silence.wav"];
        let ran = folder.run(&[&["transcribe", "-m", &model][..], &srt].concat());
        assert!(ran.stderr.contains("no speech found, nothing written"), "{ran:?}");
        assert!(ran.succeeds().contains("\"no_speech\": true"), "{ran:?}");
        std::fs::remove_file(folder.path("silence.vtt")).unwrap();
    }
}

#[test]
fn a_default_model_that_knows_only_english_says_so() {
    let Some((_, clip)) = default_model_and_clip("a_default_model_says_so") else { return };
    let folder = Folder::new("default_model");
    let run = |rest: &[&str]| {
        let mut command = folder.command(&[&["transcribe"], rest, &[&clip]].concat());
        finish(command.current_dir(crate::run::workspace()).spawn().unwrap())
    };
    let ran = run(&[]);
    assert_eq!(ran.succeeds(), format!("{FOX}\n"));
    assert!(ran.stderr.starts_with("model: `"), "{ran:?}");
    assert!(ran.stderr.contains("English-only; `stonechat pull base` gets"), "{ran:?}");
    assert!(!ran.stderr.contains("another language"), "{ran:?}");
    assert_eq!(run(&["-l", "en"]).stderr, "");
    run(&["-l", "de-DE"]).fails("the model is English-only");
}

#[test]
fn any_rate_depth_and_channel_count_gives_the_same_text() {
    let test = "any_rate_depth_and_channel_count_gives_the_same_text";
    let Some((model, clip)) = default_model_and_clip(test) else { return };
    let folder = Folder::new("containers");
    let formats = std::path::Path::new(&clip).with_file_name("formats");
    for name in
        ["fox_stereo.mp4", "fox_mulaw.wav", "fox.mp3", "fox.opus", "fox.m4a", "fox_vorbis.mkv"]
    {
        let path = formats.join(name).display().to_string();
        let ran = folder.run(&["transcribe", "-m", &model, &path]);
        assert_eq!(ran.succeeds(), format!("{FOX}\n"), "{name}");
    }
}
