//! Options of forms and objects.

use serde_json::{Value, json};
use stonechat::VadMode;
use stonechat::whisper::{Options, Task};

use super::{AudioFormat, Fields, MAX_FIELD_BYTES};
use crate::ApiResult;

fn fields(form: &[(&str, &str)]) -> ApiResult<Fields> {
    let mut fields = Fields::default();
    for (name, text) in form {
        fields.set(name, text)?;
    }
    Ok(fields)
}

#[track_caller]
fn options(form: &[(&str, &str)]) -> Options {
    fields(form).unwrap().options(Task::Transcribe).unwrap()
}

#[track_caller]
fn error(form: &[(&str, &str)]) -> String {
    let options = fields(form).and_then(|fields| fields.options(Task::Transcribe));
    let error = options.unwrap_err();
    assert_eq!(error.status(), 400);
    error.message().to_owned()
}

#[test]
fn an_empty_form_has_the_defaults_of_whisper() {
    assert_eq!(options(&[]), Options::default());
    let translate = fields(&[]).unwrap().options(Task::Translate).unwrap();
    assert_eq!(translate, Options { task: Task::Translate, ..Options::default() });
    // Generated clients send every field.
    let empty = ["language", "prompt", "temperature", "response_format", "stream", "vad_filter"];
    assert_eq!(options(&empty.map(|name| (name, ""))), Options::default());
    assert_eq!(options(&[("language", "auto"), ("new_field", "1")]), Options::default());
}

#[test]
fn every_field_sets_its_option() {
    let got = options(&[
        ("model", "whisper-1"),
        ("language", "German"),
        ("prompt", "Vorher"),
        ("temperature", "0.4"),
        ("hotwords", "stonechat"),
        ("keywords[]", "rust"),
        ("keywords[]", "Zen 5"),
        ("beam_size", "3"),
        ("best_of", "2"),
        ("word_timestamps", "true"),
        ("without_timestamps", "True"),
        ("condition_on_previous_text", "false"),
        ("batch_size", "8"),
        ("seed", "7"),
        ("vad_filter", "1"),
    ]);
    let expected = Options {
        language: stonechat::whisper::Language::find("de"),
        initial_prompt: Some("Vorher".to_owned()),
        temperatures: vec![0.4],
        hotwords: Some("stonechat, rust, Zen 5".to_owned()),
        beam_size: 3,
        best_of: 2,
        word_timestamps: true,
        without_timestamps: true,
        condition_on_previous_text: false,
        batch_size: Some(8),
        seed: 7,
        vad: VadMode::On,
        ..Options::default()
    };
    assert_eq!(got, expected);
    assert_eq!(options(&[("temperature", "0")]).temperatures.len(), 6);
    assert_eq!(options(&[("languages[]", "fr")]).language.unwrap().code, "fr");
    assert_eq!(options(&[("languages", "[\"fr\"]")]).language.unwrap().code, "fr");
    let several = options(&[("languages[]", "fr"), ("languages[]", "de")]);
    let codes: Vec<_> = several.languages.iter().map(|language| language.code).collect();
    assert_eq!((several.language, codes), (None, vec!["fr", "de"]));
}

#[test]
fn granularities_have_two_names_and_two_shapes() {
    let verbose = ("response_format", "verbose_json");
    for form in [
        &[verbose, ("timestamp_granularities[]", "word")][..],
        &[verbose, ("timestamp_granularities", "word"), ("timestamp_granularities", "segment")],
        &[verbose, ("timestamp_granularities", "[\"segment\", \"word\"]")],
    ] {
        let fields = fields(form).unwrap();
        assert_eq!(fields.response_format, AudioFormat::VerboseJson);
        assert!(fields.has_words() && fields.options(Task::Transcribe).unwrap().word_timestamps);
        assert_eq!(
            fields.has_segments(),
            !form.ends_with(&[("timestamp_granularities[]", "word")])
        );
    }
    // Other formats have no words.
    assert!(!options(&[("timestamp_granularities[]", "word")]).word_timestamps);
}

#[test]
fn chunking_strategies_turn_voice_activity_detection_on() {
    for form in [
        &[("chunking_strategy", "auto")][..],
        &[("chunking_strategy", "server_vad")],
        &[("chunking_strategy[type]", "server_vad")],
        &[("chunking_strategy", "{\"type\": \"server_vad\"}")],
    ] {
        assert_eq!(options(form).vad, VadMode::On, "{form:?}");
    }
    let off = options(&[("chunking_strategy", "auto"), ("vad_filter", "false")]);
    assert_eq!(off, Options { vad: VadMode::Off, ..Options::default() });
    assert_eq!(options(&[]).vad, VadMode::Auto, "the default of the library and the command line");
    let json =
        r#"{"type":"server_vad","threshold":0.25,"prefix_padding_ms":10,"silence_duration_ms":20}"#;
    let parts = [
        ("chunking_strategy[type]", "server_vad"),
        ("chunking_strategy[threshold]", "0.25"),
        ("chunking_strategy[prefix_padding_ms]", "10"),
        ("chunking_strategy[silence_duration_ms]", "20"),
    ];
    for form in [&[("chunking_strategy", json)][..], &parts] {
        let vad = options(form).vad_options;
        assert_eq!((vad.threshold, vad.speech_pad_ms, vad.min_silence_ms), (0.25, 10, 20));
    }
}

