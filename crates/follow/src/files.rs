use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus::IntGauge;

use crate::file::{FileError, FollowedFile};
use crate::settled::{Look, Settled};

/// How often files that belong together are looked at. What is new in them is in use after two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Small files that make up one value together, such as a certificate and its key.
pub trait FileSet: Clone + Send + 'static {
    /// What they hold, as it was read.
    type Content: Clone + PartialEq + Send + 'static;
    type Value: Send + Sync;

    /// As the log calls the value.
    fn what(&self) -> &'static str;

    /// Reads all of them. May block. An error names the file.
    fn read(&self) -> Result<Self::Content, String>;

    /// Everything that can be wrong with what they hold is an error, which names the file and quotes no secret.
    fn parse(&self, content: &Self::Content) -> Result<Self::Value, String>;
}

/// The value that files make up, and what it becomes while the process runs.
pub struct FilesFollower<S: FileSet> {
    files: S,
    current: Arc<ArcSwap<S::Value>>,
    settled: Settled<S::Content>,
    failing: IntGauge,
}

impl<S: FileSet> FilesFollower<S> {
    /// Reads the files, which must be good.
    pub fn start(files: S, failing: IntGauge) -> Result<Self, String> {
        let content = files.read()?;
        let current = Arc::new(ArcSwap::from_pointee(files.parse(&content)?));
        Ok(Self { files, current, settled: Settled::new(content), failing })
    }

    /// Where the value is, the next ones too.
    pub fn current(&self) -> Arc<ArcSwap<S::Value>> {
        Arc::clone(&self.current)
    }

    /// 1 while the files are no good.
    pub fn failing(&self) -> IntGauge {
        self.failing.clone()
    }

    /// Takes over whatever is new and good, without end. What is not leaves the last good value in use and is logged
    /// once.
    pub async fn follow(mut self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let files = self.files.clone();
            #[expect(clippy::disallowed_methods, reason = "a few small reads, whose end is awaited")]
            let read = tokio::task::spawn_blocking(move || files.read());
            let found = read.await.unwrap_or_else(|error| Err(error.to_string()));
            self.look(found);
        }
    }

    /// Reads and judges at once what [`follow`](Self::follow) reads and judges once a second.
    pub fn look_now(&mut self) {
        let found = self.files.read();
        self.look(found);
    }

    /// Judges what has not changed since the last look: between two writes the files do not fit together.
    fn look(&mut self, found: Result<S::Content, String>) {
        let judged = match self.settled.look(found) {
            Look::Nothing => return,
            Look::InForce => {
                self.failing.set(0);
                return;
            }
            Look::Judge(found) => found.and_then(|content| Ok((self.files.parse(&content)?, content))),
        };
        let what = self.files.what();
        match judged {
            Ok((value, content)) => {
                self.current.store(Arc::new(value));
                self.settled.take(content);
                self.failing.set(0);
                tracing::info!("{what} reloaded");
            }
            Err(error) => {
                self.failing.set(1);
                tracing::error!(error, "{what} not reloaded, what was in use stays");
            }
        }
    }
}

/// Without what the files hold.
impl<S: FileSet> fmt::Debug for FilesFollower<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FilesFollower").field("what", &self.files.what()).finish_non_exhaustive()
    }
}

/// More than any file of certificates has: those of all authorities that a machine trusts are a quarter of a megabyte.
const MAX_BYTES: usize = 4 << 20;

