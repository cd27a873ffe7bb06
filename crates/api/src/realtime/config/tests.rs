use serde_json::{Value, json};

use super::{Config, InputFormat, SessionUpdate};
use crate::ApiResult;

fn updated(config: &Config, session: Value) -> ApiResult<Config> {
    config.updated(serde_json::from_value::<SessionUpdate>(session).unwrap())
}

#[test]
fn names_of_ga_and_of_the_beta_set_the_same() {
    let ga = json!({"type": "transcription", "audio": {"input": {
        "format": {"type": "audio/pcmu"},
        "transcription": {"model": "base", "language": "de", "prompt": "Granit.", "keywords": ["Gneis"]},
        "turn_detection": {"type": "server_vad", "threshold": 0.25, "prefix_padding_ms": 100, "silence_duration_ms": 900},
        "noise_reduction": {"type": "near_field"},
    }}, "include": [super::LOGPROBS]});
    let beta = json!({
        "input_audio_format": "g711_ulaw",
        "input_audio_transcription": {"model": "base", "language": "de", "prompt": "Granit.", "keywords": ["Gneis"]},
        "turn_detection": {"type": "server_vad", "threshold": 0.25, "prefix_padding_ms": 100, "silence_duration_ms": 900},
        "include": [super::LOGPROBS], "modalities": ["text"],
    });
    let config = updated(&Config::default(), ga).unwrap();
    assert_eq!(updated(&Config::default(), beta).unwrap(), config);
    assert_eq!((config.format, config.has_logprobs), (InputFormat::MuLaw, true));
    let options = config.live_options().unwrap().decoding;
    assert_eq!(
        (options.language.unwrap().code, options.hotwords.unwrap().as_str()),
        ("de", "Gneis")
    );
    let vad = options.vad_options;
    assert_eq!((vad.threshold, vad.speech_pad_ms, vad.min_silence_ms), (0.25, 100, 900));
}

/// `LocalAI` 10295.
#[test]
fn an_update_of_the_language_keeps_the_model() {
    let model = json!({"audio": {"input": {"transcription": {"model": "base"}}}});
    let config = updated(&Config::default(), model).unwrap();
    let language = json!({"audio": {"input": {"transcription": {"language": "fr"}}}});
    let config = updated(&config, language).unwrap();
    assert_eq!((config.model.as_deref(), config.language.as_deref()), (Some("base"), Some("fr")));
    let none = json!({"audio": {"input": {"transcription": {"language": null, "model": ""}}}});
    let config = updated(&config, none).unwrap();
    assert_eq!((config.model, config.language), (None, None));
}

/// `LocalAI` 11104.
#[test]
fn fields_of_speech_output_have_no_effect() {
    let session =
        json!({"modalities": ["text"], "output_modalities": ["text"], "voice": "x", "tools": []});
    assert_eq!(updated(&Config::default(), session).unwrap(), Config::default());
}

#[test]
fn turn_detection_is_by_silence_or_off() {
    let with = |turn: Value| {
        let session = json!({"audio": {"input": {"turn_detection": turn}}});
        updated(&Config::default(), session).map(|config| config.turn_detection)
    };
    assert_eq!(with(json!(null)).unwrap(), None);
    let eager = |eagerness: &str| {
        let vad = with(json!({"type": "semantic_vad", "eagerness": eagerness}));
        vad.map(|vad| vad.unwrap().silence_duration_ms)
    };
    assert_eq!(["low", "auto", "high"].map(|name| eager(name).unwrap()), [1500, 800, 400]);
    assert!(eager("very").is_err());
    let partial = with(json!({"type": "server_vad", "silence_duration_ms": 300})).unwrap().unwrap();
    assert_eq!((partial.silence_duration_ms, partial.prefix_padding_ms), (300, 300));
}

#[test]
fn wrong_values_are_named() {
    for (session, field) in [
        (json!({"type": "realtime"}), "session.type"),
        (
            json!({"audio": {"input": {"format": {"type": "audio/opus"}}}}),
            "session.audio.input.format",
        ),
        (
            json!({"audio": {"input": {"format": {"type": "audio/pcm", "rate": 8000}}}}),
            "session.audio.input.format",
        ),
        (
            json!({"audio": {"input": {"format": {"type": "audio/pcma", "rate": 16000}}}}),
            "session.audio.input.format",
        ),
        (json!({"input_audio_format": "mp3"}), "session.format"),
        (json!({"audio": {"input": {"transcription": null}}}), "session.audio.input.transcription"),
        (json!({"turn_detection": {"type": "telepathy"}}), "session.turn_detection.type"),
        (
            json!({"turn_detection": {"type": "server_vad", "prefix_padding_ms": 5001}}),
            "session.turn_detection.prefix_padding_ms",
        ),
        (json!({"include": ["everything"]}), "session.include"),
        (json!({"input_audio_transcription": {"language": "klingon"}}), "language"),
        (json!({"input_audio_transcription": {"prompt": "x".repeat(20_000)}}), "prompt"),
        (json!({"input_audio_transcription": {"keywords": vec!["x"; 1001]}}), "keywords"),
    ] {
        let error = updated(&Config::default(), session).unwrap_err();
        assert_eq!((error.status(), error.param()), (400, Some(field)), "{error}");
    }
    let threshold = json!({"turn_detection": {"type": "server_vad", "threshold": 2}});
    assert!(updated(&Config::default(), threshold).is_err());
}
