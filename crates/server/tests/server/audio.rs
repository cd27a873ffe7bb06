//! Uploads, on a tiny model of random weights and on `base`.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Request;
use futures_core::Stream;
use serde_json::{Value, json};
use stonechat::whisper::{Language, Options, OutputFormat, SubtitleLayout, Task};
use stonechat::{Recording, Transcript};
use stonechat_server::{ModelOption, ServerOptions};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::support::{Answer, App, test_data};

const TRANSCRIPTIONS: &str = "/v1/audio/transcriptions";
const BOUNDARY: &str = "----stonechat";
/// Short decoding of a random model: greedy, without the fallback to higher temperatures.
const SHORT: [(&str, &str); 3] = [("temperature", "0.01"), ("best_of", "1"), ("language", "en")];

/// A multilingual model of random weights, `ears`.
pub(crate) fn multilingual() -> ModelOption {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let path = PATH.get_or_init(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tiny-multilingual-whisper.gguf");
        let tiny = stonechat_testkit::TinyWhisper { vocab_size: 51865, ..Default::default() };
        std::fs::write(&path, tiny.gguf()).unwrap();
        path
    });
    ModelOption { name: "ears".to_owned(), path: path.clone() }
}

fn server() -> ServerOptions {
    ServerOptions { models: vec![multilingual()], ..ServerOptions::default() }
}

fn short() -> Options {
    Options {
        temperatures: vec![0.01],
        best_of: 1,
        language: Language::find("en"),
        ..Options::default()
    }
}

fn fox() -> Vec<u8> {
    std::fs::read(test_data("audio/quick_brown_fox.wav")).unwrap()
}

/// Noise as a 16-bit WAV file.
pub(crate) fn noise(seconds: usize) -> Vec<u8> {
    let samples = stonechat_testkit::Lcg::new(5).normals(seconds * 16_000, 0.1);
    let n_bytes = samples.len() as u32 * 2;
    let mut wav = Vec::new();
    wav.extend(b"RIFF");
    wav.extend((n_bytes + 36).to_le_bytes());
    wav.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3E\0\0\0\x7D\0\0\x02\0\x10\0data");
    wav.extend(n_bytes.to_le_bytes());
    wav.extend(samples.iter().flat_map(|x| ((x.clamp(-1.0, 1.0) * 32_000.0) as i16).to_le_bytes()));
    wav
}

fn text_part(name: &str, text: &str) -> Vec<u8> {
    let head = format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n");
    [head.as_bytes(), text.as_bytes(), b"\r\n"].concat()
}

fn file_part(bytes: &[u8]) -> Vec<u8> {
    let head = format!(
        "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\
         Content-Type: audio/wav\r\n\r\n"
    );
    [head.as_bytes(), bytes, b"\r\n"].concat()
}

fn end() -> Vec<u8> {
    format!("--{BOUNDARY}--\r\n").into_bytes()
}

fn request(path: &str, body: impl Into<Body>) -> Request<Body> {
    let media_type = format!("multipart/form-data; boundary={BOUNDARY}");
    Request::post(path).header("content-type", media_type).body(body.into()).unwrap()
}

/// A form whose file comes after the fields.
fn form(fields: &[(&str, &str)], file: &[u8]) -> Vec<u8> {
    let mut body: Vec<u8> = fields.iter().flat_map(|(name, text)| text_part(name, text)).collect();
    body.extend(file_part(file));
    body.extend(end());
    body
}

/// Upload of a short recording, to be decoded quickly.
pub(crate) fn fox_upload() -> Request<Body> {
    request(TRANSCRIPTIONS, form(&SHORT, &fox()))
}

pub(crate) async fn transcribe(app: &App, fields: &[(&str, &str)], file: &[u8]) -> Answer {
    let fields = [&SHORT[..], fields].concat();
    app.send(request(TRANSCRIPTIONS, form(&fields, file))).await
}

/// Transcript of the fox by the library.
async fn expected(app: &App, options: Options) -> Transcript {
    let model = app.state().speech(None).await.unwrap();
    model.transcribe(Recording::bytes(fox()).options(options)).await.unwrap()
}

#[track_caller]
fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

