//! Clients: streams, several choices, aborts, slow readers, uploads, floods.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Scope, scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use serde_json::{Value, json};

use super::ledger::{Aborted, Kind, Ledger};
use super::{MAX_QUEUE, garbage, raw};
use crate::load::client::{
    Answer, Outcome, Prompt, Recording, Stream, TRANSCRIPTIONS, Target, Usage, multipart,
};
use crate::load::prompts::{Prompts, mix};
use crate::load::sse::Parser;

/// Clients of a kind at a time.
const N_CHATS: usize = 4;
const N_CHOICES: usize = 2;
const N_UPLOADS: usize = 2;
const N_SLOW_READERS: usize = 2;
/// Requests of a flood, and the time between two.
const FLOOD: usize = 2 * MAX_QUEUE;
const FLOOD_INTERVAL: Duration = Duration::from_secs(20);
/// Time that a client waits after a 429.
const RETRY_TIME: Duration = Duration::from_secs(1);
/// Pause of a client that went away: long prompts would leave the others no time.
const ABORT_PAUSE: Duration = Duration::from_millis(500);
/// Time in which a slow reader reads a few bytes a second.
const SLOW_TIME: Duration = Duration::from_secs(20);
/// Tokens of a slow reader, and the probabilities of each, which fill the buffers of the connection.
const SLOW_TOKENS: usize = 96;
const SLOW_PROBABILITIES: usize = 20;
/// Tokens that a chat template may add to a prompt.
const TEMPLATE_TOKENS: usize = 256;
/// Longest sleep without a look at the end.
const POLL: Duration = Duration::from_millis(200);

/// Times of floods: a request that overlaps one may be refused.
#[derive(Debug, Default)]
pub(super) struct Floods {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// Floods that had ended when a request began.
#[derive(Debug, Clone, Copy)]
struct Mark(u64);

impl Floods {
    fn mark(&self) -> Mark {
        Mark(self.ended.load(Ordering::SeqCst))
    }

    /// Whether a flood ran since `mark`.
    fn overlaps(&self, mark: Mark) -> bool {
        self.begun.load(Ordering::SeqCst) > mark.0
    }
}

/// All clients of a soak.
#[derive(Debug)]
pub(super) struct Traffic {
    pub(super) target: Target,
    pub(super) prompts: Prompts,
    pub(super) recordings: Vec<Recording>,
    pub(super) seed: u64,
    pub(super) ledger: Ledger,
    pub(super) floods: Floods,
    /// Whether the load has ended: clients start no further request.
    pub(super) is_over: AtomicBool,
}

/// One request of a client.
type Client = fn(&Traffic, &mut Rng);

impl Traffic {
    /// Starts a thread for each client.
    pub(super) fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let clients: [(usize, Client); 9] = [
            (N_CHATS, Self::chat),
            (N_CHOICES, Self::choices),
            (N_UPLOADS, Self::upload),
            (N_SLOW_READERS, Self::slow_reader),
            (1, Self::abort_in_queue),
            (1, Self::abort_in_prompt),
            (1, Self::abort_in_text),
            (1, Self::garbage),
            (1, Self::flood),
        ];
        let clients = clients.into_iter().flat_map(|(n, client)| std::iter::repeat_n(client, n));
        for (index, client) in clients.enumerate() {
            scope.spawn(move || {
                let mut random = Rng::with_seed(mix(&[self.seed, index as u64]));
                while !self.is_over.load(Ordering::Acquire) {
                    client(self, &mut random);
                }
            });
        }
    }

    /// Sleeps, but not beyond the end.
    fn pause(&self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time && !self.is_over.load(Ordering::Acquire) {
            sleep(POLL.min(time.saturating_sub(start.elapsed())));
        }
    }

    fn text(&self, random: &mut Rng, words: std::ops::Range<usize>) -> String {
        self.prompts.prompt(random.usize(words), random.u64(..))
    }

    fn chat(&self, random: &mut Rng) {
        let text = self.text(random, 20..200);
        let max_tokens = random.usize(8..=64);
        self.stream(Kind::Chat, &text, max_tokens, None);
    }

    fn abort_in_text(&self, random: &mut Rng) {
        let text = self.text(random, 20..100);
        let after = random.usize(1..=32);
        self.stream(Kind::AbortText, &text, 64, Some(after));
    }

