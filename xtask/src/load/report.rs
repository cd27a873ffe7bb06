//! Figures of a point, their medians over rounds, tables and JSON.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;
use stonechat_benches::protocol::Unit;
use stonechat_benches::report::Machine;
use stonechat_benches::statistics::summarize;
use stonechat_benches::table;

use super::client::{Outcome, Stream};
use super::drive::Measured;

/// Version of the JSON.
pub(super) const SCHEMA: u32 = 1;

/// A run of the load generator.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) schema: u32,
    pub(super) created_unix_s: u64,
    /// Seed of prompts, arrivals and aborts.
    pub(super) seed: u64,
    pub(super) command: Vec<String>,
    pub(super) machine: Machine,
    pub(super) servers: Vec<ServerInfo>,
    pub(super) points: Vec<Point>,
    pub(super) medians: Vec<Medians>,
}

/// A server that took part.
#[derive(Debug, Serialize)]
pub(super) struct ServerInfo {
    pub(super) name: String,
    /// Command line, empty for a server that ran already.
    pub(super) command: String,
    pub(super) model: String,
}

/// One load on one server in one round.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Point {
    pub(super) server: String,
    pub(super) round: usize,
    /// `4 streams`, `2.5 requests/s`.
    pub(super) load: String,
    pub(super) wall_s: f64,
    pub(super) n_requests: usize,
    pub(super) n_aborted: usize,
    pub(super) n_failed: usize,
    /// Messages of the failed requests with their number.
    pub(super) errors: BTreeMap<String, usize>,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) completion_tokens: u64,
    /// Completion tokens of all streams over the time from the first request to the last end.
    pub(super) tok_s: f64,
    /// Whether a finished stream came without usage: its events count as tokens.
    pub(super) counts_events: bool,
    /// From the request to the first event with text.
    pub(super) ttft_s: Option<Stats>,
    /// Between neighbouring events with text of one stream.
    pub(super) gap_s: Option<Stats>,
    pub(super) uploads: Option<Uploads>,
    pub(super) intrusion: Option<Intrusion>,
    pub(super) requests: Vec<Request>,
}

/// Description of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Stats {
    pub(super) n: usize,
    pub(super) mean: f64,
    pub(super) p50: f64,
    pub(super) p95: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

/// Uploads beside the streams.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Uploads {
    pub(super) n: usize,
    pub(super) n_failed: usize,
    pub(super) errors: BTreeMap<String, usize>,
    pub(super) latency_s: Option<Stats>,
    /// From the first upload's start to the last one's end.
    pub(super) wall_s: f64,
    /// Seconds of audio in a second, where the server tells durations.
    pub(super) audio_s_per_s: f64,
    /// Different texts of the same recording.
    pub(super) n_texts: usize,
}

/// A long prompt that arrived while the streams ran.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Intrusion {
    pub(super) prompt_tokens: u64,
    pub(super) ttft_s: Option<f64>,
    pub(super) error: Option<String>,
    /// Largest gap of the other streams that overlaps the time from its arrival to its first token.
    pub(super) max_gap_s: Option<f64>,
    /// Largest gap that ended before it.
    pub(super) quiet_max_gap_s: Option<f64>,
    /// Gaps that overlap that time.
    pub(super) n_gaps: usize,
}

/// Times of a request, from the start of its point.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Request {
    pub(super) start_s: f64,
    pub(super) ttft_s: Option<f64>,
    pub(super) end_s: f64,
    pub(super) n_events: usize,
    pub(super) completion_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) max_gap_s: Option<f64>,
    /// `done`, `aborted` or the error.
    pub(super) outcome: String,
}

/// Medians of a point over its rounds.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Medians {
    pub(super) server: String,
    pub(super) load: String,
    pub(super) n_rounds: usize,
    pub(super) tok_s: f64,
    pub(super) ttft_p50_s: Option<f64>,
    pub(super) ttft_p95_s: Option<f64>,
    pub(super) gap_p50_s: Option<f64>,
    pub(super) gap_p95_s: Option<f64>,
    pub(super) gap_max_s: Option<f64>,
    pub(super) upload_p50_s: Option<f64>,
    pub(super) upload_wall_s: Option<f64>,
    pub(super) intrusion_max_gap_s: Option<f64>,
    pub(super) n_failed: usize,
}

impl Stats {
    pub(super) fn of(samples: &[f64]) -> Option<Self> {
        let summary = summarize(samples)?;
        Some(Self {
            n: samples.len(),
            mean: summary.mean,
            p50: summary.p50,
            p95: summary.p95,
            p99: summary.p99,
            max: summary.max,
        })
    }
}

