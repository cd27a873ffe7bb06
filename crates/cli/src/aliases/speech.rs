//! Flags of whisper.cpp's `whisper-cli`, openai-whisper, faster-whisper and whisperx for `transcribe`.

use super::Alias::{Ignored, IgnoredSwitch, Is, Noted, Own, Refused, Switch, Values};
use super::{FALSE, FUSED, TRUE, Table, Value};

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
const LANGUAGE: &str = "the language is printed with the text, and is in --output-format json";
const KARAOKE: &str = "use --output-format vtt --highlight-words";
const WEIGHTS: &str = "weights keep the data type of the model file: see `stonechat quantize`";
const NO_GRAMMAR: &str = "grammars are for language models";
const DOWNLOADS: &str = "a model is downloaded only after a question on a terminal";
const ONE_LANGUAGE: &str = "the language of a recording is detected once";
const SPEAKERS: &str = "speakers are told apart by channel: use --channels split";
const ALIGN: &str = "--word-timestamps has the times of words";
const LIVE: &str = "see `stonechat listen`";

/// Values of `--vad`.
const VAD: &[Value] = &[
    (&["on", "True", "true"], &["--vad=on"]),
    (&["off", "False", "false"], &["--vad=off"]),
    (&["auto"], &["--vad=auto"]),
];

