//! A speech model beside faster-whisper: errors and word times on the same clips.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, ensure};
use stonechat::Device;
use stonechat_formats::ModelFile;
use xtask::exactness::{ErrorCounts, SpeechRow, Subject};

use super::{ExactnessArgs, Key, describe, open, peer_results, words};
use crate::wer::manifest::Clip;
use crate::wer::normalize::Normalizer;
use crate::wer::report::ModelScores;
use crate::wer::{Search, Transcripts, engine, for_model, peer, seconds};

/// faster-whisper's transcripts of the clips.
pub(super) struct Reference {
    clips: Vec<Clip>,
    transcripts: Transcripts,
}

/// The clips that the model `name` can transcribe, at most `limit` of them, evenly spaced.
pub(super) fn clips(all: Vec<Clip>, name: &str, limit: Option<usize>) -> Vec<Clip> {
    let clips = for_model(&all, name, false);
    let n = limit.unwrap_or(clips.len()).min(clips.len());
    (0..n).map(|i| clips[i * clips.len() / n].clone()).collect()
}

impl Reference {
    /// Runs faster-whisper in `python` on the CTranslate2 folder `model`.
    pub(super) fn run(
        (python, version): (&Path, &str),
        model: &Path,
        clips: Vec<Clip>,
        args: &ExactnessArgs,
    ) -> Result<Self> {
        ensure!(!clips.is_empty(), "no clip of the manifest is left");
        let ids: Vec<&str> = clips.iter().map(|clip| clip.id.as_str()).collect();
        let options = format!("{:?} {}", search(args), ids.join(" "));
        let files = [peer::SCRIPT.as_ref(), &*peer::weights(model)?];
        let key = Key { version, files: &files, options };
        let transcripts = peer_results(&key, || {
            peer::transcribe(python, model, &clips, args.threads, search(args))
        })?;
        Ok(Self { clips, transcripts })
    }
}

fn search(args: &ExactnessArgs) -> Search {
    Search { beam_size: args.beam_size, batch_size: None, vad: None, word_timestamps: true }
}

/// Transcribes the clips with the program and model of `engine` on `device`.
pub(super) fn measure(
    device: Device,
    (binary, model): (&Path, &Path),
    subject: Subject,
    reference: &Reference,
    args: &ExactnessArgs,
) -> Result<SpeechRow> {
    let devices = open(device, &ModelFile::open(model)?, args.threads)?;
    let subject = Subject { device: describe(&devices), ..subject };
    drop(devices);
    println!("{} {} on {}", subject.model, subject.weights, subject.device);
    let Reference { clips, transcripts } = reference;
    let mut options = search(args).options();
    options.extend(["--device".to_owned(), device.to_string()]);
    let threads = args.threads;
    let run = engine::Run { binary, model, clips, threads, jobs: 1, options: &options };
    let own = engine::transcribe(&run)?;
    let failures = clips.iter().filter_map(|clip| failure(clip, &own, transcripts));
    let failed: Vec<String> = failures.collect();
    failed.iter().for_each(|line| println!("skipped: {line}"));
    let is_compared = |clip: &&Clip| failure(clip, &own, transcripts).is_none();
    let clips: Vec<Clip> = clips.iter().filter(is_compared).cloned().collect();
    ensure!(!clips.is_empty(), "no clip is left that both engines transcribed");
    let mut normalizer = Normalizer::start()?;
    let mut normalize =
        |text: &str, language: Option<&str>, unit| normalizer.units(text, language, unit);
    let scores =
        ModelScores::new(&subject.model, &clips, Some(&own), Some(transcripts), &mut normalize)?;
    scores.print(false, ["stonechat", "faster-whisper"]);
    let edges = own.iter().flat_map(|(id, transcript)| {
        let peer = transcripts.get(id).map_or(&[][..], |transcript| &transcript.words);
        words::edge_differences(&transcript.words, peer)
    });
    Ok(SpeechRow {
        subject,
        beam_size: args.beam_size,
        n_clips: clips.len(),
        seconds: seconds(&clips),
        failed,
        errors: errors(&scores),
        words: words::times(edges.collect()),
    })
}

/// Reason why a clip cannot be compared, if any: an engine failed on it, or has no transcript of it.
fn failure(clip: &Clip, own: &Transcripts, peer: &Transcripts) -> Option<String> {
    // The place of the corpus is no part of a saved run.
    let (place, name) =
        (clip.file.to_string_lossy(), clip.file.file_name().unwrap_or_default().to_string_lossy());
    [("stonechat", own), ("faster-whisper", peer)].into_iter().find_map(|(engine, transcripts)| {
        let error = match transcripts.get(&clip.id) {
            Some(transcript) => transcript.error.as_deref()?,
            None => "no transcript",
        };
        Some(format!("{}: {engine}: {}", clip.id, error.replace(&*place, &name)))
    })
}

/// Errors of both engines by metric and language.
fn errors(scores: &ModelScores) -> BTreeMap<String, ErrorCounts> {
    let counts = scores.totals().iter().filter_map(|(group, total)| {
        let (own, peer) = (total.stonechat?, total.peer?);
        let counts = ErrorCounts { units: own.units, own: own.errors, peer: peer.errors };
        Some((group.clone(), counts))
    });
    counts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wer::{Transcript, manifest};

    #[test]
    fn a_clip_is_compared_if_both_engines_transcribed_it() {
        let transcripts = |errors: &[(&str, Option<&str>)]| {
            let one = |&(id, error): &(&str, Option<&str>)| {
                let error = error.map(str::to_owned);
                (id.to_owned(), Transcript { error, ..Transcript::default() })
            };
            errors.iter().map(one).collect::<Transcripts>()
        };
        let own = transcripts(&[("a", None), ("b", Some("/c/b.wma: no WMA")), ("c", None)]);
        let peer = transcripts(&[("a", None), ("b", None)]);
        let of = |id: &str| {
            let line = format!(r#"{{"file": "{id}.wma", "id": "{id}", "language": "en"}}"#);
            failure(&manifest::parse(&line, Path::new("/c")).unwrap()[0], &own, &peer)
        };
        assert_eq!(of("a"), None);
        assert_eq!(of("b").as_deref(), Some("b: stonechat: b.wma: no WMA"));
        assert_eq!(of("c").as_deref(), Some("c: faster-whisper: no transcript"));
    }

    #[test]
    fn clips_are_spread_over_those_of_the_model() {
        let line = |(n, language): (usize, &str)| {
            format!(
                r#"{{"file": "{n}.wav", "id": "{n}", "language": "{language}", "reference": "", "metric": "wer"}}"#
            )
        };
        let languages = ["en", "de", "en", "en", "de", "en"];
        let lines: Vec<String> = languages.into_iter().enumerate().map(line).collect();
        let ids = |name: &str, limit| {
            let all = manifest::parse(&lines.join("\n"), Path::new("/c")).unwrap();
            clips(all, name, limit).iter().map(|clip| clip.id.clone()).collect::<String>()
        };
        assert_eq!(ids("base", None), "012345");
        assert_eq!(ids("base", Some(3)), "024");
        assert_eq!(ids("tiny.en", Some(2)), "03");
        assert_eq!(ids("tiny.en", Some(9)), "0235");
    }
}
