use std::fs;
use std::io::BufRead as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustls::CipherSuite;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::version::{TLS12, TLS13};

use crate::client::{TLS_VERSIONS, client};
use crate::support::{Epp, arguments, directory, epp};

fn pair() -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let parameters = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    (parameters.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

/// A directory as Kubernetes makes of a Secret: the files are links through `..data`, which is swapped in one step.
struct Secret {
    directory: PathBuf,
    versions: u32,
}

impl Secret {
    fn new(directory: PathBuf, certificate: &str, key: &str) -> Self {
        let mut secret = Self { directory, versions: 0 };
        secret.replace(certificate, key);
        for file in ["tls.crt", "tls.key"] {
            symlink(Path::new("..data").join(file), secret.directory.join(file)).unwrap();
        }
        secret
    }

    fn replace(&mut self, certificate: &str, key: &str) {
        self.versions += 1;
        let version = format!("..{}", self.versions);
        fs::create_dir(self.directory.join(&version)).unwrap();
        fs::write(self.directory.join(&version).join("tls.crt"), certificate).unwrap();
        fs::write(self.directory.join(&version).join("tls.key"), key).unwrap();
        symlink(&version, self.directory.join("..next")).unwrap();
        fs::rename(self.directory.join("..next"), self.directory.join("..data")).unwrap();
    }
}

fn certificate(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

fn shows(epp: &Epp, pem: &str) -> bool {
    client(&[b"h2"], &TLS_VERSIONS).certificate(&epp.ext_proc) == certificate(pem)
}

#[test]
fn a_new_certificate_is_taken_over_and_a_broken_one_is_told_once() {
    let directory = directory("reload");
    let [(first, first_key), (second, second_key), (third, third_key)] = [pair(), pair(), pair()];
    let certificates = directory.join("certificates");
    fs::create_dir(&certificates).unwrap();
    let mut secret = Secret::new(certificates.clone(), &first, &first_key);
    let mut arguments = arguments(&directory);
    arguments.extend([format!("--cert-path={}", certificates.display()), "--enable-cert-reload".to_owned()]);
    let mut epp = Epp::serving(epp(&arguments));
    assert!(shows(&epp, &first));

    secret.replace(&second, &second_key);
    epp.line_with("certificate reloaded");
    assert!(shows(&epp, &second));

    // The key of another certificate.
    secret.replace(&third, &second_key);
    let line = epp.line_with("certificate not reloaded");
    assert!(line.contains("tls.crt") && line.contains("tls.key"), "{line}");
    assert!(shows(&epp, &second));
    thread::sleep(Duration::from_secs(3));

    secret.replace(&third, &third_key);
    for line in epp.log.as_mut().unwrap().lines() {
        let line = line.unwrap();
        assert!(!line.contains("not reloaded"), "told again: {line}");
        if line.contains("certificate reloaded") {
            break;
        }
    }
    assert!(shows(&epp, &third));
}

#[test]
fn without_the_switch_the_certificate_of_the_start_stays() {
    let directory = directory("no-reload");
    let [(first, first_key), (second, second_key)] = [pair(), pair()];
    let certificates = directory.join("certificates");
    fs::create_dir(&certificates).unwrap();
    let mut secret = Secret::new(certificates.clone(), &first, &first_key);
    let mut arguments = arguments(&directory);
    arguments.push(format!("--cert-path={}", certificates.display()));
    let epp = Epp::serving(epp(&arguments));
    secret.replace(&second, &second_key);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(4) {
        assert!(shows(&epp, &first));
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn http2_is_negotiated_and_nothing_else() {
    let epp = Epp::serving(epp(&arguments(&directory("alpn"))));
    let stream = client(&[b"http/1.1", b"h2"], &TLS_VERSIONS).connect(&epp.ext_proc).unwrap();
    assert_eq!(stream.conn.alpn_protocol(), Some(&b"h2"[..]));
    assert!(client(&[b"http/1.1"], &TLS_VERSIONS).connect(&epp.ext_proc).is_err());
    assert!(client(&[], &TLS_VERSIONS).connect(&epp.ext_proc).is_ok(), "some clients do not negotiate");
}

#[test]
fn the_lowest_version_and_the_suites_are_as_asked() {
    let both = client(&[b"h2"], &TLS_VERSIONS);
    let [old, new] = [&TLS12, &TLS13].map(|version| client(&[b"h2"], &[version]));
    let serving = |name: &str, flags: &[&str]| {
        let mut arguments = arguments(&directory(name));
        arguments.extend(flags.iter().map(|&flag| flag.to_owned()));
        Epp::serving(epp(&arguments))
    };

    let any = serving("any", &[]);
    assert!(old.connect(&any.ext_proc).is_ok() && new.connect(&any.ext_proc).is_ok());

    let only_new = serving("only-new", &["--tls-min-version=VersionTLS13"]);
    assert!(old.connect(&only_new.ext_proc).is_err());
    assert!(new.connect(&only_new.ext_proc).is_ok() && both.connect(&only_new.ext_proc).is_ok());

    let suite = "--tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,TLS_AES_128_GCM_SHA256";
    let one_suite = serving("one-suite", &[suite]);
    let negotiated = old.connect(&one_suite.ext_proc).unwrap().conn.negotiated_cipher_suite().unwrap();
    assert_eq!(negotiated.suite(), CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256);
    let negotiated = new.connect(&one_suite.ext_proc).unwrap().conn.negotiated_cipher_suite().unwrap();
    assert_eq!(negotiated.suite(), CipherSuite::TLS13_AES_256_GCM_SHA384, "suites of TLS 1.3 are not chosen from");

    let no_suite = serving("no-suite", &["--tls-cipher-suites=TLS_RSA_WITH_AES_128_CBC_SHA"]);
    assert!(old.connect(&no_suite.ext_proc).is_err() && new.connect(&no_suite.ext_proc).is_ok());
}
