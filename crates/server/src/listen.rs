//! Sockets: TCP with or without TLS, and unix sockets.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

use crate::{ServerError, ServerOptions, TlsFiles};

/// End of the name of a unix socket.
const SOCKET_SUFFIX: &str = ".sock";

/// An open socket.
#[derive(Debug)]
pub(crate) enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A unix socket, with its file if this program has made it.
    #[cfg(unix)]
    Unix(tokio::net::UnixListener, Option<SocketFile>),
}

/// Listening socket that another program has opened, such as systemd.
#[derive(Debug)]
pub enum OpenSocket {
    /// TCP.
    Tcp(std::net::TcpListener),
    /// A unix socket, whose file is not removed.
    #[cfg(unix)]
    Unix(std::os::unix::net::UnixListener),
}

/// File of a unix socket, removed on drop.
#[derive(Debug)]
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // The file may have been removed by hand.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// An accepted connection.
#[derive(Debug)]
pub(crate) enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// TLS over TCP.
    Tls(Box<tokio_rustls::server::TlsStream<TcpStream>>),
    /// A unix socket.
    #[cfg(unix)]
    Unix(tokio::net::UnixStream),
}

impl Listener {
    /// Opens a host of the options: an address or name, or a path that ends in `.sock`.
    pub(crate) async fn bind(host: &str, port: u16) -> Result<Self, ServerError> {
        let error = |source| ServerError::Bind { address: format!("{host}:{port}"), source };
        if host.ends_with(SOCKET_SUFFIX) {
            let path = Path::new(host);
            let error = |source| ServerError::Bind { address: host.to_owned(), source };
            return bind_unix(path).map_err(error);
        }
        // The brackets of an IPv6 address are those of a URL.
        let name = host.trim_start_matches('[').trim_end_matches(']');
        TcpListener::bind((name, port)).await.map(Self::Tcp).map_err(error)
    }

    /// Takes a socket over.
    pub(crate) fn inherit(socket: OpenSocket) -> Result<Self, ServerError> {
        let listener = match socket {
            OpenSocket::Tcp(socket) => socket
                .set_nonblocking(true)
                .and_then(|()| TcpListener::from_std(socket))
                .map(Self::Tcp),
            #[cfg(unix)]
            OpenSocket::Unix(socket) => socket
                .set_nonblocking(true)
                .and_then(|()| tokio::net::UnixListener::from_std(socket))
                .map(|socket| Self::Unix(socket, None)),
        };
        listener
            .map_err(|source| ServerError::Bind { address: "an open socket".to_owned(), source })
    }

    /// Address as the start of a URL, or the path of a unix socket.
    pub(crate) fn describe(&self, is_tls: bool) -> String {
        match self {
            Self::Tcp(listener) => {
                let scheme = if is_tls { "https" } else { "http" };
                let address = listener.local_addr().map(|address: SocketAddr| address.to_string());
                format!("{scheme}://{}", address.unwrap_or_default())
            }
            #[cfg(unix)]
            Self::Unix(listener, _) => {
                let address = listener.local_addr().ok();
                let path = address.as_ref().and_then(|address| address.as_pathname());
                path.map_or_else(|| "a unix socket".to_owned(), |path| path.display().to_string())
            }
        }
    }

