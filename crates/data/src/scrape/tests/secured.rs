//! Pages over TLS.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;
use prometheus::IntGauge;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::RootCertStore;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::{ServerConfig, WebPkiClientVerifier};

use super::super::client::{Connection, Page, ReadError};
use super::super::source::{ClientPair, HttpsOptions, Verify};
use super::super::tls::{self, TlsFileError};
use super::server::{Answer, Server};

/// An authority and what it has signed.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap())
    }

    /// A certificate for `name` and its key, in PEM.
    fn sign(&self, name: &str) -> (String, String) {
        let (certificate, key) = self.certify(name);
        (certificate.pem(), key.serialize_pem())
    }

    fn certify(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let parameters = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (parameters.signed_by(&key, &self.0).unwrap(), key)
    }

    /// A server that shows a certificate of this authority, and asks for one of `clients` if given.
    async fn server(&self, clients: Option<&Self>) -> Server {
        let (certificate, key) = self.certify("127.0.0.1");
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority.0.der().clone()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
                builder.with_client_cert_verifier(verifier)
            }
        };
        let config = builder.with_single_cert(vec![certificate.der().clone()], key).unwrap();
        Server::start_with(Answer::page("a 1\n"), Some(config)).await
    }
}

fn gauge() -> IntGauge {
    IntGauge::new("failing", "failing").unwrap()
}

fn pair(directory: &Path) -> ClientPair {
    ClientPair { certificate: directory.join("tls.crt"), key: directory.join("tls.key") }
}

fn page(options: HttpsOptions) -> Page {
    let (tls, _) = tls::start(options, gauge()).unwrap();
    Page::new(PathAndQuery::from_static("/metrics"), None, Some(tls))
}

async fn reason(page: &Page, server: &Server) -> String {
    page.read(server.address, None).await.unwrap_err().to_string()
}

#[tokio::test]
async fn a_server_is_believed_if_its_authority_is() {
    let (authority, other) = (Authority::new(), Authority::new());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("ca.pem");
    std::fs::write(&file, authority.0.pem()).unwrap();
    let (good, bad) = (authority.server(None).await, other.server(None).await);

    let strict = page(HttpsOptions { verify: Verify::Authorities(file), client: None });
    let (body, connection) = strict.read(good.address, None).await.unwrap();
    assert_eq!(*body, *b"a 1\n");
    strict.read(good.address, connection).await.unwrap();
    assert_eq!(good.connections().0, 1);
    let reason = reason(&strict, &bad).await;
    assert!(reason.contains("certificate"), "{reason}");

    let lax = page(HttpsOptions { verify: Verify::Anybody, client: None });
    lax.read(bad.address, None).await.unwrap();
    let system = page(HttpsOptions { verify: Verify::System, client: None });
    assert!(system.read(bad.address, None).await.is_err());
}

#[test]
fn each_file_is_checked_for_itself() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let said = |result: Result<(), TlsFileError>| result.err().map(|error| error.to_string()).unwrap_or_default();
    let (authority, pair) = (Authority::new(), pair(directory.path()));
    let verify = Verify::Authorities(path("ca.pem"));
    assert!(said(verify.check()).starts_with("cannot read "));
    std::fs::write(path("ca.pem"), "no certificate").unwrap();
    assert!(said(verify.check()).ends_with("ca.pem holds no certificate in PEM"));
    std::fs::write(path("ca.pem"), authority.0.pem()).unwrap();
    assert_eq!(said(verify.check()), "");
    assert_eq!(said(Verify::System.check()), "");

    let (certificate, key) = authority.certify("a");
    let (_, other_key) = authority.certify("b");
    std::fs::write(path("tls.key"), key.serialize_pem()).unwrap();
    assert!(said(pair.check_certificate()).starts_with("cannot read "));
    assert_eq!(said(pair.check_key()), "", "it may be good");
    std::fs::write(path("tls.crt"), certificate.pem()).unwrap();
    assert_eq!((said(pair.check_certificate()), said(pair.check_key())), (String::new(), String::new()));
    std::fs::write(path("tls.key"), other_key.serialize_pem()).unwrap();
    let mismatch = said(pair.check_key());
    assert!(mismatch.contains("tls.crt and ") && mismatch.contains("tls.key: "), "{mismatch}");
    std::fs::write(path("tls.key"), "no key").unwrap();
    assert!(said(pair.check_key()).ends_with("tls.key holds no private key in PEM"));
}

