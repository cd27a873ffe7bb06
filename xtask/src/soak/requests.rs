//! Clients of texts: requests of the table, read to their end or given up, slow readers, floods.

use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::thread::scope;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use serde_json::Value;

use super::bodies::Ask;
use super::dialects::{check_error, is_refused};
use super::framing::{self, Reply};
use super::kinds::{self, FLOOD, Kind, LONG_PROMPT, SLOW};
use super::ledger::Work;
use super::traffic::Traffic;
use super::{MAX_QUEUE, raw};

/// Media type of the requests.
const JSON: &str = "application/json";
/// One of as many mixed requests is given up before its end.
const ABORT_SHARE: usize = 6;
/// Frames of a stream, and time of a whole answer, after which it is given up at the latest.
const ABORT_FRAMES: RangeInclusive<usize> = 1..=24;
const ABORT_TIME: Duration = Duration::from_millis(1500);
/// Responses that continue each other.
const CHAIN_LENGTH: usize = 3;
/// Requests of a flood, and the time between two.
const N_FLOOD: usize = 2 * MAX_QUEUE;
const FLOOD_INTERVAL: Duration = Duration::from_secs(20);
/// Time in which a slow reader reads a few bytes a second.
const SLOW_TIME: Duration = Duration::from_secs(20);

/// Response that the next one continues, and the number of those before it.
#[derive(Debug)]
pub(super) struct Chain {
    id: String,
    n_before: usize,
}

