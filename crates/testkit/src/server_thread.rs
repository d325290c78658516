use std::net::{Ipv4Addr, SocketAddr};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use axum::Router;
use tokio::sync::oneshot;

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
        Self::start_at((Ipv4Addr::LOCALHOST, 0).into(), router)
    }

    pub(crate) fn start_at(address: SocketAddr, router: Router) -> Result<Self> {
        let listener = std::net::TcpListener::bind(address).context("binding a server of the test")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
                tokio::select! {
                    _ = axum::serve(listener, router) => {}
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

impl Drop for ServerThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed by the panic hook.
            drop(thread.join());
        }
    }
}
