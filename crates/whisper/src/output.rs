//! Transcripts as files (openai/whisper `utils.py`: the `Write*` classes).

use std::io::{self, Write};

use crate::{Segment, Transcript};

/// Formats of a written transcript.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OutputFormat {
    /// A line of text a segment.
    Txt,
    /// SubRip subtitles.
    Srt,
    /// WebVTT subtitles.
    Vtt,
    /// Start and end in milliseconds and text, separated by tabs.
    Tsv,
    /// Everything, with openai-whisper's field names.
    Json,
}

impl OutputFormat {
    /// Every format.
    pub const ALL: [Self; 5] = [Self::Txt, Self::Srt, Self::Vtt, Self::Tsv, Self::Json];

    /// File extension and name, for example `srt`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Txt => "txt",
            Self::Srt => "srt",
            Self::Vtt => "vtt",
            Self::Tsv => "tsv",
            Self::Json => "json",
        }
    }

    /// What comes before the first segment.
    #[must_use]
    pub fn header(self) -> &'static str {
        match self {
            Self::Vtt => "WEBVTT\n\n",
            Self::Tsv => "start\tend\ttext\n",
            Self::Txt | Self::Srt | Self::Json => "",
        }
    }

    /// Writes one segment the moment it is known; JSON has no part for it.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn write_segment(self, out: &mut dyn Write, segment: &Segment) -> io::Result<()> {
        let text = segment.text.trim();
        match self {
            Self::Txt => writeln!(out, "{text}"),
            Self::Srt => {
                let (start, end) = (clock(segment.start, true, ','), clock(segment.end, true, ','));
                let text = text.replace("-->", "->");
                writeln!(out, "{}\n{start} --> {end}\n{text}\n", segment.id + 1)
            }
            Self::Vtt => {
                let (start, end) =
                    (clock(segment.start, false, '.'), clock(segment.end, false, '.'));
                writeln!(out, "{start} --> {end}\n{}\n", text.replace("-->", "->"))
            }
            Self::Tsv => {
                let (start, end) = (milliseconds(segment.start), milliseconds(segment.end));
                writeln!(out, "{start}\t{end}\t{}", text.replace('\t', " "))
            }
            Self::Json => Ok(()),
        }
    }

    /// Writes a whole transcript.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn write(self, out: &mut dyn Write, transcript: &Transcript) -> io::Result<()> {
        if self == Self::Json {
            serde_json::to_writer(&mut *out, transcript)?;
            return writeln!(out);
        }
        out.write_all(self.header().as_bytes())?;
        transcript.segments.iter().try_for_each(|segment| self.write_segment(out, segment))
    }
}

impl std::str::FromStr for OutputFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|f| f.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| format!("expected txt, srt, vtt, tsv or json, got `{name}`"))
    }
}

fn milliseconds(seconds: f64) -> u64 {
    (seconds * 1000.0).round() as u64
}

/// `HH:MM:SS.mmm`; hours are left out when zero unless `hours` asks for them.
fn clock(seconds: f64, hours: bool, point: char) -> String {
    let ms = milliseconds(seconds);
    let (h, m, s, ms) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000);
    if hours || h > 0 {
        format!("{h:02}:{m:02}:{s:02}{point}{ms:03}")
    } else {
        format!("{m:02}:{s:02}{point}{ms:03}")
    }
}

#[cfg(test)]
mod tests {
    use super::{OutputFormat, clock};
    use crate::{Segment, Transcript};

    fn transcript() -> Transcript {
        let segment = |id, start, end, text: &str| Segment {
            id,
            seek: 0,
            start,
            end,
            text: text.to_owned(),
            tokens: vec![50364, 400, 50414],
            temperature: 0.0,
            avg_logprob: -0.25,
            compression_ratio: 1.0,
            no_speech_prob: 0.01,
        };
        let segments =
            vec![segment(0, 0.0, 2.5, " Hello."), segment(1, 3661.04, 3662.0, " a --> b\tc")];
        Transcript { text: " Hello. a --> b\tc".to_owned(), segments, language: "en".to_owned() }
    }

    #[track_caller]
    fn check(format: OutputFormat, expected: &str) {
        let mut out = Vec::new();
        format.write(&mut out, &transcript()).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn text_formats() {
        check(OutputFormat::Txt, "Hello.\na --> b\tc\n");
        check(
            OutputFormat::Tsv,
            "start\tend\ttext\n0\t2500\tHello.\n3661040\t3662000\ta --> b c\n",
        );
        check(
            OutputFormat::Srt,
            "1\n00:00:00,000 --> 00:00:02,500\nHello.\n\n2\n01:01:01,040 --> 01:01:02,000\na -> b\tc\n\n",
        );
        check(
            OutputFormat::Vtt,
            "WEBVTT\n\n00:00.000 --> 00:02.500\nHello.\n\n01:01:01.040 --> 01:01:02.000\na -> b\tc\n\n",
        );
    }

    #[test]
    fn json_has_the_fields_of_openai_whisper() {
        let mut out = Vec::new();
        OutputFormat::Json.write(&mut out, &transcript()).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let keys = |v: &serde_json::Value| {
            let mut keys: Vec<_> = v.as_object().unwrap().keys().cloned().collect();
            keys.sort();
            keys
        };
        assert_eq!(keys(&json), ["language", "segments", "text"]);
        assert_eq!(
            keys(&json["segments"][0]),
            [
                "avg_logprob",
                "compression_ratio",
                "end",
                "id",
                "no_speech_prob",
                "seek",
                "start",
                "temperature",
                "text",
                "tokens"
            ]
        );
    }

    #[test]
    fn clocks_round_to_milliseconds() {
        assert_eq!(clock(59.9996, false, '.'), "01:00.000");
        assert_eq!(clock(0.0, true, ','), "00:00:00,000");
    }
}
