//! `cargo xtask wer`: word error rate on a manifest of recordings, of stonechat as its users run
//! it and, beside it, of faster-whisper on the same clips.
//!
//! File map (`wer/`): `manifest` the clips; `engine` and `peer` run the two; `normalize` makes
//! texts comparable; `score` counts errors; `report` prints and writes the results; `stream` runs
//! live transcription.

pub(crate) mod engine;
pub(crate) mod manifest;
pub(crate) mod normalize;
pub(crate) mod peer;
pub(crate) mod report;
mod score;
mod stream;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::{models, peers};
use manifest::{Clip, Tier};

/// Options of `cargo xtask wer`.
#[derive(Debug, clap::Args)]
pub(crate) struct WerArgs {
    /// One JSON object a line: file (relative to the manifest), id, language, reference, metric
    #[arg(long, value_name = "FILE")]
    manifest: PathBuf,
    /// A model's file or folder, or its name among the installed models; repeatable
    #[arg(long = "model", value_name = "NAME_OR_PATH", default_values = ["base"])]
    models: Vec<String>,
    /// Only clips of this language (ISO 639-1); repeatable
    #[arg(long = "language-filter", value_name = "LANGUAGE")]
    languages: Vec<String>,
    /// Only clips of this tier
    #[arg(long)]
    tier: Option<Tier>,
    /// Only clips whose field `split` has this value; an error if no clip has the field
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
    /// Only clips whose id contains this text
    #[arg(long = "clip", value_name = "TEXT")]
    clip: Option<String>,
    /// Let the models detect the language instead of telling them
    #[arg(long)]
    auto_language: bool,
    /// Beams of both engines; 1 is greedy
    #[arg(long, value_name = "N", default_value_t = 5)]
    beam_size: usize,
    /// Windows that both engines decode side by side; without it, one after the other
    #[arg(long, value_name = "N")]
    batch_size: Option<usize>,
    /// Whether both engines leave out what is not speech; without it, each does as it does by default
    #[arg(long, value_name = "WHEN")]
    vad: Option<Vad>,
    /// Run this engine on the same clips and compare
    #[arg(long, value_enum)]
    peer: Option<Peer>,
    /// Compare with texts from an earlier run (`--json`, or the peer script's output lines)
    #[arg(long, value_name = "FILE", conflicts_with = "peer")]
    peer_results: Option<PathBuf>,
    /// Run `stonechat listen` too, and compare its final text with that of whole recordings
    #[arg(long, conflicts_with_all = ["peer", "peer_results", "peer_only", "batch_size"])]
    stream: bool,
    /// More options for `stonechat listen`, separated by spaces
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true, requires = "stream")]
    stream_options: Option<String>,
    /// Do not run stonechat
    #[arg(long)]
    peer_only: bool,
    /// Threads of each process
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Number of stonechat processes at a time
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// The stonechat binary; without it, the release build is made first
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Write all texts and scores to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print only the totals, not each clip
    #[arg(long)]
    totals: bool,
    /// More options for `stonechat transcribe`, after `--`
    #[arg(last = true, value_name = "OPTION")]
    engine_options: Vec<String>,
}

/// Engine of `--peer`.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Peer {
    /// In a virtual environment under the target folder: float32, its other defaults
    FasterWhisper,
}

/// Values of `--vad`, as both engines' options have them.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum Vad {
    On,
    Off,
}

/// Transcript of one clip by one engine.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Transcript {
    pub(crate) text: String,
    /// As given or detected.
    pub(crate) language: Option<String>,
    pub(crate) error: Option<String>,
    /// Words with their times, if they were asked for.
    pub(crate) words: Vec<Word>,
}

/// Segment of a transcript, as both engines write it.
#[derive(Debug, Default, Deserialize)]
struct Segment {
    #[serde(default)]
    words: Vec<Word>,
}

/// Word of a transcript and its times in seconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Word {
    pub(crate) word: String,
    pub(crate) start: f64,
    pub(crate) end: f64,
}

/// The value below which the share `q` of the sorted `values` lies; not a number without values.
pub(crate) fn quantile(values: &[f64], q: f64) -> f64 {
    values.get((q * values.len() as f64) as usize).copied().unwrap_or(f64::NAN)
}

/// The words of all segments.
fn words_of(segments: Vec<Segment>) -> Vec<Word> {
    segments.into_iter().flat_map(|segment| segment.words).collect()
}

/// Transcripts by clip id.
pub(crate) type Transcripts = BTreeMap<String, Transcript>;

