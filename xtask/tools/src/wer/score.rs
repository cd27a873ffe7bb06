//! Counting errors.

use anyhow::Result;
use serde::Serialize;
use strsim::generic_levenshtein;

use super::Transcript;
use super::manifest::{Clip, Metric};
use super::normalize::{Normalize, Unit};

/// Errors and what they are counted against; sums of both make an error rate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Errors {
    /// Substituted, missing and added units.
    pub(crate) errors: usize,
    /// Units of the reference.
    pub(crate) units: usize,
    pub(crate) clips: usize,
}

impl Errors {
    /// Errors per hundred units of the reference; not a number without any.
    pub(crate) fn percent(&self) -> f64 {
        100.0 * self.errors as f64 / self.units as f64
    }
}

impl std::ops::AddAssign for Errors {
    fn add_assign(&mut self, other: Self) {
        self.errors += other.errors;
        self.units += other.units;
        self.clips += other.clips;
    }
}

/// Scores one clip; `None` if it has nothing to be scored against. A clip without speech counts
/// the words of the output, against no units.
pub(super) fn score(
    clip: &Clip,
    transcript: &Transcript,
    normalize: &mut Normalize<'_>,
) -> Result<Option<Errors>> {
    let (Some(metric), Some(reference)) = (clip.metric, clip.reference.as_deref()) else {
        return Ok(None);
    };
    let language = clip.language.as_deref();
    let unit = match metric {
        Metric::Wer | Metric::Insertions => Unit::Word,
        Metric::Cer => Unit::Letter,
    };
    let expected = normalize(reference, language, unit)?;
    let got = normalize(&transcript.text, language, unit)?;
    let errors = generic_levenshtein(&Units(&expected), &Units(&got));
    Ok(Some(Errors { errors, units: expected.len(), clips: 1 }))
}

/// Units that `strsim` iterates over.
struct Units<'a>(&'a [String]);

impl<'a> IntoIterator for &Units<'a> {
    type Item = &'a String;
    type IntoIter = std::slice::Iter<'a, String>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::wer::manifest;

    #[track_caller]
    fn check(fields: &str, text: &str, expected: Option<(usize, usize)>) {
        let line = format!(r#"{{"file": "a.wav", "id": "a", {fields}}}"#);
        let clip = &manifest::parse(&line, Path::new("/")).unwrap()[0];
        let transcript = Transcript { text: text.to_owned(), ..Transcript::default() };
        let scored = score(clip, &transcript, &mut split).unwrap();
        assert_eq!(scored.map(|errors| (errors.errors, errors.units)), expected);
    }

    /// Words or letters in lower case, without punctuation.
    fn split(text: &str, _: Option<&str>, unit: Unit) -> Result<Vec<String>> {
        let text: String = text.to_lowercase();
        let text = text.replace(|c: char| !(c.is_alphanumeric() || c == ' '), "");
        Ok(match unit {
            Unit::Word => text.split_whitespace().map(str::to_owned).collect(),
            Unit::Letter => text.chars().filter(|c| *c != ' ').map(String::from).collect(),
        })
    }

    #[test]
    fn clips_are_scored_by_their_metric() {
        let english = r#""language": "en", "metric": "wer", "reference": "two cats, one dog""#;
        check(english, " Two Cats.", Some((2, 4)));
        check(english, "", Some((4, 4)));
        let chinese = r#""language": "zh", "metric": "cer", "reference": "你好 吗""#;
        check(chinese, "你好嘛!", Some((1, 3)));
        let silence = r#""language": null, "metric": "insertions", "reference": """#;
        check(silence, "Thank you.", Some((2, 0)));
        check(r#""language": null, "metric": null, "reference": null"#, "x", None);
        check(r#""language": "en", "metric": "wer", "reference": null"#, "x", None);
    }
}
