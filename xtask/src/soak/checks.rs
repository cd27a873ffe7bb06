//! Checks at the end of a soak: metrics of the server against sums of the answers.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;

use super::ledger::{Totals, Work};
use super::memory::{self, Sample, megabytes};
use super::metrics::{self, Metrics, Pages};
use super::traffic::Traffic;
use super::{CONTEXT, SLOTS};
use crate::load::client::Target;
use crate::server_process::ServerProcess;

/// Time in which a server without clients must become idle.
const IDLE_TIME: Duration = Duration::from_secs(120);
/// Interval between looks at the metrics.
const POLL: Duration = Duration::from_secs(1);
/// Difference of two sums of seconds that rounding explains.
const MAX_SECONDS_ERROR: f64 = 1e-3;

/// Result of a check.
#[derive(Debug)]
pub(super) struct Check {
    name: String,
    detail: String,
    pub(super) is_ok: bool,
}

impl Check {
    fn new(name: impl Into<String>, is_ok: bool, detail: String) -> Self {
        Self { name: name.into(), detail, is_ok }
    }

    /// A count within bounds; aborted clients make the difference.
    fn between(name: impl Into<String>, got: u64, (low, high): (u64, u64)) -> Self {
        let detail = if low == high {
            format!("{got}, expected {low}")
        } else {
            format!("{got}, expected {low} of answers to {high} with those of aborted clients")
        };
        Self::new(name, (low..=high).contains(&got), detail)
    }

    pub(super) fn print(&self) {
        let result = if self.is_ok { "ok    " } else { "FAILED" };
        println!("{result} {}: {}", self.name, self.detail);
    }
}

/// Runs all checks on a server whose clients have ended.
pub(super) fn run(
    traffic: &Traffic,
    process: &ServerProcess,
    samples: &[Sample],
    settle_time: Duration,
) -> Result<Vec<Check>> {
    let target = &traffic.target;
    let metrics = idle(target)?;
    let totals = traffic.ledger.totals();
    let mut checks = vec![problems(&totals), memory(samples, settle_time)];
    let bytes = memory::read(process.pid())?;
    println!("RssAnon + VmSwap {:.1} MB when idle", megabytes(bytes as f64));
    checks.extend(counters(&metrics, &totals));
    checks.extend(pages(traffic, metrics.pages())?);
    Ok(checks)
}

/// Metrics of the server once nothing runs and no response is counted any more.
fn idle(target: &Target) -> Result<Metrics> {
    let start = Instant::now();
    let mut last = metrics::read(target)?;
    loop {
        ensure!(start.elapsed() < IDLE_TIME, "not idle after {} s", IDLE_TIME.as_secs());
        sleep(POLL);
        let metrics = metrics::read(target)?;
        if metrics.n_active() == 0 && metrics.n_posts(None) == last.n_posts(None) {
            return Ok(metrics);
        }
        last = metrics;
    }
}

fn problems(totals: &Totals) -> Check {
    let mut detail = totals.describe();
    for problem in &totals.problems {
        detail.push_str(&format!("\n       {problem}"));
    }
    let more = totals.n_problems - totals.problems.len() as u64;
    if more > 0 {
        detail.push_str(&format!("\n       and {more} more"));
    }
    Check::new("answers", totals.n_problems == 0, detail)
}

fn memory(samples: &[Sample], settle_time: Duration) -> Check {
    const NAME: &str = "RssAnon + VmSwap";
    let Some(fit) = memory::fit(samples, settle_time) else {
        return Check::new(NAME, false, "too few samples".to_owned());
    };
    let detail = format!(
        "{:.1} MB after {} s, {:.1} MB at the end (fit of {} samples), growth of at most {:.1} MB expected",
        megabytes(fit.first),
        settle_time.as_secs(),
        megabytes(fit.last),
        samples.iter().filter(|sample| sample.time >= settle_time).count(),
        megabytes(fit.max_growth())
    );
    Check::new(NAME, fit.is_flat(), detail)
}

