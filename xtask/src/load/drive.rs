//! Runs one point: closed loops, waves, open loops, with uploads and a long prompt beside.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use super::client::{Outcome, Prompt, Recording, Stream, Target, Upload};
use super::schedule::{Plan, Planned};

/// Events of every stream before the long prompt is sent.
const EVENTS_BEFORE_INTRUSION: usize = 8;
/// Pause between looks at the streams.
const POLL: Duration = Duration::from_millis(2);
/// Tokens that the long prompt asks for.
const INTRUDER_TOKENS: usize = 8;

/// Arrivals of requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Arrival {
    /// Each stream sends its next request when the last one has ended.
    Closed {
        /// Concurrent streams.
        streams: usize,
        /// All streams start their next request together.
        waves: bool,
    },
    /// Requests arrive at the times of the plan, whatever the server does.
    Open,
}

/// Load of a point.
#[derive(Debug)]
pub(super) struct Load<'a> {
    pub(super) arrival: Arrival,
    /// Requests of each stream, or of all in an open loop.
    pub(super) requests: usize,
    /// No request starts later.
    pub(super) duration: Option<Duration>,
    /// Concurrent uploads beside the streams.
    pub(super) uploads: usize,
    pub(super) recording: Option<&'a Recording>,
    /// A long prompt that arrives while the streams run.
    pub(super) intruder: Option<&'a str>,
}

/// A point that was measured.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) start: Instant,
    pub(super) streams: Vec<Stream>,
    pub(super) uploads: Vec<Upload>,
    pub(super) intruder: Option<Stream>,
}

/// Common state of the threads of a point.
struct Run<'a> {
    target: &'a Target,
    load: &'a Load<'a>,
    start: Instant,
    max_tokens: usize,
    plan: Mutex<Plan<'a>>,
    streams: Mutex<Vec<Stream>>,
    uploads: Mutex<Vec<Upload>>,
    /// Events of each stream's current request.
    progress: Vec<AtomicUsize>,
    /// Stream threads that have ended.
    n_ended: AtomicUsize,
    /// Nothing starts any more.
    is_over: AtomicBool,
}

/// Runs the requests of `plan` as `load` says.
pub(super) fn run(target: &Target, plan: Plan<'_>, load: &Load<'_>) -> Measured {
    let n_streams = match load.arrival {
        Arrival::Closed { streams, .. } => streams,
        Arrival::Open => 0,
    };
    let run = Run {
        target,
        load,
        start: Instant::now(),
        max_tokens: plan.max_tokens,
        plan: Mutex::new(plan),
        streams: Mutex::default(),
        uploads: Mutex::default(),
        progress: (0..n_streams).map(|_| AtomicUsize::new(0)).collect(),
        n_ended: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
    };
    let intruder = scope(|scope| {
        let uploaders: Vec<_> =
            (0..load.uploads).map(|_| scope.spawn(|| run.upload_loop())).collect();
        let intruder = load.intruder.map(|text| {
            let run = &run;
            scope.spawn(move || run.intrude(text))
        });
        match load.arrival {
            Arrival::Closed { streams: 0, .. } => {
                for uploader in uploaders {
                    // A panic of a thread is passed on by the scope.
                    let _ = uploader.join();
                }
            }
            Arrival::Closed { streams, waves } => run.closed_loop(streams, waves),
            Arrival::Open => run.open_loop(),
        }
        run.is_over.store(true, Ordering::Release);
        intruder.and_then(|thread| thread.join().ok().flatten())
    });
    Measured {
        start: run.start,
        streams: run.streams.into_inner().unwrap_or_else(PoisonError::into_inner),
        uploads: run.uploads.into_inner().unwrap_or_else(PoisonError::into_inner),
        intruder,
    }
}

impl Run<'_> {
    fn closed_loop(&self, streams: usize, waves: bool) {
        let barrier = Barrier::new(streams);
        scope(|scope| {
            for index in 0..streams {
                let barrier = waves.then_some(&barrier);
                scope.spawn(move || {
                    self.stream_loop(index, barrier);
                    self.n_ended.fetch_add(1, Ordering::Release);
                });
            }
        });
    }

    /// Requests of one stream, one after the other.
    fn stream_loop(&self, index: usize, barrier: Option<&Barrier>) {
        for n in 0.. {
            let goes_on = if self.load.intruder.is_some() {
                !self.is_over.load(Ordering::Acquire)
            } else {
                n < self.load.requests
            };
            if !goes_on || self.is_late(self.start.elapsed()) {
                return;
            }
            if let Some(barrier) = barrier {
                barrier.wait();
            }
            self.progress[index].store(0, Ordering::Release);
            let Some(planned) = self.next() else { return };
            let progress = |n: usize| self.progress[index].store(n, Ordering::Release);
            let has_failed = self.send(&planned, Instant::now(), &progress);
            if has_failed && self.load.intruder.is_some() {
                // Without an end of its own it would repeat the failure for ever.
                return;
            }
        }
    }

    fn open_loop(&self) {
        scope(|scope| {
            for _ in 0..self.load.requests {
                let Some(planned) = self.next() else { return };
                if self.is_late(planned.arrival) {
                    return;
                }
                sleep(planned.arrival.saturating_sub(self.start.elapsed()));
                scope.spawn(move || self.send(&planned, self.start + planned.arrival, &|_| ()));
            }
        });
    }

    fn is_late(&self, time: Duration) -> bool {
        self.load.duration.is_some_and(|duration| time >= duration)
    }

    fn next(&self) -> Option<Planned> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner).next()
    }

    /// Sends a request and files it; whether it failed.
    fn send(&self, planned: &Planned, start: Instant, on_event: &dyn Fn(usize)) -> bool {
        let prompt = Prompt {
            text: &planned.prompt,
            max_tokens: self.max_tokens,
            abort_after: planned.abort_after,
            start,
        };
        let stream = self.target.stream(prompt, on_event);
        let has_failed = matches!(stream.outcome, Outcome::Failed(_));
        self.streams.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
        has_failed
    }

    /// Uploads until the streams have ended; without streams, as often as a stream sends requests.
    fn upload_loop(&self) {
        let Some(recording) = self.load.recording else { return };
        let is_alone = matches!(self.load.arrival, Arrival::Closed { streams: 0, .. });
        for n in 1.. {
            let upload = self.target.upload(recording);
            let has_failed = upload.result.is_err();
            self.uploads.lock().unwrap_or_else(PoisonError::into_inner).push(upload);
            let is_last = if is_alone {
                n >= self.load.requests
            } else {
                has_failed || self.is_over.load(Ordering::Acquire)
            };
            if is_last {
                return;
            }
        }
    }

    /// Sends the long prompt when every stream runs; `None` if one of them ended before.
    fn intrude(&self, text: &str) -> Option<Stream> {
        let runs = |n: &AtomicUsize| n.load(Ordering::Acquire) >= EVENTS_BEFORE_INTRUSION;
        while !self.progress.iter().all(runs) {
            if self.n_ended.load(Ordering::Acquire) > 0 {
                self.is_over.store(true, Ordering::Release);
                return None;
            }
            sleep(POLL);
        }
        let max_tokens = INTRUDER_TOKENS;
        let prompt = Prompt { text, max_tokens, abort_after: None, start: Instant::now() };
        let stream = self.target.stream(prompt, &|_| ());
        self.is_over.store(true, Ordering::Release);
        Some(stream)
    }
}
