//! Flags of `transcribe` as whisper.cpp's `whisper-cli` and openai-whisper spell them, where clap cannot:
//! several letters after one dash, underscores, switches with and without a value, other names. Those
//! that mean nothing here are ignored with a note or refused with what to use instead. The verbs for language
//! models have llama.cpp's flags anyway, but for several letters after one dash.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use stonechat::whisper::OutputFormat;

/// What a flag means here.
enum Meaning {
    /// The same as these arguments; a value may follow.
    Is(&'static [&'static str]),
    /// Nothing, with so many values, and why.
    Ignored(usize, &'static str),
    /// Nothing that can be done; what to use instead.
    Refused(&'static str),
}
use Meaning::{Ignored, Is, Refused};

const FUSED: &str = "attention is always fused";
const ONE_PROCESS: &str = "use --jobs for several files, --batch-size for windows side by side";
const BUILT_IN: &str = "the voice activity detector is built in";
const PLAIN: &str = "text is printed as it is";

/// By the flag with dashes for underscores.
const MEANINGS: [(&str, Meaning); 81] = [
    // whisper-cli
    ("-bs", Is(&["--beam-size"])),
    ("-bo", Is(&["--best-of"])),
    ("-otxt", Is(&["--output-format=txt"])),
    ("--output-txt", Is(&["--output-format=txt"])),
    ("-osrt", Is(&["--output-format=srt"])),
    ("--output-srt", Is(&["--output-format=srt"])),
    ("-ovtt", Is(&["--output-format=vtt"])),
    ("--output-vtt", Is(&["--output-format=vtt"])),
    ("-olrc", Is(&["--output-format=lrc"])),
    ("--output-lrc", Is(&["--output-format=lrc"])),
    ("-ocsv", Is(&["--output-format=csv"])),
    ("--output-csv", Is(&["--output-format=csv"])),
    ("-oj", Is(&["--output-format=json"])),
    ("--output-json", Is(&["--output-format=json"])),
    ("-ojf", Is(&["--word-timestamps", "--output-format=json-full"])),
    ("--output-json-full", Is(&["--word-timestamps", "--output-format=json-full"])),
    ("-of", Is(&["--output-file"])),
    ("--file", Is(&[])),
    ("-tr", Is(&["--task=translate"])),
    ("--translate", Is(&["--task=translate"])),
    ("-di", Is(&["--channels=split"])),
    ("--diarize", Is(&["--channels=split"])),
    ("-ot", Is(&["--offset-t"])),
    ("-d", Is(&["--duration"])),
    ("-ml", Is(&["--max-line-count=1", "--max-line-width"])),
    ("--max-len", Is(&["--max-line-count=1", "--max-line-width"])),
    ("-tp", Is(&["--temperature"])),
    ("-tpi", Is(&["--temperature-increment-on-fallback"])),
    ("--temperature-inc", Is(&["--temperature-increment-on-fallback"])),
    ("-nf", Is(&["--temperature-increment-on-fallback=none"])),
    ("--no-fallback", Is(&["--temperature-increment-on-fallback=none"])),
    ("-lpt", Is(&["--logprob-threshold"])),
    ("--logprob-thold", Is(&["--logprob-threshold"])),
    ("-nth", Is(&["--no-speech-threshold"])),
    ("--no-speech-thold", Is(&["--no-speech-threshold"])),
    ("-nt", Is(&["--no-timestamps"])),
    ("-np", Is(&["--quiet"])),
    ("--no-prints", Is(&["--quiet"])),
    ("--prompt", Is(&["--initial-prompt"])),
    ("-ng", Is(&["--device=cpu"])),
    ("--no-gpu", Is(&["--device=cpu"])),
    ("-vt", Is(&["--vad-threshold"])),
    ("-vspd", Is(&["--vad-min-speech-ms"])),
    ("--vad-min-speech-duration-ms", Is(&["--vad-min-speech-ms"])),
    ("-vsd", Is(&["--vad-min-silence-ms"])),
    ("--vad-min-silence-duration-ms", Is(&["--vad-min-silence-ms"])),
    ("-vmsd", Is(&["--vad-max-speech-s"])),
    ("--vad-max-speech-duration-s", Is(&["--vad-max-speech-s"])),
    ("-vp", Is(&["--vad-speech-pad-ms"])),
    ("-sow", Ignored(0, "lines are always split at words")),
    ("--split-on-word", Ignored(0, "lines are always split at words")),
    ("-p", Ignored(1, ONE_PROCESS)),
    ("--processors", Ignored(1, ONE_PROCESS)),
    ("-pp", Ignored(0, "a terminal has a progress bar anyway")),
    ("--print-progress", Ignored(0, "a terminal has a progress bar anyway")),
    ("-ps", Ignored(0, PLAIN)),
    ("--print-special", Ignored(0, PLAIN)),
    ("-pc", Ignored(0, PLAIN)),
    ("--print-colors", Ignored(0, PLAIN)),
    ("-fa", Ignored(0, FUSED)),
    ("--flash-attn", Ignored(0, FUSED)),
    ("-nfa", Ignored(0, FUSED)),
    ("--no-flash-attn", Ignored(0, FUSED)),
    ("-vm", Ignored(1, BUILT_IN)),
    ("--vad-model", Ignored(1, BUILT_IN)),
    ("-vo", Ignored(1, "stretches of speech are kept with what is around them")),
    ("--vad-samples-overlap", Ignored(1, "stretches of speech are kept with what is around them")),
    ("-sns", Ignored(0, "symbols that are not speech are suppressed anyway")),
    ("--suppress-nst", Ignored(0, "symbols that are not speech are suppressed anyway")),
    ("-et", Refused("failures are told by compression: use --compression-ratio-threshold")),
    (
        "--entropy-thold",
        Refused("failures are told by compression: use --compression-ratio-threshold"),
    ),
    ("-wt", Refused("word times have no such threshold: use --word-timestamps")),
    ("--word-thold", Refused("word times have no such threshold: use --word-timestamps")),
    ("-ac", Refused("a window is always heard as a whole")),
    ("--audio-ctx", Refused("a window is always heard as a whole")),
    ("-tdrz", Refused("use --channels split where each speaker has a channel")),
    ("--tinydiarize", Refused("use --channels split where each speaker has a channel")),
    ("-owts", Refused("use --output-format vtt --highlight-words")),
    ("--output-words", Refused("use --output-format vtt --highlight-words")),
    // openai-whisper
    ("--fp16", Ignored(1, "weights are used in the type that they are stored in")),
    ("--model-dir", Refused("set STONECHAT_MODELS, or give --model a path")),
];

/// Verbs for language models.
const LLAMA_VERBS: [&str; 4] = ["generate", "chat", "perplexity", "bench"];

/// llama.cpp's flags of several letters after one dash.
const LLAMA: [(&str, &str); 4] = [
    ("-ngl", "--gpu-layers"),
    ("-ctk", "--cache-type-k"),
    ("-sys", "--system-prompt"),
    ("-st", "--single-turn"),
];

/// Values of `--vad`.
const VAD: [&str; 3] = ["on", "off", "auto"];

/// A command line as clap reads it.
#[derive(Debug, Default)]
pub(super) struct Spelled {
    pub(super) args: Vec<OsString>,
    /// What was ignored.
    pub(super) notes: Vec<String>,
}

/// The command line with such flags spelled out; what follows `--` stays.
///
/// # Errors
/// Says what to use instead of a flag that is not known here.
pub(super) fn spelled_out(args: impl Iterator<Item = OsString>) -> Result<Spelled, String> {
    let mut args = args.peekable();
    let mut spelled = Spelled { args: args.by_ref().take(2).collect(), notes: Vec::new() };
    let verb = spelled.args.get(1).and_then(|verb| verb.to_str());
    if verb != Some("transcribe") {
        let is_llama = verb.is_some_and(|verb| LLAMA_VERBS.contains(&verb));
        let meaning = |arg: &OsString| LLAMA.iter().find(|(flag, _)| is_llama && arg == flag);
        spelled.args.extend(args.map(|arg| meaning(&arg).map_or(arg, |(_, flag)| flag.into())));
        return Ok(spelled);
    }
    while let Some(arg) = args.next() {
        if arg == "--" {
            spelled.args.push(arg);
            spelled.args.extend(args);
            break;
        }
        let next = args.peek().map(OsString::as_os_str);
        let (given, values) = spelled.push(arg, next)?;
        if given {
            args.next();
        } else {
            (0..values).for_each(|_| drop(args.next()));
        }
    }
    Ok(spelled)
}

impl Spelled {
    /// Adds an argument that `next` follows; whether that was taken with it, and how many values are
    /// to be dropped otherwise.
    fn push(&mut self, arg: OsString, next: Option<&OsStr>) -> Result<(bool, usize), String> {
        let Some(text) = arg.to_str().filter(|text| text.starts_with('-')) else {
            self.args.push(arg);
            return Ok((false, 0));
        };
        let (flag, value) = match text.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (text, None),
        };
        let is_long = flag.starts_with("--");
        let flag = if is_long { flag.replace('_', "-") } else { flag.to_owned() };
        if value.is_none()
            && let Some(taken) = self.push_switch(&flag, next)
        {
            return taken.map(|taken| (taken, 0));
        }
        let meaning = MEANINGS.iter().find(|(name, _)| *name == flag).map(|(_, meaning)| meaning);
        match (meaning, value) {
            (Some(Is(spelled)), value) => {
                self.args.extend(spelled.iter().map(OsString::from));
                self.args.extend(value.map(OsString::from));
                Ok((false, 0))
            }
            (Some(Ignored(n_values, why)), value) => {
                self.notes.push(format!("{flag} is ignored: {why}"));
                Ok((false, if value.is_some() { 0 } else { *n_values }))
            }
            (Some(Refused(instead)), _) => Err(format!("{flag} is not known here: {instead}")),
            (None, Some(value)) if is_long => {
                self.args.push(format!("{flag}={value}").into());
                Ok((false, 0))
            }
            (None, None) if is_long => {
                self.args.push(flag.into());
                Ok((false, 0))
            }
            (None, _) => {
                self.args.push(arg);
                Ok((false, 0))
            }
        }
    }

    /// Adds a flag whose meaning depends on the argument after it; whether that was taken with it.
    fn push_switch(&mut self, flag: &str, next: Option<&OsStr>) -> Option<Result<bool, String>> {
        let next = next.and_then(OsStr::to_str);
        let is_true = match next {
            Some("True" | "true") => Some(true),
            Some("False" | "false") => Some(false),
            _ => None,
        };
        let mut push = |arg: &str| self.args.push(arg.into());
        match (flag, next, is_true) {
            // whisper-cli's has no value, and neither has faster-whisper's.
            ("--vad", Some(when), _) if VAD.contains(&when) => {
                push(&format!("--vad={when}"));
                Some(Ok(true))
            }
            ("--vad", ..) => {
                push("--vad=on");
                Some(Ok(false))
            }
            // openai-whisper's switches have a value.
            ("--word-timestamps" | "--highlight-words", _, Some(wanted)) => {
                if wanted {
                    push(flag);
                }
                Some(Ok(true))
            }
            ("--verbose", _, Some(wanted)) => {
                if !wanted {
                    push("--quiet");
                }
                Some(Ok(true))
            }
            ("--condition-on-previous-text", _, Some(wanted)) => {
                push(&format!("{flag}={wanted}"));
                Some(Ok(true))
            }
            // The value is the name of a model, which has its heads in its file here.
            ("-dtw" | "--dtw", Some(_), _) => {
                push("--word-timestamps");
                Some(Ok(true))
            }
            ("-mc" | "--max-context", Some("0"), _) => {
                push("--condition-on-previous-text=false");
                Some(Ok(true))
            }
            ("-mc" | "--max-context", Some("-1"), _) => Some(Ok(true)),
            ("-mc" | "--max-context", ..) => Some(Err(format!(
                "{flag}: expected 0 (use --condition-on-previous-text false) or -1, since earlier text is used whole or not at all"
            ))),
            // whisper-cli's input; a format where it is openai-whisper's.
            ("-f", Some(value), _) if is_input(value) => {
                push(value);
                Some(Ok(true))
            }
            _ => None,
        }
    }
}

