use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::thread::spawn;

use clap::Parser;
use serde_json::Value;

use super::*;

/// Long enough for any machine: a test that reaches it has failed.
const LIMIT: Duration = Duration::from_secs(60);

/// A request that the mock server received.
#[derive(Debug, Clone)]
struct Received {
    path: String,
    headers: Vec<String>,
    body: Vec<u8>,
}

impl Received {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// Server of a test: `answer` writes the response of each request to its connection.
fn serve(answer: impl Fn(&Received, &mut TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    spawn(move || {
        for connection in listener.incoming() {
            let (mut connection, answer) = (connection.unwrap(), Arc::clone(&answer));
            spawn(move || {
                let request = receive(&connection);
                answer(&request, &mut connection);
            });
        }
    });
    url
}

fn receive(connection: &TcpStream) -> Received {
    let mut reader = BufReader::new(connection);
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    let path = line.split(' ').nth(1).unwrap().to_owned();
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line).unwrap();
        match line.trim() {
            "" => break,
            header => headers.push(header.to_lowercase()),
        }
    }
    let length = headers.iter().find_map(|header| header.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    reader.read_exact(&mut body).unwrap();
    Received { path, headers, body }
}

fn respond(connection: &mut TcpStream, status: u16, body: &str) {
    let n = body.len();
    // The client may have gone away.
    let _ = write!(
        connection,
        "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {n}\r\n\r\n{body}"
    );
}

fn begin_stream(connection: &mut TcpStream) {
    let head =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    connection.write_all(head.as_bytes()).unwrap();
}

/// Sends an event as one chunk; whether the client is still there.
fn send(connection: &mut TcpStream, data: &str) -> bool {
    let event = format!("data: {data}\n\n");
    write!(connection, "{:x}\r\n{event}\r\n", event.len()).is_ok()
}

fn token(n: usize) -> String {
    format!(r#"{{"choices":[{{"text":" {n}","finish_reason":null}}]}}"#)
}

/// A whole stream of the tokens that were asked for.
fn stream_tokens(request: &Received, connection: &mut TcpStream) {
    let n = request.json()["max_tokens"].as_u64().unwrap();
    let words = request.json()["prompt"].as_str().unwrap().split(' ').count();
    begin_stream(connection);
    let sent = (0..n).all(|i| send(connection, &token(i as usize)));
    let usage = format!(
        r#"{{"choices":[],"usage":{{"prompt_tokens":{},"completion_tokens":{n}}}}}"#,
        2 * words
    );
    if sent && send(connection, &usage) && send(connection, "[DONE]") {
        let _ = connection.write_all(b"0\r\n\r\n");
    }
}

/// Routes of a server that works.
fn answer(request: &Received, connection: &mut TcpStream) {
    match request.path.as_str() {
        "/health" => respond(connection, 200, r#"{"status":"ok"}"#),
        "/v1/models" => respond(connection, 200, r#"{"data":[{"id":"m"},{"id":"n"}]}"#),
        "/v1/completions" => stream_tokens(request, connection),
        "/v1/audio/transcriptions" => {
            respond(connection, 200, r#"{"text":"Hello.","duration":2.5}"#);
        }
        _ => respond(connection, 404, r#"{"error":{"message":"File Not Found"}}"#),
    }
}

fn target(url: &str) -> Target {
    Target::new(url, Some("k"), None, Endpoint::Completions, LIMIT).unwrap()
}

fn prompt(text: &str, max_tokens: usize) -> Prompt<'_> {
    Prompt { text, max_tokens, abort_after: None, start: Instant::now() }
}

fn load(arrival: Arrival, requests: usize) -> Load<'static> {
    Load { arrival, requests, duration: None, uploads: 0, recording: None, intruder: None }
}

fn closed(streams: usize, waves: bool) -> Arrival {
    Arrival::Closed { streams, waves }
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: LoadArgs,
}

fn parse(args: &[&str]) -> Result<LoadArgs> {
    let args = Cli::try_parse_from([&["load"], args].concat())?.args;
    args.check()?;
    Ok(args)
}

#[test]
fn requests_are_greedy_streams_of_fixed_length() {
    let received: Arc<Mutex<Vec<Received>>> = Arc::default();
    let kept = Arc::clone(&received);
    let url = serve(move |request, connection| {
        kept.lock().unwrap().push(request.clone());
        answer(request, connection);
    });
    let target = target(&format!("{url}/v1"));
    let stream = target.stream(prompt("a b", 3), &|_| ());
    assert_eq!((stream.outcome, stream.events.len()), (Outcome::Done, 3));
    assert_eq!(stream.usage.unwrap().completion_tokens, 3);
    let received = received.lock().unwrap();
    assert!(received[0].headers.contains(&"authorization: bearer k".to_owned()));
    let body = received[1].json();
    assert_eq!(body["model"], "m");
    assert_eq!(body["prompt"], "a b");
    assert_eq!(body["max_tokens"], 3);
    assert_eq!(body["temperature"], 0.0);
    assert_eq!((&body["ignore_eos"], &body["stream"]), (&true.into(), &true.into()));
    assert!(received[1].headers.contains(&"authorization: bearer k".to_owned()));
}

/// Events are seen one by one: the server sends each only after the client has reported the one before. A client that
/// waits for more bytes would never get them.
#[test]
fn events_are_stamped_when_they_arrive() {
    const N: usize = 5;
    let (report, reports) = channel::<usize>();
    let sent: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let (reports, times) = (Mutex::new(reports), Arc::clone(&sent));
    let url = serve(move |request, connection| {
        if request.path != "/v1/completions" {
            return answer(request, connection);
        }
        begin_stream(connection);
        for n in 1..=N {
            times.lock().unwrap().push(Instant::now());
            assert!(send(connection, &token(n)));
            assert_eq!(reports.lock().unwrap().recv_timeout(LIMIT), Ok(n));
        }
        send(connection, "[DONE]");
        let _ = connection.write_all(b"0\r\n\r\n");
    });
    let stream = target(&url).stream(prompt("a", N), &|n| report.send(n).unwrap());
    assert_eq!((stream.outcome, stream.events.len()), (Outcome::Done, N));
    let sent = sent.lock().unwrap();
    // Each event lies between its own sending and that of the next one.
    assert!((0..N).all(|i| sent[i] <= stream.events[i]), "{sent:?} {:?}", stream.events);
    assert!((1..N).all(|i| stream.events[i - 1] <= sent[i]), "{sent:?} {:?}", stream.events);
}

#[test]
fn a_stream_that_breaks_off_is_an_error_after_its_events() {
    let url = serve(|request, connection| {
        if request.path != "/v1/completions" {
            return answer(request, connection);
        }
        begin_stream(connection);
        for n in 0..3 {
            assert!(send(connection, &token(n)));
        }
        if request.json()["prompt"] == "polite" {
            // A whole body without the end of the stream.
            let _ = connection.write_all(b"0\r\n\r\n");
        }
    });
    let target = target(&url);
    for text in ["polite", "dies"] {
        let stream = target.stream(prompt(text, 9), &|_| ());
        let Outcome::Failed(message) = &stream.outcome else { panic!("{text}: {stream:?}") };
        assert!(message.contains("after 3 events"), "{text}: {message}");
        assert_eq!((stream.events.len(), stream.usage), (3, None));
        assert!(stream.end >= stream.events[2]);
    }
}

#[test]
fn errors_have_the_message_of_the_server() {
    let url = serve(|request, connection| match request.path.as_str() {
        "/v1/completions" if request.json()["prompt"] == "stream" => {
            begin_stream(connection);
            send(connection, &token(0));
            send(connection, r#"{"error":{"code":500,"message":"out of KV"}}"#);
        }
        "/v1/completions" => {
            respond(connection, 429, r#"{"error":{"message":"queue is full"}}"#);
        }
        _ => answer(request, connection),
    });
    let target = target(&url);
    let outcome = |text: &str| target.stream(prompt(text, 9), &|_| ()).outcome;
    assert_eq!(outcome("status"), Outcome::Failed("HTTP 429: queue is full".to_owned()));
    assert_eq!(outcome("stream"), Outcome::Failed("out of KV".to_owned()));
    // A server that is gone.
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let gone = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    assert!(Target::new(&gone, None, None, Endpoint::Chat, LIMIT).is_err());
    let gone = Target::new(&gone, None, Some("m"), Endpoint::Chat, LIMIT).unwrap();
    assert!(matches!(gone.stream(prompt("a", 1), &|_| ()).outcome, Outcome::Failed(_)));
}

#[test]
fn an_aborted_stream_closes_its_connection() {
    let (report, reports) = channel::<usize>();
    let report = Mutex::new(report);
    let url = serve(move |request, connection| {
        if request.path != "/v1/completions" {
            return answer(request, connection);
        }
        begin_stream(connection);
        // Without end: only a closed connection stops it.
        let n = (0..).take_while(|&n| send(connection, &token(n))).count();
        report.lock().unwrap().send(n).unwrap();
    });
    let abort = Prompt { abort_after: Some(4), ..prompt("a", 64) };
    let stream = target(&url).stream(abort, &|_| ());
    assert_eq!((stream.outcome, stream.events.len()), (Outcome::Aborted, 4));
    assert!(reports.recv_timeout(LIMIT).unwrap() >= 4);
}

#[test]
fn closed_loops_keep_their_number_of_streams() {
    let url = serve(answer);
    let prompts = Prompts::read().unwrap();
    for waves in [false, true] {
        let plan = Plan::new(&prompts, 1, &[5], 16);
        let measured = drive::run(&target(&url), plan, &load(closed(3, waves), 4));
        assert_eq!(measured.streams.len(), 12);
        assert!(measured.streams.iter().all(|s| s.outcome == Outcome::Done), "{measured:?}");
        let at_once = |time: Instant| {
            measured.streams.iter().filter(|s| s.start <= time && time < s.end).count()
        };
        assert!(measured.streams.iter().all(|s| at_once(s.start) <= 3), "{measured:?}");
        let mut starts: Vec<_> = measured.streams.iter().map(|s| (s.start, s.end)).collect();
        starts.sort();
        // No request of a wave starts before the wave before it has ended.
        let overlaps = starts.chunks(3).collect::<Vec<_>>().windows(2).any(|pair| {
            let end = pair[0].iter().map(|(_, end)| end).max();
            pair[1].iter().any(|(start, _)| Some(start) < end)
        });
        assert!(!(waves && overlaps), "{starts:?}");
    }
}

#[test]
fn open_loops_start_at_the_scheduled_times() {
    let url = serve(answer);
    let prompts = Prompts::read().unwrap();
    let plan = || {
        let mut plan = Plan::new(&prompts, 1, &[5], 2);
        plan.rate = Some(200.0);
        plan
    };
    let measured = drive::run(&target(&url), plan(), &load(Arrival::Open, 10));
    let mut starts: Vec<_> = measured.streams.iter().map(|s| s.start - measured.start).collect();
    starts.sort();
    let planned: Vec<Duration> = plan().take(10).map(|planned| planned.arrival).collect();
    assert_eq!(starts, planned);
    // Times to the first token count from there.
    assert!(measured.streams.iter().all(|s| s.events[0] >= s.start));
    let short = Load { duration: Some(planned[4]), ..load(Arrival::Open, 10) };
    assert_eq!(drive::run(&target(&url), plan(), &short).streams.len(), 4);
}

#[test]
fn aborts_and_uploads_run_beside_streams() {
    let url = serve(answer);
    let prompts = Prompts::read().unwrap();
    let recording =
        Recording { path: "a.wav".into(), bytes: vec![1, 2, 3], model: "base".to_owned() };
    let mut plan = Plan::new(&prompts, 1, &[5], 8);
    plan.abort_share = 1.0;
    let beside = Load { uploads: 2, recording: Some(&recording), ..load(closed(2, false), 3) };
    let measured = drive::run(&target(&url), plan, &beside);
    assert_eq!(measured.streams.len(), 6);
    let aborted = |s: &client::Stream| s.outcome == Outcome::Aborted && s.events.len() <= 8;
    assert!(measured.streams.iter().all(aborted), "{measured:?}");
    assert!(measured.uploads.len() >= 2);
    let expected = Ok((2.5, "Hello.".to_owned()));
    assert!(measured.uploads.iter().all(|upload| upload.result == expected));
    let alone = Load { arrival: closed(0, false), ..beside };
    let measured = drive::run(&target(&url), Plan::new(&prompts, 1, &[5], 8), &alone);
    assert_eq!((measured.streams.len(), measured.uploads.len()), (0, 6));
}

/// The streams go on until the long prompt is answered, and it is sent when all of them run.
#[test]
fn a_long_prompt_arrives_while_streams_run() {
    let n_running = AtomicUsize::new(0);
    let is_answered = AtomicBool::new(false);
    let url = serve(move |request, connection| {
        if request.path != "/v1/completions" {
            return answer(request, connection);
        }
        if request.json()["prompt"].as_str().unwrap().len() > 1000 {
            assert_eq!(n_running.load(Ordering::SeqCst), 2, "both streams have sent 8 tokens");
            stream_tokens(request, connection);
            is_answered.store(true, Ordering::SeqCst);
            return;
        }
        begin_stream(connection);
        for n in 1.. {
            if n == 8 {
                n_running.fetch_add(1, Ordering::SeqCst);
            }
            if !send(connection, &token(n)) || (n >= 8 && is_answered.load(Ordering::SeqCst)) {
                break;
            }
            sleep(Duration::from_millis(1));
        }
        send(connection, "[DONE]");
        let _ = connection.write_all(b"0\r\n\r\n");
    });
    let prompts = Prompts::read().unwrap();
    let long = prompts.prompt(1000, 3);
    let plan = Plan::new(&prompts, 1, &[5], 400);
    let beside = Load { intruder: Some(&long), ..load(closed(2, false), 1) };
    let measured = drive::run(&target(&url), plan, &beside);
    let intruder = measured.intruder.as_ref().unwrap();
    assert_eq!(intruder.outcome, Outcome::Done);
    assert_eq!(intruder.usage.unwrap().prompt_tokens, 2000);
    let point = Point::new("s", 1, "2 streams", &measured);
    assert!(point.intrusion.unwrap().ttft_s.is_some());
}

#[test]
fn a_long_prompt_is_not_sent_beside_streams_that_fail() {
    // A stream that ends before the other one starts would be the only one.
    let both = Barrier::new(2);
    let url = serve(move |request, connection| match request.path.as_str() {
        "/v1/completions" => {
            both.wait();
            respond(connection, 503, r#"{"error":{"message":"busy"}}"#);
        }
        _ => answer(request, connection),
    });
    let prompts = Prompts::read().unwrap();
    let plan = Plan::new(&prompts, 1, &[5], 64);
    let beside = Load { intruder: Some("long"), ..load(closed(2, false), 1) };
    let measured = drive::run(&target(&url), plan, &beside);
    assert!(measured.intruder.is_none());
    assert_eq!(measured.streams.len(), 2);
}

#[test]
fn the_long_prompt_has_about_its_tokens() {
    let url = serve(answer);
    let args = parse(&[&url, "--intrusion", "4000", "--streams", "2"]).unwrap();
    let prompts = Prompts::read().unwrap();
    // The mock server's words are two tokens each.
    let text = args.intruder(&target(&url), &prompts, 1).unwrap().unwrap();
    assert_eq!(text.split(' ').count(), 2000);
    // The intruder begins like no request of its point.
    let first = |text: &str| text.split(' ').next().unwrap().to_owned();
    let requests = Plan::new(&prompts, 1, &[5], 1).take(100);
    assert!(requests.into_iter().all(|planned| first(&planned.prompt) != first(&text)));
}

#[test]
fn a_run_writes_its_points_as_json() {
    let url = serve(answer);
    let path = std::env::temp_dir().join(format!("load-{}.json", std::process::id()));
    let shown = path.to_str().unwrap();
    let args = [&url, "--streams", "1,2", "--rounds", "2", "--requests", "2", "--json", shown];
    run(&parse(&[&args[..], &["--prompt-words", "4,8", "--max-tokens", "5"]].concat()).unwrap())
        .unwrap();
    let report: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let points = report["points"].as_array().unwrap();
    assert_eq!(points.len(), 4);
    assert_eq!(points[1]["load"], "2 streams");
    assert_eq!(points[1]["completion_tokens"], 20);
    assert_eq!(points[3]["requests"].as_array().unwrap().len(), 4);
    assert_eq!(report["medians"][0]["n_rounds"], 2);
    assert_eq!(report["servers"][0]["model"], "m");
    fs::remove_file(path).unwrap();
}

#[test]
fn options_are_checked() {
    let args = parse(&["http://h:1"]).unwrap();
    assert_eq!(args.streams, [1, 4, 16]);
    let names: Vec<String> = args.specs().into_iter().map(|spec| spec.name).collect();
    assert_eq!(names, ["1 stream", "4 streams", "16 streams"]);
    let rates = parse(&["h:1", "--rate", "0.5,2", "--uploads", "1", "--audio", "a.wav"]).unwrap();
    assert_eq!(rates.specs()[0].name, "0.5 requests/s + 1 upload");
    assert!(parse(&["--server", "stonechat", "--server", "llama.cpp", "-m", "a.gguf"]).is_ok());
    for wrong in [
        &[][..],
        &["--server", "stonechat"],
        &["h:1", "--server", "stonechat", "-m", "a"],
        &["h:1", "--rate", "0"],
        &["h:1", "--rate", "1", "--streams", "2"],
        &["h:1", "--streams", "0"],
        &["h:1", "--uploads", "1"],
        &["h:1", "--waves", "--duration", "3"],
        &["h:1", "--abort-share", "1.5"],
        &["h:1", "--requests", "0"],
    ] {
        assert!(parse(wrong).is_err(), "{wrong:?}");
    }
}
