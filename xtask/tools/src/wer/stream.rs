//! Running `stonechat listen` on the clips, a second of sound at a time and as fast as it goes.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::engine::Run;
use super::manifest::Clip;
use super::{Transcript, Transcripts, quantile};

/// The fields of `-f json` that are looked at.
#[derive(Debug, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event {
    Language { language: String },
    Committed { words: Vec<Word> },
    Partial,
    End,
    Summary { audio_s: f64, compute_s: f64 },
}

#[derive(Debug, Deserialize)]
struct Word {
    word: String,
    latency: f64,
}

/// Latency of the words of all clips, and the work to find them.
#[derive(Debug, Default)]
pub(super) struct Speed {
    latencies: Vec<f64>,
    audio_s: f64,
    compute_s: f64,
}

impl Speed {
    /// One line.
    pub(super) fn report(&mut self) -> String {
        self.latencies.sort_by(f64::total_cmp);
        let n = self.latencies.len();
        let quantile = |q: f64| quantile(&self.latencies, q);
        format!(
            "streaming: {n} committed words, latency {:.2} s (median), {:.2} s (95 %), real-time factor {:.3}",
            quantile(0.5),
            quantile(0.95),
            self.compute_s / self.audio_s,
        )
    }
}

/// Listens to every clip, one at a time: side by side, all would be late. One that fails has an error
/// and the text up to there.
pub(super) fn transcribe(run: &Run<'_>) -> Result<(Transcripts, Speed)> {
    let (mut transcripts, mut speed) = (Transcripts::new(), Speed::default());
    for (n, clip) in run.clips.iter().enumerate() {
        let samples = stonechat_audio::decode_file(&clip.file);
        let transcript = match samples {
            Ok(audio) => listen(run, clip, &audio.samples, &mut speed)?,
            Err(error) => Transcript { error: Some(error.to_string()), ..Transcript::default() },
        };
        transcripts.insert(clip.id.clone(), transcript);
        eprintln!("stonechat listen: {}/{} clips", n + 1, run.clips.len());
    }
    Ok((transcripts, speed))
}

fn listen(run: &Run<'_>, clip: &Clip, samples: &[f32], speed: &mut Speed) -> Result<Transcript> {
    let mut command = Command::new(run.binary);
    command.args(["listen", "-", "--every-chunk", "--format", "f32le"]);
    command.args(["--output-format", "json", "--model"]).arg(run.model);
    command.args(["--threads", &run.threads.to_string()]);
    if let Some(language) = &clip.spoken {
        command.args(["--language", language]);
    }
    command.args(run.options).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child =
        command.spawn().with_context(|| format!("cannot start {}", run.binary.display()))?;
    let mut stdin = child.stdin.take().context("standard input is a pipe")?;
    let bytes: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    // A program that ends early says why itself.
    let writer = std::thread::spawn(move || stdin.write_all(&bytes).is_ok());
    let output = child.wait_with_output()?;
    ensure!(writer.join().is_ok(), "the thread that writes sound failed");
    let mut transcript = read_events(&String::from_utf8_lossy(&output.stdout), speed)
        .with_context(|| format!("what `stonechat listen` made of {}", clip.id))?;
    transcript.language = transcript.language.or_else(|| clip.spoken.clone());
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        transcript.error = Some(stderr.trim().lines().last().unwrap_or_default().to_owned());
    }
    Ok(transcript)
}

/// The committed words of events; adds their latencies to `speed`.
fn read_events(lines: &str, speed: &mut Speed) -> Result<Transcript> {
    let mut transcript = Transcript::default();
    for line in lines.lines() {
        match serde_json::from_str(line).with_context(|| line.to_owned())? {
            Event::Language { language } => transcript.language = Some(language),
            Event::Committed { words } => {
                for Word { word, latency } in words {
                    transcript.text += &word;
                    speed.latencies.push(latency);
                }
            }
            Event::Partial | Event::End => {}
            Event::Summary { audio_s, compute_s } => {
                speed.audio_s += audio_s;
                speed.compute_s += compute_s;
            }
        }
    }
    Ok(transcript)
}

#[cfg(test)]
mod tests {
    use super::{Speed, read_events};

    #[test]
    fn committed_words_are_the_text() {
        let lines = [
            r#"{"at": 1.0, "event": "partial", "text": " so"}"#,
            r#"{"at": 1.0, "event": "language", "language": "en"}"#,
            r#"{"at": 2.0, "event": "committed", "words": [{"word": " So", "start": 0.1, "end": 0.5, "probability": 0.9, "latency": 1.5}]}"#,
            r#"{"at": 3.0, "event": "committed", "words": [{"word": " it", "start": 0.5, "end": 0.5, "probability": 0.9, "latency": 2.5}, {"word": " is.", "start": 0.5, "end": 2.5, "probability": 0.9, "latency": 0.5}]}"#,
            r#"{"at": 3.0, "event": "end", "time": 3.0}"#,
            r#"{"event": "summary", "audio_s": 4.0, "compute_s": 1.0, "n_words": 3}"#,
        ];
        let mut speed = Speed::default();
        let transcript = read_events(&lines.join("\n"), &mut speed).unwrap();
        assert_eq!(transcript.text, " So it is.");
        assert_eq!(transcript.language.as_deref(), Some("en"));
        let report = speed.report();
        assert!(
            report.ends_with(
                "3 committed words, latency 1.50 s (median), 2.50 s (95 %), real-time factor 0.250"
            ),
            "{report}"
        );
        assert!(read_events("{", &mut speed).is_err());
    }
}
