//! The results of one model: printed as tables, and as JSON.

use std::collections::BTreeMap;

use anyhow::Result;

use serde::Serialize;

use super::manifest::{Clip, Metric};
use super::normalize::Normalize;
use super::score::{Errors, score};
use super::{Transcript, Transcripts};

/// Scores of every clip with one model, by stonechat and by the peer.
#[derive(Debug, Serialize)]
pub(crate) struct ModelScores {
    model: String,
    /// By group: all, and each language; words and letters apart.
    totals: BTreeMap<String, Pair<Errors>>,
    clips: Vec<ClipScores>,
}

#[derive(Debug, Serialize)]
struct ClipScores {
    id: String,
    language: Option<String>,
    metric: Option<&'static str>,
    reference: Option<String>,
    #[serde(flatten)]
    by: Pair<Scored>,
}

/// Something of each side that ran.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Pair<T> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stonechat: Option<T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<T>,
}

#[derive(Debug, Clone, Serialize)]
struct Scored {
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    language: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<Errors>,
}

impl ModelScores {
    /// Scores what each side made of `clips`. A clip that a side has no transcript of counts as
    /// one with no text: what is not heard is an error.
    pub(crate) fn new(
        model: &str,
        clips: &[Clip],
        stonechat: Option<&Transcripts>,
        peer: Option<&Transcripts>,
        normalize: &mut Normalize<'_>,
    ) -> Result<Self> {
        let mut scored = |clip: &Clip, transcripts: Option<&Transcripts>| {
            let missing =
                Transcript { error: Some("no transcript".to_owned()), ..Transcript::default() };
            let Some(transcripts) = transcripts else { return Ok(None) };
            let transcript = transcripts.get(&clip.id).cloned().unwrap_or(missing);
            let score = score(clip, &transcript, normalize)?;
            let Transcript { text, language, error, words: _ } = transcript;
            anyhow::Ok(Some(Scored { text, language, error, score }))
        };
        let clips: Vec<ClipScores> = clips
            .iter()
            .map(|clip| {
                Ok(ClipScores {
                    id: clip.id.clone(),
                    language: clip.language.clone(),
                    metric: clip.metric.map(metric_name),
                    reference: clip.reference.clone(),
                    by: Pair { stonechat: scored(clip, stonechat)?, peer: scored(clip, peer)? },
                })
            })
            .collect::<Result<_>>()?;
        Ok(Self { model: model.to_owned(), totals: totals(&clips), clips })
    }

    /// Sums over each group, such as `wer all` and `wer de`.
    pub(crate) fn totals(&self) -> &BTreeMap<String, Pair<Errors>> {
        &self.totals
    }

    /// Prints each clip if asked to, then the totals; `names` are those of the two sides.
    pub(crate) fn print(&self, each_clip: bool, names: [&str; 2]) {
        let has = |side: fn(&Pair<Scored>) -> bool| self.clips.iter().any(|clip| side(&clip.by));
        let sides = (has(|by| by.stonechat.is_some()), has(|by| by.peer.is_some()));
        if each_clip {
            println!("\n{}", heading("clip", sides, names));
            for clip in &self.clips {
                self.print_clip(clip, sides);
            }
        }
        println!("\n{}", heading(&format!("model {}", self.model), sides, names));
        for (group, errors) in &self.totals {
            println!("{}", row(group, errors.stonechat, errors.peer, sides));
        }
        self.print_failures(names);
    }

    fn print_clip(&self, clip: &ClipScores, sides: (bool, bool)) {
        let score = |scored: &Option<Scored>| scored.as_ref().and_then(|scored| scored.score);
        let language = clip.language.as_deref().unwrap_or("-");
        let name = format!("{} {language}", clip.id);
        println!("{}", row(&name, score(&clip.by.stonechat), score(&clip.by.peer), sides));
    }

    fn print_failures(&self, names: [&str; 2]) {
        for clip in &self.clips {
            for (side, scored) in names.iter().zip([&clip.by.stonechat, &clip.by.peer]) {
                if let Some(error) = scored.as_ref().and_then(|scored| scored.error.as_deref()) {
                    println!("failed, counted as silence: {side} on {}: {error}", clip.id);
                }
            }
        }
    }
}

fn metric_name(metric: Metric) -> &'static str {
    match metric {
        Metric::Wer => "wer",
        Metric::Cer => "cer",
        Metric::Insertions => "insertions",
    }
}

