//! The bearer token of a service account, which is a file that is replaced before the token in it expires.
//!
//! The file is read for every request, so that a token counts from the moment it is there: whoever keeps one for a minute
//! may lose a lease, which has to be renewed sooner.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::{fs, io};

use http::Request;
use http::header::{AUTHORIZATION, HeaderValue, InvalidHeaderValue};
use kube::client::Body;
use kube::config::AuthInfo;
use tower::{Layer, Service};

/// Why a token cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("reading the token file {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("the token file {} is empty", .0.display())]
    Empty(PathBuf),
    #[error("the token file {} holds more than a token", path.display())]
    Malformed { path: PathBuf, error: InvalidHeaderValue },
}

/// A file with a token, which could be read once.
#[derive(Clone, Debug)]
pub(crate) struct TokenFile {
    path: Arc<Path>,
    /// As it was last read: `Bearer` and the token, which is not shown.
    last: HeaderValue,
}

impl TokenFile {
    /// Takes the file out of `auth`; none if it names none or something else counts before it.
    pub(crate) fn take(auth: &mut AuthInfo) -> Result<Option<Self>, TokenError> {
        let counts = auth.token.is_none() && auth.username.is_none() && auth.auth_provider.is_none();
        let file = auth.token_file.take_if(|_| counts);
        file.map(|file| Self::open(Path::new(&file))).transpose()
    }

    fn open(path: &Path) -> Result<Self, TokenError> {
        Ok(Self { path: path.into(), last: read(path)? })
    }

    /// The token as it is now. A file that is gone or being written leaves the one before in force.
    fn refresh(&mut self) -> HeaderValue {
        match read(&self.path) {
            Ok(token) => self.last = token,
            Err(error) => tracing::debug!(%error, "the token before is used"),
        }
        self.last.clone()
    }
}

fn read(path: &Path) -> Result<HeaderValue, TokenError> {
    let text = fs::read_to_string(path).map_err(|error| TokenError::Unreadable { path: path.to_owned(), error })?;
    let token = text.trim();
    if token.is_empty() {
        return Err(TokenError::Empty(path.to_owned()));
    }
    let value = HeaderValue::try_from(format!("Bearer {token}"));
    let mut value = value.map_err(|error| TokenError::Malformed { path: path.to_owned(), error })?;
    value.set_sensitive(true);
    Ok(value)
}

/// Puts [`Authorized`] around a service; without a file it changes nothing.
#[derive(Clone, Debug)]
pub(crate) struct Authorizing(pub(crate) Option<TokenFile>);

impl<S> Layer<S> for Authorizing {
    type Service = Authorized<S>;

    fn layer(&self, inner: S) -> Authorized<S> {
        Authorized { inner, file: self.0.clone() }
    }
}

/// Sends every request with the token of a file.
#[derive(Debug)]
pub(crate) struct Authorized<S> {
    inner: S,
    file: Option<TokenFile>,
}

impl<S: Service<Request<Body>>> Service<Request<Body>> for Authorized<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> S::Future {
        if let Some(file) = &mut self.file {
            // A few kilobytes in memory: sooner read than handed to another thread.
            request.headers_mut().insert(AUTHORIZATION, file.refresh());
        }
        self.inner.call(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of its own, which is removed with the directory that is returned.
    fn token_file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        fs::write(&path, text).unwrap();
        (dir, path)
    }

    #[test]
    fn another_token_counts_at_once_and_the_last_one_while_the_file_holds_none() {
        let (_dir, path) = token_file("first\n");
        let mut file = TokenFile::open(&path).unwrap();
        assert_eq!(file.refresh(), "Bearer first");
        fs::write(&path, "second").unwrap();
        assert_eq!(file.refresh(), "Bearer second");
        for damaged in ["", " \n", "two\ntokens"] {
            fs::write(&path, damaged).unwrap();
            assert_eq!(file.refresh(), "Bearer second", "{damaged:?}");
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(file.refresh(), "Bearer second");
    }

    #[test]
    fn a_file_that_holds_no_token_is_named_from_the_beginning_and_the_token_never() {
        let (dir, path) = token_file("secret\nwords");
        let mistake = |path: &Path| TokenFile::open(path).unwrap_err().to_string();
        let shown = mistake(&path);
        assert!(shown.contains(path.to_str().unwrap()) && !shown.contains("secret"), "{shown}");
        let missing = dir.path().join("missing");
        assert!(mistake(&missing).contains("missing"));
        fs::write(&path, "secret").unwrap();
        let shown = format!("{:?}", TokenFile::open(&path).unwrap());
        assert!(!shown.contains("secret"), "{shown}");
    }

    #[test]
    fn a_token_that_is_given_counts_before_that_of_a_file() {
        let (_dir, path) = token_file("filed");
        let named = || AuthInfo { token_file: path.to_str().map(str::to_owned), ..AuthInfo::default() };
        assert!(TokenFile::take(&mut named()).unwrap().is_some());
        assert!(TokenFile::take(&mut AuthInfo::default()).unwrap().is_none());
        let mut given = AuthInfo { token: Some("given".to_owned().into()), ..named() };
        assert!(TokenFile::take(&mut given).unwrap().is_none());
        assert!(given.token_file.is_some(), "what counts is not ours to change");
    }
}
