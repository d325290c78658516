//! Ports: how they are opened, and how connections are taken from them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context as _;
use futures_util::{Stream, stream};
use rustix::io::Errno;
use sluice_core::{Clock, SystemClock, Time};
use tokio::net::{TcpListener, TcpStream};

/// How long no connection is taken after one could not be for want of file descriptors or memory. It waits in the
/// queue of the kernel, which reports it at once when asked again.
const PAUSE: Duration = Duration::from_millis(100);
/// Such a lack is logged this often at most.
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

/// The connections that come in, without end: one that cannot be taken is logged, never an item. The server would ask
/// again at once, and turn at full speed for as long as the lack of file descriptors lasts.
pub(crate) fn connections(listener: TcpListener) -> impl Stream<Item = io::Result<TcpStream>> {
    stream::unfold(Accepting { listener, clock: SystemClock::start(), logged: None }, |mut accepting| async move {
        let connection = accepting.next().await;
        Some((Ok(connection), accepting))
    })
}

struct Accepting {
    listener: TcpListener,
    clock: SystemClock,
    /// When a failure was last logged.
    logged: Option<Time>,
}

impl Accepting {
    async fn next(&mut self) -> TcpStream {
        loop {
            match self.listener.accept().await {
                Ok((connection, _)) => {
                    // Where it does not work, answers are merely later.
                    connection.set_nodelay(true).unwrap_or_default();
                    return connection;
                }
                Err(error) if concerns_one_connection(&error) => {}
                Err(error) => {
                    self.log(&error);
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn log(&mut self, error: &io::Error) {
        let now = self.clock.now();
        if self.logged.is_none_or(|logged| now.saturating_since(logged) >= LOG_EVERY) {
            tracing::error!(%error, "cannot take connections");
            self.logged = Some(now);
        }
    }
}

/// The peer was gone again, or the network reported an earlier fault: the next connection may be fine.
fn concerns_one_connection(error: &io::Error) -> bool {
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
