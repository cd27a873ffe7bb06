//! Counting errors.

use serde::Serialize;
use stonechat_text::prefix_distances;

use super::Transcript;
use super::manifest::{Clip, Metric};
use super::normalize::{Unit, units};

/// Errors and what they are counted against; sums of both make an error rate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Errors {
    /// Substituted, missing and added units.
    pub(super) errors: usize,
    /// Units of the reference.
    pub(super) units: usize,
    pub(super) clips: usize,
}

impl Errors {
    /// Errors per hundred units of the reference; not a number without any.
    pub(super) fn percent(&self) -> f64 {
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
pub(super) fn score(clip: &Clip, transcript: &Transcript) -> Option<Errors> {
    let language = clip.language.as_deref();
    let unit = match clip.metric? {
        Metric::Wer | Metric::Insertions => Unit::Word,
        Metric::Cer => Unit::Letter,
    };
    let expected = units(clip.reference.as_deref()?, language, unit);
    let got = units(&transcript.text, language, unit);
    let errors = prefix_distances(&expected, &got).last().copied().unwrap_or(0);
    Some(Errors { errors, units: expected.len(), clips: 1 })
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
        let scored = score(clip, &Transcript { text: text.to_owned(), ..Transcript::default() });
        assert_eq!(scored.map(|errors| (errors.errors, errors.units)), expected);
    }

    #[test]
    fn clips_are_scored_by_their_metric() {
        let english = r#""language": "en", "metric": "wer", "reference": "twenty two cats, um""#;
        check(english, " 22 Cats.", Some((0, 2)));
        check(english, "", Some((2, 2)));
        let chinese = r#""language": "zh", "metric": "cer", "reference": "你好 吗""#;
        check(chinese, "你好嘛!", Some((1, 3)));
        let silence = r#""language": null, "metric": "insertions", "reference": """#;
        check(silence, "Thank you.", Some((2, 0)));
        check(silence, "[Music]", Some((0, 0)));
        check(r#""language": null, "metric": null, "reference": null"#, "x", None);
        check(r#""language": "en", "metric": "wer", "reference": null"#, "x", None);
    }
}
