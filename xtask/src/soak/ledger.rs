//! Sums of the answers that the clients of a soak have seen.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::load::client::Usage;

/// Problems that are kept as text.
const MAX_PROBLEMS: usize = 20;

/// Kind of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Streamed chat.
    Chat,
    /// Several texts in one answer.
    Choices,
    /// A client that goes away at once.
    AbortQueue,
    /// A client that goes away during a long prompt.
    AbortPrompt,
    /// A client that goes away during its stream.
    AbortText,
    Upload,
    Garbage,
    SlowReader,
    Flood,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Chat => "chat",
            Self::Choices => "choices",
            Self::AbortQueue => "abort in queue",
            Self::AbortPrompt => "abort in prompt",
            Self::AbortText => "abort in text",
            Self::Upload => "upload",
            Self::Garbage => "garbage",
            Self::SlowReader => "slow reader",
            Self::Flood => "flood",
        })
    }
}

/// Texts whose clients went away, of which only bounds are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Aborted {
    pub(super) requests: u64,
    pub(super) max_prompt_tokens: u64,
    /// Tokens that the clients have seen.
    pub(super) min_generated_tokens: u64,
    pub(super) max_generated_tokens: u64,
}

/// All sums.
#[derive(Debug, Clone, Default)]
pub(super) struct Totals {
    /// Requests by kind and status; `None`: nobody read the answer.
    pub(super) requests: BTreeMap<(Kind, Option<u16>), u64>,
    /// Statuses of `POST` requests that reached a route.
    pub(super) responses: BTreeMap<u16, u64>,
    /// `POST` requests that may have reached a route and whose answer nobody read.
    pub(super) unread: u64,
    /// Requests for texts whose answers were read to their end, and their tokens.
    pub(super) n_ended: u64,
    pub(super) usage: Usage,
    pub(super) aborted: Aborted,
    pub(super) n_recordings: u64,
    pub(super) audio_seconds: f64,
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

    fn count(&mut self, kind: Kind, status: Option<u16>) {
        *self.requests.entry((kind, status)).or_default() += 1;
        if let Some(status) = status.filter(|&status| status >= 500) {
            self.problem(kind, &format!("HTTP {status}"));
        }
    }

    fn problem(&mut self, kind: Kind, text: &str) {
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
    pub(super) fn answered(&self, kind: Kind, status: u16) {
        self.change(|totals| {
            totals.count(kind, Some(status));
            *totals.responses.entry(status).or_default() += 1;
        });
    }

    /// An answer of the connection, which no route has made.
    pub(super) fn refused(&self, kind: Kind, status: Option<u16>) {
        self.change(|totals| totals.count(kind, status));
    }

    /// A request whose answer nobody read.
    pub(super) fn unread(&self, kind: Kind) {
        self.change(|totals| {
            totals.count(kind, None);
            totals.unread += 1;
        });
    }

    /// The tokens of an answer that was read to its end.
    pub(super) fn ended(&self, usage: Usage) {
        self.change(|totals| {
            let Usage { prompt_tokens, cached_tokens, completion_tokens } = usage;
            totals.n_ended += 1;
            totals.usage.prompt_tokens += prompt_tokens;
            totals.usage.cached_tokens += cached_tokens;
            totals.usage.completion_tokens += completion_tokens;
        });
    }

    /// The texts of a client that went away.
    pub(super) fn aborted(&self, kind: Kind, bounds: Aborted) {
        self.unread(kind);
        self.change(|totals| {
            totals.aborted.requests += bounds.requests;
            totals.aborted.max_prompt_tokens += bounds.max_prompt_tokens;
            totals.aborted.min_generated_tokens += bounds.min_generated_tokens;
            totals.aborted.max_generated_tokens += bounds.max_generated_tokens;
        });
    }

    /// A transcribed recording.
    pub(super) fn transcribed(&self, seconds: f64) {
        self.change(|totals| {
            totals.n_recordings += 1;
            totals.audio_seconds += seconds;
        });
    }

    /// A broken expectation.
    pub(super) fn problem(&self, kind: Kind, text: &str) {
        self.change(|totals| totals.problem(kind, text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_listed_by_kind_and_status() {
        let ledger = Ledger::default();
        ledger.answered(Kind::Flood, 200);
        ledger.answered(Kind::Flood, 429);
        ledger.answered(Kind::Chat, 200);
        ledger.answered(Kind::Chat, 200);
        ledger.refused(Kind::Garbage, None);
        let bounds = Aborted { requests: 1, min_generated_tokens: 3, ..Aborted::default() };
        ledger.aborted(Kind::AbortText, bounds);
        let totals = ledger.totals();
        let expected = "chat 200:2, abort in text gone:1, garbage gone:1, flood 200:1 429:1";
        assert_eq!(totals.describe(), expected);
        assert_eq!((totals.responses[&200], totals.unread, totals.n_problems), (3, 1, 0));
        assert_eq!(totals.aborted.min_generated_tokens, 3);
    }

    #[test]
    fn errors_of_the_server_are_problems() {
        let ledger = Ledger::default();
        for _ in 0..30 {
            ledger.answered(Kind::Upload, 503);
        }
        let totals = ledger.totals();
        assert_eq!((totals.n_problems, totals.problems.len()), (30, MAX_PROBLEMS));
        assert_eq!(totals.problems[0], "upload: HTTP 503");
    }
}
