//! A client of TLS that believes every certificate, shows one if it is given one, and tells what was negotiated.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, aws_lc_rs};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme, StreamOwned,
    SupportedProtocolVersion,
};

use crate::support::PATIENCE;

pub(crate) const TLS_VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

pub(crate) struct Client(Arc<ClientConfig>);

/// One that offers these protocols and versions.
pub(crate) fn client(alpn: &[&[u8]], versions: &[&'static SupportedProtocolVersion]) -> Client {
    let mut config = unauthenticated(versions).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    // A certificate is shown in full handshakes only.
    config.resumption = rustls::client::Resumption::disabled();
    Client(Arc::new(config))
}

/// One that shows a certificate, and resumes sessions where the server lets it.
pub(crate) fn client_with(
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    versions: &[&'static SupportedProtocolVersion],
) -> Client {
    Client(Arc::new(unauthenticated(versions).with_client_auth_cert(vec![certificate], key).unwrap()))
}

fn unauthenticated(
    versions: &[&'static SupportedProtocolVersion],
) -> rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let verifier = Arc::new(BelieveAll(provider.signature_verification_algorithms));
    ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(verifier)
}

impl Client {
    /// A connection on which both sides have shaken hands.
    pub(crate) fn connect(&self, address: &str) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let mut socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let name = ServerName::try_from("localhost").unwrap();
        let mut connection = ClientConnection::new(Arc::clone(&self.0), name).unwrap();
        while connection.is_handshaking() {
            connection.complete_io(&mut socket)?;
        }
        Ok(StreamOwned::new(connection, socket))
    }

    /// The certificate that the server shows.
    pub(crate) fn certificate(&self, address: &str) -> CertificateDer<'static> {
        self.connect(address).unwrap().conn.peer_certificates().unwrap()[0].clone().into_owned()
    }
}

/// What the server signs is checked all the same.
#[derive(Debug)]
struct BelieveAll(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for BelieveAll {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
