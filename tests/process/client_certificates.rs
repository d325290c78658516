//! Ports whose clients have to show a certificate.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::SupportedProtocolVersion;
use rustls::pki_types::PrivateKeyDer;
use rustls::version::{TLS12, TLS13};

use crate::client::{Client, TLS_VERSIONS, client, client_with};
use crate::support::{Epp, PREFACE, arguments, directory, epp, page_on, run};

/// An authority, and clients that it vouches for.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new(name: &str) -> Self {
        let mut parameters = CertificateParams::new(Vec::new()).unwrap();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap())
    }

    fn client(&self, versions: &[&'static SupportedProtocolVersion]) -> Client {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec!["proxy".to_owned()]).unwrap().signed_by(&key, &self.0).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        client_with(certificate.der().clone(), key, versions)
    }

    /// In a file of that name.
    fn write(&self, directory: &Path, name: &str) -> PathBuf {
        let path = directory.join(name);
        // In one step, as whoever replaces a file with care.
        fs::write(path.with_extension("new"), self.0.pem()).unwrap();
        fs::rename(path.with_extension("new"), &path).unwrap();
        path
    }
}

/// Whether the external processor speaks HTTP/2 to a client: in TLS 1.3 it judges a certificate when the client has
/// finished its handshake already.
fn is_served(client: &Client, address: &str) -> bool {
    let served = client.connect(address).and_then(|mut stream| {
        stream.write_all(PREFACE)?;
        stream.read_exact(&mut [0; 9])
    });
    served.is_ok()
}

#[test]
fn only_clients_of_the_authority_are_served_and_health_is_for_everybody() {
    let directory = directory("client-ca");
    let (good, bad) = (Authority::new("good"), Authority::new("bad"));
    let mut arguments = arguments(&directory);
    arguments.push(format!("--client-ca-file={}", good.write(&directory, "ca.crt").display()));
    let epp = Epp::serving(epp(&arguments));
    for version in [&TLS12, &TLS13] {
        assert!(is_served(&good.client(&[version]), &epp.ext_proc), "{version:?}");
        assert!(!is_served(&bad.client(&[version]), &epp.ext_proc), "{version:?}: of another authority");
        assert!(!is_served(&client(&[b"h2"], &[version]), &epp.ext_proc), "{version:?}: without a certificate");
    }
    let mut health = TcpStream::connect(&epp.health).unwrap();
    health.write_all(PREFACE).unwrap();
    health.read_exact(&mut [0; 9]).unwrap();
    assert!(epp.page("/metrics").contains("llm_d_epp_client_ca_reload_failing 0\n"));
}

#[test]
fn other_authorities_are_taken_over_also_for_clients_that_would_resume_and_broken_ones_are_not() {
    let directory = directory("client-ca-rotated");
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    let file = first.write(&directory, "ca.crt");
    let mut arguments = arguments(&directory);
    arguments.push(format!("--client-ca-file={}", file.display()));
    let mut epp = Epp::serving(epp(&arguments));
    let clients = |authority: &Authority| [&TLS12, &TLS13].map(|version| authority.client(&[version]));
    let (old, new) = (clients(&first), clients(&second));
    let served = |clients: &[Client], epp: &Epp| clients.iter().all(|client| is_served(client, &epp.ext_proc));
    let refused = |clients: &[Client], epp: &Epp| !clients.iter().any(|client| is_served(client, &epp.ext_proc));
    // A second time, by then with a session to resume.
    assert!(served(&old, &epp) && served(&old, &epp) && refused(&new, &epp));

    second.write(&directory, "ca.crt");
    epp.line_with("authorities of clients reloaded");
    assert!(refused(&old, &epp) && served(&new, &epp));

    fs::write(&file, "").unwrap();
    let line = epp.line_with("authorities of clients not reloaded");
    assert!(line.contains("ca.crt holds no certificate"), "{line}");
    assert!(epp.page("/metrics").contains("llm_d_epp_client_ca_reload_failing 1\n"));
    assert!(refused(&old, &epp) && served(&new, &epp));
}

#[test]
fn the_metrics_port_speaks_tls_and_asks_for_certificates_where_it_is_told_to() {
    let directory = directory("metrics-tls");
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    fs::write(directory.join("tls.crt"), certificate.pem()).unwrap();
    fs::write(directory.join("tls.key"), key.serialize_pem()).unwrap();
    let (good, bad) = (Authority::new("good"), Authority::new("bad"));
    let page = |client: &Client, epp: &Epp| page_on(client.connect(&epp.metrics)?, "/metrics");
    let anybody = client(&[b"http/1.1"], &TLS_VERSIONS);

    let mut arguments = arguments(&directory);
    arguments.push(format!("--metrics-cert-dir={}", directory.display()));
    let open = Epp::serving(epp(&arguments));
    assert!(page(&anybody, &open).unwrap().contains("llm_d_epp_metrics_certificate_reload_failing 0\n"));
    assert_eq!(anybody.certificate(&open.metrics), *certificate.der());
    let mut plaintext = TcpStream::connect(&open.metrics).unwrap();
    plaintext.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // A reset is as good an end as any.
    plaintext.read_to_end(&mut answer).unwrap_or_default();
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");

    arguments.push(format!("--metrics-client-ca-file={}", good.write(&directory, "ca.crt").display()));
    let closed = Epp::serving(epp(&arguments));
    let body = page(&good.client(&TLS_VERSIONS), &closed).unwrap();
    assert!(body.contains("llm_d_epp_metrics_client_ca_reload_failing 0\n"), "{body}");
    assert!(page(&bad.client(&TLS_VERSIONS), &closed).is_err());
    assert!(page(&anybody, &closed).is_err());
}

#[test]
fn authorities_that_are_no_good_are_named_and_end_it_with_64() {
    let directory = directory("client-ca-bad");
    fs::write(directory.join("empty"), "").unwrap();
    fs::write(directory.join("junk"), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
    fs::write(directory.join("tls.crt"), certificate.pem()).unwrap();
    fs::write(directory.join("tls.key"), key.serialize_pem()).unwrap();
    for (flag, with) in [("--client-ca-file", None), ("--metrics-client-ca-file", Some("--metrics-cert-dir"))] {
        for name in ["absent", "empty", "junk", "."] {
            let path = directory.join(name);
            let mut arguments = arguments(&directory);
            arguments.push(format!("{flag}={}", path.display()));
            arguments.extend(with.map(|with| format!("{with}={}", directory.display())));
            let (code, log) = run(&arguments);
            assert_eq!(code, Some(64), "{log}");
            assert!(log.contains(flag) && log.contains(path.to_str().unwrap()), "{log}");
        }
    }
    for given in [&["--client-ca-file=a", "--secure-serving=false"][..], &["--metrics-client-ca-file=a"]] {
        let mut arguments = arguments(&directory);
        arguments.extend(given.iter().map(|&flag| flag.to_owned()));
        let (code, log) = run(&arguments);
        assert_eq!(code, Some(64), "{log}");
        assert!(log.contains(given[0].split_once('=').unwrap().0), "{log}");
    }
}
