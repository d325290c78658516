//! TLS towards model servers: whom to believe, how to prove who asks, and following the files that say so.

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use prometheus::IntGauge;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use sluice_core::BoxFuture;
use sluice_follow::{FileSet, FilesFollower, pem, read_file};

use super::source::{ClientPair, HttpsOptions, Verify};

/// How the next connection is secured. Changes with the files.
pub(super) type CurrentTls = Arc<ArcSwap<ClientConfig>>;

/// What is wrong with a file, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TlsFileError(String);

/// Reads the files, which must be good. What follows them has to be run; there is none if there are no files.
pub(super) fn start(options: HttpsOptions, failing: IntGauge) -> Result<(CurrentTls, Option<BoxFuture>), TlsFileError> {
    let files = Files(options);
    let any = files.any();
    let follower = FilesFollower::start(files, failing).map_err(TlsFileError)?;
    let current = follower.current();
    Ok((current, any.then(|| Box::pin(follower.follow()) as BoxFuture)))
}

/// The files that the options name.
#[derive(Clone, Debug)]
struct Files(HttpsOptions);

/// What the files hold.
#[derive(Clone, Default, PartialEq, Eq)]
struct Material {
    authorities: Option<Vec<u8>>,
    certificate: Option<Vec<u8>>,
    key: Option<Vec<u8>>,
}

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
}

impl FileSet for Files {
    type Content = Material;
    type Value = ClientConfig;

    fn what(&self) -> &'static str {
        "certificates for scraping"
    }

    fn read(&self) -> Result<Material, String> {
        let client = self.0.client.as_ref();
        Ok(Material {
            authorities: self.authorities().map(|path| read_file(path)).transpose()?,
            certificate: client.map(|pair| read_file(&pair.certificate)).transpose()?,
            key: client.map(|pair| read_file(&pair.key)).transpose()?,
        })
    }

    fn parse(&self, material: &Material) -> Result<ClientConfig, String> {
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
                let content = material.authorities.as_deref().unwrap_or_default();
                builder.with_root_certificates(pem::authorities(path, content)?)
            }
        };
        let mut config = match (&self.0.client, &material.certificate, &material.key) {
            (Some(pair), Some(certificate), Some(key)) => {
                let chain = pem::certificates(&pair.certificate, certificate)?;
                builder
                    .with_client_auth_cert(chain, pem::private_key(&pair.key, key)?)
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
        read_file(path).and_then(|content| pem::authorities(path, &content)).map(drop).map_err(TlsFileError)
    }
}

impl ClientPair {
    /// Reads the certificate, and says what is wrong with it.
    pub fn check_certificate(&self) -> Result<(), TlsFileError> {
        let read = read_file(&self.certificate).and_then(|content| pem::certificates(&self.certificate, &content));
        read.map(drop).map_err(TlsFileError)
    }

    /// Reads the key, and says what is wrong with it, or that it does not belong to the certificate if that is good.
    pub fn check_key(&self) -> Result<(), TlsFileError> {
        if self.check_certificate().is_err() {
            return read_file(&self.key)
                .and_then(|content| pem::private_key(&self.key, &content))
                .map(drop)
                .map_err(TlsFileError);
        }
        let files = Files(HttpsOptions { verify: Verify::Anybody, client: Some(self.clone()) });
        files.read().and_then(|material| files.parse(&material)).map(drop).map_err(TlsFileError)
    }
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
