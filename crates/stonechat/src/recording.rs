//! Recording to transcribe.

use std::path::{Path, PathBuf};

use stonechat_audio::{Audio, Decoder};
use stonechat_whisper::{CancelToken, Language, Options, Samples, Task, VadMode};

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
    cancel: CancelToken,
    max_bytes: Option<u64>,
    max_seconds: Option<u64>,
}

#[derive(Debug, Clone)]
enum Source {
    File(PathBuf),
    Bytes(Vec<u8>),
    Samples(Samples<'static>),
}

impl Recording {
    fn new(source: Source) -> Self {
        Self {
            source,
            language: None,
            options: Options::default(),
            cancel: CancelToken::new(),
            max_bytes: None,
            max_seconds: None,
        }
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

    /// Samples, 16 kHz mono, -1 to 1; those of a stream come from [`Decoder::reader`](stonechat_audio::Decoder::reader).
    #[must_use]
    pub fn samples(samples: impl Into<Vec<f32>>) -> Self {
        Self::from(Samples::from(samples.into()))
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

    /// Sets when voice activity detection removes silence; default [`VadMode::Auto`].
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

    /// Sets a token that cancels this recording; several recordings may share it. Each job also has a token of its own.
    #[must_use]
    pub fn cancelled_by(mut self, token: &CancelToken) -> Self {
        self.cancel = token.clone();
        self
    }

    /// Sets the most bytes of encoded audio.
    #[must_use]
    pub fn max_bytes(mut self, n: u64) -> Self {
        self.max_bytes = Some(n);
        self
    }

    /// Sets the most seconds of audio; default 24 hours, unless it is given as samples.
    #[must_use]
    pub fn max_seconds(mut self, n: u64) -> Self {
        self.max_seconds = Some(n);
        self
    }

    /// The token of [`cancelled_by`](Self::cancelled_by), else one that is never cancelled.
    pub(crate) fn cancel_token(&self) -> &CancelToken {
        &self.cancel
    }

    /// Decodes the recording to samples; checks the options.
    pub(crate) fn decode(
        self,
        is_cancelled: impl Fn() -> bool,
    ) -> Result<(Samples<'static>, Options), Error> {
        let Self { source, language, mut options, max_bytes, max_seconds, .. } = self;
        if let Some(name) = language.filter(|name| name != "auto") {
            let expected = "a code such as `de` or an English name such as `german`";
            let found = Language::find(&name);
            let error = stonechat_whisper::Error::Language { got: name, expected };
            options.language = Some(found.ok_or(error)?);
        }
        options.validate()?;
        let mut decoder = Decoder::new().cancelled_by(is_cancelled);
        if let Some(n) = max_bytes {
            decoder = decoder.max_bytes(n);
        }
        if let Some(n) = max_seconds {
            decoder = decoder.max_seconds(n);
        }
        let samples = match source {
            Source::File(path) => decode_file(decoder, path)?.samples.into(),
            Source::Bytes(bytes) => decoder.bytes(bytes)?.samples.into(),
            Source::Samples(samples) => {
                let duration = samples.duration();
                if let Some(max_s) = max_seconds.filter(|&max_s| duration > max_s as f64) {
                    return Err(stonechat_audio::Error::TooLong { max_s }.into());
                }
                samples
            }
        };
        Ok((samples, options))
    }
}

#[cfg(not(target_arch = "wasm32"))]
fn decode_file(decoder: Decoder<'_>, path: PathBuf) -> Result<Audio, stonechat_audio::Error> {
    decoder.file(path)
}

/// A browser has no files.
#[cfg(target_arch = "wasm32")]
fn decode_file(_: Decoder<'_>, path: PathBuf) -> Result<Audio, stonechat_audio::Error> {
    let (path, source) = (path.display().to_string(), std::io::ErrorKind::Unsupported.into());
    Err(stonechat_audio::Error::Open { path, source })
}

/// Conversions of sources by the constructors of a recording.
macro_rules! from_sources {
    ($($source:ty => $new:ident),+ $(,)?) => {
        $(impl From<$source> for Recording {
            fn from(source: $source) -> Self {
                Self::$new(source)
            }
        })+
    };
}

from_sources! {
    &str => file,
    &String => file,
    String => file,
    &Path => file,
    &PathBuf => file,
    PathBuf => file,
    &[f32] => samples,
    Vec<f32> => samples,
}

impl From<Samples<'static>> for Recording {
    fn from(samples: Samples<'static>) -> Self {
        Self::new(Source::Samples(samples))
    }
}

impl From<&Self> for Recording {
    fn from(recording: &Self) -> Self {
        recording.clone()
    }
}
