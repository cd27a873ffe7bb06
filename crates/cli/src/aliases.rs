//! Aliases of flags that clap cannot declare: those of whisper.cpp's `whisper-cli` and openai-whisper for
//! `transcribe`, and llama.cpp's of several letters after one dash for the verbs of language models.
//!
//! Each argument is looked up in [`ALIASES`] by its flag, with dashes for underscores, and is replaced, ignored
//! with a note, or refused with a hint. Switches that take an optional value are in [`Expanded::push_switch`].

mod serve;

use std::ffi::{OsStr, OsString};
use std::path::Path;

use stonechat::whisper::OutputFormat;

/// Translation of another program's flag.
#[derive(Debug, Clone, Copy)]
enum Alias {
    /// Replaced by these arguments; a value may follow.
    Is(&'static [&'static str]),
    /// Dropped with this number of values, for this reason.
    Ignored(usize, &'static str),
    /// A switch, dropped with its value from [`SWITCH_VALUES`], if there is one, for this reason.
    IgnoredSwitch(&'static str),
    /// A usage error with this hint.
    Refused(&'static str),
}
use Alias::{Ignored, IgnoredSwitch, Is, Refused};

const FUSED: &str = "attention is always fused";
const ONE_PROCESS: &str = "use --jobs for several files, --batch-size for several windows";
const BUILT_IN: &str = "the voice activity detector is built in";
const PLAIN: &str = "text is printed without special tokens and colors";
const SPLIT_ON_WORD: &str = "lines are always split on words";
const PROGRESS: &str = "a terminal has a progress bar anyway";
const OVERLAP: &str = "speech segments are padded instead: use --vad-speech-pad-ms";
const NON_SPEECH: &str = "non-speech tokens are suppressed by default: see --suppress-tokens";
const ENTROPY: &str = "decoder failures are detected by --compression-ratio-threshold";
const WORD_THRESHOLD: &str = "word timestamps have no threshold: use --word-timestamps";
const AUDIO_CTX: &str = "the encoder always runs on the whole 30 s window";
const TDRZ: &str = "use --channels split where each speaker has a channel";
const LANGUAGE: &str = "--output-format json has the detected language";
const KARAOKE: &str = "use --output-format vtt --highlight-words";

/// Hint for users of whisper-cli, whose `-f` is the input.
pub(super) const FORMAT_HINT: &str = "-f is the output format here; inputs are positional";

/// Aliases by flag, with dashes for underscores.
const ALIASES: &[(&str, Alias)] = &[
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
    ("-sow", Ignored(0, SPLIT_ON_WORD)),
    ("--split-on-word", Ignored(0, SPLIT_ON_WORD)),
    ("-p", Ignored(1, ONE_PROCESS)),
    ("--processors", Ignored(1, ONE_PROCESS)),
    ("-pp", Ignored(0, PROGRESS)),
    ("--print-progress", Ignored(0, PROGRESS)),
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
    ("-vo", Ignored(1, OVERLAP)),
    ("--vad-samples-overlap", Ignored(1, OVERLAP)),
    ("-sns", Ignored(0, NON_SPEECH)),
    ("--suppress-nst", Ignored(0, NON_SPEECH)),
    ("-et", Refused(ENTROPY)),
    ("--entropy-thold", Refused(ENTROPY)),
    ("-wt", Refused(WORD_THRESHOLD)),
    ("--word-thold", Refused(WORD_THRESHOLD)),
    ("-ac", Refused(AUDIO_CTX)),
    ("--audio-ctx", Refused(AUDIO_CTX)),
    ("-tdrz", Refused(TDRZ)),
    ("--tinydiarize", Refused(TDRZ)),
    ("-dl", Refused(LANGUAGE)),
    ("--detect-language", Refused(LANGUAGE)),
    ("-owts", Refused(KARAOKE)),
    ("--output-words", Refused(KARAOKE)),
    // openai-whisper
    ("--fp16", Ignored(1, "weights keep the data type of the model file")),
    ("--model-dir", Refused("set STONECHAT_MODELS, or give --model a path")),
    ("--carry-initial-prompt", Refused("--hotwords are in the prompt of every window")),
];

/// Flags of every verb, which have a value.
const GLOBAL_FLAGS: [&str; 4] = ["--models-dir", "--config", "--log", "--log-file"];

/// Verbs of language models.
const LLAMA_VERBS: [&str; 6] = ["run", "generate", "chat", "embed", "perplexity", "bench"];

const BATCH: &str = "--batch-size is the batch of one pass";
const ONE_TEAM: &str = "--threads counts for prompts, too";
const MEMORY_MAP: &str = "weights are repacked once: see --repack";
const ONE_GPU: &str =
    "a model runs on one GPU, or on a GPU and the CPU: see --device and --gpu-layers";
const INTERACTIVE: &str = "chat is interactive, generate is not";
const COLORS: &str = "colors follow the terminal and NO_COLOR";
const WARM_UP: &str = "kernels are warmed up while the model loads";
const PROMPT: &str = "prompts are never printed";
const TIMINGS: &str = "--verbose prints timings";
const SIMPLE_IO: &str = "Alt-Enter, or \\ at the end of a line, continues a message";
const SYSTEM_FILE: &str = "give the text itself: --system-prompt \"$(cat FILE)\"";
const THINKING: &str = "--no-think turns thinking off";
const TEMPLATES: &str = "templates are always Jinja";
const DRAFT_MODEL: &str = "a draft model has the device and the context of the model";

/// Flags of llama.cpp by their names there.
const LLAMA: &[(&str, Alias)] = &[
    ("-ngl", Is(&["--gpu-layers"])),
    ("-ctk", Is(&["--cache-type-k"])),
    ("-ctv", Is(&["--cache-type-v"])),
    ("-sys", Is(&["--system-prompt"])),
    ("-st", Is(&["--single-turn"])),
    ("-hf", Is(&["--model"])),
    ("-hfr", Is(&["--model"])),
    ("--hf-repo", Is(&["--model"])),
    ("-dev", Is(&["--device"])),
    ("--predict", Is(&["--n-predict"])),
    ("-sp", Is(&["--special"])),
    ("-jf", Refused("give the schema itself: --json-schema")),
    ("--json-schema-file", Refused("give the schema itself: --json-schema")),
    ("-bs", Refused("sampling runs on the CPU")),
    ("-fa", IgnoredSwitch(FUSED)),
    ("--flash-attn", IgnoredSwitch(FUSED)),
    ("-ub", Ignored(1, BATCH)),
    ("--ubatch-size", Ignored(1, BATCH)),
    ("-tb", Ignored(1, ONE_TEAM)),
    ("--threads-batch", Ignored(1, ONE_TEAM)),
    ("--mlock", Ignored(0, MEMORY_MAP)),
    ("--mmap", Ignored(0, MEMORY_MAP)),
    ("--no-mmap", Ignored(0, MEMORY_MAP)),
    ("-cnv", Ignored(0, INTERACTIVE)),
    ("--conversation", Ignored(0, INTERACTIVE)),
    ("-no-cnv", Ignored(0, INTERACTIVE)),
    ("--no-conversation", Ignored(0, INTERACTIVE)),
    ("-i", Ignored(0, INTERACTIVE)),
    ("--interactive", Ignored(0, INTERACTIVE)),
    ("-co", IgnoredSwitch(COLORS)),
    ("--color", IgnoredSwitch(COLORS)),
    ("--jinja", Ignored(0, TEMPLATES)),
    ("--chat-template-file", Is(&["--chat-template"])),
    ("-nr", Is(&["--repack=off"])),
    ("--no-repack", Is(&["--repack=off"])),
    ("--no-warmup", Ignored(0, WARM_UP)),
    ("--no-display-prompt", Ignored(0, PROMPT)),
    ("--show-timings", Ignored(0, TIMINGS)),
    ("--no-show-timings", Ignored(0, TIMINGS)),
    ("--simple-io", Ignored(0, SIMPLE_IO)),
    ("-mli", Ignored(0, SIMPLE_IO)),
    ("--multiline-input", Ignored(0, SIMPLE_IO)),
    ("-sysf", Refused(SYSTEM_FILE)),
    ("--system-prompt-file", Refused(SYSTEM_FILE)),
    ("--reasoning", Refused(THINKING)),
    ("-rea", Refused(THINKING)),
    ("--reasoning-budget", Refused(THINKING)),
    ("--list-devices", Refused("see `stonechat devices`")),
    ("-hff", Refused("name the file after the repository: --model user/repo:file.gguf")),
    ("--hf-file", Refused("name the file after the repository: --model user/repo:file.gguf")),
    ("--lora", Refused("adapters are not supported yet")),
    ("--image", Refused("images are not supported yet")),
    ("--mmproj", Refused("images are not supported yet")),
    ("-sm", Refused(ONE_GPU)),
    ("--split-mode", Refused(ONE_GPU)),
    ("-ts", Refused(ONE_GPU)),
    ("--tensor-split", Refused(ONE_GPU)),
    ("--main-gpu", Refused(ONE_GPU)),
    ("--backend-sampling", Refused("sampling runs on the CPU")),
    ("-mg", Refused(ONE_GPU)),
];

/// Flags of speculative decoding of llama.cpp and llama-server.
const DRAFTS: &[(&str, Alias)] = &[
    ("-md", Is(&["--model-draft"])),
    ("--spec-draft-model", Is(&["--model-draft"])),
    ("--draft", Is(&["--spec-draft-n-max"])),
    ("--draft-n", Is(&["--spec-draft-n-max"])),
    ("--draft-n-min", Is(&["--spec-draft-n-min"])),
    ("--spec-default", Is(&["--spec-type=ngram-mod"])),
    ("-ngld", Ignored(1, DRAFT_MODEL)),
    ("--gpu-layers-draft", Ignored(1, DRAFT_MODEL)),
    ("-devd", Ignored(1, DRAFT_MODEL)),
    ("--device-draft", Ignored(1, DRAFT_MODEL)),
    ("-cd", Ignored(1, DRAFT_MODEL)),
    ("--ctx-size-draft", Ignored(1, DRAFT_MODEL)),
    // Measurements of llama.cpp's own tests.
    ("--spec-synth-len", Refused("drafts are never made up")),
    ("--spec-synth-rates", Refused("drafts are never made up")),
];

/// Values of switches of llama.cpp.
const SWITCH_VALUES: [&str; 5] = ["on", "off", "auto", "1", "0"];

/// Values of `--vad`.
const VAD: [&str; 3] = ["on", "off", "auto"];

/// A command line for clap.
#[derive(Debug, Default)]
pub(super) struct Expanded {
    pub(super) args: Vec<OsString>,
    /// One line for each ignored flag.
    pub(super) notes: Vec<String>,
}

/// Flags of other programs that a verb knows.
#[derive(Clone, Copy)]
struct Program {
    tables: &'static [&'static [(&'static str, Alias)]],
    /// Whether those of [`Expanded::push_switch`] are among them.
    has_switches: bool,
}

/// Replaces the aliases of a command line, up to `--`.
///
/// # Errors
/// The hint of a refused flag.
pub(super) fn expand(args: impl Iterator<Item = OsString>) -> Result<Expanded, String> {
    let mut args = args.peekable();
    let mut expanded = Expanded { args: args.by_ref().take(1).collect(), notes: Vec::new() };
    // The flags of every verb may precede it.
    while let Some(flag) = args.next_if(|arg| arg.to_string_lossy().starts_with('-')) {
        let has_value = GLOBAL_FLAGS.iter().any(|name| flag == *name);
        expanded.args.push(flag);
        expanded.args.extend(args.by_ref().take(usize::from(has_value)));
    }
    let verb = args.next();
    expanded.args.extend(verb.clone());
    let program = match verb.as_ref().and_then(|verb| verb.to_str()) {
        Some("transcribe") => Program { tables: &[ALIASES], has_switches: true },
        Some("serve") => Program { tables: &[serve::LLAMA_SERVER, DRAFTS], has_switches: false },
        Some(verb) if LLAMA_VERBS.contains(&verb) => {
            Program { tables: &[LLAMA, DRAFTS], has_switches: false }
        }
        _ => {
            expanded.args.extend(args);
            return Ok(expanded);
        }
    };
    while let Some(arg) = args.next() {
        if arg == "--" {
            expanded.args.push(arg);
            expanded.args.extend(args);
            break;
        }
        let next = args.peek().map(OsString::as_os_str);
        let n_consumed = expanded.push(program, arg, next)?;
        (0..n_consumed).for_each(|_| drop(args.next()));
    }
    Ok(expanded)
}

impl Expanded {
    /// Adds the translation of `arg`, a flag of `program`, and returns the number of arguments consumed after it: `next`
    /// and its followers.
    fn push(
        &mut self,
        program: Program,
        arg: OsString,
        next: Option<&OsStr>,
    ) -> Result<usize, String> {
        let Some(text) = arg.to_str().filter(|text| text.starts_with('-')) else {
            self.args.push(arg);
            return Ok(0);
        };
        let (flag, value) = match text.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (text, None),
        };
        let is_long = flag.starts_with("--");
        let flag = if is_long { flag.replace('_', "-") } else { flag.to_owned() };
        if program.has_switches
            && value.is_none()
            && let Some(takes_next) = self.push_switch(&flag, next)
        {
            return takes_next.map(usize::from);
        }
        let mut aliases = program.tables.iter().copied().flatten();
        let alias = aliases.find(|(name, _)| *name == flag).map(|(_, alias)| alias);
        match (alias, value) {
            (Some(Is(replacement)), value) => {
                self.args.extend(replacement.iter().map(OsString::from));
                self.args.extend(value.map(OsString::from));
                Ok(0)
            }
            (Some(Ignored(n_values, why)), value) => {
                self.notes.push(format!("{flag} is ignored: {why}"));
                // Values of some flags may be left out; a negative number is a value.
                let is_flag = |next: &OsStr| {
                    let rest = next.to_string_lossy();
                    let rest = rest.strip_prefix('-');
                    rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
                };
                let has_value = next.is_some_and(|next| !is_flag(next));
                Ok(if value.is_some() || !has_value { 0 } else { *n_values })
            }
            (Some(IgnoredSwitch(why)), value) => {
                self.notes.push(format!("{flag} is ignored: {why}"));
                let has_value = next.is_some_and(|next| SWITCH_VALUES.iter().any(|v| next == *v));
                Ok(usize::from(value.is_none() && has_value))
            }
            (Some(Refused(hint)), _) => Err(format!("{flag} is not supported: {hint}")),
            (None, Some(value)) if is_long => {
                self.args.push(format!("{flag}={value}").into());
                Ok(0)
            }
            (None, None) if is_long => {
                self.args.push(flag.into());
                Ok(0)
            }
            (None, _) => {
                self.args.push(arg);
                Ok(0)
            }
        }
    }

    /// Adds a flag whose meaning depends on the argument `next`, and tells if that was consumed; `None` for other flags.
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
            // The value names a model's alignment heads, which come with the model file here.
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
                "{flag}: expected 0 (--condition-on-previous-text false) or -1 (the whole text context)"
            ))),
            // whisper-cli's `-f` is the input, openai-whisper's the output format.
            ("-f", Some(value), _) if !is_formats(value) && Path::new(value).exists() => {
                Some(Err(format!("{FORMAT_HINT}: `{value}`")))
            }
            _ => None,
        }
    }
}