#[tokio::test]
async fn plaintext_is_not_taken_for_tls() {
    let server = Server::start(Answer::page("a 1\n")).await;
    let page = page(HttpsOptions { verify: Verify::Anybody, client: None });
    // It waits for the end of a line that never comes, or finds one in the handshake.
    let result = page.read(server.address, None).await;
    assert!(matches!(result, Err(ReadError::Tls(_) | ReadError::Deadline)), "{result:?}");
}

#[tokio::test]
async fn a_client_proves_who_it_is_and_a_new_pair_is_in_use_with_the_next_read() {
    let (servers, clients) = (Authority::new(), Authority::new());
    let server = servers.server(Some(&clients)).await;
    let directory = tempfile::tempdir().unwrap();
    let write = |version: &str, authority: &Authority| {
        let (certificate, key) = authority.sign("epp");
        let version = directory.path().join(version);
        std::fs::create_dir(&version).unwrap();
        std::fs::write(version.join("tls.crt"), certificate).unwrap();
        std::fs::write(version.join("tls.key"), key).unwrap();
    };
    // As Kubernetes does it: the files are links through a link that is swapped.
    let point_to = |version: &str| {
        let (data, next) = (directory.path().join("..data"), directory.path().join("..next"));
        std::os::unix::fs::symlink(version, &next).unwrap();
        std::fs::rename(next, data).unwrap();
    };
    write("1", &servers);
    point_to("1");
    for name in ["tls.crt", "tls.key"] {
        std::os::unix::fs::symlink(Path::new("..data").join(name), directory.path().join(name)).unwrap();
    }
    let failing = gauge();
    let options = HttpsOptions { verify: Verify::Anybody, client: Some(pair(directory.path())) };
    let (tls, follower) = tls::start(options, failing.clone()).unwrap();
    let page = Page::new(PathAndQuery::from_static("/metrics"), None, Some(tls));
    let mut following = tokio::task::JoinSet::new();
    following.spawn(follower.unwrap());
    let first = page.read(server.address, None).await;
    assert!(first.is_err(), "the pair is not of the authority that the server asks for");

    write("2", &clients);
    point_to("2");
    let kept = read_until_ok(&page, &server).await;
    assert!(page.read(server.address, kept).await.is_ok());

    std::fs::write(directory.path().join("2/tls.key"), "broken").unwrap();
    for _ in 0..100 {
        if failing.get() == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(failing.get(), 1);
    page.read(server.address, None).await.expect("the last good pair is in use");
}

async fn read_until_ok(page: &Page, server: &Server) -> Option<Connection> {
    for _ in 0..100 {
        if let Ok((_, connection)) = page.read(server.address, None).await {
            return connection;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the new pair is never used");
}

#[tokio::test]
async fn a_connection_made_with_old_certificates_is_not_used_again() {
    let authority = Authority::new();
    let server = authority.server(None).await;
    let (tls, _) = tls::start(HttpsOptions { verify: Verify::Anybody, client: None }, gauge()).unwrap();
    let page = Page::new(PathAndQuery::from_static("/metrics"), None, Some(Arc::clone(&tls)));
    let kept = page.read(server.address, None).await.unwrap().1;
    let other = tls::start(HttpsOptions { verify: Verify::Anybody, client: None }, gauge()).unwrap().0;
    tls.store(other.load_full());
    page.read(server.address, kept).await.unwrap();
    assert_eq!(server.connections().0, 2);
}

#[test]
fn files_that_are_no_good_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let authority = Authority::new();
    let (certificate, key) = authority.sign("epp");
    let (_, other_key) = authority.sign("epp");
    for (name, content) in
        [("empty", ""), ("tls.crt", &certificate), ("tls.key", &key), ("other.key", &other_key), ("junk", "junk")]
    {
        std::fs::write(path(name), content).unwrap();
    }
    std::fs::create_dir(path("directory")).unwrap();
    let reason = |verify: Verify, client: Option<(&str, &str)>| {
        let client = client.map(|(certificate, key)| ClientPair { certificate: path(certificate), key: path(key) });
        tls::start(HttpsOptions { verify, client }, gauge()).map(|_| ()).unwrap_err().to_string()
    };
    for name in ["empty", "junk", "tls.key", "absent", "directory"] {
        let said = reason(Verify::Authorities(path(name)), None);
        assert!(said.contains(path(name).to_str().unwrap()), "{said}");
    }
    for (certificate, key, named) in [
        ("absent", "tls.key", "absent"),
        ("tls.crt", "absent", "absent"),
        ("junk", "tls.key", "junk"),
        ("tls.crt", "junk", "junk"),
        ("tls.crt", "other.key", "other.key"),
    ] {
        let said = reason(Verify::Anybody, Some((certificate, key)));
        assert!(said.contains(path(named).to_str().unwrap()), "{said}");
    }
}
