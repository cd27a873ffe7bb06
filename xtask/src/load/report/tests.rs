use std::time::Duration;

use super::*;
use crate::load::client::{Upload, Usage};

/// A stream that starts at `start` ms and has events at `events` ms after `zero`.
fn stream(zero: Instant, start: u64, events: &[u64], outcome: Outcome) -> Stream {
    let at = |ms: u64| zero + Duration::from_millis(ms);
    let n = events.len() as u64;
    let usage = Usage { prompt_tokens: 100, cached_tokens: 0, completion_tokens: n };
    Stream {
        start: at(start),
        end: at(events.last().copied().unwrap_or(start) + 10),
        status: Some(200),
        events: events.iter().map(|&ms| at(ms)).collect(),
        usage: (outcome == Outcome::Done).then_some(usage),
        outcome,
    }
}

fn measured(zero: Instant, streams: Vec<Stream>) -> Measured {
    Measured { start: zero, streams, uploads: Vec::new(), intruder: None }
}

#[track_caller]
fn close(got: f64, expected: f64) {
    assert!((got - expected).abs() < 1e-9, "got {got}, expected {expected}");
}

#[test]
fn times_to_first_token_and_gaps_are_percentiles_over_all_streams() {
    let zero = Instant::now();
    let streams = vec![
        stream(zero, 0, &[100, 110, 130], Outcome::Done),
        stream(zero, 50, &[350, 390], Outcome::Done),
    ];
    let point = Point::new("s", 1, "2 streams", &measured(zero, streams));
    let ttft = point.ttft_s.unwrap();
    // 100 and 300 ms.
    assert_eq!(ttft.n, 2);
    close(ttft.p50, 0.2);
    close(ttft.p95, 0.29);
    close(ttft.max, 0.3);
    // 10, 20 and 40 ms.
    let gap = point.gap_s.unwrap();
    assert_eq!(gap.n, 3);
    close(gap.p50, 0.02);
    close(gap.p95, 0.038);
    close(gap.p99, 0.0396);
    close(gap.max, 0.04);
    // 5 tokens from 0 to 400 ms.
    close(point.wall_s, 0.4);
    close(point.tok_s, 12.5);
    assert_eq!((point.prompt_tokens, point.completion_tokens), (200, 5));
    close(point.requests[1].ttft_s.unwrap(), 0.3);
    close(point.requests[1].max_gap_s.unwrap(), 0.04);
    assert!(!point.counts_events);
}

#[test]
fn aborted_streams_count_their_events_and_failed_ones_their_message() {
    let zero = Instant::now();
    let failed = || Outcome::Failed("HTTP 503: busy".to_owned());
    let streams = vec![
        stream(zero, 0, &[10, 20], Outcome::Aborted),
        stream(zero, 0, &[], failed()),
        stream(zero, 0, &[], failed()),
    ];
    let point = Point::new("s", 1, "3 streams", &measured(zero, streams));
    assert_eq!((point.n_requests, point.n_aborted, point.n_failed), (3, 1, 2));
    assert_eq!(point.errors["HTTP 503: busy"], 2);
    assert_eq!((point.completion_tokens, point.ttft_s.unwrap().n), (2, 1));
    assert!(remarks(&point).contains("2 x HTTP 503: busy"));
    assert!(table(&[&point]).lines().nth(1).unwrap().ends_with('2'));
    let empty = Point::new("s", 1, "0 streams", &measured(zero, Vec::new()));
    assert_eq!((empty.ttft_s, empty.gap_s), (None, None));
    close(empty.tok_s, 0.0);
}

#[test]
fn finished_streams_without_usage_are_marked() {
    let zero = Instant::now();
    let mut one = stream(zero, 0, &[10, 20], Outcome::Done);
    one.usage = None;
    let point = Point::new("s", 1, "1 stream", &measured(zero, vec![one]));
    assert!(point.counts_events);
    assert_eq!(point.completion_tokens, 2);
}

