use std::fs;

use rustls::crypto::aws_lc_rs;

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

fn start(directory: &Path) -> anyhow::Result<Follower> {
    Follower::start(directory, Arc::new(aws_lc_rs::default_provider()))
}

fn mistake(certificate: &str, key: &str) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), certificate, key);
    start(directory.path()).err().map(|error| format!("{error:#}"))
}

impl Follower {
    fn look_again(&mut self) {
        let found = self.files.read();
        self.look(found.map_err(|error| format!("{error:#}")));
    }

    /// The certificate of the next handshake.
    fn shown(&self) -> CertificateDer<'static> {
        self.current.0.load().cert[0].clone()
    }
}

fn certificate(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
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
fn what_is_wrong_names_the_flag_and_the_file() {
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
        assert!(mistake.starts_with("--cert-path: "), "{mistake:?}");
        assert!(files.iter().all(|file| mistake.contains(file)), "{mistake:?}");
        assert!(!mistake.contains('\n'), "{mistake:?}");
    }
    let nowhere = start(Path::new("/nowhere")).unwrap_err();
    assert!(format!("{nowhere:#}").contains("--cert-path: cannot read /nowhere/tls.crt"));
}

#[test]
fn a_new_pair_is_taken_once_it_has_settled() {
    let directory = tempfile::tempdir().unwrap();
    let [(old, old_key), (new, new_key)] = [pair(), pair()];
    write(directory.path(), &old, &old_key);
    let mut follower = start(directory.path()).unwrap();

    // The certificate is there already, the key is not.
    write(directory.path(), &new, &old_key);
    follower.look_again();
    write(directory.path(), &new, &new_key);
    follower.look_again();
    assert_eq!(follower.shown(), certificate(&old));
    follower.look_again();
    assert_eq!(follower.shown(), certificate(&new));
}

#[test]
fn a_broken_pair_leaves_the_last_good_one() {
    let directory = tempfile::tempdir().unwrap();
    let [(old, old_key), (new, new_key)] = [pair(), pair()];
    write(directory.path(), &old, &old_key);
    let mut follower = start(directory.path()).unwrap();

    write(directory.path(), "nonsense", &new_key);
    follower.look_again();
    assert_eq!(follower.failing.get(), 0, "it may not be written in full yet");
    for _ in 0..3 {
        follower.look_again();
        assert_eq!(follower.failing.get(), 1);
        assert_eq!(follower.shown(), certificate(&old));
    }

    fs::remove_file(directory.path().join("tls.key")).unwrap();
    follower.look_again();
    follower.look_again();
    assert_eq!(follower.shown(), certificate(&old));

    write(directory.path(), &new, &new_key);
    follower.look_again();
    follower.look_again();
    assert_eq!(follower.shown(), certificate(&new));
    assert_eq!(follower.failing.get(), 0);
}

#[test]
fn a_pair_that_is_put_back_is_no_news() {
    let directory = tempfile::tempdir().unwrap();
    let (good, key) = pair();
    write(directory.path(), &good, &key);
    let mut follower = start(directory.path()).unwrap();
    write(directory.path(), "nonsense", &key);
    follower.look_again();
    follower.look_again();
    write(directory.path(), &good, &key);
    follower.look_again();
    assert_eq!(follower.failing.get(), 0);
    assert_eq!(follower.shown(), certificate(&good));
}

#[test]
fn what_is_no_file_is_not_waited_for() {
    let (certificate, key) = pair();
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), &certificate, &key);
    let mut follower = start(directory.path()).unwrap();
    let first = follower.shown();

    let key_file = directory.path().join("tls.key");
    fs::remove_file(&key_file).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&key_file).status().unwrap().success());
    let error = format!("{:#}", start(directory.path()).err().unwrap());
    assert!(error.contains("tls.key") && error.contains("not a regular file"), "{error}");
    for _ in 0..2 {
        follower.look_again();
    }
    assert_eq!(follower.shown(), first);

    fs::remove_file(&key_file).unwrap();
    let (certificate, key) = pair();
    write(directory.path(), &certificate, &key);
    for _ in 0..2 {
        follower.look_again();
    }
    assert_ne!(follower.shown(), first);
}
