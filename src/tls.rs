use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::server::ResolvesServerCert;
use tokio_rustls::TlsAcceptor;

use crate::certificate::{CurrentCertificate, Follower, self_signed};
use crate::tls_options::{CipherSuites, MinVersion};

/// How the external processor speaks TLS.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TlsSettings<'a> {
    /// Where tls.crt and tls.key are; none: a certificate is made now.
    pub(crate) directory: Option<&'a Path>,
    pub(crate) min_version: MinVersion,
    /// None: all.
    pub(crate) cipher_suites: Option<&'a CipherSuites>,
}

/// A server of TLS that works: what can be wrong with the settings and the files was found out.
pub(crate) struct Tls {
    pub(crate) acceptor: TlsAcceptor,
    /// To be run where changes of the files are to be followed; there is none for a certificate that was made.
    pub(crate) follower: Option<Follower>,
}

impl Tls {
    pub(crate) fn new(settings: TlsSettings<'_>) -> anyhow::Result<Self> {
        let TlsSettings { directory, min_version, cipher_suites } = settings;
        let mut provider = aws_lc_rs::default_provider();
        if let Some(suites) = cipher_suites {
            suites.restrict(&mut provider);
        }
        let provider = Arc::new(provider);
        let (follower, certificate): (_, Arc<dyn ResolvesServerCert>) = match directory {
            None => (None, Arc::new(CurrentCertificate::new(self_signed(&provider)?))),
            Some(directory) => {
                let follower = Follower::start(directory, Arc::clone(&provider))?;
                let certificate = follower.current();
                (Some(follower), certificate)
            }
        };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&min_version.versions())
            .context("--tls-min-version with --tls-cipher-suites")?
            .with_no_client_auth()
            .with_cert_resolver(certificate);
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), follower })
    }
}

/// Without the keys.
impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("follower", &self.follower).finish_non_exhaustive()
    }
}
