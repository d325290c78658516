//! What serves, from the opening of the ports to the end of the last stream.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use prometheus::Registry;
use sluice_core::{Criticality, Tasks};
use sluice_extproc::Service;
use sluice_flow::Signal;
use sluice_router::admission::Admission;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use crate::access::Gate;
use crate::flags::Flags;
use crate::health::Readiness;
use crate::in_force::InForce;
use crate::kubernetes::Followed;
use crate::listen::{bind, connections};
use crate::pool_view::PoolView;
use crate::signals::StopSignals;
use crate::tls::Tls;
use crate::{health_port, http_port, metrics_server};

/// A connection on which nothing arrives for this long is asked for a sign of life, and closed if none comes within the
/// same time again: what the requests of a dead proxy hold is then free.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// How long streams that are cut may take to give back what they hold.
const CUT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long peers may take to hear that the server goes once they have taken the end of their last stream. A frozen one
/// never says so.
const FAREWELL: Duration = Duration::from_secs(1);
/// How often to look whether streams have ended.
const LOOK: Duration = Duration::from_millis(5);

/// What serving needs.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) flags: Flags,
    pub(crate) service: Service,
    /// Bytes of the largest gRPC message sent.
    pub(crate) max_reply: usize,
    pub(crate) tls: Option<Tls>,
    pub(crate) metrics_tls: Option<Tls>,
    pub(crate) registry: Registry,
    pub(crate) admission: Option<Admission>,
    pub(crate) view: Option<PoolView>,
    /// Before the pages of the metrics port.
    pub(crate) gate: Option<Gate>,
    /// The pool, where it may become known or unknown, and where another picker may lead.
    pub(crate) followed: Option<Followed>,
    pub(crate) in_force: InForce,
    pub(crate) tasks: Tasks,
}

/// Serves until a signal, then drains. An error means that a part the process needs has failed.
///
/// ```text
/// signal ─> not ready ──drain_timeout──> no new streams ──stream_drain_timeout──> running streams are cut
///           another leads                no more waiting
///           second signal at any point: out at once, by `StopSignals`
/// ```
pub(crate) async fn serve(
    parts: Parts,
    mut signals: StopSignals,
    mut fallen: mpsc::UnboundedReceiver<&'static str>,
) -> anyhow::Result<()> {
    let Parts {
        flags,
        service,
        max_reply,
        tls,
        metrics_tls,
        registry,
        admission,
        view,
        gate,
        followed,
        in_force,
        tasks,
    } = parts;
    let ext_proc = bind(flags.listen_address, flags.grpc_port).await?;
    let health = bind(flags.listen_address, flags.grpc_health_port).await?;
    let metrics = bind(flags.listen_address, flags.metrics_port).await?;
    let addresses = (ext_proc.local_addr()?, health.local_addr()?, metrics.local_addr()?);

    let leadership = followed.as_ref().and_then(|followed| followed.leadership.clone());
    let readiness = Readiness::new(leadership.is_some());
    let secured = |tls: Option<Tls>| tls.map(|tls| tls.start(&registry, &tasks)).transpose();
    let tls = secured(tls).context("registering metrics")?;
    let metrics_tls = secured(metrics_tls).context("registering metrics")?;
    health_port::start(health, readiness.clone(), &tasks)?;
    tasks.spawn(
        "metrics",
        Criticality::Critical,
        http_port::serve(metrics, metrics_tls, metrics_server::router(registry, view, in_force, gate)),
    );
    let (stop, stopped) = oneshot::channel();
    let cut = CancellationToken::new();
    let incoming = connections(ext_proc, tls, cut.clone());
    let server = ext_proc_builder()
        .add_service(service.clone().into_server(max_reply))
        .add_service(readiness.clone().into_server())
        // A dropped sender also means stop.
        .serve_with_incoming_shutdown(incoming, async { stopped.await.unwrap_or_default() });
    tokio::pin!(server);
    tasks.spawn("unread replies", Criticality::Critical, service.clone().give_up_unread());
    match followed {
        Some(Followed { known, .. }) => {
            let body = readiness.clone().follow(known, Readiness::set_pool_known);
            tasks.spawn("readiness", Criticality::Critical, body);
        }
        None => readiness.set_pool_known(true),
    }
    if let Some(leadership) = &leadership {
        let body = readiness.clone().follow(leadership.leads(), Readiness::set_leads);
        tasks.spawn("readiness by leadership", Criticality::Critical, body);
    }
    let (ext_proc, health, metrics) = addresses;
    tracing::info!(%ext_proc, %health, %metrics, tls = flags.secure_serving, "serving");

    let signal = tokio::select! {
        ended = &mut server => return Err(server_ended(ended)),
        Some(task) = fallen.recv() => return Err(task_ended(task)),
        signal = signals.first() => signal,
    };

    readiness.start_draining();
    if let Some(leadership) = &leadership {
        // At once: the other one takes over while this one still serves.
        leadership.leave();
    }
    tracing::info!(signal, window = ?flags.drain_timeout, "draining: no longer ready, still serving until the window ends");
    tokio::select! {
        ended = &mut server => return Err(server_ended(ended)),
        Some(task) = fallen.recv() => return Err(task_ended(task)),
        () = tokio::time::sleep(flags.drain_timeout) => {}
    }

    let streams = service.open_streams();
    service.stop_reading();
    if let Some(admission) = admission {
        // Whatever waits is answered now, and nothing new is let in.
        admission.observe(Signal::Drain);
    }
    // Their streams would hold up the server's way out.
    readiness.stop();
    tracing::info!(streams, limit = ?flags.stream_drain_timeout, "no new streams: waiting for running ones");
    // The server may have gone by itself just now: then there is nobody to tell.
    stop.send(()).unwrap_or_default();
    tokio::select! {
        ended = &mut server => ended.context("external processor")?,
        () = idle_for(&service, FAREWELL) => {
            tracing::debug!("connections cut: their peers have not closed them");
        }
        () = tokio::time::sleep(flags.stream_drain_timeout) => {
            let streams = service.open_streams();
            cut.cancel();
            let gone = tokio::time::timeout(CUT_TIMEOUT, all_gone(&service)).await.is_ok();
            tracing::warn!(streams, gone, "streams cut: they did not end in time");
        }
    }
    if let Some(leadership) = leadership {
        leadership.left().await;
    }
    tracing::info!("stopped");
    Ok(())
}

/// Until there was nothing to serve or to deliver for `time` on end.
async fn idle_for(service: &Service, time: Duration) {
    let mut idle = Duration::ZERO;
    while idle < time {
        tokio::time::sleep(LOOK).await;
        idle = if service.is_idle() { idle + LOOK } else { Duration::ZERO };
    }
}

/// Until every stream has been cleaned up.
async fn all_gone(service: &Service) {
    while service.open_streams() > 0 {
        tokio::time::sleep(LOOK).await;
    }
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
fn ext_proc_builder() -> Server {
    Server::builder()
        .http2_max_pending_accept_reset_streams(Some(1_000_000))
        .http2_max_local_error_reset_streams(None)
        .initial_connection_window_size(64 << 20)
        .initial_stream_window_size(1 << 20)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
}
