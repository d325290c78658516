use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use axum::Router;
use axum::serve::Listener;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// A server on a loopback address with a thread of its own, so that it may serve several tests. Dropping it cuts all its
/// connections.
#[derive(Debug)]
pub(crate) struct ServerThread {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ServerThread {
    pub(crate) fn start(router: Router) -> Result<Self> {
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into(), router, None)
    }

    /// Speaks TLS where there is `tls`.
    pub(crate) fn start_at(address: SocketAddr, router: Router, tls: Option<TlsAcceptor>) -> Result<Self> {
        let listener = std::net::TcpListener::bind(address).context("binding a server of the test")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                let Ok(listener) = TcpListener::from_std(listener) else { return };
                let serving = async {
                    match tls {
                        None => axum::serve(listener, router).await,
                        Some(acceptor) => axum::serve(TlsListener { listener, acceptor }, router).await,
                    }
                };
                tokio::select! {
                    _ = serving => {}
                    _ = stopped => {}
                }
            });
        });
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Connections whose handshake is done, one after the other.
struct TlsListener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        loop {
            let (socket, address) = Listener::accept(&mut self.listener).await;
            if let Ok(stream) = self.acceptor.accept(socket).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed by the panic hook.
            drop(thread.join());
        }
    }
}
