//! Loops as tasks of the event loop of a browser's worker.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_channel::oneshot;
use wasm_bindgen::prelude::Closure;
use wasm_bindgen::{JsCast, JsValue};
use wasm_bindgen_futures::spawn_local;
use web_sys::{MessageChannel, MessagePort};
use web_time::Instant;

use crate::Error;

/// Task of a loop; the reference is dead once the loop has ended.
#[derive(Debug)]
pub(crate) struct Task(Weak<()>);

impl Task {
    /// Starts a task that runs the future of `body`. A browser has no priorities.
    ///
    /// # Errors
    /// Never: natively a thread may be refused.
    pub(crate) fn spawn<F: Future<Output = ()>>(
        _name: &str,
        _is_background: bool,
        body: impl FnOnce() -> F + 'static,
    ) -> Result<Self, Error> {
        let running = Arc::new(());
        let task = Self(Arc::downgrade(&running));
        spawn_local(async move {
            body().await;
            drop(running);
        });
        Ok(task)
    }

    /// Whether the loop has ended.
    pub(crate) fn is_finished(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// Returns at once: the loop ends, and frees its model, after the running step; see [`ended`].
    pub(crate) fn join(self) {
        // Without the list, when the worker ends, nothing waits.
        let _ = ENDING.try_with(|ending| ending.borrow_mut().push(self));
    }
}

/// Longest time that [`ended`] waits: a loop on a lost GPU may never end.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Waits for the ends of the loops that were joined.
pub(super) async fn ended() {
    let start = Instant::now();
    while has_ending() && start.elapsed() < MAX_WAIT {
        turn().await;
    }
}

fn has_ending() -> bool {
    ENDING.with_borrow_mut(|ending| {
        ending.retain(|task| !task.is_finished());
        !ending.is_empty()
    })
}

/// Turns of the event loop, which come after the messages that have arrived. Timers would be delayed by 4 ms, and promises
/// resolve before any message.
struct Turns {
    to_turns: MessagePort,
    waiting: Rc<RefCell<VecDeque<oneshot::Sender<()>>>>,
    /// Receiver of the messages, with its callback.
    _turns: (MessagePort, Closure<dyn FnMut()>),
}

impl Turns {
    /// # Errors
    /// If the worker has no `MessageChannel`.
    fn new() -> Result<Self, JsValue> {
        let channel = MessageChannel::new()?;
        let waiting = Rc::<RefCell<VecDeque<oneshot::Sender<()>>>>::default();
        let senders = Rc::clone(&waiting);
        let on_turn = Closure::new(move || {
            // The loop that waited may have been dropped.
            let _ = senders.borrow_mut().pop_front().map(|sender| sender.send(()));
        });
        let turns = channel.port1();
        turns.set_onmessage(Some(on_turn.as_ref().unchecked_ref()));
        Ok(Self { to_turns: channel.port2(), waiting, _turns: (turns, on_turn) })
    }

    /// Asks for a turn.
    fn next(&self) -> Option<oneshot::Receiver<()>> {
        let (sender, turn) = oneshot::channel();
        self.waiting.borrow_mut().push_back(sender);
        self.to_turns.post_message(&JsValue::NULL).ok().map(|()| turn)
    }
}

thread_local! {
    /// Joined loops that had not ended.
    static ENDING: RefCell<Vec<Task>> = const { RefCell::new(Vec::new()) };
    static TURNS: Option<Turns> = Turns::new().ok();
}

/// Waits for a turn of the event loop: messages that have arrived are handled first.
pub(super) async fn turn() {
    let turn = TURNS.with(|turns| turns.as_ref().and_then(Turns::next));
    if let Some(turn) = turn {
        // The sender is kept until the turn.
        let _ = turn.await;
    }
}