fn seconds(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64()
}

/// Seconds between neighbouring events.
fn gaps(stream: &Stream) -> impl Iterator<Item = f64> + '_ {
    stream.events.windows(2).map(|pair| seconds(pair[0], pair[1]))
}

fn ttft(stream: &Stream) -> Option<f64> {
    Some(seconds(stream.start, *stream.events.first()?))
}

fn n_tokens(stream: &Stream) -> u64 {
    let of_usage = stream.usage.map(|usage| usage.completion_tokens);
    of_usage.filter(|n| *n > 0).unwrap_or(stream.events.len() as u64)
}

fn counted(messages: impl Iterator<Item = String>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for message in messages {
        *counts.entry(message).or_default() += 1;
    }
    counts
}

impl Point {
    /// Figures of what was measured.
    pub(super) fn new(server: &str, round: usize, load: &str, measured: &Measured) -> Self {
        let streams = &measured.streams;
        let error = |stream: &Stream| match &stream.outcome {
            Outcome::Failed(message) => Some(message.clone()),
            Outcome::Done | Outcome::Aborted => None,
        };
        let first = streams.iter().map(|stream| stream.start).min().unwrap_or(measured.start);
        let last = streams.iter().map(|stream| stream.end).max().unwrap_or(measured.start);
        let wall_s = seconds(first, last);
        let usage = |field: fn(super::client::Usage) -> u64| -> u64 {
            streams.iter().filter_map(|stream| stream.usage).map(field).sum()
        };
        let completion_tokens: u64 = streams.iter().map(n_tokens).sum();
        let ttfts: Vec<f64> = streams.iter().filter_map(ttft).collect();
        let all_gaps: Vec<f64> = streams.iter().flat_map(gaps).collect();
        Self {
            server: server.to_owned(),
            round,
            load: load.to_owned(),
            wall_s,
            n_requests: streams.len(),
            n_aborted: streams.iter().filter(|s| s.outcome == Outcome::Aborted).count(),
            n_failed: streams.iter().filter_map(error).count(),
            errors: counted(streams.iter().filter_map(error)),
            prompt_tokens: usage(|usage| usage.prompt_tokens),
            cached_tokens: usage(|usage| usage.cached_tokens),
            completion_tokens,
            tok_s: if wall_s > 0.0 { completion_tokens as f64 / wall_s } else { 0.0 },
            counts_events: streams
                .iter()
                .any(|stream| stream.outcome == Outcome::Done && stream.usage.is_none()),
            ttft_s: Stats::of(&ttfts),
            gap_s: Stats::of(&all_gaps),
            uploads: uploads(measured),
            intrusion: measured.intruder.as_ref().map(|intruder| intrusion(intruder, streams)),
            requests: streams.iter().map(|stream| request(stream, measured.start)).collect(),
        }
    }
}

fn request(stream: &Stream, start: Instant) -> Request {
    Request {
        start_s: seconds(start, stream.start),
        ttft_s: ttft(stream),
        end_s: seconds(start, stream.end),
        n_events: stream.events.len(),
        completion_tokens: n_tokens(stream),
        cached_tokens: stream.usage.map_or(0, |usage| usage.cached_tokens),
        max_gap_s: gaps(stream).max_by(f64::total_cmp),
        outcome: match &stream.outcome {
            Outcome::Done => "done".to_owned(),
            Outcome::Aborted => "aborted".to_owned(),
            Outcome::Failed(message) => message.clone(),
        },
    }
}

fn uploads(measured: &Measured) -> Option<Uploads> {
    let all = &measured.uploads;
    let first = all.iter().map(|upload| upload.start).min()?;
    let last = all.iter().map(|upload| upload.end).max()?;
    let done = || all.iter().filter_map(|upload| Some((upload, upload.result.as_ref().ok()?)));
    let latencies: Vec<f64> = done().map(|(upload, _)| seconds(upload.start, upload.end)).collect();
    // The sum of nothing would be -0.0.
    let audio_s = done().map(|(_, (duration, _))| duration).fold(0.0, |sum, s| sum + s);
    let mut texts: Vec<&str> = done().map(|(_, (_, text))| text.as_str()).collect();
    texts.sort_unstable();
    texts.dedup();
    let wall_s = seconds(first, last);
    Some(Uploads {
        n: all.len(),
        n_failed: all.iter().filter(|upload| upload.result.is_err()).count(),
        errors: counted(all.iter().filter_map(|upload| upload.result.clone().err())),
        latency_s: Stats::of(&latencies),
        wall_s,
        audio_s_per_s: if wall_s > 0.0 { audio_s / wall_s } else { 0.0 },
        n_texts: texts.len(),
    })
}

