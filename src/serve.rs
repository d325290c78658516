use std::time::Duration;

use anyhow::{Context as _, anyhow};
use prometheus::Registry;
use sluice_core::{Criticality, Tasks};
use sluice_extproc::Service;
use sluice_flow::Signal;
use sluice_router::admission::Admission;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tonic::transport::{Server, ServerTlsConfig};

use crate::flags::Flags;
use crate::health::Readiness;
use crate::listen::{bind, connections};
use crate::metrics_server;
use crate::pool_view::PoolView;
use crate::signals::StopSignals;

/// What serving needs.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) flags: Flags,
    pub(crate) service: Service,
    /// Bytes of the largest gRPC message taken.
    pub(crate) max_message: usize,
    pub(crate) tls: Option<ServerTlsConfig>,
    pub(crate) registry: Registry,
    pub(crate) admission: Option<Admission>,
    pub(crate) view: Option<PoolView>,
    pub(crate) tasks: Tasks,
}

/// Serves until a signal, then drains. An error means that a part the process needs has failed.
///
/// ```text
/// signal ─> not serving ──drain_timeout──> no new streams ──stream_drain_timeout──> running streams are cut
///           second signal at any point: out at once, by `StopSignals`
/// ```
pub(crate) async fn serve(
    parts: Parts,
    mut signals: StopSignals,
    mut fallen: mpsc::UnboundedReceiver<&'static str>,
) -> anyhow::Result<()> {
    let Parts { flags, service, max_message, tls, registry, admission, view, tasks } = parts;
    let ext_proc = bind(flags.listen_address, flags.grpc_port).await?;
    let health = bind(flags.listen_address, flags.grpc_health_port).await?;
    let metrics = bind(flags.listen_address, flags.metrics_port).await?;
    let addresses = (ext_proc.local_addr()?, health.local_addr()?, metrics.local_addr()?);

    let readiness = Readiness::default();
    tasks.spawn("health", Criticality::Critical, serve_health(health, readiness.clone()));
    tasks.spawn("metrics", Criticality::Critical, serve_metrics(metrics, registry, view));
    let (stop, stopped) = oneshot::channel();
    let mut builder = ext_proc_builder(tls)?;
    let server = builder
        .add_service(service.clone().into_server(max_message))
        .add_service(readiness.clone().into_server())
        // A dropped sender also means stop.
        .serve_with_incoming_shutdown(connections(ext_proc), async { stopped.await.unwrap_or_default() });
    tokio::pin!(server);
    let (ext_proc, health, metrics) = addresses;
    tracing::info!(%ext_proc, %health, %metrics, tls = flags.secure_serving, "serving");

    let signal = tokio::select! {
        ended = &mut server => return Err(server_ended(ended)),
        Some(task) = fallen.recv() => return Err(task_ended(task)),
        signal = signals.first() => signal,
    };

    readiness.start_draining();
    tracing::info!(signal, window = ?flags.drain_timeout, "draining: still serving, no longer ready");
    tokio::select! {
        ended = &mut server => return Err(server_ended(ended)),
        Some(task) = fallen.recv() => return Err(task_ended(task)),
        () = tokio::time::sleep(flags.drain_timeout) => {}
    }

    if let Some(admission) = admission {
        // Whatever waits is answered now, and nothing new is let in.
        admission.observe(Signal::Drain);
    }
    let streams = service.open_streams();
    tracing::info!(streams, limit = ?flags.stream_drain_timeout, "no new streams: waiting for running ones");
    // The server may have gone by itself just now: then there is nobody to tell.
    stop.send(()).unwrap_or_default();
    tokio::select! {
        ended = &mut server => ended.context("external processor")?,
        () = tokio::time::sleep(flags.stream_drain_timeout) => {
            tracing::warn!(streams = service.open_streams(), "streams cut: they did not end in time");
        }
    }
    tracing::info!("stopped");
    Ok(())
}

fn server_ended(ended: Result<(), tonic::transport::Error>) -> anyhow::Error {
    ended.err().map_or_else(|| anyhow!("the external processor stopped by itself"), anyhow::Error::from)
}

fn task_ended(task: &str) -> anyhow::Error {
    anyhow!("the task {task}, which the process cannot do without, has ended")
}

/// Two defaults of HTTP/2 servers would kill a whole connection, with up to 1,024 streams on it, when clients leave in
/// a burst or the picker stalls for a moment: the bound on streams that were reset before they were accepted, and the
/// connection window, from which the bound on small unread frames derives. The number of concurrent streams is left
/// unlimited, since Envoy opens up to 1,024 before it reads a limit and fails those beyond it.
fn ext_proc_builder(tls: Option<ServerTlsConfig>) -> anyhow::Result<Server> {
    let builder = Server::builder()
        .http2_max_pending_accept_reset_streams(Some(1_000_000))
        .http2_max_local_error_reset_streams(None)
        .initial_connection_window_size(64 << 20)
        .initial_stream_window_size(1 << 20)
        .http2_keepalive_interval(Some(Duration::from_secs(60)));
    match tls {
        Some(tls) => builder.tls_config(tls).context("the certificate"),
        None => Ok(builder),
    }
}

async fn serve_health(listener: TcpListener, readiness: Readiness) {
    let served =
        Server::builder().add_service(readiness.into_server()).serve_with_incoming(connections(listener)).await;
    tracing::error!(?served, "health server ended");
}

async fn serve_metrics(listener: TcpListener, registry: Registry, view: Option<PoolView>) {
    let served = axum::serve(listener, metrics_server::router(registry, view)).await;
    tracing::error!(?served, "metrics server ended");
}
