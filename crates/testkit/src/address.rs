use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::{Context, Result};

/// An address on 127.0.0.1 where nothing listens: for a server that is down. Not for starting one there: another
/// process may take the port first.
pub fn unused_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("looking for an unused port")?;
    Ok(listener.local_addr()?)
}

/// Where to connect to for something that is bound to `address`: a wildcard address becomes the loopback one.
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() { (Ipv4Addr::LOCALHOST, address.port()).into() } else { address }
}