/// Flags of `transcribe`, with dashes for underscores.
pub(super) const WHISPER: Table = &[
    // whisper-cli
    (&["-bs"], Is(&["--beam-size"])),
    (&["-bo"], Is(&["--best-of"])),
    (&["-otxt", "--output-txt"], Is(&["--output-format=txt"])),
    (&["-osrt", "--output-srt"], Is(&["--output-format=srt"])),
    (&["-ovtt", "--output-vtt"], Is(&["--output-format=vtt"])),
    (&["-olrc", "--output-lrc"], Is(&["--output-format=lrc"])),
    (&["-ocsv", "--output-csv"], Is(&["--output-format=csv"])),
    (&["-oj", "--output-json"], Is(&["--output-format=json"])),
    (&["-ojf", "--output-json-full"], Is(&["--word-timestamps", "--output-format=json-full"])),
    (&["-of"], Is(&["--output-file"])),
    (&["-tr", "--translate"], Is(&["--task=translate"])),
    (&["-di", "--diarize"], Noted(&["--channels=split"], SPEAKERS)),
    (&["-ot"], Is(&["--offset-t"])),
    (&["-d"], Is(&["--duration"])),
    (&["-ml", "--max-len"], Is(&["--max-line-count=1", "--max-line-width"])),
    (&["-tp"], Is(&["--temperature"])),
    (&["-tpi", "--temperature-inc"], Is(&["--temperature-increment-on-fallback"])),
    (&["-nf", "--no-fallback"], Is(&["--temperature-increment-on-fallback=none"])),
    (&["-lpt", "--logprob-thold"], Is(&["--logprob-threshold"])),
    (&["-nth", "--no-speech-thold"], Is(&["--no-speech-threshold"])),
    (&["-nt"], Is(&["--no-timestamps"])),
    (&["-np", "--no-prints"], Is(&["--quiet"])),
    (&["--prompt"], Is(&["--initial-prompt"])),
    (&["-ng", "--no-gpu"], Is(&["--device=cpu"])),
    (&["-vt"], Is(&["--vad-threshold"])),
    (&["-vspd", "--vad-min-speech-duration-ms"], Is(&["--vad-min-speech-ms"])),
    (&["-vsd", "--vad-min-silence-duration-ms"], Is(&["--vad-min-silence-ms"])),
    (&["-vmsd", "--vad-max-speech-duration-s"], Is(&["--vad-max-speech-s"])),
    (&["-vp"], Is(&["--vad-speech-pad-ms"])),
    (&["-sow", "--split-on-word"], Ignored(0, SPLIT_ON_WORD)),
    (&["-p", "--processors"], Ignored(1, ONE_PROCESS)),
    (&["-pp"], Ignored(0, PROGRESS)),
    (&["--print-progress"], IgnoredSwitch(PROGRESS)),
    (&["-ps", "--print-special", "-pconf", "--print-confidence"], Ignored(0, PLAIN)),
    (&["-pc", "--print-colors"], IgnoredSwitch(PLAIN)),
    (&["-fa", "--flash-attn", "-nfa", "--no-flash-attn"], Ignored(0, FUSED)),
    (&["-vm", "--vad-model"], Ignored(1, BUILT_IN)),
    (&["-vo", "--vad-samples-overlap"], Ignored(1, OVERLAP)),
    (&["-sns", "--suppress-nst"], Ignored(0, NON_SPEECH)),
    (&["-et", "--entropy-thold"], Ignored(1, ENTROPY)),
    (&["-wt", "--word-thold"], Ignored(1, WORD_THRESHOLD)),
    (&["-ac", "--audio-ctx"], Ignored(1, AUDIO_CTX)),
    (&["-tdrz", "--tinydiarize"], Ignored(0, SPEAKERS)),
    (&["-dl", "--detect-language"], Ignored(0, LANGUAGE)),
    (&["-owts", "--output-words"], Ignored(0, KARAOKE)),
    (&["-debug", "--debug-mode"], Ignored(0, "--log debug prints what is done")),
    (&["-ls", "--log-score"], Ignored(0, "--output-format json has the log probabilities")),
    (&["-su", "--speed-up"], Ignored(0, "recordings keep their speed")),
    (&["-fp", "--font-path"], Ignored(1, KARAOKE)),
    (&["-oved", "--ov-e-device"], Ignored(1, "there is no OpenVINO: see --device")),
    (&["-on", "--offset-n"], Ignored(1, "use --offset-t")),
    (&["--grammar", "--grammar-rule", "--grammar-penalty"], Refused(NO_GRAMMAR)),
    (&["--suppress-regex"], Refused("use --suppress-tokens with the ids of tokens")),
    // openai-whisper, whose switches have a value
    (&["--word-timestamps"], Values(&[(TRUE, &["--word-timestamps"]), (FALSE, &[])], &Own)),
    (&["--highlight-words"], Values(&[(TRUE, &["--highlight-words"]), (FALSE, &[])], &Own)),
    (&["--verbose"], Values(&[(TRUE, &[]), (FALSE, &["--quiet"])], &Own)),
    (
        &["--condition-on-previous-text"],
        Values(
            &[
                (TRUE, &["--condition-on-previous-text=true"]),
                (FALSE, &["--condition-on-previous-text=false"]),
            ],
            &Own,
        ),
    ),
    (
        &["--suppress-blank"],
        Values(&[(TRUE, &["--suppress-blank=true"]), (FALSE, &["--suppress-blank=false"])], &Own),
    ),
    // The switch of whisper-cli and faster-whisper has no value.
    (&["--vad"], Values(VAD, &Is(&["--vad=on"]))),
    (&["--fp16"], IgnoredSwitch(WEIGHTS)),
    (&["--model-dir"], Is(&["--models-dir"])),
    (&["--carry-initial-prompt"], IgnoredSwitch("--hotwords are in the prompt of every window")),
    // faster-whisper, as the flags of whisper-ctranslate2
    (&["--model-directory"], Is(&["--model"])),
    (&["--compute-type", "--quantization"], Ignored(1, WEIGHTS)),
    (&["--vad-filter"], Switch(&["--vad=on"], &["--vad=off"])),
    (&["--without-timestamps"], Switch(&["--no-timestamps"], &[])),
    (&["--local-files-only", "--model-cache-only"], IgnoredSwitch(DOWNLOADS)),
    (&["--cache-directory"], Is(&["--models-dir"])),
    (&["--multilingual"], IgnoredSwitch(ONE_LANGUAGE)),
    (&["--language-detection-threshold"], Ignored(1, ONE_LANGUAGE)),
    (&["--language-detection-segments"], Ignored(1, ONE_LANGUAGE)),
    (&["--pretty-json"], IgnoredSwitch("JSON is on one line")),
    (&["--repetition-penalty"], Ignored(1, "see --no-repeat-ngram-size")),
    (&["--prompt-reset-on-temperature"], Ignored(1, "see --condition-on-previous-text")),
    (&["--chunk-length"], Ignored(1, AUDIO_CTX)),
    (&["--cpu-threads"], Is(&["--threads"])),
    (&["--num-workers"], Is(&["--jobs"])),
    (&["--log-progress"], IgnoredSwitch(PROGRESS)),
    (&["--speaker-name", "--speaker-num"], Ignored(1, SPEAKERS)),
    (&["--live-transcribe", "--live-volume-threshold", "--live-input-device"], Refused(LIVE)),
    (&["--live-input-device-sample-rate"], Refused(LIVE)),
    // whisperx
    (&["--hf-token"], Ignored(1, "the token of private repositories is in HF_TOKEN")),
    (&["--min-speakers", "--max-speakers", "--num-speakers"], Ignored(1, SPEAKERS)),
    (&["--diarize-model", "--diarization-model"], Ignored(1, SPEAKERS)),
    (&["--speaker-embeddings"], Ignored(0, SPEAKERS)),
    (&["--align-model", "--interpolate-method"], Ignored(1, ALIGN)),
    (&["--no-align", "--return-char-alignments"], Ignored(0, ALIGN)),
    (&["--vad-method"], Ignored(1, BUILT_IN)),
    (&["--vad-onset"], Is(&["--vad-threshold"])),
    (&["--vad-offset"], Ignored(1, "see --vad-threshold")),
    (&["--chunk-size"], Ignored(1, AUDIO_CTX)),
    (&["--segment-resolution"], Ignored(1, "see --max-line-width")),
    (&["--suppress-numerals"], Ignored(0, "see --suppress-tokens")),
    (&["--log-level"], Ignored(1, "see --log")),
    (&["--device-index"], Ignored(1, "--device cuda:N names a GPU")),
];
