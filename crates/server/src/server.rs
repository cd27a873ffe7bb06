//! A server: sockets, connections, shutdown.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{interval, sleep, timeout};
use tower::ServiceExt;

use crate::credentials::{Credentials, check_keys};
use crate::discovery::Discovery;
use crate::incoming::Peer;
use crate::listen::{self, Listener, OpenSocket, Stream};
use crate::write_limit::WriteLimit;
use crate::{AppState, LoadError, ServerOptions, router, wyoming};

/// Time in which a client must finish the handshake of TLS.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a failed accept, mostly for a lack of file descriptors.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time for which a stopping server keeps idle connections: a proxy may have sent a request that has not arrived yet.
const IDLE_GRACE: Duration = Duration::from_millis(500);
/// Maximum time for cancelled requests to end before the last traces are sent.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval at which idle models are looked for.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// Error that ends a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// Host and port, or path.
        address: String,
        /// Cause.
        source: io::Error,
    },
    /// A file of TLS cannot be used.
    #[error("cannot use `{}` for TLS: {reason}", path.display())]
    Tls {
        /// File.
        path: PathBuf,
        /// Cause.
        reason: String,
    },
    /// A key that anybody has.
    #[error("API keys: expected keys, got an empty one")]
    EmptyKey,
    /// This build announces nothing.
    #[error("this build has no mDNS (feature `discovery`)")]
    NoDiscovery,
    /// Keys that would be lost.
    #[error("API keys: expected keys, got none")]
    NoKeys,
    /// A model that was named at the start cannot be opened.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// A server that listens.
pub struct Server {
    state: AppState,
    listeners: Vec<Listener>,
    wyoming: Vec<TcpListener>,
}

/// Shared state of all connections.
#[derive(Clone)]
struct Connections {
    router: Router,
    credentials: Credentials,
    permits: Arc<Semaphore>,
    header_timeout: Duration,
    write_timeout: Duration,
    /// Whether the server stops.
    stopped: watch::Receiver<bool>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}

impl Server {
    /// Opens the sockets and reads the headers of the models; nothing is answered before [`run`](Self::run).
    ///
    /// # Errors
    /// If an address is in use, a file of TLS or a model cannot be read.
    pub async fn bind(options: ServerOptions) -> Result<Self, ServerError> {
        Self::bind_with(options, Vec::new()).await
    }

    /// [`bind`](Self::bind), with sockets that are open already in place of [`ServerOptions::hosts`] if there are any.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub async fn bind_with(
        options: ServerOptions,
        sockets: Vec<OpenSocket>,
    ) -> Result<Self, ServerError> {
        check_keys(&options.api_keys)?;
        Discovery::check(&options)?;
        let tls = listen::tls(&options)?;
        let wyoming = listen::wyoming(&options).await?;
        let hosts: &[String] = if sockets.is_empty() { &options.hosts } else { &[] };
        let mut listeners: Vec<_> =
            sockets.into_iter().map(Listener::inherit).collect::<Result<_, _>>()?;
        for host in hosts {
            listeners.push(Listener::bind(host, options.port).await?);
        }
        warn_if_open(&listeners, &options);
        let state = AppState::new(options, Handle::current())?;
        state.credentials().set_tls(tls);
        Ok(Self { state, listeners, wyoming })
    }

    /// Addresses as starts of URLs, and paths of unix sockets.
    #[must_use]
    pub fn addresses(&self) -> Vec<String> {
        let is_tls = self.state.options().tls.is_some();
        self.listeners.iter().map(|listener| listener.describe(is_tls)).collect()
    }

    /// Addresses of Wyoming, as URIs of its clients.
    #[must_use]
    pub fn wyoming_addresses(&self) -> Vec<String> {
        let addresses = self.wyoming.iter().filter_map(|listener| listener.local_addr().ok());
        addresses.map(|address| format!("tcp://{address}")).collect()
    }

    /// State of the handlers.
    #[must_use]
    pub fn state(&self) -> &AppState {
        &self.state
    }

    /// Opens the models and serves until `stop` completes. Then it takes no more connections, answers the requests of the
    /// open ones with `Connection: close`, and lets them end, for at most [`ServerOptions::stop_timeout`].
    ///
    /// # Errors
    /// If a model that was named at the start cannot be opened.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), ServerError> {
        let Self { state, listeners, wyoming } = self;
        let options = state.options();
        let (stopping, stopped) = watch::channel(false);
        let connections = Connections {
            router: router(state.clone()),
            credentials: state.credentials().clone(),
            permits: Arc::new(Semaphore::new(options.max_connections)),
            header_timeout: options.header_timeout,
            write_timeout: options.write_timeout,
            stopped,
        };
        let mut loops = JoinSet::new();
        for listener in listeners {
            loops.spawn(accept_all(listener, connections.clone()));
        }
        let discovery = Discovery::start(options, &wyoming);
        let mut wyoming_loops = JoinSet::new();
        for listener in wyoming {
            let permits = Arc::clone(&connections.permits);
            wyoming_loops.spawn(wyoming::accept_all(listener, state.clone(), permits));
        }
        let mut idle = JoinSet::new();
        if let Some(after) = options.sleep_idle {
            idle.spawn(unload_idle(state.clone(), after));
        }
        let load = async {
            let opened = state.open_models().await;
            if opened.is_ok() {
                tracing::info!("ready");
                std::future::pending::<()>().await;
            }
            opened
        };
        tokio::select! {
            opened = load => opened?,
            () = stop => {}
        }
        tracing::info!("stopping");
        state.stop();
        // All loops may have ended already.
        let _ = stopping.send(true);
        discovery.into_iter().for_each(Discovery::end);
        // Dropping the tasks drops their requests, which cancels them.
        let drained = async {
            state.live().stop().await;
            while wyoming_loops.join_next().await.is_some() {}
            let mut open = Vec::new();
            while let Some(tasks) = loops.join_next().await {
                open.extend(tasks);
            }
            for mut tasks in open {
                while tasks.join_next().await.is_some() {}
            }
        };
        if timeout(options.stop_timeout, drained).await.is_err() {
            tracing::warn!("requests were still running at the end of the stop timeout");
        }
        state.live().end();
        if let Some(traces) = options.traces.clone() {
            let n_permits = u32::try_from(options.max_connections).unwrap_or(u32::MAX);
            let no_connection = connections.permits.acquire_many(n_permits);
            let _ = timeout(CANCEL_TIMEOUT, no_connection).await;
            // The runtime may be shutting down.
            let _ = spawn_blocking(move || traces.stop()).await;
        }
        Ok(())
    }
}

