//! Results: segments with their words, transcripts, events.

use crate::languages::Language;

/// One segment of text; field names are openai/whisper's. Times are seconds of the recording.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Segment {
    /// Index in the transcript, from 0.
    pub id: usize,
    /// First mel frame (10 ms each) of the window it was decoded from.
    pub seek: usize,
    /// Start, in seconds.
    pub start: f64,
    /// End, in seconds.
    pub end: f64,
    /// Text, with the leading space that separates it from the previous segment.
    pub text: String,
    /// Token ids, timestamp tokens included.
    pub tokens: Vec<u32>,
    /// Text of each token.
    #[serde(skip)]
    pub token_texts: Vec<String>,
    /// Probability of each token, 0 to 1; 1 for tokens of a given prefix.
    #[serde(skip)]
    pub token_probabilities: Vec<f64>,
    /// Start and end of each token in seconds, within its word; empty without word timestamps.
    #[serde(skip)]
    pub token_times: Vec<(f64, f64)>,
    /// Temperature its window was decoded at.
    pub temperature: f32,
    /// Mean log-probability (natural logarithm) of the tokens of its window.
    pub avg_logprob: f64,
    /// Bytes of its window's text over bytes of that text compressed with zlib.
    pub compression_ratio: f64,
    /// Probability of `<|nospeech|>` at the start of its window, 0 to 1.
    pub no_speech_prob: f64,
    /// Words with their times; `None` without word timestamps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub words: Option<Vec<Word>>,
    /// Name of the speaker, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speaker: Option<String>,
}

/// One word with its times; field names are openai/whisper's.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Word {
    /// Text, with its leading space and the punctuation around it.
    pub word: String,
    /// Start, in seconds.
    pub start: f64,
    /// End, in seconds.
    pub end: f64,
    /// Mean probability of its tokens, 0 to 1.
    pub probability: f64,
}

/// Transcript of one recording; field names are openai/whisper's.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Transcript {
    /// Text of all segments.
    pub text: String,
    /// Segments, in order of time.
    pub segments: Vec<Segment>,
    /// Code of the spoken language.
    pub language: String,
    /// Length of the recording in seconds.
    #[serde(skip)]
    pub duration: f64,
    /// Whether the run was cancelled; the segments are then those that were final before.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub cancelled: bool,
    /// Whether a window failed at every temperature.
    #[serde(skip)]
    pub has_failed: bool,
}

/// Event of a running transcription.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// The language was detected; with its probability, 0 to 1.
    Language(Language, f32),
    /// A segment is final.
    Segment(Segment),
    /// Samples done and samples in total.
    Position(usize, usize),
}

impl Transcript {
    /// Merges the transcripts of several speakers, recorded at the same time, by segment start. The
    /// language is that of the transcript with the longest text.
    #[must_use]
    pub fn of_speakers(speakers: Vec<(String, Self)>) -> Self {
        let longest = speakers.iter().rev().max_by_key(|(_, transcript)| transcript.text.len());
        let language = longest.map(|(_, longest)| longest.language.clone()).unwrap_or_default();
        let duration =
            speakers.iter().map(|(_, transcript)| transcript.duration).fold(0.0, f64::max);
        let cancelled = speakers.iter().any(|(_, transcript)| transcript.cancelled);
        let has_failed = speakers.iter().any(|(_, transcript)| transcript.has_failed);
        let mut segments = Vec::new();
        for (speaker, transcript) in speakers {
            segments.extend(transcript.segments.into_iter().map(|mut segment| {
                segment.speaker = Some(speaker.clone());
                segment
            }));
        }
        // A stable sort: segments with equal starts keep the order of the speakers.
        segments.sort_by(|a, b| a.start.total_cmp(&b.start));
        segments.iter_mut().enumerate().for_each(|(id, segment)| segment.id = id);
        let text = segments.iter().map(|segment| segment.text.as_str()).collect();
        Self { text, segments, language, duration, cancelled, has_failed }
    }
}

#[cfg(test)]
mod tests {
    use super::{Segment, Transcript};

    fn transcript(language: &str, segments: &[(f64, &str)]) -> Transcript {
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
            duration: 5.0,
            cancelled: false,
            has_failed: false,
        }
    }

    #[test]
    fn segments_are_merged_by_time_and_keep_their_speaker() {
        let merged = Transcript::of_speakers(vec![
            ("left".to_owned(), transcript("en", &[(0.0, " Hello."), (4.0, " Fine.")])),
            ("right".to_owned(), transcript("de", &[(0.0, " Hallo."), (2.0, " Wie geht es dir?")])),
        ]);
        assert_eq!(merged.text, " Hello. Hallo. Wie geht es dir? Fine.");
        assert_eq!((merged.language.as_str(), merged.duration), ("de", 5.0));
        let segments = merged.segments.iter();
        let got: Vec<_> = segments.map(|s| (s.id, s.speaker.as_deref().unwrap())).collect();
        assert_eq!(got, [(0, "left"), (1, "right"), (2, "right"), (3, "left")]);
        assert!(Transcript::of_speakers(Vec::new()).segments.is_empty());
    }
}
