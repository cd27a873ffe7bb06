//! Running stonechat as its users do: the command-line program, many files a process.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::manifest::Clip;
use super::{Segment, Transcript, Transcripts, words_of};
use crate::{in_parallel, shell};

/// Binary, model, clips and options of a run.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub(crate) binary: &'a Path,
    pub(crate) model: &'a Path,
    pub(crate) clips: &'a [Clip],
    pub(crate) threads: usize,
    pub(crate) jobs: usize,
    pub(crate) options: &'a [String],
}

/// The fields of `-f json` that are scored.
#[derive(Deserialize)]
struct Output {
    text: String,
    #[serde(default)]
    language: Option<String>,
    #[serde(default)]
    segments: Vec<Segment>,
}

/// The binary that is given, or the release build, brought up to date.
pub(crate) fn binary(given: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = given {
        ensure!(path.is_file(), "--binary {}: no such file", path.display());
        return Ok(std::path::absolute(path)?);
    }
    shell::run(shell::cargo().args(["build", "--release", "--package", "stonechat-cli"]))?;
    let name = format!("stonechat{}", std::env::consts::EXE_SUFFIX);
    Ok(shell::target_dir().join("release").join(name))
}

/// Transcribes every clip. A clip that fails has an error and no text.
pub(crate) fn transcribe(run: &Run<'_>) -> Result<Transcripts> {
    let folder = shell::target_dir().join(format!("wer-{}", std::process::id()));
    let batches = batches(run.clips);
    let n_done = AtomicUsize::new(0);
    let all = in_parallel(run.jobs, batches.iter().enumerate(), |(n, batch)| {
        let transcripts = transcribe_batch(run, batch, &folder.join(n.to_string()))?;
        let n_before = n_done.fetch_add(transcripts.len(), Ordering::Relaxed);
        eprintln!("stonechat: {}/{} clips", n_before + transcripts.len(), run.clips.len());
        Ok(transcripts)
    });
    // Nothing is lost if this stays behind: it lies under the target folder.
    let _ = fs::remove_dir_all(&folder);
    Ok(all?.into_iter().flatten().collect())
}

/// Clips that one process can do: the same language, and no two whose names differ only in the
/// extension, since both would be written to one file. At most `MAX_BATCH`, so that jobs share
/// the work and progress shows.
fn batches(clips: &[Clip]) -> Vec<Vec<&Clip>> {
    const MAX_BATCH: usize = 16;
    let mut by_language: BTreeMap<Option<&str>, Vec<&Clip>> = BTreeMap::new();
    for clip in clips {
        by_language.entry(clip.spoken.as_deref()).or_default().push(clip);
    }
    let mut batches = Vec::new();
    for clips in by_language.into_values() {
        let mut open: Vec<(BTreeSet<_>, Vec<&Clip>)> = Vec::new();
        for clip in clips {
            let stem = clip.file.file_stem();
            let fits = |(stems, batch): &&mut (BTreeSet<_>, Vec<&Clip>)| {
                batch.len() < MAX_BATCH && !stems.contains(&stem)
            };
            match open.iter_mut().find(fits) {
                Some((stems, batch)) => {
                    stems.insert(stem);
                    batch.push(clip);
                }
                None => open.push((BTreeSet::from([stem]), vec![clip])),
            }
        }
        batches.extend(open.into_iter().map(|(_, batch)| batch));
    }
    batches
}

fn transcribe_batch(run: &Run<'_>, batch: &[&Clip], folder: &Path) -> Result<Transcripts> {
    let error = run_process(run, batch, folder)?;
    let mut transcripts = Transcripts::new();
    for clip in batch {
        let transcript = match read_output(clip, folder) {
            Ok(transcript) => transcript,
            // One bad file must not take the others of its process with it.
            Err(_) if batch.len() > 1 => {
                let alone = folder.join("alone");
                let error = run_process(run, &[clip], &alone)?;
                failed_or(read_output(clip, &alone), error.as_deref())
            }
            failed @ Err(_) => failed_or(failed, error.as_deref()),
        };
        transcripts.insert(clip.id.clone(), transcript);
    }
    Ok(transcripts)
}

fn failed_or(output: Result<Transcript>, stderr: Option<&str>) -> Transcript {
    output.unwrap_or_else(|error| Transcript {
        error: Some(stderr.map_or_else(|| format!("{error:#}"), str::to_owned)),
        ..Transcript::default()
    })
}

