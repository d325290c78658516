//! The certificate that a port shows: where it comes from, and how it changes while the process runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use sluice_follow::{FileSet, pem, read_file};

/// The certificate of every handshake to come.
#[derive(Debug)]
pub(crate) struct CurrentCertificate(Arc<ArcSwap<CertifiedKey>>);

impl CurrentCertificate {
    pub(crate) const fn new(certificate: Arc<ArcSwap<CertifiedKey>>) -> Self {
        Self(certificate)
    }

    /// One that stays.
    pub(crate) fn fixed(certificate: CertifiedKey) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(certificate)))
    }
}

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

/// ECDSA P-256, the default of the library. Gateways do not verify it: it keeps the traffic private, it does not prove
/// who answers.
pub(crate) fn self_signed(provider: &CryptoProvider) -> anyhow::Result<CertifiedKey> {
    let key = rcgen::KeyPair::generate().context("making a key")?;
    let mut parameters = rcgen::CertificateParams::new(vec!["localhost".to_owned()])?;
    parameters.distinguished_name.push(rcgen::DnType::OrganizationName, "Sluice");
    let certificate = parameters.self_signed(&key).context("signing the certificate")?;
    let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
    Ok(CertifiedKey::from_der(vec![certificate.into()], key, provider)?)
}

/// `tls.crt` and `tls.key` in a directory.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    what: &'static str,
    certificate: PathBuf,
    key: PathBuf,
    provider: Arc<CryptoProvider>,
}

impl Pair {
    /// The log calls it `what`.
    pub(crate) fn of(directory: &Path, what: &'static str, provider: Arc<CryptoProvider>) -> Self {
        Self { what, certificate: directory.join("tls.crt"), key: directory.join("tls.key"), provider }
    }
}

/// What the two files hold.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PairContent {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl FileSet for Pair {
    type Content = PairContent;
    type Value = CertifiedKey;

    fn what(&self) -> &'static str {
        self.what
    }

    fn read(&self) -> Result<PairContent, String> {
        Ok(PairContent { certificate: read_file(&self.certificate)?, key: read_file(&self.key)? })
    }

    fn parse(&self, content: &PairContent) -> Result<CertifiedKey, String> {
        let chain = pem::certificates(&self.certificate, &content.certificate)?;
        let key = pem::private_key(&self.key, &content.key)?;
        CertifiedKey::from_der(chain, key, &self.provider)
            .map_err(|error| format!("{} and {}: {error}", self.certificate.display(), self.key.display()))
    }
}

#[cfg(test)]
#[path = "certificate_tests.rs"]
mod tests;
