//! Announcement of Wyoming in the local network by mDNS, which Home Assistant looks for.

use mdns_sd::{ServiceDaemon, ServiceInfo};
use tokio::net::TcpListener;

use crate::{ServerError, ServerOptions};

/// Type of the service.
const SERVICE: &str = "_wyoming._tcp.local.";

/// Announcement of Wyoming; dropping it withdraws it.
pub(crate) struct Discovery {
    daemon: ServiceDaemon,
    name: String,
}

impl std::fmt::Debug for Discovery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Discovery").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Discovery {
    /// Nothing is to be refused: this build has mDNS.
    #[expect(clippy::unnecessary_wraps, reason = "a build without mDNS refuses the option")]
    pub(crate) fn check(_: &ServerOptions) -> Result<(), ServerError> {
        Ok(())
    }

    /// Announces the first socket that other machines reach; `None` without one, or if the network has no multicast.
    pub(crate) fn start(options: &ServerOptions, listeners: &[TcpListener]) -> Option<Self> {
        if !options.wyoming_discovery {
            return None;
        }
        let addresses = listeners.iter().filter_map(|listener| listener.local_addr().ok());
        let Some(address) = addresses.into_iter().find(|one| !one.ip().is_loopback()) else {
            tracing::warn!("Wyoming is not announced: it listens on no address that others reach");
            return None;
        };
        match announce(address) {
            Ok(discovery) => Some(discovery),
            Err(error) => {
                tracing::warn!("Wyoming is not announced: {error}");
                None
            }
        }
    }
}

fn announce(address: std::net::SocketAddr) -> mdns_sd::Result<Discovery> {
    let host = sysinfo::System::host_name().unwrap_or_else(|_| "stonechat".to_owned());
    // A label of a name has no dots.
    let host = host.split('.').next().unwrap_or("stonechat").to_owned();
    let (name, host_name) = (format!("stonechat-{host}"), format!("{host}.local."));
    let none: &[(&str, &str)] = &[];
    let info = if address.ip().is_unspecified() {
        ServiceInfo::new(SERVICE, &name, &host_name, "", address.port(), none)?.enable_addr_auto()
    } else {
        ServiceInfo::new(SERVICE, &name, &host_name, address.ip(), address.port(), none)?
    };
    let daemon = ServiceDaemon::new()?;
    let name = info.get_fullname().to_owned();
    daemon.register(info)?;
    tracing::info!(name, port = address.port(), "Wyoming is announced");
    Ok(Discovery { daemon, name })
}

impl Discovery {
    /// Withdraws the announcement.
    pub(crate) fn end(self) {}
}

impl Drop for Discovery {
    fn drop(&mut self) {
        // The daemon sends the withdrawal before it ends.
        if let Ok(withdrawn) = self.daemon.unregister(&self.name) {
            let _ = withdrawn.recv_timeout(std::time::Duration::from_millis(200));
        }
        let _ = self.daemon.shutdown();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use mdns_sd::{ServiceDaemon, ServiceEvent, ServiceInfo};
    use tokio::net::TcpListener;

    use super::{Discovery, SERVICE, announce};
    use crate::ServerOptions;

    /// Port of a service, as a browser in this network finds it.
    fn found(kind: &str, name: &str) -> Option<u16> {
        let browser = ServiceDaemon::new().unwrap();
        let events = browser.browse(kind).unwrap();
        let end = Instant::now() + Duration::from_secs(10);
        let port = std::iter::from_fn(|| events.recv_deadline(end).ok()).find_map(|event| {
            let ServiceEvent::ServiceResolved(info) = event else { return None };
            (info.fullname == name).then_some(info.port)
        });
        browser.shutdown().unwrap();
        port
    }

    #[test]
    fn other_machines_find_the_port() {
        let (kind, none): (_, &[(&str, &str)]) = ("_stonechat-test._tcp.local.", &[]);
        let control = ServiceInfo::new(kind, "control", "control.local.", "", 10301, none);
        let control = control.unwrap().enable_addr_auto();
        let (daemon, name) = (ServiceDaemon::new().unwrap(), control.get_fullname().to_owned());
        daemon.register(control).unwrap();
        let has_multicast = found(kind, &name) == Some(10301);
        daemon.shutdown().unwrap();
        if !has_multicast {
            println!("SKIPPED other_machines_find_the_port: the network has no multicast");
            return;
        }
        let discovery = announce("0.0.0.0:10300".parse().unwrap()).unwrap();
        assert_eq!(found(SERVICE, &discovery.name), Some(10300));
        discovery.end();
    }

    #[tokio::test]
    async fn a_loopback_address_is_not_announced() {
        let listeners = [TcpListener::bind("127.0.0.1:0").await.unwrap()];
        let on = ServerOptions { wyoming_discovery: true, ..ServerOptions::default() };
        assert!(Discovery::start(&on, &listeners).is_none());
        assert!(Discovery::start(&ServerOptions::default(), &listeners).is_none());
    }
}
