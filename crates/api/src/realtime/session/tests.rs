use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use stonechat::Word;

use super::{Action, Dialect, Session, Update};
use crate::ApiError;
use crate::realtime::{Config, ServerEvent};

fn session(turn_detection: bool, dialect: Dialect) -> Session {
    let mut config = Config::default();
    if !turn_detection {
        config.turn_detection = None;
    }
    Session::new(config, dialect)
}

fn append(n_bytes: usize) -> String {
    let audio = STANDARD.encode(vec![0; n_bytes]);
    json!({"type": "input_audio_buffer.append", "audio": audio}).to_string()
}

fn events(events: &[ServerEvent]) -> Vec<Value> {
    events.iter().map(|event| serde_json::from_str(&event.to_json()).unwrap()).collect()
}

fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

fn sent(actions: &[Action]) -> Vec<Value> {
    let sent = actions.iter().filter_map(|action| match action {
        Action::Send(event) => Some(event.clone()),
        _ => None,
    });
    events(&sent.collect::<Vec<_>>())
}

fn word(text: &str) -> Word {
    Word { word: text.to_owned(), start: 0.0, end: 1.0, probability: 0.5 }
}

fn text(text: &str) -> Update {
    Update::Text { text: text.to_owned(), words: vec![word(text)] }
}

#[test]
fn an_utterance_has_the_events_of_openai() {
    let mut session = session(true, Dialect::Ga);
    let updates = [
        Update::SpeechStart { time: 0.25 },
        text(" The quick"),
        Update::SpeechEnd { time: 2.5 },
        text(" fox."),
        Update::End { seconds: 2.25 },
    ];
    let got: Vec<ServerEvent> =
        updates.into_iter().flat_map(|update| session.update(update)).collect();
    let got = events(&got);
    let transcription = "conversation.item.input_audio_transcription";
    assert_eq!(
        types(&got),
        [
            "input_audio_buffer.speech_started",
            &format!("{transcription}.delta"),
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            "conversation.item.added",
            &format!("{transcription}.delta"),
            &format!("{transcription}.completed"),
            "conversation.item.done",
        ]
    );
    let id = &got[0]["item_id"];
    assert_eq!((&got[0]["audio_start_ms"], &got[2]["audio_end_ms"]), (&json!(250), &json!(2500)));
    assert_eq!((&got[1]["delta"], &got[5]["delta"]), (&json!("The quick"), &json!(" fox.")));
    assert_eq!(got[6]["transcript"], "The quick fox.");
    assert_eq!(got[6]["usage"], json!({"type": "duration", "seconds": 2.25}));
    assert_eq!((&got[3]["item_id"], &got[4]["item"]["id"], &got[6]["item_id"]), (id, id, id));
    assert_eq!(got[3]["previous_item_id"], Value::Null);
    assert!(got.iter().all(|event| event["event_id"].as_str().unwrap().starts_with("event_")));
    assert!(!session.is_busy());
    // The next utterance names this one.
    session.update(Update::SpeechStart { time: 3.0 });
    let next = events(&session.update(Update::SpeechEnd { time: 4.0 }));
    assert_eq!(&next[1]["previous_item_id"], id);
}

#[test]
fn the_completed_transcript_has_the_revised_words() {
    let config = Config { has_logprobs: true, ..Config::default() };
    let mut session = Session::new(config, Dialect::Ga);
    session.update(Update::SpeechStart { time: 0.0 });
    for words in [" the", " américan"] {
        session.update(text(words));
    }
    let revised = Update::Revised {
        replaced: vec![word(" the"), word(" américan")],
        words: vec![word(" The"), word(" medical")],
    };
    assert!(session.update(revised).is_empty());
    session.update(text(" man"));
    session.update(Update::SpeechEnd { time: 2.0 });
    let completed = events(&session.update(Update::End { seconds: 2.0 }));
    assert_eq!(completed[0]["transcript"], "The medical man");
    assert_eq!(completed[0]["logprobs"].as_array().map(Vec::len), Some(3));
}

#[test]
fn the_beta_has_its_names() {
    let mut session = session(true, Dialect::Beta);
    let created = events(&[session.created()]);
    assert_eq!(types(&created), ["transcription_session.created"]);
    assert_eq!(created[0]["session"]["input_audio_format"], "pcm16");
    session.update(Update::SpeechStart { time: 0.0 });
    let end = events(&session.update(Update::SpeechEnd { time: 1.0 }));
    assert_eq!(types(&end)[2], "conversation.item.created");
    let completed = events(&session.update(Update::End { seconds: 1.0 }));
    assert_eq!(completed.len(), 1);
}

