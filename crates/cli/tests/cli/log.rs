//! `--log`, `--log-file`, `STONECHAT_LOG`.

use crate::run::{Folder, workspace};

#[test]
fn events_go_to_standard_error_or_a_file() {
    let folder = Folder::new("log");
    let voice = workspace().join("test-data/audio/quick_brown_fox.wav");
    let voice = voice.to_str().unwrap();
    let model = workspace().join("test-data/models/tiny.en-q5_1.gguf");
    let transcribe = ["transcribe", voice, "-m", model.to_str().unwrap(), "--device", "cpu", "-q"];
    let quiet = folder.run(&transcribe);
    let text = quiet.succeeds().to_owned();
    assert_eq!(quiet.stderr, "");

    let logged = folder.run(&[&["--log", "debug"], &transcribe[..]].concat());
    assert_eq!(logged.succeeds(), text);
    for expected in [
        " INFO stonechat::device::choose: device cpu\n",
        " INFO stonechat_whisper::model: speech model loaded device=\"cpu ",
        "DEBUG stonechat_whisper::window_decoder: window decoded start_s=0.0 temperature=0.0 tokens=",
    ] {
        assert!(logged.stderr.contains(expected), "{expected}: {logged:?}");
    }
    let filtered =
        folder.run(&[&transcribe[..], &["--log", "stonechat_whisper=info"]].concat()).stderr;
    assert_eq!(filtered.lines().count(), 1, "{filtered}");

    let to_file = folder.run(&[&["--log-file", "run.log"], &transcribe[..]].concat());
    assert_eq!((to_file.succeeds(), to_file.stderr.as_str()), (text.as_str(), ""));
    let log = std::fs::read_to_string(folder.path("run.log")).unwrap();
    assert!(log.contains("speech model loaded") && !log.contains("DEBUG"), "{log}");
}

#[test]
fn a_filter_that_is_none_is_a_usage_error() {
    let folder = Folder::new("log-wrong");
    let ran = folder.run(&["--log", "stonechat=loud", "devices"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.stderr.starts_with("error: --log: expected off, error, warn, "), "{ran:?}");
    let ran = folder.run(&["--log-file", "no/such/folder/log", "devices"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.starts_with("error: cannot write `no/such/folder/log`"), "{ran:?}");
}
