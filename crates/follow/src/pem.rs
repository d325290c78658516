//! Certificates and keys as files hold them. Every error names the file, and none quotes a key.

use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::{Error, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// All certificates in the content of `path`, of which there is one at least.
pub fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(format!("{} holds no certificate in PEM", path.display())),
        Ok(found) => Ok(found),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// The same as authorities to believe.
pub fn authorities(path: &Path, pem: &[u8]) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path, pem)? {
        store.add(certificate).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(store)
}

/// The first private key in the content of `path`.
pub fn private_key(path: &Path, pem: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(pem).map_err(|error| match error {
        Error::NoItemsFound => format!("{} holds no private key in PEM", path.display()),
        // Its own text could quote the file.
        _ => format!("{}: not valid PEM", path.display()),
    })
}