    fn stream(&self, kind: Kind, text: &str, max_tokens: usize, abort_after: Option<usize>) {
        let mark = self.floods.mark();
        let prompt = Prompt { text, max_tokens, abort_after, start: Instant::now() };
        let stream = self.target.stream(prompt, &|_| ());
        let Stream { outcome, status, usage, events, .. } = stream;
        match (outcome, status) {
            (Outcome::Aborted, _) => {
                let bounds = aborted(text, max_tokens, events.len());
                self.ledger.aborted(kind, bounds);
            }
            (Outcome::Done, Some(status)) => {
                self.ledger.answered(kind, status);
                let Some(usage) = usage else {
                    return self.ledger.problem(kind, "the stream has no usage");
                };
                self.take_usage(kind, usage, max_tokens);
                // The last tokens may share an event, but not all of them.
                if events.is_empty() {
                    self.ledger.problem(kind, "the stream has no text");
                }
            }
            (Outcome::Failed(_), Some(429)) if self.floods.overlaps(mark) => {
                self.ledger.answered(kind, 429);
                self.pause(RETRY_TIME);
            }
            (Outcome::Failed(message), status) => self.failed(kind, status, &message),
            (Outcome::Done, None) => self.failed(kind, None, "no response"),
        }
    }

    fn failed(&self, kind: Kind, status: Option<u16>, message: &str) {
        match status {
            Some(status) => self.ledger.answered(kind, status),
            None => self.ledger.unread(kind),
        }
        self.ledger.problem(kind, message);
        self.pause(RETRY_TIME);
    }

    fn take_usage(&self, kind: Kind, usage: Usage, expected: usize) {
        self.ledger.ended(usage);
        let got = usage.completion_tokens;
        if got != expected as u64 {
            self.ledger.problem(kind, &format!("expected {expected} tokens, got {got}"));
        }
    }

    /// A request that is no stream for `n` texts.
    fn complete(&self, text: &str, n: usize, max_tokens: usize) -> Result<Answer> {
        let mut body = self.target.body(text, max_tokens);
        body["stream"] = false.into();
        body["stream_options"] = Value::Null;
        body["temperature"] = 1.0.into();
        body["n"] = n.into();
        self.target.send(self.target.path(), "application/json", body.to_string().as_bytes())
    }

    /// Files the answer to [`complete`](Self::complete).
    fn take_answer(&self, kind: Kind, answer: &Answer, n: usize, max_tokens: usize) {
        self.ledger.answered(kind, answer.status);
        let read = || {
            let json = answer.json()?;
            let choices = json["choices"].as_array().context("expected choices")?;
            ensure!(choices.len() == n, "expected {n} choices, got {}", choices.len());
            for choice in choices {
                ensure!(choice["finish_reason"] == "length", "expected a whole text, got {choice}");
                ensure!(choice["message"]["content"].is_string(), "expected a text, got {choice}");
            }
            usage(&json["usage"])
        };
        match read() {
            Ok(usage) => self.take_usage(kind, usage, n * max_tokens),
            Err(error) => self.ledger.problem(kind, &format!("{error:#}")),
        }
    }

    fn choices(&self, random: &mut Rng) {
        let text = self.text(random, 10..100);
        let (n, max_tokens) = (random.usize(2..=4), random.usize(4..=24));
        let mark = self.floods.mark();
        match self.complete(&text, n, max_tokens) {
            Ok(answer) if answer.is_success() => {
                self.take_answer(Kind::Choices, &answer, n, max_tokens);
            }
            Ok(answer) if answer.status == 429 && self.floods.overlaps(mark) => {
                self.ledger.answered(Kind::Choices, 429);
                self.pause(RETRY_TIME);
            }
            Ok(answer) => self.failed(Kind::Choices, Some(answer.status), &answer.error()),
            Err(error) => self.failed(Kind::Choices, None, &format!("{error:#}")),
        }
    }

