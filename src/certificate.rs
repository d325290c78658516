//! The certificate that the external processor shows: where it comes from, and how it changes while the process runs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use arc_swap::ArcSwap;
use prometheus::{IntGauge, Registry};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use sluice_follow::{Look, Settled};

/// How often the files are looked at. Two small reads; a new pair is in use after two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The certificate of every handshake to come.
#[derive(Debug)]
pub(crate) struct CurrentCertificate(ArcSwap<CertifiedKey>);

impl CurrentCertificate {
    pub(crate) fn new(certificate: CertifiedKey) -> Self {
        Self(ArcSwap::from_pointee(certificate))
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

/// `tls.crt` and `tls.key` in the directory of `--cert-path`.
#[derive(Clone, Debug)]
struct PairFiles {
    certificate: PathBuf,
    key: PathBuf,
}

/// What the files hold.
#[derive(Clone, PartialEq, Eq)]
struct Pem {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl PairFiles {
    fn of(directory: &Path) -> Self {
        Self { certificate: directory.join("tls.crt"), key: directory.join("tls.key") }
    }

    fn read(&self) -> anyhow::Result<Pem> {
        Ok(Pem { certificate: read_file(&self.certificate)?, key: read_file(&self.key)? })
    }

    async fn read_again(&self) -> anyhow::Result<Pem> {
        let files = self.clone();
        #[expect(clippy::disallowed_methods, reason = "two small reads, whose end is awaited")]
        let read = tokio::task::spawn_blocking(move || files.read());
        read.await.context("reading the certificate")?
    }

    /// Everything that can be wrong with the files is an error, which names them.
    fn parse(&self, pem: &Pem, provider: &CryptoProvider) -> anyhow::Result<CertifiedKey> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem.certificate).collect();
        let chain = chain.with_context(|| format!("--cert-path: {}", self.certificate.display()))?;
        ensure!(!chain.is_empty(), "--cert-path: {} holds no certificate in PEM", self.certificate.display());
        let key = match PrivateKeyDer::from_pem_slice(&pem.key) {
            Ok(key) => key,
            Err(pem::Error::NoItemsFound) => {
                bail!("--cert-path: {} holds no private key in PEM", self.key.display())
            }
            // Its text could quote the file.
            Err(_) => bail!("--cert-path: {}: not valid PEM", self.key.display()),
        };
        CertifiedKey::from_der(chain, key, provider)
            .with_context(|| format!("--cert-path: {} and {}", self.certificate.display(), self.key.display()))
    }
}

/// Reads regular files only: opening a pipe would wait for whoever writes into it.
fn read_file(path: &Path) -> anyhow::Result<Vec<u8>> {
    let read = || match std::fs::metadata(path)?.is_file() {
        true => std::fs::read(path),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    };
    read().with_context(|| format!("--cert-path: cannot read {}", path.display()))
}

/// The pair in a directory, and what it becomes while the process runs.
pub(crate) struct Follower {
    files: PairFiles,
    provider: Arc<CryptoProvider>,
    current: Arc<CurrentCertificate>,
    settled: Settled<Pem>,
    /// 1 while the files hold a pair that is no good.
    failing: IntGauge,
}

impl Follower {
    /// Reads the pair in `directory`, which must be good.
    pub(crate) fn start(directory: &Path, provider: Arc<CryptoProvider>) -> anyhow::Result<Self> {
        let files = PairFiles::of(directory);
        let taken = files.read()?;
        let current = Arc::new(CurrentCertificate::new(files.parse(&taken, &provider)?));
        let help = "1 while tls.crt and tls.key are no good and the last good ones are in use";
        let failing = IntGauge::new("llm_d_epp_certificate_reload_failing", help)?;
        Ok(Self { files, provider, current, settled: Settled::new(taken), failing })
    }

    pub(crate) fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        registry.register(Box::new(self.failing.clone()))
    }

    pub(crate) fn current(&self) -> Arc<CurrentCertificate> {
        Arc::clone(&self.current)
    }

    /// Takes over every new pair that is good, without end. One that is not leaves the last good one in use and is
    /// logged once.
    pub(crate) async fn follow(mut self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let found = self.files.read_again().await;
            self.look(found.map_err(|error| format!("{error:#}")));
        }
    }

    /// Judges what has not changed since the last look: between two writes the certificate and the key do not fit.
    fn look(&mut self, found: Result<Pem, String>) {
        match self.settled.look(found) {
            Look::Nothing => {}
            Look::InForce => self.failing.set(0),
            Look::Judge(found) => self.judge(found),
        }
    }

    fn judge(&mut self, found: Result<Pem, String>) {
        let parse = |pem: Pem| {
            let parsed = self.files.parse(&pem, &self.provider).map_err(|error| format!("{error:#}"))?;
            Ok((pem, parsed))
        };
        match found.and_then(parse) {
            Ok((pem, certificate)) => {
                self.current.0.store(Arc::new(certificate));
                self.settled.take(pem);
                self.failing.set(0);
                tracing::info!(certificate = %self.files.certificate.display(), "certificate reloaded");
            }
            Err(error) => {
                self.failing.set(1);
                tracing::error!(error, "certificate not reloaded, the previous one stays");
            }
        }
    }
}

/// Without the keys.
impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follower").field("files", &self.files).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "certificate_tests.rs"]
mod tests;