/// Runs one process; the last line of its standard error if it failed.
fn run_process(run: &Run<'_>, clips: &[&Clip], folder: &Path) -> Result<Option<String>> {
    fs::create_dir_all(folder)?;
    let mut command = Command::new(run.binary);
    command.args(["transcribe", "--output-format", "json", "--output-dir"]).arg(folder);
    command.arg("--model").arg(run.model).args(["--threads", &run.threads.to_string()]);
    if let Some(language) = clips.first().and_then(|clip| clip.spoken.as_deref()) {
        command.args(["--language", language]);
    }
    command.args(run.options).arg("--").args(clips.iter().map(|clip| &clip.file));
    command.stdin(Stdio::null());
    let output =
        command.output().with_context(|| format!("cannot start {}", run.binary.display()))?;
    if output.status.success() {
        return Ok(None);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let reason = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("");
    Ok(Some(format!("{}: {}", output.status, reason.trim())))
}

fn read_output(clip: &Clip, folder: &Path) -> Result<Transcript> {
    let stem = clip.file.file_stem().context("a clip's file has a name")?;
    let mut name = stem.to_owned();
    name.push(".json");
    let path = folder.join(name);
    let json = fs::read_to_string(&path).with_context(|| format!("no {}", path.display()))?;
    let output: Output =
        serde_json::from_str(&json).with_context(|| format!("{}", path.display()))?;
    let Output { text, language, segments } = output;
    Ok(Transcript { text, language, error: None, words: words_of(segments) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wer::{Word, manifest};

    fn clips(files: &[(&str, &str)]) -> Vec<Clip> {
        let line = |(n, (file, language)): (usize, &(&str, &str))| {
            format!(
                r#"{{"file": "{file}", "id": "{n}", "language": "{language}", "reference": "", "metric": "wer"}}"#
            )
        };
        let lines: Vec<String> = files.iter().enumerate().map(line).collect();
        let mut clips = manifest::parse(&lines.join("\n"), Path::new("/c")).unwrap();
        for clip in &mut clips {
            clip.spoken = clip.language.clone();
        }
        clips
    }

    #[test]
    fn one_process_has_one_language_and_no_two_outputs_of_one_name() {
        let clips = clips(&[
            ("a.wav", "en"),
            ("b.wav", "en"),
            ("a.ogg", "en"),
            ("a.mp3", "de"),
            ("c.wav", "en"),
        ]);
        let ids: Vec<String> = batches(&clips)
            .iter()
            .map(|batch| batch.iter().map(|clip| clip.id.as_str()).collect())
            .collect();
        assert_eq!(ids, ["3", "014", "2"]);
    }

    /// A program that writes a transcript for each file but one, which makes it fail.
    #[cfg(unix)]
    #[test]
    fn a_failing_clip_is_reported_and_spares_the_others() {
        let folder = std::env::temp_dir().join(format!("wer-engine-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let script = folder.join("stonechat");
        let text = r#"#!/bin/sh
while [ "$1" != -- ]; do
    [ "$1" = --output-dir ] && out="$2"
    [ "$1" = --language ] && language="$2"
    shift
done
shift
for file in "$@"; do
    name=$(basename "$file" .wav)
    [ "$name" = bad ] && { echo "cannot read bad.wav" >&2; exit 1; }
    echo "{\"text\": \" This is $name.\", \"language\": \"$language\", \"segments\": [{\"words\":
        [{\"word\": \" This\", \"start\": 0.5, \"end\": 1}]}]}" > "$out/$name.json"
done
"#;
        // Written by another process: were it open for writing here while another test starts a
        // program, that one would hold it open for a moment and it could not be run.
        let mut write = Command::new("sh");
        write.args(["-c", r#"printf %s "$1" > "$0" && chmod +x "$0""#]).arg(&script).arg(text);
        assert!(write.status().unwrap().success());
        let clips = clips(&[("one.wav", "en"), ("bad.wav", "en"), ("two.wav", "en")]);
        let run = Run {
            binary: &script,
            model: Path::new("m"),
            clips: &clips,
            threads: 1,
            jobs: 2,
            options: &[],
        };
        let transcripts = transcribe(&run).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(transcripts["0"].text, " This is one.");
        assert_eq!(transcripts["2"].text, " This is two.");
        let word = Word { word: " This".to_owned(), start: 0.5, end: 1.0 };
        assert_eq!(transcripts["2"].words, [word]);
        assert_eq!(transcripts["2"].language.as_deref(), Some("en"));
        let error = transcripts["1"].error.as_deref().unwrap();
        assert!(error.ends_with("cannot read bad.wav"), "{error}");
    }
}