    /// All requests of a flood come at once: the queue refuses some, and answers the others.
    fn flood(&self, random: &mut Rng) {
        self.pause(FLOOD_INTERVAL);
        if self.is_over.load(Ordering::Acquire) {
            return;
        }
        let texts: Vec<String> = (0..FLOOD).map(|_| self.text(random, 5..20)).collect();
        self.floods.begun.fetch_add(1, Ordering::SeqCst);
        let answers: Vec<Result<Answer>> = scope(|scope| {
            let texts = texts.iter();
            let threads: Vec<_> =
                texts.map(|text| scope.spawn(move || self.complete(text, 1, 8))).collect();
            // A panic of a thread is passed on by the scope.
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        self.floods.ended.fetch_add(1, Ordering::SeqCst);
        let mut n_refused = 0;
        for answer in answers {
            match answer {
                Ok(answer) if answer.is_success() => self.take_answer(Kind::Flood, &answer, 1, 8),
                Ok(answer) if answer.status == 429 => {
                    n_refused += 1;
                    self.ledger.answered(Kind::Flood, 429);
                    if !answer.has_retry_after {
                        self.ledger.problem(Kind::Flood, "429 without Retry-After");
                    }
                }
                Ok(answer) => self.failed(Kind::Flood, Some(answer.status), &answer.error()),
                Err(error) => self.failed(Kind::Flood, None, &format!("{error:#}")),
            }
        }
        if n_refused == 0 {
            let text = format!("{FLOOD} requests at once, --max-queue {MAX_QUEUE}: none got 429");
            self.ledger.problem(Kind::Flood, &text);
        }
    }

    fn abort_in_queue(&self, random: &mut Rng) {
        let text = self.text(random, 20..100);
        let wait = Duration::from_millis(random.u64(0..30));
        self.abort_early(Kind::AbortQueue, &text, wait);
    }

    fn abort_in_prompt(&self, random: &mut Rng) {
        let text = self.text(random, 400..800);
        let wait = Duration::from_millis(random.u64(50..600));
        self.abort_early(Kind::AbortPrompt, &text, wait);
    }

    fn abort_early(&self, kind: Kind, text: &str, wait: Duration) {
        let body = self.target.body(text, 64).to_string();
        let request = raw::post(self.target.path(), "application/json", body.as_bytes());
        match raw::send_and_close(self.target.address(), &request, wait) {
            Ok(()) => self.ledger.aborted(kind, aborted(text, 64, 0)),
            Err(error) => self.failed(kind, None, &error.to_string()),
        }
        self.pause(ABORT_PAUSE);
    }

    fn upload(&self, random: &mut Rng) {
        let Some(recording) = random.choice(&self.recordings) else { return };
        let (content_type, body) = multipart(recording);
        let answer = match self.target.send(TRANSCRIPTIONS, &content_type, &body) {
            Ok(answer) if answer.is_success() => answer,
            Ok(answer) => return self.failed(Kind::Upload, Some(answer.status), &answer.error()),
            Err(error) => return self.failed(Kind::Upload, None, &format!("{error:#}")),
        };
        self.ledger.answered(Kind::Upload, answer.status);
        let seconds = answer.json().ok().and_then(|json| {
            json["text"].as_str()?;
            json["duration"].as_f64().filter(|&seconds| seconds > 0.0)
        });
        match seconds {
            Some(seconds) => self.ledger.transcribed(seconds),
            None => self.ledger.problem(Kind::Upload, "expected a text and a duration"),
        }
    }

    /// Reads a large stream slowly, then the rest, or goes away.
    fn slow_reader(&self, random: &mut Rng) {
        let text = self.text(random, 10..50);
        let mut body = self.target.body(&text, SLOW_TOKENS);
        body["logprobs"] = true.into();
        body["top_logprobs"] = SLOW_PROBABILITIES.into();
        let body = body.to_string();
        let request = raw::post(self.target.path(), "application/json", body.as_bytes());
        let (mark, reads_rest) = (self.floods.mark(), random.bool());
        let read = raw::read_slowly(self.target.address(), &request, SLOW_TIME, reads_rest);
        let answer = match read {
            Ok(answer) => answer,
            Err(error) => return self.failed(Kind::SlowReader, None, &error.to_string()),
        };
        match raw::status(&answer) {
            Some(429) if self.floods.overlaps(mark) => {
                self.ledger.answered(Kind::SlowReader, 429);
                self.pause(RETRY_TIME);
            }
            Some(200) if !reads_rest => {
                self.ledger.aborted(Kind::SlowReader, aborted(&text, SLOW_TOKENS, 0));
            }
            Some(200) => {
                self.ledger.answered(Kind::SlowReader, 200);
                match usage_of_stream(&answer) {
                    Ok(usage) => self.take_usage(Kind::SlowReader, usage, SLOW_TOKENS),
                    Err(error) => self.ledger.problem(Kind::SlowReader, &format!("{error:#}")),
                }
            }
            status => self.failed(Kind::SlowReader, status, "expected a stream"),
        }
    }

    fn garbage(&self, random: &mut Rng) {
        let recording = &self.recordings[random.usize(..self.recordings.len())];
        for case in garbage::cases(recording) {
            let mark = self.floods.mark();
            let address = self.target.address();
            let answer = match case.answer {
                garbage::Expected::Nothing => {
                    let wait = Duration::from_millis(random.u64(0..50));
                    raw::send_and_close(address, &case.bytes, wait).map(|()| None)
                }
                _ => raw::exchange(address, &case.bytes),
            };
            match answer {
                Ok(status) => match case.check(status) {
                    Some(_) if status == Some(429) && self.floods.overlaps(mark) => {
                        self.ledger.answered(Kind::Garbage, 429);
                    }
                    Some(problem) => self.failed(Kind::Garbage, status, &problem),
                    None => match status {
                        Some(status) if case.reaches_route => {
                            self.ledger.answered(Kind::Garbage, status);
                        }
                        None if case.reaches_route => self.ledger.unread(Kind::Garbage),
                        _ => self.ledger.refused(Kind::Garbage, status),
                    },
                },
                Err(error) => {
                    self.failed(Kind::Garbage, None, &format!("{}: {error}", case.name));
                }
            }
            if self.is_over.load(Ordering::Acquire) {
                return;
            }
            self.pause(Duration::from_millis(random.u64(0..100)));
        }
    }
}

/// Bounds of a text whose client went away after `n_events` events. A token has a byte or more.
fn aborted(text: &str, max_tokens: usize, n_events: usize) -> Aborted {
    Aborted {
        requests: 1,
        max_prompt_tokens: (text.len() + TEMPLATE_TOKENS) as u64,
        min_generated_tokens: n_events as u64,
        max_generated_tokens: max_tokens as u64,
    }
}

/// Counts of an object `usage`.
fn usage(usage: &Value) -> Result<Usage> {
    let count = |value: &Value| value.as_u64().with_context(|| format!("expected counts: {usage}"));
    Ok(Usage {
        prompt_tokens: count(&usage["prompt_tokens"])?,
        cached_tokens: count(&usage["prompt_tokens_details"]["cached_tokens"])?,
        completion_tokens: count(&usage["completion_tokens"])?,
    })
}

/// Counts at the end of a whole stream, which has a text and `[DONE]`.
fn usage_of_stream(answer: &[u8]) -> Result<Usage> {
    let head = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").context("no headers")?;
    let mut events = Parser::default().push(&answer[head + 4..]);
    let last = events.pop();
    ensure!(last.as_deref() == Some("[DONE]"), "expected [DONE], got {last:?}");
    let chunks: Vec<Value> =
        events.iter().map(|data| serde_json::from_str(data)).collect::<Result<_, _>>()?;
    let n = chunks.iter().filter(|c| c["choices"][0]["delta"]["content"].is_string()).count();
    ensure!(n > 0, "expected a text, got {} chunks without", chunks.len());
    let last = chunks.last().unwrap_or(&Value::Null);
    usage(last.get("usage").unwrap_or(&json!(null)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_overlaps_a_flood_that_runs_or_ran() {
        let floods = Floods::default();
        let before = floods.mark();
        assert!(!floods.overlaps(before));
        floods.begun.fetch_add(1, Ordering::SeqCst);
        assert!(floods.overlaps(before) && floods.overlaps(floods.mark()));
        floods.ended.fetch_add(1, Ordering::SeqCst);
        assert!(floods.overlaps(before) && !floods.overlaps(floods.mark()));
    }

    #[test]
    fn a_whole_stream_has_text_usage_and_an_end() {
        let chunk = |json: &str| format!("data: {json}\n\n");
        let text = chunk(r#"{"choices":[{"delta":{"content":"a"}}]}"#);
        let counts = r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5,
            "prompt_tokens_details":{"cached_tokens":3}}}"#;
        let counts = chunk(&counts.replace('\n', " "));
        let answer = |parts: &[&str]| {
            usage_of_stream(format!("HTTP/1.0 200 OK\r\n\r\n{}", parts.concat()).as_bytes())
        };
        let usage = answer(&[&text, &counts, "data: [DONE]\n\n"]).unwrap();
        let expected = Usage { prompt_tokens: 7, cached_tokens: 3, completion_tokens: 5 };
        assert_eq!(usage, expected);
        for broken in [&[&text[..], &counts][..], &[&counts, "data: [DONE]\n\n"], &[&text]] {
            assert!(answer(broken).is_err(), "{broken:?}");
        }
        assert!(answer(&[&text, "data: [DONE]\n\n"]).is_err());
    }
}
