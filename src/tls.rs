use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tonic::transport::{Identity, Server, ServerTlsConfig};

/// A peer that has not finished its handshake by then is sent away.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The certificate in `directory` (tls.crt, tls.key), or a self-signed one made now. Gateways do not verify the
/// latter: it keeps the traffic private, it does not prove who answers. What is returned works: everything that can
/// be wrong with the files is an error, which names them.
pub(crate) fn server_config(directory: Option<&Path>) -> anyhow::Result<ServerTlsConfig> {
    let Some(directory) = directory else {
        return Ok(config(self_signed()?));
    };
    let (certificate, key) = (directory.join("tls.crt"), directory.join("tls.key"));
    let config = config(Identity::from_pem(read_certificate(&certificate)?, read_key(&key)?));
    // The server would find out later, without the names.
    Server::builder()
        .tls_config(config.clone())
        .with_context(|| format!("--cert-path: {} and {}", certificate.display(), key.display()))?;
    Ok(config)
}

fn config(identity: Identity) -> ServerTlsConfig {
    ServerTlsConfig::new().identity(identity).timeout(HANDSHAKE_TIMEOUT)
}

fn read_certificate(path: &Path) -> anyhow::Result<Vec<u8>> {
    let pem = read(path)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let chain = chain.with_context(|| format!("--cert-path: {}", path.display()))?;
    ensure!(!chain.is_empty(), "--cert-path: {} holds no certificate in PEM", path.display());
    Ok(pem)
}

fn read_key(path: &Path) -> anyhow::Result<Vec<u8>> {
    let pem = read(path)?;
    match PrivateKeyDer::from_pem_slice(&pem) {
        Ok(_) => Ok(pem),
        Err(rustls::pki_types::pem::Error::NoItemsFound) => {
            anyhow::bail!("--cert-path: {} holds no private key in PEM", path.display())
        }
        // Its text could quote the file.
        Err(_) => anyhow::bail!("--cert-path: {}: not valid PEM", path.display()),
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("--cert-path: cannot read {}", path.display()))
}

/// ECDSA P-256, the default of the library.
fn self_signed() -> anyhow::Result<Identity> {
    let key = rcgen::KeyPair::generate().context("making a key")?;
    let mut parameters = rcgen::CertificateParams::new(vec!["localhost".to_owned()])?;
    parameters.distinguished_name.push(rcgen::DnType::OrganizationName, "Sluice");
    let certificate = parameters.self_signed(&key).context("signing the certificate")?;
    Ok(Identity::from_pem(certificate.pem(), key.serialize_pem()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let parameters = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        (parameters.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    fn mistake(certificate: &str, key: &str) -> Option<String> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("tls.crt"), certificate).unwrap();
        std::fs::write(directory.path().join("tls.key"), key).unwrap();
        server_config(Some(directory.path())).err().map(|error| format!("{error:#}"))
    }

    #[test]
    fn a_good_pair_is_taken_and_so_is_none() {
        let (certificate, key) = pair();
        assert_eq!(mistake(&certificate, &key), None);
        assert!(server_config(None).is_ok());
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
            println!("{mistake}");
        }
        let nowhere = server_config(Some(Path::new("/nowhere"))).unwrap_err();
        assert!(format!("{nowhere:#}").contains("--cert-path: cannot read /nowhere/tls.crt"));
    }
}
