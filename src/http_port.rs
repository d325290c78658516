//! The port for scrapers and people, who come and go: no client of it can keep the others out.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::listen::concerns_one_connection;
use crate::tls::Acceptor;

/// So many clients are served at once; further ones wait until one is gone.
const MAX_CONNECTIONS: usize = 64;
/// A client that has not sent the head of a request by then is sent away; so is one that has no further request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection takes no new request after this time.
const LIFETIME: Duration = Duration::from_secs(60);
/// And ends after this time more, however slowly its client reads.
const LAST_RESPONSE: Duration = Duration::from_secs(10);
/// How long no connection is taken after one could not be for want of file descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);

/// Answers HTTP/1.1 on `listener` without end, over `tls` if it is given.
pub(crate) async fn serve(listener: TcpListener, tls: Option<Acceptor>, router: Router) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        // Nobody closes it.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        // What has ended, in order or with a panic, which the hook has reported.
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((socket, _)) => {
                let (tls, router) = (tls.as_ref().map(Acceptor::now), router.clone());
                connections.spawn(async move {
                    let _place = place;
                    if let Err(error) = open_and_answer(socket, tls, router).await {
                        tracing::debug!(%error, "connection to the metrics port ended");
                    }
                });
            }
            Err(error) if concerns_one_connection(&error) => {}
            Err(error) => {
                tracing::debug!(%error, "cannot take connections on the metrics port");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Serves one client, whose handshake may take as long as the head of a request.
async fn open_and_answer(socket: TcpStream, tls: Option<TlsAcceptor>, router: Router) -> anyhow::Result<()> {
    match tls {
        None => answer(socket, router).await?,
        Some(tls) => {
            let stream =
                tokio::time::timeout(HEAD_TIMEOUT, tls.accept(socket)).await.context("no handshake in time")?;
            answer(stream?, router).await?;
        }
    }
    Ok(())
}

/// Answers the requests of one client.
async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
) -> Result<(), hyper::Error> {
    let service = TowerToHyperService::new(router);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    if let Ok(ended) = tokio::time::timeout(LIFETIME, connection.as_mut()).await {
        return ended;
    }
    connection.as_mut().graceful_shutdown();
    // Beyond that it is dropped.
    tokio::time::timeout(LAST_RESPONSE, connection).await.unwrap_or(Ok(()))
}
