//! TLS towards model servers: whom to believe, how to prove who asks, and following the files that say so.

use std::fmt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus::IntGauge;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use sluice_follow::{Look, Settled};

use super::source::{ClientPair, HttpsOptions, Verify};

/// How often the files are looked at. What is new in them is in use after two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How the next connection is secured. Changes with the files.
pub(super) type CurrentTls = Arc<ArcSwap<ClientConfig>>;

/// What is wrong with a file, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TlsFileError(String);

/// What the files hold.
#[derive(Clone, Default, PartialEq, Eq)]
struct Material {
    authorities: Option<Vec<u8>>,
    certificate: Option<Vec<u8>>,
    key: Option<Vec<u8>>,
}

/// Reads the files, which must be good. There is a follower if there are files.
pub(super) fn start(options: HttpsOptions, failing: IntGauge) -> Result<(CurrentTls, Option<Follower>), TlsFileError> {
    let files = Files(options);
    let material = files.read().map_err(TlsFileError)?;
    let current = Arc::new(ArcSwap::from_pointee(files.config(&material).map_err(TlsFileError)?));
    let follower = files.any().then(|| Follower {
        files,
        current: Arc::clone(&current),
        settled: Settled::new(material),
        failing,
    });
    Ok((current, follower))
}

/// The files that the options name.
#[derive(Clone, Debug)]
struct Files(HttpsOptions);

impl Files {
    fn authorities(&self) -> Option<&PathBuf> {
        match &self.0.verify {
            Verify::Authorities(path) => Some(path),
            Verify::Anybody | Verify::System => None,
        }
    }

    const fn any(&self) -> bool {
        matches!(self.0.verify, Verify::Authorities(_)) || self.0.client.is_some()
    }

    fn read(&self) -> Result<Material, String> {
        let client = self.0.client.as_ref();
        Ok(Material {
            authorities: self.authorities().map(|path| read_file(path)).transpose()?,
            certificate: client.map(|pair| read_file(&pair.certificate)).transpose()?,
            key: client.map(|pair| read_file(&pair.key)).transpose()?,
        })
    }

    async fn read_again(&self) -> Result<Material, String> {
        let files = self.clone();
        #[expect(clippy::disallowed_methods, reason = "a few small reads, whose end is awaited")]
        let read = tokio::task::spawn_blocking(move || files.read());
        read.await.map_err(|error| error.to_string())?
    }

    fn config(&self, material: &Material) -> Result<ClientConfig, String> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match &self.0.verify {
            Verify::Anybody => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(BelievesAnybody::new(&provider)))
            }
            Verify::System => builder.with_root_certificates(system_authorities()),
            Verify::Authorities(path) => {
                builder.with_root_certificates(authorities(path, material.authorities.as_deref().unwrap_or_default())?)
            }
        };
        let mut config = match (&self.0.client, &material.certificate, &material.key) {
            (Some(pair), Some(certificate), Some(key)) => {
                let (chain, key) = client_pair(pair, certificate, key)?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| format!("{} and {}: {error}", pair.certificate.display(), pair.key.display()))?
            }
            _ => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

impl Verify {
    /// Reads the file of authorities, if one is named, and says what is wrong with it.
    pub fn check(&self) -> Result<(), TlsFileError> {
        let Self::Authorities(path) = self else { return Ok(()) };
        read_file(path).and_then(|pem| authorities(path, &pem)).map(drop).map_err(TlsFileError)
    }
}

impl ClientPair {
    /// Reads the certificate, and says what is wrong with it.
    pub fn check_certificate(&self) -> Result<(), TlsFileError> {
        let read = read_file(&self.certificate).and_then(|pem| certificates(&self.certificate, &pem));
        read.map(drop).map_err(TlsFileError)
    }

    /// Reads the key, and says what is wrong with it, or that it does not belong to the certificate if that is good.
    pub fn check_key(&self) -> Result<(), TlsFileError> {
        if self.check_certificate().is_err() {
            return read_file(&self.key).and_then(|pem| private_key(self, &pem)).map(drop).map_err(TlsFileError);
        }
        let files = Files(HttpsOptions { verify: Verify::Anybody, client: Some(self.clone()) });
        files.read().and_then(|material| files.config(&material)).map(drop).map_err(TlsFileError)
    }
}

/// Reads regular files only: opening a pipe would wait for whoever writes into it.
fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let read = || match std::fs::metadata(path)?.is_file() {
        true => std::fs::read(path),
        false => Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file")),
    };
    read().map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(format!("{} holds no certificate in PEM", path.display())),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn authorities(path: &Path, pem: &[u8]) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path, pem)? {
        store.add(certificate).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(store)
}

/// Those of the machine that can be read: a machine without any believes nobody, which every handshake then says.
fn system_authorities() -> RootCertStore {
    let mut store = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        tracing::warn!(%error, "an authority that the machine trusts cannot be read");
    }
    store.add_parsable_certificates(found.certs);
    store
}

fn client_pair(
    pair: &ClientPair,
    certificate: &[u8],
    key: &[u8],
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), String> {
    Ok((certificates(&pair.certificate, certificate)?, private_key(pair, key)?))
}

fn private_key(pair: &ClientPair, pem: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    // The error's own text could quote the file.
    PrivateKeyDer::from_pem_slice(pem).map_err(|_| format!("{} holds no private key in PEM", pair.key.display()))
}

/// Keeps a [`CurrentTls`] in step with the files.
pub(super) struct Follower {
    files: Files,
    current: CurrentTls,
    settled: Settled<Material>,
    /// 1 while the files are no good.
    failing: IntGauge,
}

impl Follower {
    /// [`Follower::follow`], boxed.
    pub(super) fn boxed(self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.follow())
    }

    /// Takes over whatever is new and good, without end. What is not leaves the last good state in use and is logged once.
    async fn follow(mut self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let found = self.files.read_again().await;
            self.look(found);
        }
    }

    fn look(&mut self, found: Result<Material, String>) {
        let judged = match self.settled.look(found) {
            Look::Nothing => return,
            Look::InForce => {
                self.failing.set(0);
                return;
            }
            Look::Judge(found) => found.and_then(|material| Ok((self.files.config(&material)?, material))),
        };
        match judged {
            Ok((config, material)) => {
                self.current.store(Arc::new(config));
                self.settled.take(material);
                self.failing.set(0);
                tracing::info!("certificates for scraping reloaded");
            }
            Err(error) => {
                self.failing.set(1);
                tracing::error!(error, "certificates for scraping not reloaded, the previous ones stay");
            }
        }
    }
}

/// Without the keys.
impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower").field("files", &self.files).finish_non_exhaustive()
    }
}

/// Takes every certificate, but still has the other side prove that it holds the key to it.
#[derive(Debug)]
struct BelievesAnybody(WebPkiSupportedAlgorithms);

impl BelievesAnybody {
    const fn new(provider: &CryptoProvider) -> Self {
        Self(provider.signature_verification_algorithms)
    }
}

impl ServerCertVerifier for BelievesAnybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
