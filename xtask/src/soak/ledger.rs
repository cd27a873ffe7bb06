//! Sums of the answers that the clients of a soak have seen.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::{Mutex, PoisonError};

/// Problems that are kept as text.
const MAX_PROBLEMS: usize = 20;

/// Work of requests, as the metrics count it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Work {
    pub(super) texts: u64,
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
    pub(super) generated_tokens: u64,
    pub(super) recordings: u64,
    pub(super) audio_seconds: f64,
}

impl AddAssign for Work {
    fn add_assign(&mut self, other: Self) {
        self.texts += other.texts;
        self.prompt_tokens += other.prompt_tokens;
        self.cached_tokens += other.cached_tokens;
        self.generated_tokens += other.generated_tokens;
        self.recordings += other.recordings;
        self.audio_seconds += other.audio_seconds;
    }
}

/// All sums.
#[derive(Debug, Clone, Default)]
pub(super) struct Totals {
    /// Requests by kind of the client and status; `None`: nobody read the answer.
    pub(super) requests: BTreeMap<(&'static str, Option<u16>), u64>,
    /// Statuses of `POST` requests that reached a route.
    pub(super) responses: BTreeMap<u16, u64>,
    /// `POST` requests that may have reached a route and whose answer nobody read.
    pub(super) unread: u64,
    /// Least and most work of all requests: they differ by clients that went away, and by counts that answers do not tell.
    pub(super) low: Work,
    pub(super) high: Work,
    pub(super) problems: Vec<String>,
    pub(super) n_problems: u64,
}

impl Totals {
    /// Requests by kind and status, in a line.
    pub(super) fn describe(&self) -> String {
        let mut text = String::new();
        let mut last = None;
        for (&(kind, status), n) in &self.requests {
            if last.replace(kind) != Some(kind) {
                let start = if text.is_empty() { "" } else { ", " };
                text.push_str(&format!("{start}{kind}"));
            }
            match status {
                Some(status) => text.push_str(&format!(" {status}:{n}")),
                None => text.push_str(&format!(" gone:{n}")),
            }
        }
        text
    }

    fn count(&mut self, kind: &'static str, status: Option<u16>) {
        *self.requests.entry((kind, status)).or_default() += 1;
        if let Some(status) = status.filter(|&status| status >= 500) {
            self.problem(kind, &format!("HTTP {status}"));
        }
    }

    fn problem(&mut self, kind: &'static str, text: &str) {
        self.n_problems += 1;
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(format!("{kind}: {text}"));
        }
    }
}

/// Sums that all clients add to.
#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<Totals>);

impl Ledger {
    fn change(&self, change: impl FnOnce(&mut Totals)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn totals(&self) -> Totals {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// An answer with this status.
    pub(super) fn answered(&self, kind: &'static str, status: u16) {
        self.change(|totals| {
            totals.count(kind, Some(status));
            *totals.responses.entry(status).or_default() += 1;
        });
    }

    /// A request that is no `POST` to a route.
    pub(super) fn not_posted(&self, kind: &'static str, status: Option<u16>) {
        self.change(|totals| totals.count(kind, status));
    }

    /// A request whose answer nobody read.
    pub(super) fn unread(&self, kind: &'static str) {
        self.change(|totals| {
            totals.count(kind, None);
            totals.unread += 1;
        });
    }

    /// The work of an answer: at least `low`, at most `high`.
    pub(super) fn worked(&self, low: Work, high: Work) {
        self.change(|totals| {
            totals.low += low;
            totals.high += high;
        });
    }

    /// A request whose client went away, and its work.
    pub(super) fn aborted(&self, kind: &'static str, low: Work, high: Work) {
        self.unread(kind);
        self.worked(low, high);
    }

    /// A broken expectation.
    pub(super) fn problem(&self, kind: &'static str, text: &str) {
        self.change(|totals| totals.problem(kind, text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_listed_by_kind_and_status() {
        let ledger = Ledger::default();
        ledger.answered("flood", 200);
        ledger.answered("flood", 429);
        ledger.answered("chat", 200);
        ledger.answered("chat", 200);
        ledger.not_posted("garbage", None);
        let least = Work { generated_tokens: 3, ..Work::default() };
        ledger.aborted("chat", least, Work { texts: 1, generated_tokens: 9, ..Work::default() });
        let totals = ledger.totals();
        assert_eq!(totals.describe(), "chat gone:1 200:2, flood 200:1 429:1, garbage gone:1");
        assert_eq!((totals.responses[&200], totals.unread, totals.n_problems), (3, 1, 0));
        assert_eq!((totals.low.texts, totals.high.texts), (0, 1));
        assert_eq!((totals.low.generated_tokens, totals.high.generated_tokens), (3, 9));
    }

    #[test]
    fn errors_of_the_server_are_problems() {
        let ledger = Ledger::default();
        for _ in 0..30 {
            ledger.answered("upload", 503);
        }
        let totals = ledger.totals();
        assert_eq!((totals.n_problems, totals.problems.len()), (30, MAX_PROBLEMS));
        assert_eq!(totals.problems[0], "upload: HTTP 503");
    }
}