/// The content of a small regular file.
pub fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let reason = match FollowedFile::new(path.to_owned(), "file", MAX_BYTES).read() {
        Ok(bytes) if bytes.len() <= MAX_BYTES => return Ok(bytes),
        Ok(_) => format!("larger than {MAX_BYTES} bytes"),
        Err(FileError::Read { source, .. }) => source.to_string(),
        Err(FileError::NotRegular { .. }) => "not a regular file".to_owned(),
    };
    Err(format!("cannot read {}: {reason}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A number in one file, that of its digits in another.
    #[derive(Clone)]
    struct Numbers(PathBuf);

    impl FileSet for Numbers {
        type Content = (Vec<u8>, Vec<u8>);
        type Value = u32;

        fn what(&self) -> &'static str {
            "numbers"
        }

        fn read(&self) -> Result<Self::Content, String> {
            Ok((read_file(&self.0.join("number"))?, read_file(&self.0.join("digits"))?))
        }

        fn parse(&self, (number, digits): &Self::Content) -> Result<u32, String> {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let fits = text(digits) == number.len().to_string();
            text(number).parse().ok().filter(|_| fits).ok_or_else(|| "they do not fit".to_owned())
        }
    }

    struct Rig {
        directory: tempfile::TempDir,
        failing: IntGauge,
    }

    impl Rig {
        fn new() -> Self {
            Self { directory: tempfile::tempdir().unwrap(), failing: IntGauge::new("failing", "failing").unwrap() }
        }

        fn write(&self, number: &str, digits: &str) {
            std::fs::write(self.directory.path().join("number"), number).unwrap();
            std::fs::write(self.directory.path().join("digits"), digits).unwrap();
        }

        fn start(&self) -> Result<FilesFollower<Numbers>, String> {
            FilesFollower::start(Numbers(self.directory.path().to_owned()), self.failing.clone())
        }
    }

    #[test]
    fn what_is_no_good_at_the_start_is_an_error_that_names_it() {
        let rig = Rig::new();
        assert!(rig.start().unwrap_err().contains("number"));
        rig.write("12", "3");
        assert_eq!(rig.start().unwrap_err(), "they do not fit");
    }

    #[test]
    fn new_files_are_taken_once_they_have_settled() {
        let rig = Rig::new();
        rig.write("1", "1");
        let mut follower = rig.start().unwrap();
        let current = follower.current();
        // The one is there already, the other is not.
        rig.write("23", "1");
        follower.look_now();
        rig.write("23", "2");
        follower.look_now();
        assert_eq!(**current.load(), 1);
        follower.look_now();
        assert_eq!((**current.load(), rig.failing.get()), (23, 0));
    }

    #[test]
    fn bad_files_leave_the_last_good_value_and_good_ones_put_back_are_no_news() {
        let rig = Rig::new();
        rig.write("1", "1");
        let mut follower = rig.start().unwrap();
        rig.write("1", "2");
        follower.look_now();
        assert_eq!(rig.failing.get(), 0, "they may not be written in full yet");
        for _ in 0..3 {
            follower.look_now();
            assert_eq!((**follower.current().load(), rig.failing.get()), (1, 1));
        }
        std::fs::remove_file(rig.directory.path().join("digits")).unwrap();
        for _ in 0..2 {
            follower.look_now();
            assert_eq!((**follower.current().load(), rig.failing.get()), (1, 1));
        }
        rig.write("1", "1");
        follower.look_now();
        assert_eq!(rig.failing.get(), 0);
    }

    #[test]
    fn a_file_without_end_is_not_read_to_it() {
        let rig = Rig::new();
        rig.write("1", "1");
        let number = rig.directory.path().join("number");
        std::fs::File::create(&number).unwrap().set_len(1 << 40).unwrap();
        let error = rig.start().unwrap_err();
        assert!(error.contains("number: larger than"), "{error}");
    }

    #[test]
    fn what_is_no_file_is_not_waited_for() {
        let rig = Rig::new();
        rig.write("1", "1");
        let mut follower = rig.start().unwrap();
        let file = rig.directory.path().join("digits");
        std::fs::remove_file(&file).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        let error = rig.start().unwrap_err();
        assert!(error.contains("digits") && error.contains("not a regular file"), "{error}");
        follower.look_now();
        follower.look_now();
        assert_eq!((**follower.current().load(), rig.failing.get()), (1, 1));
    }
}
