use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::Request;
use axum::http::header;
use axum::middleware::{self, Next};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;

use super::http::refusal;
use crate::guardian;

const FIRST_TOKEN: &str = "the-first-token";

/// What a pod knows of an API server, as files, and what the server knows of the pod.
#[derive(Debug)]
pub(super) struct ServiceAccount {
    files: TempDir,
    certificates: Arc<Certificates>,
    /// The only one that counts.
    token: Arc<Mutex<String>>,
}

/// What the server shows of itself.
#[derive(Debug)]
struct Certificates {
    /// Of the authority that the pod knows.
    own: Arc<CertifiedKey>,
    foreign: Arc<CertifiedKey>,
    impostor: AtomicBool,
    handshakes: AtomicUsize,
}

impl ServiceAccount {
    pub(super) fn create(namespace: &str) -> Result<Self> {
        let files = guardian::temporary_dir("service-account-")?;
        let (own, authority) = certificate("the authority of the cluster")?;
        let (foreign, _) = certificate("an authority that nobody knows")?;
        fs::write(files.path().join("ca.crt"), authority)?;
        fs::write(files.path().join("namespace"), namespace)?;
        let (impostor, handshakes) = (AtomicBool::new(false), AtomicUsize::new(0));
        let certificates = Arc::new(Certificates { own, foreign, impostor, handshakes });
        let account = Self { files, certificates, token: Arc::default() };
        account.write_token(FIRST_TOKEN)?;
        account.take_only(FIRST_TOKEN);
        Ok(account)
    }

    pub(super) fn files(&self) -> &Path {
        self.files.path()
    }

    /// In one step, as kubelets replace tokens. The one before is taken for a moment longer, as by a real server: whoever
    /// has read it may just be sending it.
    pub(super) async fn rotate_token(&self, token: &str) -> Result<()> {
        const UNDER_WAY: Duration = Duration::from_secs(1);
        self.write_token(token)?;
        tokio::time::sleep(UNDER_WAY).await;
        self.take_only(token);
        Ok(())
    }

    fn write_token(&self, token: &str) -> Result<()> {
        let (path, draft) = (self.files().join("token"), self.files().join("draft"));
        fs::write(&draft, token)?;
        fs::rename(&draft, &path).with_context(|| format!("writing {}", path.display()))
    }

    fn take_only(&self, token: &str) {
        let mut present = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        token.clone_into(&mut present);
    }

    pub(super) fn set_impostor(&self, impostor: bool) {
        self.certificates.impostor.store(impostor, Ordering::Relaxed);
    }

    pub(super) fn handshakes(&self) -> usize {
        self.certificates.handshakes.load(Ordering::Relaxed)
    }

    pub(super) fn acceptor(&self) -> Result<TlsAcceptor> {
        let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let builder = builder.with_safe_default_protocol_versions()?;
        let resolver = Arc::clone(&self.certificates);
        Ok(TlsAcceptor::from(Arc::new(builder.with_no_client_auth().with_cert_resolver(resolver))))
    }

    /// Lets only requests with the token through.
    pub(super) fn guard(&self, router: Router) -> Router {
        let token = Arc::clone(&self.token);
        router.layer(middleware::from_fn(move |request: Request, next: Next| {
            let expected = format!("Bearer {}", token.lock().unwrap_or_else(PoisonError::into_inner));
            async move {
                let is_known = request.headers().get(header::AUTHORIZATION).is_some_and(|given| *given == expected);
                if is_known { next.run(request).await } else { refusal(401) }
            }
        }))
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _client: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.handshakes.fetch_add(1, Ordering::Relaxed);
        let shown = if self.impostor.load(Ordering::Relaxed) { &self.foreign } else { &self.own };
        Some(Arc::clone(shown))
    }
}

/// A certificate for 127.0.0.1 with its key, and that of the authority that made it, in PEM.
fn certificate(authority: &str) -> Result<(Arc<CertifiedKey>, String)> {
    let mut parameters = CertificateParams::default();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.distinguished_name.push(rcgen::DnType::CommonName, authority);
    let issuer = CertifiedIssuer::self_signed(parameters, KeyPair::generate()?)?;
    let key = KeyPair::generate()?;
    let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()])?.signed_by(&key, &issuer)?;
    let private = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
    let signing = aws_lc_rs::sign::any_supported_type(&private)?;
    Ok((Arc::new(CertifiedKey::new(vec![certificate.der().clone()], signing)), issuer.pem()))
}
