//! Recording to transcribe.

use std::path::{Path, PathBuf};

use stonechat_audio::{decode_bytes, decode_file};
use stonechat_whisper::{Language, Options, Task, VadMode};

use crate::Error;

/// Recording with the options of its transcription.
///
/// ```
/// use stonechat::Recording;
///
/// let recording = Recording::file("talk.mp3").language("de").word_timestamps();
/// let silence = Recording::samples(vec![0.0; 16_000]);
/// ```
#[derive(Debug, Clone)]
pub struct Recording {
    source: Source,
    /// Code or English name.
    language: Option<String>,
    options: Options,
}

#[derive(Debug, Clone)]
enum Source {
    File(PathBuf),
    Bytes(Vec<u8>),
    Samples(Vec<f32>),
}

impl Recording {
    fn new(source: Source) -> Self {
        Self { source, language: None, options: Options::default() }
    }

    /// An audio or video file.
    #[must_use]
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::new(Source::File(path.into()))
    }

    /// The content of an audio or video file.
    #[must_use]
    pub fn bytes(bytes: impl Into<Vec<u8>>) -> Self {
        Self::new(Source::Bytes(bytes.into()))
    }

    /// Samples, 16 kHz mono, -1 to 1.
    #[must_use]
    pub fn samples(samples: impl Into<Vec<f32>>) -> Self {
        Self::new(Source::Samples(samples.into()))
    }

    /// Sets the spoken language: code or English name; `auto` (default) detects it.
    #[must_use]
    pub fn language(mut self, code_or_name: impl Into<String>) -> Self {
        self.language = Some(code_or_name.into());
        self
    }

    /// Translates to English.
    #[must_use]
    pub fn translate(mut self) -> Self {
        self.options.task = Task::Translate;
        self
    }

    /// Finds the times of words.
    #[must_use]
    pub fn word_timestamps(mut self) -> Self {
        self.options.word_timestamps = true;
        self
    }

    /// Sets when voice activity detection removes silence; default never.
    #[must_use]
    pub fn vad(mut self, mode: VadMode) -> Self {
        self.options.vad = mode;
        self
    }

    /// Sets the number of windows decoded in one batch; see [`Options::batch_size`].
    #[must_use]
    pub fn batch_size(mut self, n: usize) -> Self {
        self.options.batch_size = Some(n);
        self
    }

    /// Replaces all options of decoding; a language set with [`language`](Self::language) stays.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Decodes the recording to samples; checks the options.
    pub(crate) fn decode(self) -> Result<(Vec<f32>, Options), Error> {
        let Self { source, language, mut options } = self;
        if let Some(name) = language.filter(|name| name != "auto") {
            let expected = "a code such as `de` or an English name such as `german`";
            let found = Language::find(&name);
            let error = stonechat_whisper::Error::Language { got: name, expected };
            options.language = Some(found.ok_or(error)?);
        }
        options.validate()?;
        let samples = match source {
            Source::File(path) => decode_file(path)?.samples,
            Source::Bytes(bytes) => decode_bytes(bytes)?.samples,
            Source::Samples(samples) => samples,
        };
        Ok((samples, options))
    }
}

impl From<&str> for Recording {
    fn from(path: &str) -> Self {
        Self::file(path)
    }
}

impl From<&String> for Recording {
    fn from(path: &String) -> Self {
        Self::file(path)
    }
}

impl From<String> for Recording {
    fn from(path: String) -> Self {
        Self::file(path)
    }
}

impl From<&Path> for Recording {
    fn from(path: &Path) -> Self {
        Self::file(path)
    }
}

impl From<&PathBuf> for Recording {
    fn from(path: &PathBuf) -> Self {
        Self::file(path)
    }
}

impl From<PathBuf> for Recording {
    fn from(path: PathBuf) -> Self {
        Self::file(path)
    }
}

impl From<&[f32]> for Recording {
    fn from(samples: &[f32]) -> Self {
        Self::samples(samples)
    }
}

impl From<Vec<f32>> for Recording {
    fn from(samples: Vec<f32>) -> Self {
        Self::samples(samples)
    }
}

impl From<&Self> for Recording {
    fn from(recording: &Self) -> Self {
        recording.clone()
    }
}
