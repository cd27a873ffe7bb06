//! Time slices of programs that share the threads of a CPU: steps of several models interleave between ops.
//!
//! ```text
//! chat    | step |      | step |      | step |        whole steps
//! speech         | ops  |      | ops  |      | ops    at least `SLICE` at a time, while a step of the chat waits
//! ```
//!
//! First come, first served. Thread teams of several programs on the same cores slow each other down: a loop waits for its
//! slowest thread, the one that shares its core.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use web_time::Instant;

/// Time that a program in the background runs while another one waits.
const SLICE: Duration = Duration::from_millis(5);

/// Queue of the programs that share a CPU.
#[derive(Debug, Default)]
pub(super) struct TimeSlices {
    queue: Mutex<Queue>,
    /// Whether a program waits.
    has_waiting: AtomicBool,
    next: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    is_running: bool,
    /// Numbers of the programs that wait, in order.
    waiting: VecDeque<u64>,
    n_tickets: u64,
}

/// Time slice of a program, until it is dropped.
#[derive(Debug)]
pub(super) struct TimeSlice<'a> {
    time_slices: &'a TimeSlices,
    started: Instant,
}

impl TimeSlices {
    /// Waits for a slice.
    pub(super) fn take(&self) -> TimeSlice<'_> {
        let mut queue = self.lock();
        if queue.is_running || !queue.waiting.is_empty() {
            let ticket = queue.n_tickets;
            queue.n_tickets += 1;
            queue.waiting.push_back(ticket);
            self.has_waiting.store(true, Ordering::Relaxed);
            while queue.is_running || queue.waiting.front() != Some(&ticket) {
                queue = self.next.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            queue.waiting.pop_front();
            self.has_waiting.store(!queue.waiting.is_empty(), Ordering::Relaxed);
        }
        queue.is_running = true;
        TimeSlice { time_slices: self, started: Instant::now() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TimeSlice<'_> {
    /// Lets the program that waits longest go first, if there is one and the slice is over.
    pub(super) fn yield_slice(&mut self) {
        if self.time_slices.has_waiting.load(Ordering::Relaxed) && self.started.elapsed() >= SLICE {
            let time_slices = self.time_slices;
            time_slices.end();
            // The slice that `self` holds from now on ends when `self` is dropped.
            std::mem::forget(time_slices.take());
            self.started = Instant::now();
        }
    }
}

impl TimeSlices {
    fn end(&self) {
        self.lock().is_running = false;
        self.next.notify_all();
    }
}

impl Drop for TimeSlice<'_> {
    fn drop(&mut self) {
        self.time_slices.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn a_program_that_waits_runs_when_a_slice_is_over() {
        let time_slices = TimeSlices::default();
        let (log, events) = mpsc::channel();
        thread::scope(|scope| {
            let mut slice = time_slices.take();
            let (time_slices, other) = (&time_slices, log.clone());
            scope.spawn(move || {
                let _slice = time_slices.take();
                other.send("other").unwrap();
            });
            while !time_slices.has_waiting.load(Ordering::Relaxed) {
                thread::yield_now();
            }
            log.send("first").unwrap();
            thread::sleep(SLICE);
            slice.yield_slice();
            log.send("first again").unwrap();
            // Nobody waits.
            slice.yield_slice();
        });
        drop(log);
        assert_eq!(events.iter().collect::<Vec<_>>(), ["first", "other", "first again"]);
    }

    #[test]
    fn turns_never_overlap() {
        let time_slices = TimeSlices::default();
        let is_inside = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let mut slice = time_slices.take();
                        for _ in 0..3 {
                            assert!(!is_inside.swap(true, Ordering::SeqCst));
                            is_inside.store(false, Ordering::SeqCst);
                            slice.yield_slice();
                        }
                    }
                });
            }
        });
        assert!(!time_slices.lock().is_running && time_slices.lock().waiting.is_empty());
    }
}
