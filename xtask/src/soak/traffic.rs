//! Threads of the clients, what they share, and the client of invalid requests.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Scope, sleep};
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::ledger::Ledger;
use super::requests::Chain;
use super::uploads::Clip;
use super::{garbage, raw};
use crate::load::client::{Recording, Target};
use crate::load::prompts::{Prompts, mix};

/// Clients of a kind at a time.
const N_MIXED: usize = 8;
const N_SLOW_READERS: usize = 2;
/// Time that a client waits after an error.
const RETRY_TIME: Duration = Duration::from_secs(1);
/// Pause of a client that went away: long prompts would leave the others no time.
const ABORT_PAUSE: Duration = Duration::from_millis(500);
/// Longest sleep without a look at the end.
const POLL: Duration = Duration::from_millis(200);

/// Times of floods: a request that overlaps one may be refused.
#[derive(Debug, Default)]
pub(super) struct Floods {
    pub(super) begun: AtomicU64,
    pub(super) ended: AtomicU64,
}

/// Floods that had ended when a request began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark(u64);

impl Floods {
    pub(super) fn mark(&self) -> Mark {
        Mark(self.ended.load(Ordering::SeqCst))
    }

    /// Whether a flood ran since `mark`.
    pub(super) fn overlaps(&self, mark: Mark) -> bool {
        self.begun.load(Ordering::SeqCst) > mark.0
    }
}

/// All clients of a soak.
#[derive(Debug)]
pub(super) struct Traffic {
    pub(super) target: Target,
    /// Model of tool calls.
    pub(super) tool_model: String,
    /// Address of Wyoming.
    pub(super) wyoming: String,
    pub(super) prompts: Prompts,
    pub(super) recordings: Vec<Recording>,
    pub(super) clips: Vec<Clip>,
    pub(super) seed: u64,
    pub(super) ledger: Ledger,
    pub(super) floods: Floods,
    pub(super) chain: Mutex<Option<Chain>>,
    /// Whether the load has ended: clients start no further request.
    pub(super) is_over: AtomicBool,
}

/// One request of a client.
type Client = fn(&Traffic, &mut Rng);

impl Traffic {
    /// Starts a thread for each client.
    pub(super) fn start<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let clients: [(usize, Client); 10] = [
            (N_MIXED, Self::mixed),
            (N_SLOW_READERS, Self::slow_reader),
            (1, Self::abort_in_queue),
            (1, Self::abort_in_prompt),
            (1, Self::garbage),
            (1, Self::flood),
            (1, Self::upload),
            (1, Self::asr),
            (1, Self::realtime),
            (1, Self::wyoming),
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
    pub(super) fn pause(&self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time && !self.is_over.load(Ordering::Acquire) {
            sleep(POLL.min(time.saturating_sub(start.elapsed())));
        }
    }

    /// Pause of a client that went away.
    pub(super) fn pause_after_abort(&self) {
        self.pause(ABORT_PAUSE);
    }

    /// Pause of a client that was refused.
    pub(super) fn pause_before_retry(&self) {
        self.pause(RETRY_TIME);
    }

    pub(super) fn failed(&self, kind: &'static str, status: Option<u16>, message: &str) {
        match status {
            Some(status) => self.ledger.answered(kind, status),
            None => self.ledger.unread(kind),
        }
        self.ledger.problem(kind, message);
        self.pause_before_retry();
    }

    fn garbage(&self, random: &mut Rng) {
        const NAME: &str = "garbage";
        let recording = &self.recordings[random.usize(..self.recordings.len())];
        for case in garbage::cases(&self.target.model, recording) {
            let mark = self.floods.mark();
            let address = self.target.address();
            let answer = match case.answer {
                garbage::Expected::Nothing => {
                    let wait = Duration::from_millis(random.u64(0..50));
                    raw::send_and_close(address, &case.bytes, wait).map(|()| (Vec::new(), false))
                }
                _ => raw::exchange(address, &case.bytes),
            };
            match answer {
                Ok((answer, was_reset)) => {
                    let status = raw::status(&answer);
                    match case.check(&answer, was_reset) {
                        Some(_) if status == Some(429) && self.floods.overlaps(mark) => {
                            self.ledger.answered(NAME, 429);
                        }
                        Some(problem) => self.failed(NAME, status, &problem),
                        None => match status {
                            Some(status) if case.reaches_route => {
                                self.ledger.answered(NAME, status);
                            }
                            None if case.reaches_route => self.ledger.unread(NAME),
                            _ => self.ledger.not_posted(NAME, status),
                        },
                    }
                }
                Err(error) => self.failed(NAME, None, &format!("{}: {error}", case.name)),
            }
            if self.is_over.load(Ordering::Acquire) {
                return;
            }
            self.pause(Duration::from_millis(random.u64(0..100)));
        }
    }
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
}