/// Whether the value of `-f` is a file and no list of formats.
fn is_input(value: &str) -> bool {
    let is_format =
        |name: &str| name.trim() == "all" || name.trim().parse::<OutputFormat>().is_ok();
    !value.split(',').all(is_format)
        && (value == "-" || Path::new(value).exists() || value.contains(['.', '/', '*']))
}

#[cfg(test)]
mod tests {
    use super::{MEANINGS, spelled_out};

    fn words(args: &str) -> impl Iterator<Item = std::ffi::OsString> {
        args.split(' ').map(Into::into)
    }

    #[track_caller]
    fn check(args: &str, expected: &str) -> Vec<String> {
        let spelled = spelled_out(words(args)).unwrap();
        let got: Vec<_> = spelled.args.iter().map(|arg| arg.to_str().unwrap()).collect();
        assert_eq!(got.join(" "), expected);
        spelled.notes
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
        check("stonechat generate -oj -p 3", "stonechat generate -oj -p 3");
        check("stonechat", "stonechat");
        check(
            "stonechat transcribe -tr -ml 40 -mc 0 -dtw base -f a.wav -f srt",
            "stonechat transcribe --task=translate --max-line-count=1 --max-line-width 40 \
             --condition-on-previous-text=false --word-timestamps a.wav -f srt",
        );
        check("stonechat transcribe --file a.wav -mc -1", "stonechat transcribe a.wav");
    }

