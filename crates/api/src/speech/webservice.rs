//! `/asr` and `/detect-language` of whisper-asr-webservice, which Bazarr and other media programs send: parameters in the
//! query, the file in the field `audio_file`.

use serde::Serialize;
use stonechat::Transcript;
use stonechat::whisper::{Language, Options, OutputFormat, Task};

use super::fields::Fields;
use super::values::boolean;
use crate::{ApiError, ApiResult};

/// Formats of the parameter `output`.
const OUTPUTS: [OutputFormat; 5] = [
    OutputFormat::Txt,
    OutputFormat::Vtt,
    OutputFormat::Srt,
    OutputFormat::Tsv,
    OutputFormat::Json,
];

/// Parameters of `/asr`, and of `/detect-language`, which has `encode` alone.
#[derive(Debug, Clone)]
pub struct AsrParameters {
    fields: Fields,
    task: Task,
    output: OutputFormat,
    /// Whether the file has a container; otherwise it is raw PCM.
    encode: bool,
}

impl Default for AsrParameters {
    fn default() -> Self {
        let (task, output) = (Task::Transcribe, OutputFormat::Txt);
        Self { fields: Fields::default(), task, output, encode: true }
    }
}

impl AsrParameters {
    /// Sets a parameter; an empty text leaves it unset. Tells if there is a parameter of this name: others have no effect, such
    /// as the `video_file` of Bazarr.
    ///
    /// # Errors
    /// 400 with the parameter, what was expected and what was found.
    pub fn set(&mut self, name: &str, text: &str) -> ApiResult<bool> {
        if text.is_empty() {
            return Ok(true);
        }
        match name {
            "task" => self.task = task(text)?,
            "output" => self.output = output(text)?,
            "encode" => self.encode = boolean(name, text)?,
            "initial_prompt" => return self.fields.set("prompt", text),
            "model" | "language" | "word_timestamps" | "vad_filter" => {
                return self.fields.set(name, text);
            }
            "diarize" if boolean(name, text)? => {
                let expected = "false: no model here tells speakers apart";
                return Err(ApiError::field(name, expected, format!("`{text}`")));
            }
            "diarize" | "min_speakers" | "max_speakers" => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Name of the model; `None`: the only one.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.fields.model()
    }

    /// Whether the file is raw PCM: 16-bit signed integers, little-endian, 16 kHz, mono.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        !self.encode
    }

    /// Options of the transcription.
    ///
    /// # Errors
    /// 400 with the parameter, what was expected and what was found.
    pub fn options(&self) -> ApiResult<Options> {
        self.fields.options(self.task)
    }

    /// Text of the answer in the format of the request.
    ///
    /// # Errors
    /// 500 if the text cannot be written.
    pub fn write(&self, transcript: &Transcript) -> ApiResult<String> {
        super::answer::write(transcript, self.output)
    }

    /// File name extension of the answer.
    #[must_use]
    pub fn extension(&self) -> &'static str {
        self.output.extension()
    }
}

fn task(text: &str) -> ApiResult<Task> {
    let tasks = [Task::Transcribe, Task::Translate];
    let found = tasks.into_iter().find(|task| task.name() == text);
    found.ok_or_else(|| ApiError::field("task", "transcribe or translate", format!("`{text}`")))
}

fn output(text: &str) -> ApiResult<OutputFormat> {
    let found = OUTPUTS.into_iter().find(|format| format.name() == text);
    let expected = "txt, vtt, srt, tsv or json";
    found.ok_or_else(|| ApiError::field("output", expected, format!("`{text}`")))
}

/// Answer of `/detect-language`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct DetectedLanguage {
    /// English name.
    pub detected_language: &'static str,
    /// Code.
    pub language_code: &'static str,
    /// Probability, 0 to 1.
    pub confidence: f32,
}

impl DetectedLanguage {
    /// A language with its probability.
    #[must_use]
    pub fn new(language: Language, confidence: f32) -> Self {
        Self { detected_language: language.name, language_code: language.code, confidence }
    }
}

#[cfg(test)]
mod tests {
    use stonechat::VadMode;
    use stonechat::whisper::Task;

    use super::AsrParameters;

    #[track_caller]
    fn parameters(given: &[(&str, &str)]) -> AsrParameters {
        let mut parameters = AsrParameters::default();
        for (name, text) in given {
            parameters.set(name, text).unwrap();
        }
        parameters
    }

    #[test]
    fn parameters_are_those_of_bazarr() {
        let bazarr = parameters(&[
            ("task", "translate"),
            ("language", "fr"),
            ("output", "srt"),
            ("encode", "false"),
            ("video_file", "/films/a.mkv"),
        ]);
        assert!(bazarr.is_raw());
        assert_eq!(bazarr.extension(), "srt");
        let options = bazarr.options().unwrap();
        assert_eq!((options.task, options.language.unwrap().code), (Task::Translate, "fr"));
        let mut parameters = AsrParameters::default();
        assert!(!parameters.set("video_file", "a.mkv").unwrap());
        assert!(parameters.set("language", "").unwrap());
    }

    #[test]
    fn parameters_set_the_options() {
        let set = parameters(&[
            ("word_timestamps", "True"),
            ("vad_filter", "true"),
            ("initial_prompt", "Granite."),
            ("diarize", "false"),
        ]);
        let options = set.options().unwrap();
        assert!(options.word_timestamps && !set.is_raw());
        assert_eq!(
            (options.vad, options.initial_prompt.as_deref()),
            (VadMode::On, Some("Granite."))
        );
    }

    #[test]
    fn wrong_parameters_are_named() {
        for (name, text) in [
            ("task", "sing"),
            ("output", "lrc"),
            ("encode", "perhaps"),
            ("diarize", "true"),
            ("word_timestamps", "2"),
        ] {
            let error = AsrParameters::default().set(name, text).unwrap_err();
            assert_eq!((error.status(), error.param()), (400, Some(name)));
        }
        let error = parameters(&[("language", "klingon")]).options().unwrap_err();
        assert_eq!(error.param(), Some("language"));
    }
}