/// Gaps of `streams` beside the long prompt `intruder`.
fn intrusion(intruder: &Stream, streams: &[Stream]) -> Intrusion {
    let from = intruder.start;
    let to = intruder.events.first().copied().unwrap_or(intruder.end);
    let pairs = || streams.iter().flat_map(|stream| stream.events.windows(2));
    let of = |pair: &[Instant]| seconds(pair[0], pair[1]);
    let beside: Vec<f64> = pairs().filter(|pair| pair[1] > from && pair[0] < to).map(of).collect();
    let before = pairs().filter(|pair| pair[1] <= from).map(of);
    Intrusion {
        prompt_tokens: intruder.usage.map_or(0, |usage| usage.prompt_tokens),
        ttft_s: ttft(intruder),
        error: match &intruder.outcome {
            Outcome::Failed(message) => Some(message.clone()),
            Outcome::Done | Outcome::Aborted => None,
        },
        n_gaps: beside.len(),
        max_gap_s: beside.into_iter().max_by(f64::total_cmp),
        quiet_max_gap_s: before.max_by(f64::total_cmp),
    }
}

/// Medians of each server's points over the rounds: servers and loads in the order in which they first appear.
pub(super) fn medians(points: &[Point]) -> Vec<Medians> {
    let mut found: Vec<Medians> = Vec::new();
    for point in points {
        if found.iter().any(|m| m.server == point.server && m.load == point.load) {
            continue;
        }
        let rounds: Vec<&Point> = points
            .iter()
            .filter(|other| other.server == point.server && other.load == point.load)
            .collect();
        let median = |value: &dyn Fn(&Point) -> Option<f64>| {
            let values: Vec<f64> = rounds.iter().filter_map(|point| value(point)).collect();
            Stats::of(&values).map(|stats| stats.p50)
        };
        found.push(Medians {
            server: point.server.clone(),
            load: point.load.clone(),
            n_rounds: rounds.len(),
            tok_s: median(&|p| Some(p.tok_s)).unwrap_or(0.0),
            ttft_p50_s: median(&|p| Some(p.ttft_s?.p50)),
            ttft_p95_s: median(&|p| Some(p.ttft_s?.p95)),
            gap_p50_s: median(&|p| Some(p.gap_s?.p50)),
            gap_p95_s: median(&|p| Some(p.gap_s?.p95)),
            gap_max_s: median(&|p| Some(p.gap_s?.max)),
            upload_p50_s: median(&|p| Some(p.uploads.as_ref()?.latency_s?.p50)),
            upload_wall_s: median(&|p| Some(p.uploads.as_ref()?.wall_s)),
            intrusion_max_gap_s: median(&|p| p.intrusion.as_ref()?.max_gap_s),
            n_failed: rounds.iter().map(|point| point.n_failed).sum(),
        });
    }
    // Servers take turns: a load may begin with any of them.
    found.sort_by_key(|m| {
        let load = points.iter().position(|point| point.load == m.load);
        let server = points.iter().position(|point| point.server == m.server);
        (load, server)
    });
    found
}

fn owned(cells: &[&str]) -> Vec<String> {
    cells.iter().map(|&cell| cell.to_owned()).collect()
}

fn duration(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "-".to_owned(), table::duration)
}

fn four(stats: Option<Stats>) -> [String; 4] {
    let of = |value: fn(Stats) -> f64| duration(stats.map(value));
    [of(|s| s.p50), of(|s| s.p95), of(|s| s.p99), of(|s| s.max)]
}

/// Table of one point's figures, by server.
pub(super) fn table(points: &[&Point]) -> String {
    let mut rows = vec![owned(&[
        "server", "load", "round", "tok/s", "TTFT p50", "p95", "p99", "max", "gap p50", "p95",
        "p99", "max", "requests", "aborted", "failed",
    ])];
    for point in points {
        let mut row = vec![point.server.clone(), point.load.clone(), point.round.to_string()];
        row.push(table::rate(point.tok_s, Unit::Tokens));
        row.extend(four(point.ttft_s));
        row.extend(four(point.gap_s));
        row.extend([point.n_requests, point.n_aborted, point.n_failed].map(|n| n.to_string()));
        rows.push(row);
    }
    table::aligned(&rows, 2)
}

