//! Commands of a client for the task of its session.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::Setup;
use crate::{ApiError, ApiResult};

/// Maximum commands that wait; audio in a row is one.
const MAX_COMMANDS: usize = 256;

/// Command of a client.
#[derive(Debug, PartialEq)]
pub(crate) enum Command {
    /// 16 kHz mono samples.
    Audio(Vec<f32>),
    /// End the utterance, for the client's event of this identifier.
    Commit(Option<String>),
    /// Drop the audio that was not committed.
    Clear,
    /// Change the model and the options.
    Setup(Box<Setup>),
}

/// Commands that wait. All audio that came while the engine was busy is one command: it is decoded once.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    commands: Mutex<VecDeque<Command>>,
    arrived: Notify,
    n_pending: AtomicU64,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Command>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a command.
    ///
    /// # Errors
    /// 429 if too many wait.
    pub(crate) fn push(&self, command: Command) -> ApiResult<()> {
        let mut commands = self.lock();
        let n_samples = match &command {
            Command::Audio(samples) => samples.len() as u64,
            _ => 0,
        };
        match (commands.back_mut(), command) {
            (Some(Command::Audio(waiting)), Command::Audio(samples)) => {
                waiting.extend_from_slice(&samples);
            }
            (Some(Command::Setup(waiting)), Command::Setup(setup)) => *waiting = setup,
            (_, command) => {
                if commands.len() >= MAX_COMMANDS {
                    return Err(ApiError::overloaded("too many events wait for the engine"));
                }
                commands.push_back(command);
            }
        }
        self.n_pending.fetch_add(n_samples, Ordering::Relaxed);
        drop(commands);
        self.arrived.notify_one();
        Ok(())
    }

    /// Waits for the next command.
    pub(super) async fn next(&self) -> Command {
        loop {
            if let Some(command) = self.lock().pop_front() {
                return command;
            }
            self.arrived.notified().await;
        }
    }

    /// Samples that wait for their transcription or their commit.
    pub(crate) fn n_pending(&self) -> u64 {
        self.n_pending.load(Ordering::Relaxed)
    }

    /// Counts samples as done.
    pub(super) fn done(&self, n_samples: usize) {
        self.n_pending.fetch_sub(n_samples as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{Command, Inbox};

    #[tokio::test]
    async fn audio_in_a_row_is_one_command() {
        let inbox = Inbox::default();
        for command in [
            Command::Audio(vec![0.0; 3]),
            Command::Audio(vec![1.0; 2]),
            Command::Commit(None),
            Command::Audio(vec![2.0]),
        ] {
            inbox.push(command).unwrap();
        }
        assert_eq!(inbox.n_pending(), 6);
        assert_eq!(inbox.next().await, Command::Audio(vec![0.0, 0.0, 0.0, 1.0, 1.0]));
        assert_eq!(inbox.next().await, Command::Commit(None));
        assert_eq!(inbox.next().await, Command::Audio(vec![2.0]));
        inbox.done(6);
        assert_eq!(inbox.n_pending(), 0);
    }

    #[test]
    fn commands_are_bounded() {
        let inbox = Inbox::default();
        let push = |_| inbox.push(Command::Clear);
        assert!((0..super::MAX_COMMANDS).map(push).all(|pushed| pushed.is_ok()));
        assert_eq!(inbox.push(Command::Clear).unwrap_err().status(), 429);
    }
}
