//! Sockets that systemd passes to a service: one for its state (`NOTIFY_SOCKET`), and open ones (`LISTEN_FDS`).

use stonechat_server::OpenSocket;

/// Tells the service manager a state such as `READY=1`, if there is one.
pub(super) fn notify(state: &str) {
    #[cfg(unix)]
    if let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty())
        && let Err(error) = send(&name, state)
    {
        tracing::warn!("cannot tell the service manager {state}: {error}");
    }
    #[cfg(not(unix))]
    let _ = state;
}

/// Sends a datagram to a path, or to an abstract name after `@`.
#[cfg(unix)]
fn send(name: &std::ffi::OsStr, text: &str) -> std::io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    let address = match name.as_bytes().strip_prefix(b"@") {
        #[cfg(target_os = "linux")]
        Some(name) => <SocketAddr as std::os::linux::net::SocketAddrExt>::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address).map(|_| ())
}

/// The sockets of `LISTEN_FDS`, if they are for this process.
pub(super) fn sockets() -> anyhow::Result<Vec<OpenSocket>> {
    #[cfg(unix)]
    {
        let mut given = listenfd::ListenFd::from_env();
        let mut sockets = Vec::new();
        for i in 0..given.len() {
            // Each taker returns a descriptor of another kind to the list.
            let socket = match given.take_tcp_listener(i) {
                Ok(socket) => socket.map(OpenSocket::Tcp),
                Err(_) => given
                    .take_unix_listener(i)
                    .map_err(|error| {
                        anyhow::anyhow!(
                            "LISTEN_FDS: expected listening TCP or unix sockets, got another descriptor: {error}"
                        )
                    })?
                    .map(OpenSocket::Unix),
            };
            sockets.extend(socket);
        }
        Ok(sockets)
    }
    #[cfg(not(unix))]
    Ok(Vec::new())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    #[test]
    fn states_reach_paths_and_abstract_names() {
        let mut text = [0; 16];
        let folder = std::env::temp_dir().join(format!("stonechat-notify-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("notify");
        let receiver = UnixDatagram::bind(&path).unwrap();
        super::send(path.as_os_str(), "READY=1").unwrap();
        let n = receiver.recv(&mut text).unwrap();
        assert_eq!(&text[..n], b"READY=1");
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(super::send(path.as_os_str(), "READY=1").is_err());
        let name = format!("stonechat-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let receiver = UnixDatagram::bind_addr(&address).unwrap();
        super::send(format!("@{name}").as_ref(), "STOPPING=1").unwrap();
        let n = receiver.recv(&mut text).unwrap();
        assert_eq!(&text[..n], b"STOPPING=1");
    }
}