/// Tells a list of output formats from a path.
fn is_formats(value: &str) -> bool {
    let mut names = value.split(',').map(str::trim);
    names.all(|name| name == "all" || name.parse::<OutputFormat>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::serve::LLAMA_SERVER;
    use super::{ALIASES, DRAFTS, GLOBAL_FLAGS, LLAMA, expand};

    fn words(args: &str) -> impl Iterator<Item = std::ffi::OsString> {
        args.split(' ').map(Into::into)
    }

    #[track_caller]
    fn check(args: &str, expected: &str) -> Vec<String> {
        let expanded = expand(words(args)).unwrap();
        let got: Vec<_> = expanded.args.iter().map(|arg| arg.to_str().unwrap()).collect();
        assert_eq!(got.join(" "), expected);
        expanded.notes
    }

    #[test]
    fn flags_of_whisper_cli_are_expanded() {
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
            "stonechat transcribe -tr -ml 40 -mc 0 -dtw base --file a.wav -f srt",
            "stonechat transcribe --task=translate --max-line-count=1 --max-line-width 40 \
             --condition-on-previous-text=false --word-timestamps a.wav -f srt",
        );
        check("stonechat transcribe --file a.wav -mc -1", "stonechat transcribe a.wav");
    }

    #[test]
    fn flags_of_llama_cpp_are_expanded() {
        check(
            "stonechat chat -m a.gguf -ngl 20 -ctk f16 -st -sys b",
            "stonechat chat -m a.gguf --gpu-layers 20 --cache-type-k f16 --single-turn --system-prompt b",
        );
        check("stonechat tokenize -ngl", "stonechat tokenize -ngl");
        for verb in ["generate", "serve"] {
            let notes = check(
                &format!("stonechat {verb} -md a.gguf -ngld 9 --draft 4"),
                &format!("stonechat {verb} --model-draft a.gguf --spec-draft-n-max 4"),
            );
            assert_eq!(notes.len(), 1);
        }
    }

    #[test]
    fn flags_of_openai_whisper_are_expanded() {
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
    fn other_flags_are_ignored_with_their_value_or_refused() {
        let notes = check(
            "stonechat transcribe -vm silero.bin -fa -p 4 a.wav",
            "stonechat transcribe a.wav",
        );
        assert_eq!(notes.len(), 3);
        assert_eq!(notes[0], "-vm is ignored: the voice activity detector is built in");
        check("stonechat transcribe --fp16=False a.wav", "stonechat transcribe a.wav");
        for (args, expected) in [
            ("-et 2.8", "--compression-ratio-threshold"),
            ("-mc 64", "expected 0"),
            ("-f Cargo.toml", "-f is the output format here; inputs are positional"),
        ] {
            let error = expand(words(&format!("stonechat transcribe {args}"))).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn flags_of_llama_cpp_are_known() {
        let words = |line: &str| line.split(' ').map(Into::into).collect::<Vec<_>>().into_iter();
        let expanded =
            expand(words("stonechat chat -hf u/r:Q8_0 -ngl 9 -fa on -co -ctv q8_0")).unwrap();
        let expected = "stonechat chat --model u/r:Q8_0 --gpu-layers 9 --cache-type-v q8_0";
        assert!(expanded.args.into_iter().eq(words(expected)));
        assert_eq!(expanded.notes.len(), 2);
        let expanded = expand(words("stonechat generate m -fa -p x")).unwrap();
        assert!(expanded.args.into_iter().eq(words("stonechat generate m -p x")));
        let expanded = expand(words("stonechat generate m -tb -1 -p x")).unwrap();
        assert!(expanded.args.into_iter().eq(words("stonechat generate m -p x")));
        let expanded = expand(words("stonechat --config c --models-dir=d chat m -ngl 9")).unwrap();
        let expected = "stonechat --config c --models-dir=d chat m --gpu-layers 9";
        assert!(expanded.args.into_iter().eq(words(expected)));
        let expanded = expand(words("stonechat chat -co auto m -fa m2 --color off")).unwrap();
        assert!(expanded.args.into_iter().eq(words("stonechat chat m m2")));
        let expanded = expand(words("stonechat --log debug chat m -ngl 9")).unwrap();
        let expected = "stonechat --log debug chat m --gpu-layers 9";
        assert!(expanded.args.into_iter().eq(words(expected)));
        assert!(expand(words("stonechat chat m -sysf f")).unwrap_err().contains("--system-prompt"));
        assert!(expand(words("stonechat run m -ts 1,1")).unwrap_err().contains("one GPU"));
    }

    #[test]
    fn every_flag_before_a_verb_is_known() {
        let command = crate::command();
        let takes_value = |arg: &&clap::Arg| arg.is_global_set() && arg.get_action().takes_values();
        let flags: Vec<_> = command.get_arguments().filter(takes_value).collect();
        let flags: Vec<String> =
            flags.iter().map(|arg| format!("--{}", arg.get_long().unwrap())).collect();
        assert_eq!(flags, GLOBAL_FLAGS);
    }

    #[test]
    fn every_flag_has_one_alias() {
        for aliases in [ALIASES.to_vec(), [LLAMA, DRAFTS].concat(), [LLAMA_SERVER, DRAFTS].concat()]
        {
            for (i, (flag, _)) in aliases.iter().enumerate() {
                assert!(aliases[i + 1..].iter().all(|(other, _)| other != flag), "{flag}");
            }
        }
    }
}
