//! The terminal of standard input, while nothing reads from it.

#[cfg(unix)]
use std::io::stdin;
#[cfg(unix)]
use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(unix)]
use nix::sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr};

/// Mode before the echo was turned off.
#[cfg(unix)]
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

#[cfg(unix)]
fn before() -> MutexGuard<'static, Option<Termios>> {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Turns the echo of the terminal off until dropped. Input typed during that time goes to the next prompt, character by character.
/// Ctrl-C remains a signal.
#[derive(Debug)]
pub(super) struct NoEcho(());

impl NoEcho {
    /// Turns the echo off; has no effect without a terminal.
    pub(super) fn begin() -> Self {
        #[cfg(unix)]
        if let Ok(mode) = tcgetattr(stdin()) {
            let mut quiet = mode.clone();
            quiet.local_flags.remove(LocalFlags::ECHO | LocalFlags::ICANON);
            let mut before = before();
            // A terminal that refuses keeps its echo.
            if tcsetattr(stdin(), SetArg::TCSANOW, &quiet).is_ok() {
                *before = Some(mode);
            }
        }
        Self(())
    }
}

impl Drop for NoEcho {
    fn drop(&mut self) {
        restore();
    }
}

/// Turns the echo on again if it is off, also before the process ends by a signal.
pub(super) fn restore() {
    #[cfg(unix)]
    if let Some(mode) = before().take() {
        // The terminal may be gone.
        let _ = tcsetattr(stdin(), SetArg::TCSANOW, &mode);
    }
}
