//! Ports: how they are opened, and how connections are taken from them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context as _;
use futures_util::{Stream, stream};
use rustix::io::Errno;
use sluice_core::{Clock, SystemClock, Time};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::connection::{Connection, NotOpened};
use crate::tls::Acceptor;

/// How long no connection is taken after one could not be for want of file descriptors or memory. It waits in the
/// queue of the kernel, which reports it at once when asked again.
const PAUSE: Duration = Duration::from_millis(100);
/// Failures of one kind are logged this often at most.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// Opens a port. Where there is no IPv6, `::` means all of IPv4.
pub(crate) async fn bind(address: IpAddr, port: u16) -> anyhow::Result<TcpListener> {
    let address = SocketAddr::new(address, port);
    let listener = match TcpListener::bind(address).await {
        Err(error) if address.ip().is_unspecified() && address.is_ipv6() && lacks_ipv6(&error) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        other => other,
    };
    listener.with_context(|| format!("listening on {address}"))
}

fn lacks_ipv6(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL))
}

/// The connections of `listener` whose peers speak HTTP/2, over `tls` if it is given, without end; all of them fail
/// when `cut` is cancelled. Peers that are slow to open theirs hold up nobody. What cannot be taken is logged, never an
/// item: the server would ask again at once, and turn at full speed for as long as a lack of file descriptors lasts.
pub(crate) fn connections(
    listener: TcpListener,
    tls: Option<Acceptor>,
    cut: CancellationToken,
) -> impl Stream<Item = io::Result<Connection>> {
    let opening = JoinSet::new();
    let logged = LastLogged::default();
    let incoming = Incoming { listener, tls, cut, opening, clock: SystemClock::start(), logged };
    stream::unfold(incoming, |mut incoming| async move {
        let connection = incoming.next().await;
        Some((Ok(connection), incoming))
    })
}

struct Incoming {
    listener: TcpListener,
    tls: Option<Acceptor>,
    cut: CancellationToken,
    /// Connections whose peers have not said enough yet.
    opening: JoinSet<Result<Connection, NotOpened>>,
    clock: SystemClock,
    logged: LastLogged,
}

/// When each kind of failure was last logged.
#[derive(Default)]
struct LastLogged {
    lack: Option<Time>,
    not_opened: Option<Time>,
}

impl Incoming {
    async fn next(&mut self) -> Connection {
        loop {
            tokio::select! {
                // Those that have come first are served first.
                biased;
                Some(opened) = self.opening.join_next() => match opened {
                    Ok(Ok(connection)) => return connection,
                    Ok(Err(error)) => self.not_opened(&error),
                    // It has panicked, which the hook has reported: that peer is gone.
                    Err(_) => {}
                },
                accepted = self.listener.accept() => match accepted {
                    Ok((socket, _)) => {
                        // Where it does not work, answers are merely later.
                        socket.set_nodelay(true).unwrap_or_default();
                        // A token of its own: connections on different threads share no lock.
                        let cut = self.cut.child_token();
                        self.opening.spawn(Connection::open(socket, self.tls.as_ref().map(Acceptor::now), cut));
                    }
                    Err(error) if concerns_one_connection(&error) => {}
                    Err(error) => {
                        if is_due(&mut self.logged.lack, self.clock.now()) {
                            tracing::error!(%error, "cannot take connections");
                        }
                        tokio::time::sleep(PAUSE).await;
                    }
                },
            }
        }
    }

    fn not_opened(&mut self, error: &NotOpened) {
        match error {
            NotOpened::Closed(_) | NotOpened::TooSlow | NotOpened::NotHttp2 => {
                tracing::debug!(%error, "connection closed");
            }
            NotOpened::Handshake(_) | NotOpened::UnexpectedTls | NotOpened::UnexpectedPlaintext => {
                if is_due(&mut self.logged.not_opened, self.clock.now()) {
                    let port = self.listener.local_addr().map(|address| address.port()).unwrap_or_default();
                    tracing::warn!(%error, port, "connection closed: do both sides agree on TLS (--secure-serving, --client-ca-file)?");
                }
            }
        }
    }
}

/// Whether [`LOG_EVERY`] has passed, in which case it begins anew.
fn is_due(logged: &mut Option<Time>, now: Time) -> bool {
    let due = logged.is_none_or(|logged| now.saturating_since(logged) >= LOG_EVERY);
    if due {
        *logged = Some(now);
    }
    due
}

/// The peer was gone again, or the network reported an earlier fault: the next connection may be fine.
pub(crate) fn concerns_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind_error(errno: Errno) -> bool {
        lacks_ipv6(&io::Error::from_raw_os_error(errno.raw_os_error()))
    }

    #[test]
    fn only_a_machine_without_ipv6_falls_back() {
        assert!(bind_error(Errno::AFNOSUPPORT) && bind_error(Errno::ADDRNOTAVAIL));
        assert!(!bind_error(Errno::ADDRINUSE) && !bind_error(Errno::ACCESS) && !bind_error(Errno::MFILE));
        assert!(!lacks_ipv6(&io::Error::other("no errno")));
    }

    #[tokio::test]
    async fn a_port_in_use_is_an_error_that_names_the_address() {
        // Taken for one address of IPv6: all of IPv4 would still be free.
        let Ok(taken) = TcpListener::bind("[::1]:0").await else { return };
        let port = taken.local_addr().unwrap().port();
        let error = bind("::".parse().unwrap(), port).await.unwrap_err();
        assert_eq!(error.to_string(), format!("listening on [::]:{port}"));
    }
}
