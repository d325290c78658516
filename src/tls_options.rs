//! What peers may negotiate: `--tls-min-version` and `--tls-cipher-suites`, in the words of Go.

use std::str::FromStr;

use rustls::crypto::CryptoProvider;
use rustls::version::{TLS12, TLS13};
use rustls::{CipherSuite, SupportedCipherSuite, SupportedProtocolVersion};

/// The lowest version of TLS that a peer may use. 1.2 is the lowest there is here: 1.0 and 1.1 are read as that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MinVersion {
    BelowTls12,
    #[default]
    Tls12,
    Tls13,
}

impl MinVersion {
    pub(crate) fn versions(self) -> Vec<&'static SupportedProtocolVersion> {
        match self {
            Self::BelowTls12 | Self::Tls12 => vec![&TLS12, &TLS13],
            Self::Tls13 => vec![&TLS13],
        }
    }
}

impl FromStr for MinVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "VersionTLS10" | "VersionTLS11" => Ok(Self::BelowTls12),
            "VersionTLS12" => Ok(Self::Tls12),
            "VersionTLS13" => Ok(Self::Tls13),
            _ => Err("one of VersionTLS10, VersionTLS11, VersionTLS12, VersionTLS13".to_owned()),
        }
    }
}

/// The suites for TLS 1.2 that are named by both Go and this server.
const OFFERED: [(&str, CipherSuite); 6] = [
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// Older spellings of the same.
const ALIASES: [(&str, &str); 2] = [
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"),
];

/// Of TLS 1.3, where Go lets nobody choose: a peer may always use any of them.
const ALWAYS: [&str; 3] = ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

/// Go knows them, this server does not: without forward secrecy, or with broken or fragile ciphers.
const NOT_OFFERED: [&str; 16] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

/// A choice among the suites for TLS 1.2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CipherSuites {
    chosen: Vec<CipherSuite>,
    /// Known names that cannot be had here.
    pub(crate) not_offered: Vec<&'static str>,
}

impl CipherSuites {
    /// Leaves `provider` the suites that were chosen, and those of TLS 1.3.
    pub(crate) fn restrict(&self, provider: &mut CryptoProvider) {
        let is_left = |suite: &SupportedCipherSuite| suite.tls13().is_some() || self.chosen.contains(&suite.suite());
        provider.cipher_suites.retain(is_left);
    }
}

impl FromStr for CipherSuites {
    type Err = String;

    /// Names with commas between them.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut suites = Self { chosen: Vec::new(), not_offered: Vec::new() };
        for name in text.split(',').map(str::trim) {
            let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name);
            if let Some((_, suite)) = OFFERED.iter().find(|(offered, _)| *offered == name) {
                suites.chosen.push(*suite);
            } else if let Some(known) = NOT_OFFERED.iter().find(|known| **known == name) {
                suites.not_offered.push(known);
            } else if !ALWAYS.contains(&name) {
                return Err(unknown(name));
            }
        }
        Ok(suites)
    }
}

fn unknown(name: &str) -> String {
    let choices: Vec<&str> = OFFERED.iter().map(|(name, _)| *name).collect();
    format!("there is no suite {name:?}; choose from {}", choices.join(", "))
}

#[cfg(test)]
mod tests {
    use rustls::crypto::aws_lc_rs;

    use super::*;

    fn suites(text: &str) -> CipherSuites {
        text.parse().unwrap()
    }

    fn left(text: &str) -> Vec<CipherSuite> {
        let mut provider = aws_lc_rs::default_provider();
        suites(text).restrict(&mut provider);
        provider.cipher_suites.iter().map(SupportedCipherSuite::suite).collect()
    }

    const TLS13_SUITES: [CipherSuite; 3] = [
        CipherSuite::TLS13_AES_256_GCM_SHA384,
        CipherSuite::TLS13_AES_128_GCM_SHA256,
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
    ];

    #[test]
    fn versions_that_are_not_offered_are_read_as_the_lowest_that_is() {
        for (text, versions) in [
            ("VersionTLS10", &[&TLS12, &TLS13][..]),
            ("VersionTLS11", &[&TLS12, &TLS13]),
            ("VersionTLS12", &[&TLS12, &TLS13]),
            ("VersionTLS13", &[&TLS13]),
        ] {
            assert_eq!(text.parse::<MinVersion>().unwrap().versions(), versions, "{text}");
        }
        assert!("TLS1.3".parse::<MinVersion>().unwrap_err().contains("VersionTLS13"));
    }

    #[test]
    fn the_chosen_suites_of_tls12_are_left_beside_those_of_tls13() {
        let [ecdsa, .., rsa] = OFFERED.map(|(name, _)| name);
        let expected = [&TLS13_SUITES[..], &[OFFERED[0].1, OFFERED[5].1]].concat();
        assert_eq!(left(&format!("{rsa}, {ecdsa}")), expected);
        assert_eq!(left("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305"), [&TLS13_SUITES[..], &[OFFERED[5].1]].concat());
        assert_eq!(left("TLS_AES_128_GCM_SHA256"), TLS13_SUITES);
    }

    #[test]
    fn every_suite_of_this_server_can_be_chosen() {
        let all = OFFERED.map(|(name, _)| name).join(",");
        assert_eq!(left(&all).len(), aws_lc_rs::default_provider().cipher_suites.len());
    }

    #[test]
    fn suites_that_only_go_has_are_left_out_and_told() {
        let suites = suites("TLS_RSA_WITH_AES_128_CBC_SHA,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256");
        assert_eq!(suites.not_offered, ["TLS_RSA_WITH_AES_128_CBC_SHA"]);
        assert_eq!(suites.chosen, [CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256]);
    }

    #[test]
    fn a_name_that_nobody_knows_is_answered_with_the_choices() {
        let mistake = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,NULL".parse::<CipherSuites>().unwrap_err();
        assert!(mistake.contains("\"NULL\""), "{mistake}");
        assert!(OFFERED.iter().all(|(name, _)| mistake.contains(name)), "{mistake}");
    }
}