/// Runs the manifest with each model and reports.
pub(crate) fn run(args: WerArgs) -> Result<()> {
    ensure!(
        !args.peer_only || args.peer.is_some() || args.peer_results.is_some(),
        "--peer-only needs --peer or --peer-results"
    );
    ensure!(args.jobs > 0 && args.threads > 0, "--jobs and --threads: expected at least 1, got 0");
    let clips = manifest::read(&args.manifest)?;
    let selection = manifest::Selection {
        languages: &args.languages,
        tier: args.tier,
        split: args.split.as_deref(),
        id_part: args.clip.as_deref(),
    };
    let clips = manifest::select(clips, &selection)?;
    let binary = if args.peer_only { None } else { Some(engine::binary(args.binary.as_deref())?) };
    let mut engine_options = args.search().options();
    engine_options.extend_from_slice(&args.engine_options);
    let mut normalizer = normalize::Normalizer::start()?;
    let mut results = Vec::new();
    for model in &args.models {
        let clips = for_model(&clips, model, args.auto_language);
        ensure!(!clips.is_empty(), "no clip of the manifest is left for {model}");
        let path = models::locate(model)?;
        println!("{model}: {} clips, {:.0} s of audio", clips.len(), seconds(&clips));
        let ours = match &binary {
            Some(binary) => Some(engine::transcribe(&engine::Run {
                binary,
                model: &path,
                clips: &clips,
                threads: args.threads,
                jobs: args.jobs,
                options: &engine_options,
            })?),
            None => None,
        };
        let peer = match (args.peer, &args.peer_results) {
            (Some(Peer::FasterWhisper), _) => {
                let python = peers::Peer::FasterWhisper.python(&[])?;
                Some(peer::transcribe(&python, &path, &clips, args.threads, args.search())?)
            }
            (None, Some(file)) => Some(peer::read_results(file)?),
            (None, None) => None,
        };
        let (peer, speed) = match &binary {
            Some(binary) if args.stream => {
                let mut options = args.search().options();
                let more = args.stream_options.as_deref().unwrap_or_default();
                options.extend(more.split_whitespace().map(str::to_owned));
                let (transcripts, speed) = stream::transcribe(&engine::Run {
                    binary,
                    model: &path,
                    clips: &clips,
                    threads: args.threads,
                    jobs: 1,
                    options: &options,
                })?;
                (Some(transcripts), Some(speed))
            }
            _ => (peer, None),
        };
        let sides = if args.stream { ["whole", "stream"] } else { ["stonechat", "faster-whisper"] };
        let mut normalize =
            |text: &str, language: Option<&str>, unit| normalizer.units(text, language, unit);
        let sets = (ours.as_ref(), peer.as_ref());
        let scores = report::ModelScores::new(model, &clips, sets.0, sets.1, &mut normalize)?;
        scores.print(!args.totals, sides);
        if let Some(mut speed) = speed {
            println!("{}", speed.report());
        }
        results.push(scores);
    }
    if let Some(file) = &args.json {
        let text = serde_json::to_string_pretty(&results)?;
        std::fs::write(file, text + "\n")
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// Search of both engines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Search {
    pub(crate) beam_size: usize,
    pub(crate) batch_size: Option<usize>,
    pub(crate) vad: Option<Vad>,
    pub(crate) word_timestamps: bool,
}

impl Search {
    /// Options that stonechat and the peer's script both know.
    pub(crate) fn options(self) -> Vec<String> {
        let mut options = vec!["--beam-size".to_owned(), self.beam_size.to_string()];
        if let Some(n) = self.batch_size {
            options.extend(["--batch-size".to_owned(), n.to_string()]);
        }
        if let Some(vad) = self.vad {
            let when = match vad {
                Vad::On => "on",
                Vad::Off => "off",
            };
            options.extend(["--vad", when].map(str::to_owned));
        }
        if self.word_timestamps {
            options.push("--word-timestamps".to_owned());
        }
        options
    }
}

impl WerArgs {
    fn search(&self) -> Search {
        Search {
            beam_size: self.beam_size,
            batch_size: self.batch_size,
            vad: self.vad,
            word_timestamps: false,
        }
    }
}

pub(crate) fn seconds(clips: &[Clip]) -> f64 {
    clips.iter().map(|clip| clip.seconds).sum()
}

/// The clips that a model can do, with the language to tell it. An English-only model (its name
/// ends in `.en`) gets the English clips and those without speech.
pub(crate) fn for_model(clips: &[Clip], model: &str, auto_language: bool) -> Vec<Clip> {
    let english_only = Path::new(model).file_name().is_some_and(|name| {
        name.to_string_lossy()
            .split(['-', '_'])
            .any(|part| part.ends_with(".en") || part.contains(".en."))
    });
    let mut clips: Vec<Clip> = clips
        .iter()
        .filter(|clip| !english_only || clip.is_english_or_no_speech())
        .cloned()
        .collect();
    for clip in &mut clips {
        clip.spoken = match (english_only, auto_language) {
            (true, _) => Some("en".to_owned()),
            (false, true) => None,
            (false, false) => clip.language.clone(),
        };
    }
    clips
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn english_models_get_english_clips() {
        let lines = [
            r#"{"file": "a.wav", "id": "a", "language": "en", "reference": "x", "metric": "wer"}"#,
            r#"{"file": "b.wav", "id": "b", "language": "de", "reference": "x", "metric": "wer"}"#,
            r#"{"file": "c.wav", "id": "c", "language": null, "reference": "", "metric": "insertions"}"#,
            r#"{"file": "d.wav", "id": "d", "language": null, "reference": null, "metric": null}"#,
        ];
        let clips = manifest::parse(&lines.join("\n"), Path::new("/x")).unwrap();
        let ids = |model: &str, auto| {
            let told =
                |clip: &Clip| format!("{}{}", clip.id, clip.spoken.as_deref().unwrap_or("?"));
            for_model(&clips, model, auto).iter().map(told).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(ids("tiny.en", false), "aen cen");
        assert_eq!(ids("/models/ggml-tiny.en-q5_1.bin", true), "aen cen");
        assert_eq!(ids("base", false), "aen bde c? d?");
        assert_eq!(ids("base", true), "a? b? c? d?");
        assert_eq!(ids("/models.en/base", true), "a? b? c? d?");
    }
}