/// Warns of addresses that are open to other machines.
fn warn_if_open(listeners: &[Listener], options: &ServerOptions) {
    let addresses = listeners.iter().filter_map(Listener::address);
    for address in addresses.filter(|address| !address.ip().to_canonical().is_loopback()) {
        if options.api_keys.is_empty() {
            tracing::warn!("no API key is set: anybody who reaches {address} can use the server");
        }
    }
    if options.wyoming_port.is_some() && !options.api_keys.is_empty() {
        tracing::warn!(
            "Wyoming has no keys: anybody who reaches its port can use the speech models"
        );
    }
}

/// Accepts connections until the server stops, then those that the socket had already queued. Returns the tasks of
/// open connections.
async fn accept_all(listener: Listener, connections: Connections) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let mut stopped = connections.stopped.clone();
    let address = listener.address();
    let is_loopback = address.is_some_and(|address| address.ip().to_canonical().is_loopback());
    let peer = move |stream: &Stream| Peer { address: stream.peer(), is_loopback };
    loop {
        let permit = tokio::select! {
            permit = Arc::clone(&connections.permits).acquire_owned() => permit,
            _ = stopped.wait_for(|stopped| *stopped) => break,
        };
        // The semaphore is never closed.
        let Ok(permit) = permit else { break };
        let stream = tokio::select! {
            stream = listener.accept() => stream,
            _ = stopped.wait_for(|stopped| *stopped) => break,
        };
        match stream {
            Ok(stream) => {
                let peer = peer(&stream);
                tasks.spawn(serve((stream, peer), connections.clone(), permit));
            }
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                sleep(ACCEPT_PAUSE).await;
            }
        }
        while tasks.try_join_next().is_some() {}
    }
    // Clients whose connection the kernel has accepted would see it reset.
    for stream in listener.close() {
        let (connections, peer) = (connections.clone(), peer(&stream));
        tasks.spawn(async move {
            if let Ok(permit) = Arc::clone(&connections.permits).acquire_owned().await {
                serve((stream, peer), connections, permit).await;
            }
        });
    }
    tasks
}

/// Serves the requests of one connection.
async fn serve(
    (stream, peer): (Stream, Peer),
    connections: Connections,
    permit: OwnedSemaphorePermit,
) {
    let Connections { router, credentials, header_timeout, write_timeout, mut stopped, .. } =
        connections;
    let tls = credentials.tls();
    let handshake = timeout(HANDSHAKE_TIMEOUT, stream.secured(tls.as_ref())).await;
    let stream = match handshake {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            let client = peer.address.map(|address| address.to_string());
            return tracing::info!(client, "expected TLS, got other bytes: {error}");
        }
        Err(_) => return tracing::debug!("the handshake of TLS took too long"),
    };
    let router = router.map_request(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(peer);
        request
    });
    let stream = WriteLimit::new(stream, write_timeout);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .with_upgrades();
    let mut connection = pin!(connection);
    let stop = async {
        // An error means that the sender is gone: the server has ended.
        let _ = stopped.wait_for(|stopped| *stopped).await;
        sleep(IDLE_GRACE).await;
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop => {
            // Closes an idle connection, and others after their response.
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        // A client that goes away is not an error of the server.
        tracing::debug!("connection: {error}");
    }
    drop(permit);
}

/// Unloads models that were idle for `after`.
async fn unload_idle(state: AppState, after: Duration) {
    let mut ticks = interval(IDLE_INTERVAL.min(after.max(Duration::from_millis(10))));
    loop {
        ticks.tick().await;
        state.models().sleep(after);
    }
}

/// Waits for SIGTERM or SIGINT (Ctrl-C).
pub async fn stop_signal() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
        if let (Ok(mut terminate), Ok(mut interrupt)) = signals {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            return;
        }
    }
    if let Err(error) = tokio::signal::ctrl_c().await {
        tracing::error!("signals cannot be handled: {error}");
        std::future::pending::<()>().await;
    }
}
