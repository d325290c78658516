//! Whose clients a port believes: a file of certificates, and how that changes while the process runs.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use sluice_follow::{FileSet, pem, read_file};

use crate::tls::Recipe;

/// A port whose clients show a certificate that one of the authorities in a file has signed. A new file makes a server
/// of its own: no session of the old one is resumed, so that each handshake is judged by the authorities of its time.
#[derive(Clone, Debug)]
pub(crate) struct ClientAuthorities {
    pub(crate) what: &'static str,
    pub(crate) file: PathBuf,
    pub(crate) recipe: Recipe,
}

impl FileSet for ClientAuthorities {
    type Content = Vec<u8>;
    type Value = ServerConfig;

    fn what(&self) -> &'static str {
        self.what
    }

    fn read(&self) -> Result<Vec<u8>, String> {
        read_file(&self.file)
    }

    fn parse(&self, content: &Vec<u8>) -> Result<ServerConfig, String> {
        let authorities = Arc::new(pem::authorities(&self.file, content)?);
        let verifier = WebPkiClientVerifier::builder_with_provider(authorities, self.recipe.provider()).build();
        let verifier = verifier.map_err(|error| format!("{}: {error}", self.file.display()))?;
        self.recipe.server(verifier).map_err(|error| error.to_string())
    }
}