/// Sums over each language and over all, weighted by length (micro-averages).
fn totals(clips: &[ClipScores]) -> BTreeMap<String, Pair<Errors>> {
    let mut totals: BTreeMap<String, Pair<Errors>> = BTreeMap::new();
    for clip in clips {
        let Some(metric) = clip.metric else { continue };
        let mut groups = vec![format!("{metric} all")];
        groups.extend(clip.language.as_ref().map(|language| format!("{metric} {language}")));
        for group in groups {
            let total = totals.entry(group).or_default();
            add(&mut total.stonechat, &clip.by.stonechat);
            add(&mut total.peer, &clip.by.peer);
        }
    }
    totals.retain(|_, total| total.stonechat.is_some() || total.peer.is_some());
    totals
}

fn add(total: &mut Option<Errors>, scored: &Option<Scored>) {
    if let Some(errors) = scored.as_ref().and_then(|scored| scored.score) {
        *total.get_or_insert_default() += errors;
    }
}

fn heading(first: &str, (stonechat, peer): (bool, bool), names: [&str; 2]) -> String {
    let mut text = format!("{first:<44} {:>5} {:>6}", "clips", "units");
    if stonechat {
        text += &format!(" {:>17}", names[0]);
    }
    if peer {
        text += &format!(" {:>17}", names[1]);
    }
    if stonechat && peer {
        text += &format!(" {:>10}", "difference");
    }
    text
}

/// One line: errors and, where there are units, the rate of each side and their difference.
fn row(name: &str, stonechat: Option<Errors>, peer: Option<Errors>, sides: (bool, bool)) -> String {
    let Some(any) = stonechat.or(peer) else { return format!("{name:<44} not scored") };
    let cell = |errors: Option<Errors>| match errors {
        Some(errors) if errors.units > 0 => {
            format!("{:>8} {:>6.2} %", errors.errors, errors.percent())
        }
        Some(errors) => format!("{:>8} {:>8}", errors.errors, "words"),
        None => format!("{:>17}", "-"),
    };
    let mut text = format!("{name:<44} {:>5} {:>6}", any.clips, any.units);
    if sides.0 {
        text += &format!(" {}", cell(stonechat));
    }
    if sides.1 {
        text += &format!(" {}", cell(peer));
    }
    if let (Some(a), Some(b)) = (stonechat, peer) {
        if any.units > 0 {
            text += &format!(" {:>+10.2}", a.percent() - b.percent());
        } else {
            text += &format!(" {:>+10}", a.errors as i64 - b.errors as i64);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::wer::manifest;

    #[test]
    fn totals_are_weighted_by_length() {
        let lines = [
            r#"{"file": "a", "id": "a", "language": "en", "reference": "a b c d e f g h", "metric": "wer"}"#,
            r#"{"file": "b", "id": "b", "language": "en", "reference": "x y", "metric": "wer"}"#,
            r#"{"file": "c", "id": "c", "language": "de", "reference": "x y", "metric": "wer"}"#,
            r#"{"file": "d", "id": "d", "language": null, "reference": "", "metric": "insertions"}"#,
            r#"{"file": "e", "id": "e", "language": "en", "reference": null, "metric": null}"#,
        ];
        let clips = manifest::parse(&lines.join("\n"), Path::new("/")).unwrap();
        let transcripts = |texts: [&str; 3]| {
            let ids = ["a", "b", "d"].into_iter().zip(texts);
            let one = |text: &str| Transcript { text: text.to_owned(), ..Transcript::default() };
            ids.map(|(id, text)| (id.to_owned(), one(text))).collect::<Transcripts>()
        };
        let ours = transcripts(["a b c d e f g h", "x", ""]);
        let peer = transcripts(["a b c d", "x y", "bye bye"]);
        let mut split = |text: &str, _: Option<&str>, _| {
            Ok(text.split_whitespace().map(str::to_owned).collect())
        };
        let scores = ModelScores::new("m", &clips, Some(&ours), Some(&peer), &mut split).unwrap();
        let of = |group: &str| {
            let total = &scores.totals[group];
            let pair = [total.stonechat, total.peer].map(|side| side.unwrap());
            pair.map(|errors| (errors.errors, errors.units, errors.clips))
        };
        assert_eq!(of("wer en"), [(1, 10, 2), (4, 10, 2)]);
        // Neither side transcribed `c`: its two words are missing.
        assert_eq!(of("wer de"), [(2, 2, 1), (2, 2, 1)]);
        assert_eq!(of("wer all"), [(3, 12, 3), (6, 12, 3)]);
        assert_eq!(of("insertions all"), [(0, 0, 1), (2, 0, 1)]);
        assert_eq!(scores.totals.len(), 4);
        let total = &scores.totals["wer all"];
        let line = row("wer all", total.stonechat, total.peer, (true, true));
        assert!(line.ends_with("3  25.00 %        6  50.00 %     -25.00"), "{line}");
        let words = row("x", scores.totals["insertions all"].stonechat, None, (true, false));
        assert!(words.ends_with("0    words"), "{words}");
    }
}
