//! Running faster-whisper on the same clips, from the same model folder.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use super::manifest::Clip;
use super::{Search, Segment, Transcript, Transcripts, words_of};
use crate::shell;

pub(crate) const SCRIPT: &str = "xtask/tools/assets/faster_whisper_wer.py";

/// One line of the script's output.
#[derive(Deserialize)]
struct Line {
    id: String,
    #[serde(default)]
    text: String,
    #[serde(default)]
    language: Option<String>,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    segments: Vec<Segment>,
}

/// The weights in the folder of a model.
pub(crate) fn weights(model: &Path) -> Result<PathBuf> {
    let weights = model.join("model.bin");
    ensure!(
        weights.is_file(),
        "faster-whisper needs a CTranslate2 folder with model.bin, got {}",
        model.display()
    );
    Ok(weights)
}

/// Transcribes every clip with faster-whisper: float32, its defaults otherwise. It opens and decodes
/// the audio itself, as its users have it do.
pub(crate) fn transcribe(
    python: &Path,
    model: &Path,
    clips: &[Clip],
    threads: usize,
    search: Search,
) -> Result<Transcripts> {
    weights(model)?;
    let list = shell::target_dir().join(format!("wer-peer-{}.jsonl", std::process::id()));
    let lines: Vec<String> = clips
        .iter()
        .map(|clip| json!({"id": clip.id, "path": clip.file, "language": clip.spoken}).to_string())
        .collect();
    fs::write(&list, lines.join("\n"))?;
    let mut command = shell::program(python);
    command.arg(SCRIPT).arg("--model").arg(model).args(["--threads", &threads.to_string()]);
    command.args(search.options());
    println!("$ {}", shell::describe(&command));
    command.stdin(fs::File::open(&list)?).stdout(Stdio::piped());
    let mut child = command.spawn().context("cannot start the Python of the environment")?;
    let stdout = child.stdout.take().context("the output is piped")?;
    let mut transcripts = Transcripts::new();
    for line in BufReader::new(stdout).lines() {
        let (id, transcript) = parse_line(serde_json::from_str(&line?)?)?;
        transcripts.insert(id, transcript);
        eprintln!("faster-whisper: {}/{} clips", transcripts.len(), clips.len());
    }
    let status = child.wait()?;
    // The list has served; nothing is lost if it stays behind.
    let _ = fs::remove_file(&list);
    ensure!(status.success(), "faster-whisper failed: {status}");
    Ok(transcripts)
}

/// Texts of an earlier run: the script's lines, or an object or array with clips in it (`--json`
/// of this verb with a peer in it, or an array of the script's lines).
pub(super) fn read_results(file: &Path) -> Result<Transcripts> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let parsed = match serde_json::from_str::<Value>(&text) {
        Ok(value) => clips_of(value),
        Err(_) => text.lines().map(serde_json::from_str).collect::<Result<_, _>>().ok(),
    };
    let Some(values) = parsed else { bail!("{}: expected clips with id and text", file.display()) };
    values
        .into_iter()
        .map(parse_line)
        .collect::<Result<_>>()
        .with_context(|| format!("{}", file.display()))
}

fn clips_of(value: Value) -> Option<Vec<Value>> {
    match value {
        Value::Object(mut object) => match object.remove("clips") {
            Some(Value::Array(clips)) => Some(clips),
            _ => None,
        },
        Value::Array(values) => {
            // An array of results per model, or of clips.
            let nested = values.iter().any(|value| value.get("clips").is_some());
            if nested {
                Some(values.into_iter().filter_map(clips_of).flatten().collect())
            } else {
                Some(values)
            }
        }
        _ => None,
    }
}

fn parse_line(value: Value) -> Result<(String, Transcript)> {
    let mut value = value;
    // A clip of `--json`: the peer's part of it, with the clip's id.
    if let Some(mut peer) = value.get_mut("peer").map(Value::take) {
        peer["id"] = value["id"].take();
        value = peer;
    }
    let line: Line = serde_json::from_value(value).context("a clip's result")?;
    let Line { id, text, language, error, segments } = line;
    Ok((id, Transcript { text, language, error, words: words_of(segments) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_in_every_form() {
        let folder = std::env::temp_dir().join(format!("wer-peer-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("results");
        let check = |text: &str| {
            fs::write(&file, text).unwrap();
            let transcripts = read_results(&file).unwrap();
            let texts: Vec<&str> = transcripts.values().map(|one| one.text.as_str()).collect();
            assert_eq!(texts, ["x", "y"]);
        };
        check("{\"id\": \"a\", \"text\": \"x\"}\n{\"id\": \"b\", \"text\": \"y\"}\n");
        check(r#"[{"id": "a", "text": "x"}, {"id": "b", "text": "y"}]"#);
        check(r#"{"clips": [{"id": "a", "text": "x"}, {"id": "b", "text": "y"}]}"#);
        check(
            r#"[{"clips": [{"id": "a", "peer": {"text": "x"}}, {"id": "b", "peer": {"text": "y"}}]}]"#,
        );
        fs::write(&file, "no results").unwrap();
        assert!(read_results(&file).is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
