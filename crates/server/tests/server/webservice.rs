//! `/asr` and `/detect-language`, as Bazarr sends them.

use axum::body::Body;
use axum::http::Request;
use serde_json::Value;
use stonechat_server::ServerOptions;

use crate::audio::multilingual;
use crate::live_client::{english, fox, letters, pcm16};
use crate::support::{Answer, App, test_data};

async fn send(app: &App, path: &str, field: &str, file: &[u8]) -> Answer {
    let head = format!(
        "--b\r\nContent-Disposition: form-data; name=\"{field}\"; filename=\"audio\"\r\n\r\n"
    );
    let body = [head.as_bytes(), file, b"\r\n--b--\r\n"].concat();
    let request = Request::post(path).header("content-type", "multipart/form-data; boundary=b");
    app.send(request.body(Body::from(body)).unwrap()).await
}

fn wav() -> Vec<u8> {
    std::fs::read(test_data("audio/quick_brown_fox.wav")).unwrap()
}

const TEXT: &str = "the quick brown fox jumps over the lazy dog";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bazarr_sends_raw_samples() {
    let app = App::new(english()).await;
    let path =
        "/asr?task=transcribe&language=en&output=srt&encode=false&video_file=%2Ffilms%2Fa.mkv";
    let answer = send(&app, path, "audio_file", &pcm16(&fox())).await;
    assert_eq!((answer.status, answer.header("asr-engine")), (200, "stonechat"), "{answer:?}");
    assert!(answer.header("content-type").starts_with("text/plain"));
    assert!(answer.text.starts_with("1\n00:00:00,"), "{}", answer.text);
    assert!(letters(&answer.text).contains(TEXT), "{}", answer.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_output_is_that_of_whisper() {
    let app = App::new(english()).await;
    for (output, expected) in
        [("txt", " The quick"), ("vtt", "WEBVTT"), ("tsv", "start\tend\ttext"), ("srt", "1\n")]
    {
        let path = format!(
            "/asr?output={output}&word_timestamps=true&vad_filter=true&initial_prompt=Animals."
        );
        let answer = send(&app, &path, "audio_file", &wav()).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.text.trim_start().starts_with(expected.trim_start()), "{}", answer.text);
        assert!(letters(&answer.text).contains(TEXT), "{}", answer.text);
        let disposition = answer.header("content-disposition");
        assert!(disposition.ends_with(&format!(".{output}\"")), "{disposition}");
    }
    let answer = send(&app, "/asr?output=json&word_timestamps=true", "audio_file", &wav()).await;
    let json: Value = serde_json::from_str(&answer.text).unwrap();
    assert_eq!(json["language"], "en");
    assert_eq!(json["segments"][0]["words"].as_array().unwrap().len(), 9);
    // The default is text.
    let answer = send(&app, "/asr", "audio_file", &wav()).await;
    assert_eq!(letters(answer.text.trim()), TEXT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_parameters_and_files_are_refused() {
    let app = App::new(english()).await;
    for (path, field, file, param) in [
        ("/asr?task=sing", "audio_file", wav(), "task"),
        ("/asr?output=docx", "audio_file", wav(), "output"),
        ("/asr?language=klingon", "audio_file", wav(), "language"),
        ("/asr?encode=maybe", "audio_file", wav(), "encode"),
        ("/asr?diarize=true", "audio_file", wav(), "diarize"),
        ("/asr", "file", wav(), "file"),
        ("/asr", "other", b"x".to_vec(), "audio_file"),
        ("/asr", "audio_file", b"no audio".to_vec(), "audio_file"),
        ("/asr?encode=false", "audio_file", wav(), "audio_file"),
        ("/asr?encode=false", "audio_file", vec![0; 7], "audio_file"),
        ("/asr?encode=false", "audio_file", Vec::new(), "audio_file"),
    ] {
        let answer = send(&app, path, field, &file).await;
        assert_eq!(answer.status, 400, "{path}: {answer:?}");
        assert_eq!(answer.json()["error"]["param"], param, "{path}");
    }
    // Parameters are in the query alone.
    let head = "--b\r\nContent-Disposition: form-data; name=\"language\"\r\n\r\nde\r\n--b--\r\n";
    let request = Request::post("/asr").header("content-type", "multipart/form-data; boundary=b");
    let answer = app.send(request.body(Body::from(head)).unwrap()).await;
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &"language".into()));
    let short = ServerOptions { max_audio_seconds: 1, ..english() };
    let app = App::new(short).await;
    let answer = send(&app, "/asr?encode=false", "audio_file", &vec![0; 64_000]).await;
    assert_eq!(answer.status, 413, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_language_is_detected() {
    let models = vec![multilingual()];
    let app = App::new(ServerOptions { models, ..ServerOptions::default() }).await;
    for (path, file) in
        [("/detect-language", wav()), ("/detect-language?encode=false", pcm16(&fox()))]
    {
        let answer = send(&app, path, "audio_file", &file).await;
        let json = answer.json();
        let language = stonechat::whisper::Language::find(json["language_code"].as_str().unwrap());
        assert_eq!(json["detected_language"], language.unwrap().name);
        let confidence = json["confidence"].as_f64().unwrap();
        assert!(0.0 < confidence && confidence <= 1.0, "{json}");
        assert_eq!(json.as_object().unwrap().len(), 3);
    }
    let app = App::new(english()).await;
    let answer = send(&app, "/detect-language", "audio_file", &wav()).await;
    assert_eq!((answer.status, answer.kind().as_str()), (501, "not_supported_error"));
}