    /// Address of a TCP socket.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok(),
            #[cfg(unix)]
            Self::Unix(..) => None,
        }
    }

    /// Accepts a connection; TLS begins later, so that a slow client holds nobody up.
    pub(crate) async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => Stream::tcp(listener.accept().await?.0),
            #[cfg(unix)]
            Self::Unix(listener, _) => Ok(Stream::Unix(listener.accept().await?.0)),
        }
    }

    /// Closes the socket; returns the connections that the kernel has accepted before. Tokio's `accept` returns them
    /// only after its next poll of the socket.
    pub(crate) fn close(self) -> Vec<Stream> {
        let queued = || -> io::Result<Vec<Stream>> {
            match self {
                Self::Tcp(listener) => {
                    let listener = listener.into_std()?;
                    let stream = |stream: std::net::TcpStream| {
                        stream.set_nonblocking(true)?;
                        Stream::tcp(TcpStream::from_std(stream)?)
                    };
                    std::iter::from_fn(|| listener.accept().ok()).map(|(s, _)| stream(s)).collect()
                }
                #[cfg(unix)]
                Self::Unix(listener, _file) => {
                    let listener = listener.into_std()?;
                    let stream = |stream: std::os::unix::net::UnixStream| {
                        stream.set_nonblocking(true)?;
                        Ok(Stream::Unix(tokio::net::UnixStream::from_std(stream)?))
                    };
                    std::iter::from_fn(|| listener.accept().ok()).map(|(s, _)| stream(s)).collect()
                }
            }
        };
        queued().unwrap_or_else(|error| {
            tracing::warn!("cannot accept the queued connections: {error}");
            Vec::new()
        })
    }
}

/// Opens the sockets of Wyoming on the TCP addresses of the options.
pub(crate) async fn wyoming(options: &ServerOptions) -> Result<Vec<TcpListener>, ServerError> {
    let Some(port) = options.wyoming_port else { return Ok(Vec::new()) };
    let mut listeners = Vec::new();
    for host in options.hosts.iter().filter(|host| !host.ends_with(SOCKET_SUFFIX)) {
        if let Listener::Tcp(listener) = Listener::bind(host, port).await? {
            listeners.push(listener);
        }
    }
    Ok(listeners)
}

/// Opens a unix socket; a file that a killed server left is replaced.
#[cfg(unix)]
fn bind_unix(path: &Path) -> io::Result<Listener> {
    use std::os::unix::fs::FileTypeExt;
    if path.metadata().is_ok_and(|metadata| metadata.file_type().is_socket()) {
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        std::fs::remove_file(path)?;
    }
    let listener = tokio::net::UnixListener::bind(path)?;
    Ok(Listener::Unix(listener, Some(SocketFile(path.to_owned()))))
}

#[cfg(not(unix))]
fn bind_unix(_: &Path) -> io::Result<Listener> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this platform has no unix sockets"))
}

impl Stream {
    fn tcp(stream: TcpStream) -> io::Result<Self> {
        // Each token is a small packet that must not wait for the next.
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }
    /// Address of the client; `None` for a unix socket.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().ok(),
            Self::Tls(stream) => stream.get_ref().0.peer_addr().ok(),
            #[cfg(unix)]
            Self::Unix(_) => None,
        }
    }

    /// Begins TLS, if there is an acceptor; unix sockets have none.
    pub(crate) async fn secured(self, tls: Option<&TlsAcceptor>) -> io::Result<Self> {
        match (self, tls) {
            (Self::Tcp(stream), Some(tls)) => Ok(Self::Tls(Box::new(tls.accept(stream).await?))),
            (stream, _) => Ok(stream),
        }
    }
}

/// Reads the files of TLS.
pub(crate) fn tls(options: &ServerOptions) -> Result<Option<TlsAcceptor>, ServerError> {
    let Some(TlsFiles { key, certificate }) = &options.tls else { return Ok(None) };
    let error = |path: &Path, reason: String| ServerError::Tls { path: path.to_owned(), reason };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|reason| error(certificate, reason.to_string()))?;
    if chain.is_empty() {
        return Err(error(certificate, "expected a certificate in PEM, got none".to_owned()));
    }
    let private = PrivateKeyDer::from_pem_file(key);
    let private =
        private.map_err(|reason| error(key, format!("expected a private key in PEM: {reason}")))?;
    let provider = ring::default_provider();
    let load = provider.key_provider.load_private_key(private.clone_key());
    load.map_err(|reason| error(key, reason.to_string()))?;
    let wrong = |reason| match reason {
        rustls::Error::InconsistentKeys(_) => {
            error(key, format!("expected the key of the certificate `{}`", certificate.display()))
        }
        reason => error(certificate, reason.to_string()),
    };
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .map_err(|reason| error(key, reason.to_string()))?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(wrong)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
