//! SIGHUP: opens the log file again, and reads API keys and the files of TLS again.

use std::convert::Infallible;

use stonechat_server::AppState;

use super::systemd::notify;
use super::{Args, api_keys};
use crate::console::print_note;
use crate::log;

/// SIGHUP from now on, which no longer ends the process.
pub(super) struct Hangups {
    #[cfg(unix)]
    signals: tokio::signal::unix::Signal,
}

impl Hangups {
    /// Takes the signal over; inside of a runtime.
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            #[cfg(unix)]
            signals: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal; forever on a platform without it.
    async fn next(&mut self) {
        #[cfg(unix)]
        if self.signals.recv().await.is_some() {
            return;
        }
        std::future::pending::<()>().await;
    }

    /// Reloads at each signal.
    pub(super) async fn reload(&mut self, args: &Args, state: &AppState) -> Infallible {
        loop {
            self.next().await;
            notify("RELOADING=1");
            let reloaded = [
                log::reopen::reopen(),
                api_keys(&args.network).and_then(|keys| Ok(state.set_api_keys(&keys)?)),
                state.reload_tls().map_err(Into::into),
            ];
            let errors: Vec<_> = reloaded.into_iter().filter_map(Result::err).collect();
            for error in &errors {
                tracing::warn!("SIGHUP: {error:#}; what was used before stays in use");
            }
            if !args.quiet {
                let is_whole = errors.is_empty();
                print_note(if is_whole { "reloaded" } else { "reloaded in part: see the log" });
            }
            if state.is_ready() {
                notify("READY=1");
            }
        }
    }
}
