use std::fs;

use prometheus::IntGauge;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use sluice_follow::FilesFollower;

use super::*;

fn pair() -> (String, String) {
    let key = rcgen::KeyPair::generate().unwrap();
    let parameters = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    (parameters.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

fn write(directory: &Path, certificate: &str, key: &str) {
    fs::write(directory.join("tls.crt"), certificate).unwrap();
    fs::write(directory.join("tls.key"), key).unwrap();
}

fn start(directory: &Path) -> Result<FilesFollower<Pair>, String> {
    let pair = Pair::of(directory, "certificate", Arc::new(aws_lc_rs::default_provider()));
    FilesFollower::start(pair, IntGauge::new("failing", "failing").unwrap())
}

fn mistake(certificate: &str, key: &str) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), certificate, key);
    start(directory.path()).err()
}

#[test]
fn a_good_pair_is_taken() {
    let (certificate, key) = pair();
    assert_eq!(mistake(&certificate, &key), None);
}

#[test]
fn a_certificate_can_be_made() {
    self_signed(&aws_lc_rs::default_provider()).unwrap();
}

#[test]
fn what_is_wrong_names_the_file() {
    let (certificate, key) = pair();
    let (_, other_key) = pair();
    let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let garbage_key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    let broken = "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n";
    for (certificate, key, files) in [
        ("", key.as_str(), &["tls.crt"][..]),
        ("nonsense", &key, &["tls.crt"]),
        (broken, &key, &["tls.crt"]),
        (garbage, &key, &["tls.crt"]),
        (&key, &key, &["tls.crt"]),
        (&certificate, "", &["tls.key"]),
        (&certificate, "nonsense", &["tls.key"]),
        (&certificate, &certificate, &["tls.key"]),
        (&certificate, garbage_key, &["tls.key"]),
        (&certificate, &other_key, &["tls.crt", "tls.key"]),
    ] {
        let mistake = mistake(certificate, key).unwrap_or_default();
        assert!(files.iter().all(|file| mistake.contains(file)), "{mistake:?}");
        assert!(!mistake.contains('\n'), "{mistake:?}");
    }
    assert!(start(Path::new("/nowhere")).unwrap_err().contains("cannot read /nowhere/tls.crt"));
}

#[test]
fn the_next_handshake_shows_the_new_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let [(old, old_key), (new, new_key)] = [pair(), pair()];
    write(directory.path(), &old, &old_key);
    let mut follower = start(directory.path()).unwrap();
    let current = CurrentCertificate::new(follower.current());
    let shown = || current.0.load().cert[0].clone();
    let certificate = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();

    // The certificate is there already, the key is not.
    write(directory.path(), &new, &old_key);
    follower.look_now();
    follower.look_now();
    assert_eq!(shown(), certificate(&old));
    write(directory.path(), &new, &new_key);
    follower.look_now();
    follower.look_now();
    assert_eq!(shown(), certificate(&new));
}
