//! Flags that clap cannot spell: those of whisper.cpp's `whisper-cli` with several letters after one
//! dash, and its `--vad` without a value.

use std::ffi::{OsStr, OsString};

/// Flags of `transcribe` and what they mean here.
const TRANSCRIBE: [(&str, &str); 14] = [
    ("-bs", "--beam-size"),
    ("-bo", "--best-of"),
    ("-otxt", "--output-format=txt"),
    ("-osrt", "--output-format=srt"),
    ("-ovtt", "--output-format=vtt"),
    ("-olrc", "--output-format=lrc"),
    ("-ocsv", "--output-format=csv"),
    ("-oj", "--output-format=json"),
    ("-ojf", "--output-format=json-full"),
    ("-vt", "--vad-threshold"),
    ("-vspd", "--vad-min-speech-ms"),
    ("-vsd", "--vad-min-silence-ms"),
    ("-vmsd", "--vad-max-speech-s"),
    ("-vp", "--vad-speech-pad-ms"),
];

/// Values of `--vad`.
const VAD: [&str; 3] = ["on", "off", "auto"];

/// The command line with such flags spelled out; what follows `--` stays.
pub(super) fn spelled_out(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.collect();
    if args.get(1).is_none_or(|verb| verb != "transcribe") {
        return args;
    }
    let end = args.iter().position(|arg| arg == "--").unwrap_or(args.len());
    for i in 2..end {
        let is_value = |next: &OsString| VAD.iter().any(|value| next == value);
        if args[i] == "--vad" && !args.get(i + 1).is_some_and(is_value) {
            args[i] = "--vad=on".into();
        }
        let alias = TRANSCRIBE.iter().find(|(flag, _)| args[i] == OsStr::new(flag));
        if let Some((_, meaning)) = alias {
            args[i] = meaning.into();
        }
    }
    args
}

#[cfg(test)]
mod tests {
    use super::spelled_out;

    #[track_caller]
    fn check(args: &str, expected: &str) {
        let spelled = spelled_out(args.split(' ').map(Into::into));
        let spelled: Vec<_> = spelled.iter().map(|arg| arg.to_str().unwrap()).collect();
        assert_eq!(spelled.join(" "), expected);
    }

    #[test]
    fn flags_of_whisper_cli_are_spelled_out() {
        check(
            "stonechat transcribe a.wav -osrt -oj",
            "stonechat transcribe a.wav --output-format=srt --output-format=json",
        );
        check(
            "stonechat transcribe -vt 0.6 -vspd 9 a.wav",
            "stonechat transcribe --vad-threshold 0.6 --vad-min-speech-ms 9 a.wav",
        );
        check("stonechat transcribe -o srt -v", "stonechat transcribe -o srt -v");
        check("stonechat transcribe -- -osrt --vad", "stonechat transcribe -- -osrt --vad");
        check("stonechat generate -oj", "stonechat generate -oj");
        check("stonechat", "stonechat");
    }

    #[test]
    fn vad_may_stand_alone() {
        check("stonechat transcribe --vad a.wav", "stonechat transcribe --vad=on a.wav");
        check("stonechat transcribe a.wav --vad", "stonechat transcribe a.wav --vad=on");
        check("stonechat transcribe --vad off a.wav", "stonechat transcribe --vad off a.wav");
    }
}
