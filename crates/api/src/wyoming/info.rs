//! The event `info`: programs and their models.

use serde::Serialize;
use stonechat::whisper::LANGUAGES;

/// A speech model of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpeechModel {
    /// Name.
    pub name: String,
    /// Whether it knows other languages than English.
    pub is_multilingual: bool,
}

#[derive(Debug, Serialize)]
struct Attribution {
    name: &'static str,
    url: &'static str,
}

#[derive(Debug, Serialize)]
struct Model<'a> {
    name: &'a str,
    attribution: Attribution,
    installed: bool,
    description: String,
    version: Option<&'static str>,
    languages: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
struct Program<'a> {
    name: &'static str,
    attribution: Attribution,
    installed: bool,
    description: &'static str,
    version: &'static str,
    models: Vec<Model<'a>>,
    supports_transcript_streaming: bool,
    requires_external_vad: bool,
}

/// Programs by their domain; this one has no others.
#[derive(Debug, Serialize)]
pub(super) struct Info<'a> {
    asr: Vec<Program<'a>>,
    tts: [(); 0],
    handle: [(); 0],
    intent: [(); 0],
    wake: [(); 0],
    mic: [(); 0],
    snd: [(); 0],
}

impl<'a> Info<'a> {
    pub(super) fn of(models: &'a [SpeechModel]) -> Self {
        let url = "https://github.com/openai/whisper";
        let model = |SpeechModel { name, is_multilingual }: &'a SpeechModel| {
            let languages = LANGUAGES.iter().map(|language| language.code);
            Model {
                name,
                attribution: Attribution { name: "OpenAI", url },
                installed: true,
                description: format!("Whisper {name}"),
                version: None,
                languages: if *is_multilingual { languages.collect() } else { vec!["en"] },
            }
        };
        let program = (!models.is_empty()).then(|| Program {
            name: "stonechat",
            attribution: Attribution { name: "stonechat", url: env!("CARGO_PKG_REPOSITORY") },
            installed: true,
            description: "Whisper speech recognition",
            version: env!("CARGO_PKG_VERSION"),
            models: models.iter().map(model).collect(),
            supports_transcript_streaming: true,
            // The client sends `audio-stop`.
            requires_external_vad: true,
        });
        Self {
            asr: Vec::from_iter(program),
            tts: [],
            handle: [],
            intent: [],
            wake: [],
            mic: [],
            snd: [],
        }
    }
}
