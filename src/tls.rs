use std::path::Path;

use anyhow::Context as _;
use tonic::transport::{Identity, ServerTlsConfig};

/// The certificate in `directory` (tls.crt, tls.key), or a self-signed one made now. Gateways do not verify the
/// latter: it keeps the traffic private, it does not prove who answers.
pub(crate) fn server_config(directory: Option<&Path>) -> anyhow::Result<ServerTlsConfig> {
    let identity = match directory {
        Some(directory) => from_directory(directory)?,
        None => self_signed()?,
    };
    Ok(ServerTlsConfig::new().identity(identity))
}

fn from_directory(directory: &Path) -> anyhow::Result<Identity> {
    let read = |name: &str| {
        let path = directory.join(name);
        std::fs::read(&path).with_context(|| format!("--cert-path: cannot read {}", path.display()))
    };
    Ok(Identity::from_pem(read("tls.crt")?, read("tls.key")?))
}

/// ECDSA P-256, the default of the library.
fn self_signed() -> anyhow::Result<Identity> {
    let key = rcgen::KeyPair::generate().context("making a key")?;
    let mut parameters = rcgen::CertificateParams::new(vec!["localhost".to_owned()])?;
    parameters.distinguished_name.push(rcgen::DnType::OrganizationName, "Sluice");
    let certificate = parameters.self_signed(&key).context("signing the certificate")?;
    Ok(Identity::from_pem(certificate.pem(), key.serialize_pem()))
}
