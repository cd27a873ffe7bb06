//! What several people said, each by themselves, in the order of time.

use crate::Transcript;

impl Transcript {
    /// One transcript of what each speaker said in the same stretch of time. Its language is that of
    /// whoever said most.
    #[must_use]
    pub fn of_speakers(speakers: Vec<(String, Self)>) -> Self {
        let most = speakers.iter().rev().max_by_key(|(_, said)| said.text.len());
        let language = most.map(|(_, said)| said.language.clone()).unwrap_or_default();
        let cancelled = speakers.iter().any(|(_, said)| said.cancelled);
        let mut segments = Vec::new();
        for (speaker, said) in speakers {
            segments.extend(said.segments.into_iter().map(|mut segment| {
                segment.speaker = Some(speaker.clone());
                segment
            }));
        }
        // A stable sort: who comes first begins first where two begin together.
        segments.sort_by(|a, b| a.start.total_cmp(&b.start));
        segments.iter_mut().enumerate().for_each(|(id, segment)| segment.id = id);
        let text = segments.iter().map(|segment| segment.text.as_str()).collect();
        Self { text, segments, language, cancelled }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Segment, Transcript};

    fn said(language: &str, segments: &[(f64, &str)]) -> Transcript {
        let segment = |&(start, text): &(f64, &str)| Segment {
            start,
            end: start + 1.0,
            text: text.to_owned(),
            ..Segment::default()
        };
        Transcript {
            text: segments.iter().map(|(_, text)| *text).collect(),
            segments: segments.iter().map(segment).collect(),
            language: language.to_owned(),
            cancelled: false,
        }
    }

    #[test]
    fn segments_are_merged_by_time_and_keep_their_speaker() {
        let merged = Transcript::of_speakers(vec![
            ("left".to_owned(), said("en", &[(0.0, " Hello."), (4.0, " Fine.")])),
            ("right".to_owned(), said("de", &[(0.0, " Hallo."), (2.0, " Wie geht es dir?")])),
        ]);
        assert_eq!(merged.text, " Hello. Hallo. Wie geht es dir? Fine.");
        assert_eq!(merged.language, "de");
        let segments = merged.segments.iter();
        let got: Vec<_> = segments.map(|s| (s.id, s.speaker.as_deref().unwrap())).collect();
        assert_eq!(got, [(0, "left"), (1, "right"), (2, "right"), (3, "left")]);
        assert!(Transcript::of_speakers(Vec::new()).segments.is_empty());
    }
}
