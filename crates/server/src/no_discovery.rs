//! mDNS in a build without the feature `discovery`.

use tokio::net::TcpListener;

use crate::{ServerError, ServerOptions};

/// Announcement of Wyoming.
#[derive(Debug)]
pub(crate) struct Discovery;

impl Discovery {
    /// Refuses the option.
    pub(crate) fn check(options: &ServerOptions) -> Result<(), ServerError> {
        if options.wyoming_discovery { Err(ServerError::NoDiscovery) } else { Ok(()) }
    }

    /// Announces nothing.
    pub(crate) fn start(_: &ServerOptions, _: &[TcpListener]) -> Option<Self> {
        None
    }

    /// Withdraws nothing.
    pub(crate) fn end(self) {}
}