#[test]
fn gaps_beside_a_long_prompt_are_those_that_overlap_it() {
    let zero = Instant::now();
    let streams = [
        // Before; into the prompt; inside; after it.
        stream(zero, 0, &[10, 40, 160, 180, 500, 900], Outcome::Done),
        stream(zero, 0, &[50, 95, 205, 800], Outcome::Done),
    ];
    let intruder = stream(zero, 100, &[200, 210], Outcome::Done);
    let found = intrusion(&intruder, &streams);
    // 40–160, 160–180, 180–500 and 95–205.
    assert_eq!(found.n_gaps, 4);
    close(found.max_gap_s.unwrap(), 0.32);
    close(found.quiet_max_gap_s.unwrap(), 0.045);
    close(found.ttft_s.unwrap(), 0.1);
    assert_eq!(found.prompt_tokens, 100);
}

#[test]
fn uploads_have_latencies_audio_and_texts() {
    let zero = Instant::now();
    let upload = |from: u64, to: u64, result: Result<(f64, String), String>| Upload {
        start: zero + Duration::from_millis(from),
        end: zero + Duration::from_millis(to),
        result,
    };
    let uploads = vec![
        upload(0, 1000, Ok((10.0, "a".to_owned()))),
        upload(0, 2000, Ok((10.0, "b".to_owned()))),
        upload(0, 500, Err("HTTP 400: no audio".to_owned())),
    ];
    let all = Measured { uploads, ..measured(zero, Vec::new()) };
    let found = super::uploads(&all).unwrap();
    assert_eq!((found.n, found.n_failed, found.n_texts), (3, 1, 2));
    close(found.latency_s.unwrap().p50, 1.5);
    close(found.audio_s_per_s, 10.0);
    assert!(super::uploads(&measured(zero, Vec::new())).is_none());
}

#[test]
fn medians_are_taken_over_rounds_and_compared_with_the_first_server() {
    let zero = Instant::now();
    let point = |server: &str, round: usize, last: u64| {
        let streams = vec![stream(zero, 0, &[last / 2, last], Outcome::Done)];
        Point::new(server, round, "1 stream", &measured(zero, streams))
    };
    // Ends at 100, 200 and 900 ms, 2 tokens each; the other server takes four times the median.
    let points = [
        point("a", 1, 90),
        point("b", 1, 790),
        point("a", 2, 190),
        point("b", 2, 790),
        point("a", 3, 890),
        point("b", 3, 790),
    ];
    let found = medians(&points);
    assert_eq!(found.len(), 2);
    close(found[0].tok_s, 10.0);
    close(found[0].ttft_p50_s.unwrap(), 0.095);
    assert_eq!((found[0].server.as_str(), found[0].n_rounds), ("a", 3));
    let text = comparison(&found);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(lines[1].starts_with("1 stream  a"), "{text}");
    assert!(lines[2].contains("4.00x") && lines[2].ends_with("0.24x"), "{text}");
    // The other server begins the second load.
    let turned = |server: &str| Point { load: "2 streams".to_owned(), ..point(server, 1, 90) };
    let both = [point("a", 1, 90), point("b", 1, 90), turned("b"), turned("a")];
    let order: Vec<String> =
        medians(&both).into_iter().map(|m| format!("{} {}", m.load, m.server)).collect();
    assert_eq!(order, ["1 stream a", "1 stream b", "2 streams a", "2 streams b"]);
    let alone = comparison(&found[..1]);
    assert!(!alone.contains("ratio"), "{alone}");
}

#[test]
fn a_shared_prefix_is_remarked() {
    let zero = Instant::now();
    let mut streams =
        vec![stream(zero, 0, &[400], Outcome::Done), stream(zero, 410, &[430], Outcome::Done)];
    streams[1].usage = Some(Usage { prompt_tokens: 100, cached_tokens: 90, completion_tokens: 1 });
    let point = Point::new("s", 1, "1 stream", &measured(zero, streams));
    let text = remarks(&point);
    assert!(text.contains("90 of 200"), "{text}");
    assert!(text.contains("first request 400 ms") && text.contains("others 20.0 ms"), "{text}");
}