/// Counters beside the sums of the answers. Nobody has read the answers of aborted clients, so that they are bounds.
fn counters(metrics: &Metrics, totals: &Totals) -> Vec<Check> {
    let Totals { low, high, .. } = totals;
    let count = |name: &str| metrics.count(name, &[]);
    let finished = |reason: &str| {
        metrics
            .count("stonechat:request_success_total", &[&format!("finished_reason=\"{reason}\"")])
    };
    let between =
        |name: &str, got: u64, of: fn(&Work) -> u64| Check::between(name, got, (of(low), of(high)));
    let whole = finished("stop") + finished("length");
    let aborts = high.texts.saturating_sub(whole);
    let generated = count("stonechat:generation_tokens_total");
    let cached = count("stonechat:prompt_tokens_cached_total");
    let recordings = count("stonechat:audio_request_success_total");
    let seconds = metrics.sum("stonechat:audio_seconds_total", &[]);
    let max_seconds = high.audio_seconds + MAX_SECONDS_ERROR;
    let mut checks = vec![
        between("texts", whole, |work| work.texts),
        Check::between("aborted texts", finished("abort"), (0, aborts)),
        between("prompt tokens", count("stonechat:prompt_tokens_total"), |work| work.prompt_tokens),
        between("cached tokens", cached, |work| work.cached_tokens),
        between("generated tokens", generated, |work| work.generated_tokens),
        Check::between(
            "generated tokens of llama-server's counter",
            count("llamacpp:tokens_predicted_total"),
            (generated, generated),
        ),
        between("recordings", recordings, |work| work.recordings),
        Check::new(
            "seconds of audio",
            (low.audio_seconds - MAX_SECONDS_ERROR..=max_seconds).contains(&seconds),
            format!("{seconds:.3}, expected {:.3} to {max_seconds:.3}", low.audio_seconds),
        ),
    ];
    let n_read: u64 = totals.responses.values().sum();
    let with_unread = |low: u64| (low, low + totals.unread);
    let posts = metrics.n_posts(None);
    checks.push(Check::between("POST requests", posts, with_unread(n_read)));
    for (&status, &n) in &totals.responses {
        let name = format!("POST requests with {status}");
        checks.push(Check::between(name, metrics.n_posts(Some(status)), with_unread(n)));
    }
    checks
}

/// All pages are free but those of the prefix cache; a prompt that fills the pool of a model takes these, and erasing its
/// slot frees all.
fn pages(traffic: &Traffic, before: Pages) -> Result<Vec<Check>> {
    let target = &traffic.target;
    let describe =
        |pages: Pages| format!("{} used, {} cached of {}", pages.used, pages.cached, pages.total);
    let mut checks = vec![Check::new(
        "KV pages when idle",
        before.used == 0 && before.total > 0,
        format!("{}, expected 0 used", describe(before)),
    )];
    let tokens: Vec<usize> = (0..CONTEXT - 8).map(|i| i % 50 + 4).collect();
    for model in [&target.model, &traffic.tool_model] {
        let body = json!({"model": model, "prompt": tokens, "max_tokens": 2, "ignore_eos": true});
        let answer =
            target.send("/v1/completions", "application/json", body.to_string().as_bytes())?;
        let detail = if answer.is_success() { "200".to_owned() } else { answer.error() };
        let name = format!("a prompt that needs all KV pages of {model}");
        checks.push(Check::new(name, answer.is_success(), detail));
        for slot in 0..SLOTS {
            let path = format!("/slots/{slot}?action=erase&model={model}");
            let answer = target.send(&path, "application/json", b"{}")?;
            ensure!(answer.is_success(), "{path}: {}", answer.error());
        }
    }
    let erased = idle(target)?.pages();
    checks.push(Check::new(
        "KV pages after the slots are erased",
        erased.used == 0 && erased.cached == 0,
        format!("{}, expected 0 used, 0 cached", describe(erased)),
    ));
    Ok(checks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_bounded_by_answers_and_aborts() {
        let is_ok = |got, bounds| Check::between("a", got, bounds).is_ok;
        assert!(is_ok(5, (5, 5)) && is_ok(5, (3, 5)) && is_ok(3, (3, 5)));
        assert!(!is_ok(4, (5, 5)) && !is_ok(6, (3, 5)) && !is_ok(2, (3, 5)));
        let detail = Check::between("a", 4, (3, 5)).detail;
        assert_eq!(detail, "4, expected 3 of answers to 5 with those of aborted clients");
    }

    #[test]
    fn problems_are_listed() {
        let totals = Totals {
            problems: vec!["chat: HTTP 500".to_owned()],
            n_problems: 3,
            ..Totals::default()
        };
        let check = problems(&totals);
        assert!(!check.is_ok && check.detail.ends_with("chat: HTTP 500\n       and 2 more"));
        assert!(problems(&Totals::default()).is_ok);
    }
}