#[test]
fn an_update_is_checked_then_answered() {
    let mut session = session(true, Dialect::Ga);
    let update = json!({"type": "session.update", "event_id": "e1", "session": {
        "type": "transcription", "audio": {"input": {"transcription": {"model": "base"}}},
    }});
    let mut actions = session.receive(&update.to_string(), 0);
    let Some(Action::Check { config, event_id }) = actions.pop() else { panic!("no check") };
    let refused =
        session.configure(*config.clone(), Err(ApiError::not_found("no `base`")), event_id.clone());
    let refused = events(&[refused]);
    let error = &refused[0]["error"];
    assert_eq!((&error["event_id"], &error["code"]), (&json!("e1"), &json!("model_not_found")));
    assert_eq!(session.config().model, None);
    let updated = events(&[session.configure(*config, Ok(()), event_id)]);
    assert_eq!(types(&updated), ["session.updated"]);
    let input = &updated[0]["session"]["audio"]["input"];
    assert_eq!(input["transcription"]["model"], "base");
    assert_eq!(input["format"], json!({"type": "audio/pcm", "rate": 24000}));
    assert_eq!(input["turn_detection"]["silence_duration_ms"], 500);
    assert_eq!(input["noise_reduction"], Value::Null);
}

#[test]
fn a_client_commits_at_least_100_ms() {
    let mut session = session(false, Dialect::Ga);
    let commit = r#"{"type": "input_audio_buffer.commit", "event_id": "c"}"#;
    for n_bytes in [0, 4700] {
        session.receive(&append(n_bytes), 0);
        let refused = sent(&session.receive(commit, 0));
        let error = &refused[0]["error"];
        assert_eq!(error["code"], "input_audio_buffer_commit_empty");
        assert_eq!(error["event_id"], "c");
    }
    session.receive(&append(4800), 0);
    let actions = session.receive(commit, 0);
    assert_eq!(actions.last(), Some(&Action::Commit(Some("c".to_owned()))));
    let committed = sent(&actions);
    assert_eq!(types(&committed), ["input_audio_buffer.committed", "conversation.item.added"]);
    session.update(text(" a"));
    let completed = events(&session.update(Update::End { seconds: 0.2 }));
    assert_eq!(
        (&completed[0]["item_id"], &completed[0]["transcript"]),
        (&committed[0]["item_id"], &json!("a"))
    );
}

#[test]
fn audio_arrives_whole_at_16_khz() {
    let mut session = session(false, Dialect::Ga);
    let mut n_samples = 0;
    let mut count = |actions: Vec<Action>| {
        for action in actions {
            if let Action::Audio(samples) = action {
                n_samples += samples.len();
            }
        }
    };
    // 48,000 bytes are a second, cut within samples.
    for n_bytes in [1, 15_999, 32_000] {
        count(session.receive(&append(n_bytes), 0));
    }
    count(session.receive(r#"{"type": "input_audio_buffer.commit"}"#, 0));
    assert_eq!(n_samples, 16_000);
}

#[test]
fn a_full_buffer_refuses_audio() {
    let mut session = session(true, Dialect::Ga);
    let full = 600 * 16_000;
    let refused = sent(&session.receive(&append(480), full));
    assert!(refused[0]["error"]["message"].as_str().unwrap().contains("at most 600 s"));
    assert!(matches!(session.receive(&append(480), full - 160)[..], [Action::Audio(_)]));
}

#[test]
fn a_cleared_utterance_is_gone_but_a_committed_one_is_not() {
    let mut session = session(true, Dialect::Ga);
    session.update(Update::SpeechStart { time: 0.0 });
    session.update(Update::SpeechEnd { time: 1.0 });
    session.update(Update::SpeechStart { time: 2.0 });
    assert_eq!(session.receive(r#"{"type": "input_audio_buffer.clear"}"#, 0), [Action::Clear]);
    assert_eq!(types(&events(&session.update(Update::Cleared))), ["input_audio_buffer.cleared"]);
    assert_eq!(session.update(Update::End { seconds: 1.0 }).len(), 2);
    assert!(!session.is_busy());
}

#[test]
fn a_failed_utterance_names_its_error() {
    let mut session = session(true, Dialect::Ga);
    let of_session = events(&session.update(Update::Failed(ApiError::server("no memory"))));
    assert_eq!(types(&of_session), ["error"]);
    session.update(Update::SpeechStart { time: 0.0 });
    let failed = events(&session.update(Update::Failed(ApiError::server("no memory"))));
    assert_eq!(types(&failed), ["conversation.item.input_audio_transcription.failed"]);
    assert_eq!(failed[0]["error"]["message"], "no memory");
    let empty = events(&session.update(Update::NoSpeech(Some("c".to_owned()))));
    assert_eq!(empty[0]["error"]["event_id"], "c");
}

#[test]
fn log_probabilities_come_if_they_are_asked_for() {
    let mut session = session(true, Dialect::Ga);
    session.update(Update::SpeechStart { time: 0.0 });
    assert!(events(&session.update(text(" a")))[0].get("logprobs").is_none());
    let config = Config { has_logprobs: true, ..Config::default() };
    session.configure(config, Ok(()), None);
    let delta = events(&session.update(text(" b")));
    assert_eq!(delta[0]["logprobs"][0]["token"], " b");
    let completed = events(&session.update(Update::End { seconds: 1.0 }));
    assert_eq!(completed[0]["logprobs"].as_array().unwrap().len(), 1);
}