#[test]
fn errors_name_the_field_and_what_was_expected() {
    for (form, expected) in [
        (&[("language", "xx")][..], "`language`: expected a code such as `de` or an English name"),
        (&[("languages[]", "xx")], "`languages`: expected a code such as `de`"),
        (&[("temperature", "warm")], "`temperature`: expected a number, got `warm`"),
        (&[("temperature", "2.5")], "temperature: expected 0 to 2, got 2.5"),
        (
            &[("response_format", "xml")],
            "`response_format`: expected json, text, srt, verbose_json or",
        ),
        (
            &[("response_format", "diarized_json")],
            "`response_format`: expected json, text, srt, verbose_json or vtt, got `diarized_json`: no model",
        ),
        (&[("known_speaker_names[]", "Ann")], "`known_speaker_names`: expected none: no model"),
        (
            &[("timestamp_granularities[]", "letter")],
            "`timestamp_granularities`: expected `word` or `segment`, got `letter`",
        ),
        (&[("include[]", "all")], "`include`: expected `logprobs`, got `all`"),
        (&[("stream", "yes")], "`stream`: expected true or false, got `yes`"),
        (
            &[("stream", "true"), ("response_format", "srt")],
            "`response_format`: expected json, text",
        ),
        (&[("beam_size", "0")], "beam-size: expected 1 to 16, got 0"),
        (&[("batch_size", "65")], "batch-size: expected 1 to 64, got 65"),
        (&[("chunking_strategy", "vad")], "`chunking_strategy`: expected `auto` or {"),
        (
            &[("chunking_strategy[type]", "semantic_vad")],
            "`chunking_strategy[type]`: expected `server_vad`, got `semantic_vad`",
        ),
        (&[("chunking_strategy[x]", "1")], "`chunking_strategy`: expected type, threshold"),
        (
            &[("chunking_strategy[threshold]", "2"), ("chunking_strategy", "auto")],
            "vad threshold: expected",
        ),
    ] {
        let got = error(form);
        assert!(got.starts_with(expected), "{got}");
    }
}

fn parsed(body: &Value) -> Result<(Options, Task), String> {
    let fields = Fields::parse(body.to_string().as_bytes());
    let options = fields.and_then(|(fields, task)| Ok((fields.options(task)?, task)));
    options.map_err(|error| error.message().to_owned())
}

#[test]
fn an_object_sets_the_fields_of_a_form() {
    let (got, task) = parsed(&json!({
        "model": null,
        "language": "German",
        "temperature": 0.4,
        "keywords": ["rust", "[1]"],
        "word_timestamps": true,
        "batch_size": 8,
        "chunking_strategy": {"type": "server_vad", "silence_duration_ms": 20},
        "task": "translate",
    }))
    .unwrap();
    let form = options(&[
        ("language", "de"),
        ("temperature", "0.4"),
        ("hotwords", "rust, [1]"),
        ("word_timestamps", "true"),
        ("batch_size", "8"),
        ("chunking_strategy[type]", "server_vad"),
        ("chunking_strategy[silence_duration_ms]", "20"),
    ]);
    assert_eq!((got, task), (Options { task: Task::Translate, ..form }, Task::Translate));
    for (vad, expected) in
        [(json!("auto"), VadMode::Auto), (json!(true), VadMode::On), (json!(false), VadMode::Off)]
    {
        assert_eq!(parsed(&json!({"vad": vad})).unwrap().0.vad, expected);
    }
}

#[test]
fn an_object_has_no_other_fields() {
    for (body, expected) in [
        (json!({"langauge": "de"}), "`langauge`: no such field"),
        (json!({"file": "a.wav"}), "`file`: no such field"),
        (json!({"language": ["de"]}), "`language`: expected one value, got a list"),
        (json!({"prompt": {}}), "`prompt`: expected one value, got an object"),
        (json!({"keywords": [1]}), "`keywords`: expected a list of strings, got a number"),
        (json!({"task": "sing"}), "`task`: expected `transcribe` or `translate`, got \"sing\""),
        (json!({"vad": 1}), "`vad`: expected true, false or `auto`, got 1"),
        (json!({"stream": "yes"}), "`stream`: expected true or false, got `yes`"),
    ] {
        assert_eq!(parsed(&body).unwrap_err(), expected);
    }
    let long = vec![b' '; MAX_FIELD_BYTES + 1];
    assert_eq!(Fields::parse(&long).unwrap_err().status(), 413);
    assert_eq!(Fields::parse(b"[]").unwrap_err().status(), 400);
}
