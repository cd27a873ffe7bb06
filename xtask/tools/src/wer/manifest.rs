//! The manifest: what to transcribe and what the right text is.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// Metric of a clip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Metric {
    /// Word error rate.
    Wer,
    /// Letter error rate, for languages written without spaces.
    Cer,
    /// Nothing is said: every word of output is an error.
    Insertions,
}

/// Part of the manifest that a run covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Tier {
    Core,
    Full,
}

/// One recording.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Clip {
    /// Absolute once read.
    pub(crate) file: PathBuf,
    pub(crate) id: String,
    /// ISO 639-1; none for several languages or no speech.
    pub(crate) language: Option<String>,
    /// Reference text; `None` without one.
    pub(crate) reference: Option<String>,
    /// None: run, but not scored.
    pub(crate) metric: Option<Metric>,
    #[serde(default)]
    tier: Option<Tier>,
    #[serde(default)]
    pub(crate) seconds: f64,
    #[serde(default)]
    split: Option<String>,
    /// The language that the engines are told; none: they detect it.
    #[serde(skip)]
    pub(crate) spoken: Option<String>,
}

impl Clip {
    pub(crate) fn is_english_or_no_speech(&self) -> bool {
        match &self.language {
            Some(language) => language == "en",
            None => self.metric == Some(Metric::Insertions),
        }
    }
}

/// Selection of clips.
#[derive(Debug)]
pub(crate) struct Selection<'a> {
    /// Empty: all.
    pub(crate) languages: &'a [String],
    pub(crate) tier: Option<Tier>,
    pub(crate) split: Option<&'a str>,
    pub(crate) id_part: Option<&'a str>,
}

/// Reads a manifest; its files are relative to its folder.
pub(crate) fn read(path: &Path) -> Result<Vec<Clip>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("cannot read the manifest {}", path.display()))?;
    let path = std::path::absolute(path)?;
    let folder = path.parent().unwrap_or(&path);
    parse(&text, folder).with_context(|| format!("manifest {}", path.display()))
}

pub(crate) fn parse(text: &str, folder: &Path) -> Result<Vec<Clip>> {
    let mut clips: Vec<Clip> = Vec::new();
    for (n, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let mut clip: Clip =
            serde_json::from_str(line).with_context(|| format!("line {}", n + 1))?;
        clip.file = folder.join(&clip.file);
        ensure!(
            clips.iter().all(|other| other.id != clip.id),
            "line {}: the id {} is not unique",
            n + 1,
            clip.id
        );
        clips.push(clip);
    }
    Ok(clips)
}

/// The clips that `selection` asks for.
pub(crate) fn select(clips: Vec<Clip>, selection: &Selection<'_>) -> Result<Vec<Clip>> {
    if let Some(split) = selection.split
        && clips.iter().all(|clip| clip.split.is_none())
    {
        bail!(
            "--split {split}: no clip of this manifest has a field `split`; leave the option out"
        );
    }
    let wanted = |clip: &Clip| {
        let language = clip.language.as_deref();
        (selection.languages.is_empty()
            || selection.languages.iter().any(|wanted| Some(wanted.as_str()) == language))
            && selection.tier.is_none_or(|tier| clip.tier == Some(tier))
            && selection.split.is_none_or(|split| clip.split.as_deref() == Some(split))
            && selection.id_part.is_none_or(|part| clip.id.contains(part))
    };
    let selected: Vec<Clip> = clips.into_iter().filter(wanted).collect();
    ensure!(!selected.is_empty(), "no clip of the manifest has what the options ask for");
    Ok(selected)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = concat!(
        r#"{"file": "audio/a.wav", "id": "a", "language": "en", "reference": "hi", "metric": "wer", "tier": "core", "seconds": 1.5, "license": "x"}"#,
        "\n\n",
        r#"{"file": "audio/b.ogg", "id": "b", "language": "zh", "reference": "你", "metric": "cer", "tier": "full"}"#,
    );

    fn select_with(change: impl FnOnce(&mut Selection<'static>)) -> Result<Vec<String>> {
        let clips = parse(LINES, Path::new("/corpus")).unwrap();
        let mut selection = Selection { languages: &[], tier: None, split: None, id_part: None };
        change(&mut selection);
        let selected = select(clips, &selection)?;
        Ok(selected.into_iter().map(|clip| clip.id).collect())
    }

    #[test]
    fn fields_are_read() {
        let clips = parse(LINES, Path::new("/corpus")).unwrap();
        assert_eq!(clips[0].file, Path::new("/corpus/audio/a.wav"));
        assert_eq!((clips[0].metric, clips[1].metric), (Some(Metric::Wer), Some(Metric::Cer)));
        assert!(parse(&LINES.replace("\"b\"", "\"a\""), Path::new("/")).is_err());
        assert!(parse(&LINES.replace("cer", "mer"), Path::new("/")).is_err());
    }

    #[test]
    fn options_select() {
        assert_eq!(select_with(|_| ()).unwrap(), ["a", "b"]);
        assert_eq!(select_with(|s| s.tier = Some(Tier::Core)).unwrap(), ["a"]);
        assert_eq!(select_with(|s| s.id_part = Some("b")).unwrap(), ["b"]);
        let chinese = select_with(|s| s.languages = vec!["zh".to_owned()].leak());
        assert_eq!(chinese.unwrap(), ["b"]);
        assert!(select_with(|s| s.id_part = Some("c")).is_err());
        let error = select_with(|s| s.split = Some("dev")).unwrap_err().to_string();
        assert!(error.contains("no clip of this manifest has a field `split`"), "{error}");
    }
}