impl Traffic {
    fn chain(&self) -> MutexGuard<'_, Option<Chain>> {
        self.chain.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, kind: &Kind, random: &mut Rng) -> Ask {
        let model = if kind.is_call { &self.tool_model } else { &self.target.model };
        Ask {
            model: model.clone(),
            text: self.prompts.prompt(random.usize(kind.words.clone()), random.u64(..)),
            max_tokens: random.usize(kind.tokens.clone()),
            is_stream: kind.is_stream(),
            previous: None,
        }
    }

    /// A request of the table.
    pub(super) fn mixed(&self, random: &mut Rng) {
        let kind = kinds::pick(random);
        let is_aborted = random.usize(..ABORT_SHARE) == 0;
        if is_aborted && !kind.is_stream() {
            let wait = random.u64(..ABORT_TIME.as_millis() as u64);
            return self.vanish(kind.name, kind, Duration::from_millis(wait), random);
        }
        let abort_after = is_aborted.then(|| random.usize(ABORT_FRAMES));
        let mut ask = self.ask(kind, random);
        let chain = if kind.is_chained { self.chain().take() } else { None };
        let n_before = chain.as_ref().map_or(0, |chain| chain.n_before + 1);
        ask.previous = chain.map(|chain| chain.id);
        let Some(frames) = self.send(kind, &ask, abort_after) else { return };
        if kind.is_chained && n_before + 1 < CHAIN_LENGTH {
            let last = frames.last().unwrap_or(&Value::Null);
            let id = last.get("response").unwrap_or(last)["id"].as_str().map(str::to_owned);
            *self.chain() = id.map(|id| Chain { id, n_before });
        }
    }

    /// Sends a request and files its answer, of which the client reads all, or some frames. Returns the frames of a whole
    /// answer.
    fn send(&self, kind: &Kind, ask: &Ask, abort_after: Option<usize>) -> Option<Vec<Value>> {
        let body = (kind.body)(ask).to_string();
        let (mark, bounds) = (self.floods.mark(), kind.bounds(body.len(), ask));
        let response = self.target.post(kind.path, JSON, body.as_bytes());
        let response = response.context("no response");
        let reply = response.and_then(|it| Reply::read(it, kind.shape.framing, abort_after));
        let Reply { status, has_retry_after, frames, is_aborted } = match reply {
            Ok(reply) => reply,
            Err(error) => {
                self.failed(kind.name, None, &format!("{error:#}"));
                return None;
            }
        };
        if is_aborted {
            self.ledger.aborted(kind.name, kind.least(&frames), bounds);
            self.pause_after_abort();
            return None;
        }
        let is_refused = status == 429 || is_refused(&frames);
        if is_refused && self.floods.overlaps(mark) {
            self.ledger.answered(kind.name, status);
            if kind.n_texts > 1 {
                // Some of the texts may have run.
                self.ledger.worked(Work::default(), bounds);
            }
            if let Err(error) = check_refusal(kind.path, status, has_retry_after, &frames) {
                self.ledger.problem(kind.name, &format!("{error:#}"));
            }
            self.pause_before_retry();
            return None;
        }
        let last = frames.last().unwrap_or(&Value::Null);
        if status != 200 {
            self.failed(kind.name, Some(status), &format!("HTTP {status}: {last}"));
            return None;
        }
        match kind.check(&frames, ask) {
            Ok((low, high)) => {
                self.ledger.answered(kind.name, status);
                self.ledger.worked(low, high);
                Some(frames)
            }
            Err(error) => {
                self.failed(kind.name, Some(status), &format!("{error:#}"));
                None
            }
        }
    }

    /// Sends a request and goes away without reading.
    fn vanish(&self, name: &'static str, kind: &Kind, wait: Duration, random: &mut Rng) {
        let ask = self.ask(kind, random);
        let body = (kind.body)(&ask).to_string();
        let request = raw::post(kind.path, JSON, body.as_bytes());
        match raw::send_and_close(self.target.address(), &request, wait) {
            Ok(()) => self.ledger.aborted(name, Work::default(), kind.bounds(body.len(), &ask)),
            Err(error) => self.failed(name, None, &error.to_string()),
        }
        self.pause_after_abort();
    }

    pub(super) fn abort_in_queue(&self, random: &mut Rng) {
        let wait = Duration::from_millis(random.u64(0..30));
        self.vanish("abort in queue", kinds::pick(random), wait, random);
    }

    pub(super) fn abort_in_prompt(&self, random: &mut Rng) {
        let wait = Duration::from_millis(random.u64(50..600));
        self.vanish(LONG_PROMPT.name, &LONG_PROMPT, wait, random);
    }

    /// All requests of a flood come at once: the queue refuses some, and answers the others.
    pub(super) fn flood(&self, random: &mut Rng) {
        self.pause(FLOOD_INTERVAL);
        if self.is_over.load(Ordering::Acquire) {
            return;
        }
        let asks: Vec<Ask> = (0..N_FLOOD).map(|_| self.ask(&FLOOD, random)).collect();
        self.floods.begun.fetch_add(1, Ordering::SeqCst);
        let n_answered = scope(|scope| {
            let asks = asks.iter();
            let threads: Vec<_> =
                asks.map(|ask| scope.spawn(move || self.send(&FLOOD, ask, None))).collect();
            // A panic of a thread is passed on by the scope.
            threads.into_iter().filter_map(|thread| thread.join().ok().flatten()).count()
        });
        self.floods.ended.fetch_add(1, Ordering::SeqCst);
        if n_answered == N_FLOOD {
            let text = format!("{N_FLOOD} requests at once, --max-queue {MAX_QUEUE}: none got 429");
            self.ledger.problem(FLOOD.name, &text);
        }
    }

    /// Reads a large stream slowly, then the rest, or goes away.
    pub(super) fn slow_reader(&self, random: &mut Rng) {
        let (kind, ask) = (&SLOW, self.ask(&SLOW, random));
        let body = (kind.body)(&ask).to_string();
        let request = raw::post(kind.path, JSON, body.as_bytes());
        let (mark, reads_rest) = (self.floods.mark(), random.bool());
        let read = raw::read_slowly(self.target.address(), &request, SLOW_TIME, reads_rest);
        let answer = match read {
            Ok(answer) => answer,
            Err(error) => return self.failed(kind.name, None, &error.to_string()),
        };
        match raw::status(&answer) {
            Some(429) if self.floods.overlaps(mark) => {
                self.ledger.answered(kind.name, 429);
                self.pause_before_retry();
            }
            Some(200) if !reads_rest => {
                let bounds = kind.bounds(body.len(), &ask);
                self.ledger.aborted(kind.name, Work::default(), bounds);
            }
            Some(200) => {
                let body = raw::body(&answer).unwrap_or_default();
                let frames = framing::read(body, kind.shape.framing, None);
                match frames.and_then(|(frames, _)| kind.check(&frames, &ask)) {
                    Ok((low, high)) => {
                        self.ledger.answered(kind.name, 200);
                        self.ledger.worked(low, high);
                    }
                    Err(error) => self.failed(kind.name, Some(200), &format!("{error:#}")),
                }
            }
            status => self.failed(kind.name, status, "expected a stream"),
        }
    }
}

/// Checks an answer of a full queue: its error in the form of the path, and when to retry. A stream of Responses that has
/// begun tells both in its last event.
fn check_refusal(path: &str, status: u16, has_retry_after: bool, frames: &[Value]) -> Result<()> {
    if status == 200 {
        return Ok(());
    }
    ensure!(has_retry_after, "429 without Retry-After");
    check_error(path, frames.last().unwrap_or(&Value::Null))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_says_when_to_retry() {
        let error = [json!({"error": "full"})];
        assert!(check_refusal("/api/chat", 429, true, &error).is_ok());
        assert!(check_refusal("/api/chat", 429, false, &error).is_err());
        assert!(check_refusal("/v1/messages", 429, true, &error).is_err());
        assert!(check_refusal("/v1/responses", 200, false, &[]).is_ok());
    }
}