    #[test]
    fn flags_of_llama_cpp_are_spelled_out() {
        check(
            "stonechat chat -m a.gguf -ngl 20 -ctk f16 -st -sys b",
            "stonechat chat -m a.gguf --gpu-layers 20 --cache-type-k f16 --single-turn --system-prompt b",
        );
        check("stonechat tokenize -ngl", "stonechat tokenize -ngl");
    }

    #[test]
    fn flags_of_openai_whisper_are_spelled_out() {
        check(
            "stonechat transcribe --output_dir a_b --initial_prompt=x_y --word_timestamps True a.wav",
            "stonechat transcribe --output-dir a_b --initial-prompt=x_y --word-timestamps a.wav",
        );
        check(
            "stonechat transcribe --highlight_words False --condition_on_previous_text False --verbose False",
            "stonechat transcribe --condition-on-previous-text=false --quiet",
        );
        check("stonechat transcribe -f all,srt a_b.wav", "stonechat transcribe -f all,srt a_b.wav");
    }

    #[test]
    fn vad_may_stand_alone() {
        check("stonechat transcribe --vad a.wav", "stonechat transcribe --vad=on a.wav");
        check("stonechat transcribe a.wav --vad", "stonechat transcribe a.wav --vad=on");
        check("stonechat transcribe --vad off a.wav", "stonechat transcribe --vad=off a.wav");
        check("stonechat transcribe --vad=auto a.wav", "stonechat transcribe --vad=auto a.wav");
    }

    #[test]
    fn what_means_nothing_is_ignored_with_its_value_or_refused() {
        let notes = check(
            "stonechat transcribe -vm silero.bin -fa -p 4 a.wav",
            "stonechat transcribe a.wav",
        );
        assert_eq!(notes.len(), 3);
        assert_eq!(notes[0], "-vm is ignored: the voice activity detector is built in");
        check("stonechat transcribe --fp16=False a.wav", "stonechat transcribe a.wav");
        for (args, expected) in
            [("-et 2.8", "--compression-ratio-threshold"), ("-mc 64", "expected 0")]
        {
            let error = spelled_out(words(&format!("stonechat transcribe {args}"))).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn every_flag_has_one_meaning() {
        for (i, (flag, _)) in MEANINGS.iter().enumerate() {
            assert!(MEANINGS[i + 1..].iter().all(|(other, _)| other != flag), "{flag}");
        }
    }
}