/// Lines on prefixes, uploads, the long prompt and errors of a point; empty without any.
pub(super) fn remarks(point: &Point) -> String {
    let mut lines = Vec::new();
    // A token or two of different prompts agree by chance.
    if point.cached_tokens * 20 > point.prompt_tokens {
        let (cached, all) = (point.cached_tokens, point.prompt_tokens);
        let first = point.requests.iter().min_by(|a, b| a.start_s.total_cmp(&b.start_s));
        let later: Vec<f64> = point
            .requests
            .iter()
            .filter(|request| Some(request.start_s) != first.map(|first| first.start_s))
            .filter_map(|request| request.ttft_s)
            .collect();
        lines.push(format!(
            "prompt tokens from the cache: {cached} of {all}; TTFT of the first request {}, median of the \
             others {}",
            duration(first.and_then(|request| request.ttft_s)),
            duration(Stats::of(&later).map(|stats| stats.p50)),
        ));
    }
    if point.counts_events {
        lines.push("no usage chunk: events are counted as tokens".to_owned());
    }
    if let Some(uploads) = &point.uploads {
        let [p50, p95, _, max] = four(uploads.latency_s);
        lines.push(format!(
            "uploads: {} in {}, {} failed, p50 {p50}, p95 {p95}, max {max}, {:.1} x real time, {} different texts",
            uploads.n,
            table::duration(uploads.wall_s),
            uploads.n_failed,
            uploads.audio_s_per_s,
            uploads.n_texts,
        ));
    }
    if let Some(intrusion) = &point.intrusion {
        lines.push(format!(
            "long prompt of {} tokens: TTFT {}; largest gap of the streams beside it {} (of {} gaps), before it {}",
            intrusion.prompt_tokens,
            duration(intrusion.ttft_s),
            duration(intrusion.max_gap_s),
            intrusion.n_gaps,
            duration(intrusion.quiet_max_gap_s),
        ));
    }
    let upload_errors = point.uploads.iter().flat_map(|uploads| &uploads.errors);
    let intruder_error = point.intrusion.iter().filter_map(|i| Some((i.error.as_ref()?, &1)));
    for (message, n) in point.errors.iter().chain(upload_errors).chain(intruder_error) {
        lines.push(format!("{n} x {message}"));
    }
    lines.into_iter().map(|line| format!("  {}: {line}\n", point.server)).collect()
}

/// Table of medians; each server beside the first one, whose figures are divided by the server's.
pub(super) fn comparison(medians: &[Medians]) -> String {
    let several = medians.iter().any(|m| m.server != medians[0].server);
    let mut head =
        owned(&["load", "server", "rounds", "tok/s", "TTFT p50", "p95", "gap p50", "p95", "max"]);
    let has_uploads = medians.iter().any(|m| m.upload_wall_s.is_some());
    let has_intrusion = medians.iter().any(|m| m.intrusion_max_gap_s.is_some());
    if has_uploads {
        head.extend(owned(&["upload p50", "uploads"]));
    }
    if has_intrusion {
        head.push("beside prompt".to_owned());
    }
    if several {
        head.extend(owned(&["tok/s ratio", "TTFT p50 ratio", "p95 ratio"]));
    }
    let mut rows = vec![head];
    let mut loads: Vec<&str> = medians.iter().map(|m| m.load.as_str()).collect();
    loads.dedup();
    for load in loads {
        let of_load: Vec<&Medians> = medians.iter().filter(|m| m.load == load).collect();
        let first = of_load[0];
        for (i, median) in of_load.iter().enumerate() {
            let mut row = vec![
                if i == 0 { load.to_owned() } else { String::new() },
                median.server.clone(),
                median.n_rounds.to_string(),
                table::rate(median.tok_s, Unit::Tokens),
                duration(median.ttft_p50_s),
                duration(median.ttft_p95_s),
                duration(median.gap_p50_s),
                duration(median.gap_p95_s),
                duration(median.gap_max_s),
            ];
            if has_uploads {
                row.extend([duration(median.upload_p50_s), duration(median.upload_wall_s)]);
            }
            if has_intrusion {
                row.push(duration(median.intrusion_max_gap_s));
            }
            if several && i > 0 {
                row.push(ratio(Some(first.tok_s), Some(median.tok_s)));
                row.push(ratio(first.ttft_p50_s, median.ttft_p50_s));
                row.push(ratio(first.ttft_p95_s, median.ttft_p95_s));
            } else if several {
                row.extend([String::new(), String::new(), String::new()]);
            }
            rows.push(row);
        }
    }
    table::aligned(&rows, 2)
}

fn ratio(first: Option<f64>, other: Option<f64>) -> String {
    match (first, other) {
        (Some(first), Some(other)) if other > 0.0 => format!("{:.2}x", first / other),
        _ => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests;
