use std::net::{IpAddr, SocketAddr};

use sluice_core::Endpoint;

/// The endpoints a gateway allows for one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subset(Vec<Member>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Member {
    /// Exactly this port.
    Address(SocketAddr),
    /// Any port.
    Ip(IpAddr),
}

impl Subset {
    /// Reads `ip:port` or bare `ip` entries, IPv6 with or without brackets; an entry may itself be a comma-separated
    /// list. What is none of these allows no endpoint: a hint that cannot be read must not open the whole pool.
    pub fn parse<'a>(entries: impl IntoIterator<Item = &'a str>) -> Self {
        let members = entries.into_iter().flat_map(|entry| entry.split(',')).filter_map(|entry| member(entry.trim()));
        Self(members.collect())
    }

    pub fn allows(&self, endpoint: &Endpoint) -> bool {
        self.0.iter().any(|member| match *member {
            Member::Address(address) => endpoint.address == address,
            Member::Ip(ip) => endpoint.address.ip() == ip,
        })
    }
}

fn member(entry: &str) -> Option<Member> {
    if let Ok(address) = entry.parse() {
        return Some(Member::Address(address));
    }
    let bare = entry.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(entry);
    bare.parse().ok().map(Member::Ip)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sluice_core::{EndpointId, EndpointUid};

    use super::*;

    fn allows(entries: &[&str], address: &str) -> bool {
        let id = EndpointId::new("default", "a");
        let endpoint = Endpoint::new(id, EndpointUid("1".into()), address.parse().unwrap(), BTreeMap::new());
        Subset::parse(entries.iter().copied()).allows(&endpoint)
    }

    #[test]
    fn a_port_is_exact_when_given() {
        assert!(allows(&["10.0.0.1:8000"], "10.0.0.1:8000"));
        assert!(!allows(&["10.0.0.1:8001"], "10.0.0.1:8000"));
        assert!(allows(&["10.0.0.1"], "10.0.0.1:8000"));
        assert!(!allows(&["10.0.0.2"], "10.0.0.1:8000"));
    }

    #[test]
    fn ipv6_is_understood() {
        assert!(allows(&["[fd00::1]:8000"], "[fd00::1]:8000"));
        assert!(!allows(&["[fd00::1]:8001"], "[fd00::1]:8000"));
        assert!(allows(&["fd00::1"], "[fd00::1]:8000"));
        assert!(allows(&["[fd00::1]"], "[fd00::1]:8000"));
    }

    #[test]
    fn lists_inside_an_entry_are_split() {
        assert!(allows(&["10.0.0.9:1, 10.0.0.1:8000"], "10.0.0.1:8000"));
    }

    #[test]
    fn what_cannot_be_read_allows_nothing() {
        for entry in ["", "nonsense", "10.0.0.1:", "10.0.0.1:99999", ":8000"] {
            assert!(!allows(&[entry], "10.0.0.1:8000"), "{entry:?}");
        }
        assert!(!allows(&[], "10.0.0.1:8000"));
    }
}