/// Events of a stream.
#[track_caller]
fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!((answer.status, answer.header("content-type")), (200, "text/event-stream"));
    assert_eq!(answer.header("x-accel-buffering"), "no");
    let data = answer.text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_format_has_the_text_of_the_library() {
    let app = App::new(server()).await;
    let whole = expected(&app, short()).await;
    let text = whole.text.trim();
    assert!(!text.is_empty());
    let usage = json!({"type": "duration", "seconds": whole.duration.ceil() as u64});

    let answer = transcribe(&app, &[("model", "whisper-1")], &fox()).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(answer.json(), json!({"text": text, "usage": usage}));
    let answer = app.send(request("/audio/transcriptions", form(&SHORT, &fox()))).await;
    assert_eq!(answer.json()["text"], text);

    let answer = transcribe(&app, &[("response_format", "text")], &fox()).await;
    assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(answer.text, format!("{text}\n"));

    for (name, format, media_type) in [
        ("srt", OutputFormat::Srt, "text/plain; charset=utf-8"),
        ("vtt", OutputFormat::Vtt, "text/vtt; charset=utf-8"),
    ] {
        let answer = transcribe(&app, &[("response_format", name)], &fox()).await;
        assert_eq!(answer.header("content-type"), media_type);
        let mut expected = Vec::new();
        format.write(&mut expected, &whole, SubtitleLayout::default()).unwrap();
        assert_eq!(answer.text.as_bytes(), expected, "{name}");
    }

    let answer = transcribe(&app, &[("response_format", "verbose_json")], &fox()).await.json();
    assert_eq!(keys(&answer), ["duration", "language", "segments", "task", "text", "usage"]);
    assert_eq!((&answer["task"], &answer["language"]), (&json!("transcribe"), &json!("english")));
    assert_eq!((&answer["text"], &answer["usage"]), (&json!(text), &usage));
    assert_eq!(answer["duration"], whole.duration);
    let segments = serde_json::to_string(&whole.segments).unwrap();
    assert_eq!(answer["segments"], serde_json::from_str::<Value>(&segments).unwrap());
    let fields = [
        "avg_logprob",
        "compression_ratio",
        "end",
        "id",
        "no_speech_prob",
        "seek",
        "start",
        "temperature",
        "text",
        "tokens",
    ];
    assert_eq!(keys(&answer["segments"][0]), fields);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_are_listed_where_they_are_asked_for() {
    let app = App::new(server()).await;
    let whole = expected(&app, Options { word_timestamps: true, ..short() }).await;
    let words = whole.segments.iter().flat_map(|segment| segment.words.as_ref().unwrap());
    let words: Vec<Value> = words
        .map(|word| json!({"word": word.word.trim(), "start": word.start, "end": word.end}))
        .collect();
    assert!(!words.is_empty());
    let verbose = ("response_format", "verbose_json");
    for name in ["timestamp_granularities[]", "timestamp_granularities"] {
        let answer = transcribe(&app, &[verbose, (name, "word")], &fox()).await.json();
        assert_eq!(keys(&answer), ["duration", "language", "task", "text", "usage", "words"]);
        assert_eq!(answer["words"], json!(words));
        let both = [verbose, (name, "word"), (name, "segment")];
        let answer = transcribe(&app, &both, &fox()).await.json();
        assert_eq!(answer["words"], json!(words));
        assert_eq!(answer["segments"].as_array().unwrap().len(), whole.segments.len());
        assert!(answer["segments"][0].get("words").is_none());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_send_each_segment_and_then_the_whole() {
    let app = App::new(server()).await;
    let whole = expected(&app, short()).await;
    let answer = transcribe(&app, &[("stream", "true"), ("include[]", "logprobs")], &fox()).await;
    let events = events(&answer);
    let (done, deltas) = events.split_last().unwrap();
    assert_eq!(deltas.len(), whole.segments.len());
    assert!(deltas.iter().all(|event| event["type"] == "transcript.text.delta"));
    let text: String = deltas.iter().map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(text, whole.text.trim_start());
    assert_eq!(done["type"], "transcript.text.done");
    assert_eq!((&done["text"], &done["usage"]["type"]), (&json!(text), &json!("duration")));
    let logprobs = deltas.iter().flat_map(|event| event["logprobs"].as_array().unwrap());
    assert_eq!(done["logprobs"], logprobs.cloned().collect::<Value>());
    // The answer in one piece has the same ones.
    let answer = transcribe(&app, &[("include[]", "logprobs")], &fox()).await.json();
    assert_eq!(answer["logprobs"], done["logprobs"]);
    let first = &answer["logprobs"][0];
    assert_eq!(keys(first), ["bytes", "logprob", "token"]);
    assert!(first["logprob"].as_f64().unwrap() <= 0.0);
    let tokens = answer["logprobs"].as_array().unwrap();
    let tokens: String = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(tokens, whole.text);

    let fields = [("stream", "true"), ("response_format", "verbose_json")];
    let events = self::events(&transcribe(&app, &fields, &fox()).await);
    assert_eq!(events[0]["type"], "transcript.text.segment");
    assert_eq!(
        (&events[0]["start"], &events[0]["id"]),
        (&json!(whole.segments[0].start), &json!("seg_0"))
    );
    assert_eq!(
        (&events[1]["type"], &events[1]["segment_id"]),
        (&json!("transcript.text.delta"), &json!("seg_0"))
    );
    let done = events.last().unwrap();
    let piece = transcribe(&app, &fields[1..], &fox()).await.json();
    for name in ["language", "duration"] {
        assert!(!done[name].is_null() && done[name] == piece[name], "{name}: {done} {piece}");
    }
    assert!(events[0].get("words").is_none(), "{}", events[0]);

    // Words stand in the events of their segments; in one piece they are a list.
    let fields = [&fields[1..], &[("timestamp_granularities[]", "word")]].concat();
    let words = transcribe(&app, &fields, &fox()).await.json()["words"].clone();
    let fields = [&fields[..], &[("stream", "true")]].concat();
    let events = self::events(&transcribe(&app, &fields, &fox()).await);
    let streamed = events.iter().filter_map(|event| event["words"].as_array()).flatten();
    assert_eq!(streamed.cloned().collect::<Value>(), words);
    assert!(!words.as_array().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn languages_are_given_or_detected() {
    let app = App::new(server()).await;
    let verbose = |path: &'static str, fields: Vec<(&'static str, &'static str)>| {
        let fields = [&fields[..], &SHORT[..2], &[("response_format", "verbose_json")]].concat();
        app.send(request(path, form(&fields, &fox())))
    };
    for (field, name, expected) in [
        ("language", "de", "german"),
        ("language", "French", "french"),
        ("languages[]", "es", "spanish"),
    ] {
        let answer = verbose(TRANSCRIPTIONS, vec![(field, name)]).await.json();
        assert_eq!(answer["language"], expected);
    }
    let detected = Options { language: None, ..short() };
    let expected = Language::find(&expected(&app, detected).await.language).unwrap().name;
    assert_eq!(verbose(TRANSCRIPTIONS, vec![]).await.json()["language"], expected);
    let several = vec![("languages[]", "is"), ("languages[]", "sw")];
    let chosen = verbose(TRANSCRIPTIONS, several).await.json()["language"].clone();
    assert!(chosen == "icelandic" || chosen == "swahili", "{chosen}");

    let translated = Options { task: Task::Translate, language: Language::find("de"), ..short() };
    let text = self::expected(&app, translated).await.text;
    for path in ["/v1/audio/translations", "/audio/translations"] {
        let answer = verbose(path, vec![("language", "de")]).await.json();
        assert_eq!(
            (&answer["task"], &answer["language"]),
            (&json!("translate"), &json!("english"))
        );
        assert_eq!(answer["text"], text.trim());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_after_the_file_count() {
    let app = App::new(server()).await;
    let fields = [("prompt", "ab cd"), ("hotwords", "ef"), ("seed", "3"), ("vad_filter", "true")];
    let before = transcribe(&app, &fields, &fox()).await;
    assert_eq!(before.status, 200, "{}", before.text);
    let mut body = file_part(&fox());
    for (name, text) in SHORT.iter().chain(&fields) {
        body.extend(text_part(name, text));
    }
    body.extend(end());
    let after = app.send(request(TRANSCRIPTIONS, body)).await;
    assert_eq!(before.json(), after.json());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_are_recognised_by_their_bytes() {
    let app = App::new(server()).await;
    for name in
        ["fox.flac", "fox.mp3", "fox.ogg", "fox.opus", "fox.webm", "fox.m4a", "fox_stereo.mp4"]
    {
        let bytes = std::fs::read(test_data("audio/formats").join(name)).unwrap();
        let answer = transcribe(&app, &[], &bytes).await;
        assert_eq!((answer.status, &answer.json()["usage"]["seconds"]), (200, &json!(3)), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_uploads_are_errors_of_the_request() {
    let options = ServerOptions { max_audio_size: 200_000, max_audio_seconds: 5, ..server() };
    let app = App::new(options).await;
    let answer = app.post(TRANSCRIPTIONS, &json!({"file": "a.wav"})).await;
    let expected =
        "`Content-Type`: expected multipart/form-data with a boundary, got `application/json`";
    assert_eq!((answer.status, answer.message().as_str()), (415, expected));
    let no_file = [text_part("model", "whisper-1"), end()].concat();
    let two_files = [file_part(&fox()), file_part(&fox()), end()].concat();
    let cut = form(&[], &fox())[..50_000].to_vec();
    let endless_text = [text_part("prompt", &"a".repeat(2 << 20)), end()].concat();
    for (body, expected) in [
        (no_file, "`file`: expected an audio file, got none"),
        (two_files, "`file`: expected one file, got several"),
        (cut, "multipart body: "),
        (b"no parts".to_vec(), "multipart body: "),
        (
            endless_text,
            "`prompt`: expected at most 1048576 bytes of fields beside the file, got more",
        ),
        (form(&[], b""), "`file`: expected audio (WAV, FLAC, MP3, "),
        (form(&[], b"Dear Sir or Madam"), "`file`: expected audio (WAV, FLAC, MP3, "),
        (form(&[], &[7; 90_000]), "`file`: expected audio (WAV, FLAC, MP3, "),
        (form(&[], &fox()[..20]), "`file`: wav file: expected a `fmt ` chunk of 16 bytes, got 0"),
        (form(&[("language", "xx")], &fox()), "`language`: expected a code such as `de`"),
        (form(&[("response_format", "diarized_json")], &fox()), "`response_format`: expected json"),
    ] {
        let answer = app.send(request(TRANSCRIPTIONS, body)).await;
        let message = answer.message();
        assert!(message.starts_with(expected), "{message}");
        assert_eq!((answer.status, answer.kind().as_str()), (400, "invalid_request_error"));
    }
    // 8 kHz mu-law: many seconds in few bytes.
    let mut long = noise(3);
    long[20] = 7;
    long[24..28].copy_from_slice(&8000u32.to_le_bytes());
    long[32] = 1;
    let answer = transcribe(&app, &[], &long).await;
    let expected = "`file`: expected at most 5 seconds of audio, got more";
    assert_eq!((answer.status, answer.message().as_str()), (413, expected));
    let answer = transcribe(&app, &[], &noise(7)).await;
    let expected = "the body is too large: expected at most 200000 bytes";
    assert_eq!((answer.status, answer.message().as_str()), (413, expected));
    let mut huge = request(TRANSCRIPTIONS, form(&[], &fox()));
    huge.headers_mut().insert("content-length", "9000000".parse().unwrap());
    assert_eq!(app.send(huge).await.status, 413);
    let empty = App::new(ServerOptions::default()).await;
    let answer = empty.send(request(TRANSCRIPTIONS, form(&[], &fox()))).await;
    assert_eq!((answer.status, answer.kind().as_str()), (501, "not_supported_error"));
}

/// Body whose parts arrive by a channel.
struct Parts(mpsc::Receiver<Vec<u8>>);

impl Stream for Parts {
    type Item = Result<Bytes, std::io::Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|part| part.map(|part| Ok(part.into())))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_is_read_as_it_arrives() {
    let app = App::new(ServerOptions { max_audio_seconds: 2, ..server() }).await;
    let (sender, parts) = mpsc::channel(1);
    // The answer to a file that is too long needs its end only from an honest client.
    let body = form(&SHORT, &noise(100));
    let upload = async {
        for part in body.chunks(10_000) {
            sender.send(part.to_vec()).await.unwrap();
        }
        drop(sender);
    };
    let answer = app.send(request(TRANSCRIPTIONS, Body::from_stream(Parts(parts))));
    let (answer, ()) = tokio::join!(answer, upload);
    assert_eq!(answer.status, 413);
    assert_eq!(answer.message(), "`file`: expected at most 2 seconds of audio, got more");
    // A client that goes away in the middle.
    let (sender, parts) = mpsc::channel(10);
    sender.send(body[..100_000].to_vec()).await.unwrap();
    let waiting = app.send(request(TRANSCRIPTIONS, Body::from_stream(Parts(parts))));
    assert!(timeout(Duration::from_millis(50), waiting).await.is_err());
    drop(sender);
    assert_eq!(transcribe(&app, &[], &noise(1)).await.status, 200);
}

/// Waits until a request has the model.
async fn is_used(app: &App) {
    while app.state().models().list().await[0].n_users == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_cancels_its_upload() {
    let app = App::new(server()).await;
    let long = noise(200);
    for stream in ["false", "true"] {
        let fields = [("stream", stream), ("vad_filter", "false")];
        tokio::select! {
            answer = transcribe(&app, &fields, &long) => panic!("{answer:?}"),
            () = is_used(&app) => {}
        }
        assert_eq!(app.state().models().list().await[0].n_users, 0);
    }
    let answer = transcribe(&app, &[], &fox()).await;
    assert_eq!(answer.status, 200);
    let metrics = app.state().metrics().text();
    let aborted = metrics.lines().filter(|line| line.contains("\"abort\""));
    assert_eq!(aborted.filter(|line| line.ends_with(" 2")).count(), 1, "{metrics}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploads_at_once_give_what_each_gives_alone() {
    let app = App::new(server()).await;
    let (one, other) = (fox(), noise(35));
    let fields = [("response_format", "verbose_json"), ("timestamp_granularities[]", "word")];
    let first = || transcribe(&app, &fields, &one);
    let batched = [("batch_size", "2"), ("seed", "5"), ("vad_filter", "false")];
    let second = || transcribe(&app, &batched, &other);
    let alone = (first().await.json(), second().await.json());
    let (a, b, c) = tokio::join!(first(), second(), first());
    // The weights are f32, whose products depend on the rows of the batch in their last bits: texts, not times.
    assert_eq!(a.json()["text"], alone.0["text"]);
    assert_eq!(b.json()["text"], alone.1["text"]);
    assert_eq!(c.json()["text"], alone.0["text"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_without_segments_has_pings() {
    let interval = Some(Duration::from_millis(10));
    let app = App::new(ServerOptions { sse_ping_interval: interval, ..server() }).await;
    let fields = [("stream", "true"), ("vad_filter", "false")];
    let answer = transcribe(&app, &fields, &noise(60)).await;
    let first_data = answer.text.find("data: ").unwrap();
    assert!(answer.text[..first_data].contains(":\n\n"), "{}", answer.text);
    let events = events(&answer);
    assert_eq!(events.last().unwrap()["type"], "transcript.text.done");
    assert_eq!(events.last().unwrap()["usage"], json!({"type": "duration", "seconds": 60}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn base_transcribes_the_fox() {
    let path = stonechat_testkit::models_folder().map(|folder| folder.join("base"));
    let Some(path) = path.filter(|path| path.exists()) else {
        println!(
            "SKIPPED base_transcribes_the_fox: no base in STONECHAT_MODELS, run `cargo xtask test`"
        );
        return;
    };
    let models = vec![ModelOption { name: "base".to_owned(), path }];
    let app = App::new(ServerOptions { models, ..ServerOptions::default() }).await;
    let text = "The quick brown fox jumps over the lazy dog.";
    let send = |fields: Vec<(&'static str, &'static str)>| {
        app.send(request(TRANSCRIPTIONS, form(&fields, &fox())))
    };
    let verbose = vec![("response_format", "verbose_json"), ("timestamp_granularities[]", "word")];
    let (plain, verbose, events) = tokio::join!(
        send(vec![("model", "whisper-1")]),
        send(verbose),
        send(vec![("stream", "true")]),
    );
    assert_eq!(plain.json(), json!({"text": text, "usage": {"type": "duration", "seconds": 3}}));
    let verbose = verbose.json();
    assert_eq!((&verbose["language"], &verbose["text"]), (&json!("english"), &json!(text)));
    let words = verbose["words"].as_array().unwrap();
    assert_eq!((words.len(), &words[3]["word"]), (9, &json!("fox")));
    let events = self::events(&events);
    assert_eq!(events.last().unwrap()["text"], text);
}
