//! How a port speaks TLS, and whom it believes.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use arc_swap::ArcSwap;
use prometheus::{IntGauge, Registry};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, ResolvesServerCert};
use rustls::{ServerConfig, SupportedProtocolVersion};
use sluice_core::{Criticality, Tasks};
use sluice_follow::{FileSet, FilesFollower};
use tokio_rustls::TlsAcceptor;

use crate::certificate::{CurrentCertificate, Pair, self_signed};
use crate::client_authorities::ClientAuthorities;
use crate::tls_options::{CipherSuites, MinVersion};

/// What is the port's own.
#[derive(Debug)]
pub(crate) struct Port {
    protocol: &'static [u8],
    certificate: Source,
    authorities: Source,
}

/// Where something comes from, and what it is called.
#[derive(Debug)]
struct Source {
    flag: &'static str,
    /// In the log.
    what: &'static str,
    /// 1 while the files are no good.
    gauge: &'static str,
    help: &'static str,
    task: &'static str,
}

pub(crate) const EXT_PROC: Port = Port {
    protocol: b"h2",
    certificate: Source {
        flag: "--cert-path",
        what: "certificate",
        gauge: "llm_d_epp_certificate_reload_failing",
        help: "1 while tls.crt and tls.key are no good and the last good ones are in use",
        task: "certificate",
    },
    authorities: Source {
        flag: "--client-ca-file",
        what: "authorities of clients",
        gauge: "llm_d_epp_client_ca_reload_failing",
        help: "1 while the file of --client-ca-file is no good and the last good one is in use",
        task: "client authorities",
    },
};

pub(crate) const METRICS: Port = Port {
    protocol: b"http/1.1",
    certificate: Source {
        flag: "--metrics-cert-dir",
        what: "certificate of the metrics port",
        gauge: "llm_d_epp_metrics_certificate_reload_failing",
        help: "1 while tls.crt and tls.key of the metrics port are no good and the last good ones are in use",
        task: "metrics certificate",
    },
    authorities: Source {
        flag: "--metrics-client-ca-file",
        what: "authorities of clients of the metrics port",
        gauge: "llm_d_epp_metrics_client_ca_reload_failing",
        help: "1 while the file of --metrics-client-ca-file is no good and the last good one is in use",
        task: "metrics client authorities",
    },
};

impl Source {
    /// A follower of the files, which must be good.
    fn follow<S: FileSet>(&self, files: S) -> anyhow::Result<FilesFollower<S>> {
        let failing = IntGauge::new(self.gauge, self.help)?;
        FilesFollower::start(files, failing).map_err(|error| anyhow!("{}: {error}", self.flag))
    }
}

/// What the command line says of a port's TLS.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TlsSettings<'a> {
    /// Where tls.crt and tls.key are; none: a certificate is made now.
    pub(crate) directory: Option<&'a Path>,
    /// A new pair in the directory is taken over.
    pub(crate) follow_directory: bool,
    /// Certificates of those who sign those of clients; none: everybody may be a client.
    pub(crate) client_authorities: Option<&'a Path>,
    pub(crate) min_version: MinVersion,
    /// None: all.
    pub(crate) cipher_suites: Option<&'a CipherSuites>,
}

/// What opens the next connection. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Acceptor(Arc<ArcSwap<ServerConfig>>);

impl Acceptor {
    pub(crate) fn now(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.0.load_full())
    }
}

/// A server of TLS that works: what can be wrong with the settings and the files was found out.
#[derive(Debug)]
pub(crate) struct Tls {
    port: &'static Port,
    acceptor: Acceptor,
    certificate: Option<FilesFollower<Pair>>,
    authorities: Option<FilesFollower<ClientAuthorities>>,
}

impl Tls {
    pub(crate) fn new(port: &'static Port, settings: TlsSettings<'_>) -> anyhow::Result<Self> {
        let TlsSettings { directory, follow_directory, client_authorities, min_version, cipher_suites } = settings;
        let mut provider = aws_lc_rs::default_provider();
        if let Some(suites) = cipher_suites {
            suites.restrict(&mut provider);
        }
        let provider = Arc::new(provider);
        let pair = |directory| Pair::of(directory, port.certificate.what, Arc::clone(&provider));
        let certificate = directory.map(|directory| port.certificate.follow(pair(directory))).transpose()?;
        let current = match &certificate {
            None => CurrentCertificate::fixed(self_signed(&provider)?),
            Some(follower) => CurrentCertificate::new(follower.current()),
        };
        let versions = min_version.versions();
        let recipe = Recipe { provider, versions, certificate: Arc::new(current), protocol: port.protocol };
        // Found out first, since it is no fault of a file.
        let open = recipe.server(Arc::new(NoClientAuth)).context("--tls-min-version with --tls-cipher-suites")?;
        let authorities = client_authorities.map(|file| {
            let (what, file) = (port.authorities.what, file.to_owned());
            port.authorities.follow(ClientAuthorities { what, file, recipe: recipe.clone() })
        });
        let authorities = authorities.transpose()?;
        let config = authorities.as_ref().map_or_else(|| Arc::new(ArcSwap::from_pointee(open)), FilesFollower::current);
        let certificate = certificate.filter(|_| follow_directory);
        Ok(Self { port, acceptor: Acceptor(config), certificate, authorities })
    }

    /// Follows the files from now on.
    pub(crate) fn start(self, registry: &Registry, tasks: &Tasks) -> prometheus::Result<Acceptor> {
        let Self { port, acceptor, certificate, authorities } = self;
        if let Some(follower) = certificate {
            registry.register(Box::new(follower.failing()))?;
            tasks.spawn(port.certificate.task, Criticality::Critical, follower.follow());
        }
        if let Some(follower) = authorities {
            registry.register(Box::new(follower.failing()))?;
            tasks.spawn(port.authorities.task, Criticality::Critical, follower.follow());
        }
        Ok(acceptor)
    }
}

/// A server of TLS but for whom it believes.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    provider: Arc<CryptoProvider>,
    versions: Vec<&'static SupportedProtocolVersion>,
    certificate: Arc<dyn ResolvesServerCert>,
    protocol: &'static [u8],
}

impl Recipe {
    pub(crate) fn provider(&self) -> Arc<CryptoProvider> {
        Arc::clone(&self.provider)
    }

    pub(crate) fn server(&self, clients: Arc<dyn ClientCertVerifier>) -> Result<ServerConfig, rustls::Error> {
        let mut config = ServerConfig::builder_with_provider(self.provider())
            .with_protocol_versions(&self.versions)?
            .with_client_cert_verifier(clients)
            .with_cert_resolver(Arc::clone(&self.certificate));
        config.alpn_protocols = vec![self.protocol.to_vec()];
        Ok(config)
    }
}
