use std::io;
use std::sync::Arc;
use std::time::Duration;

use sluice_core::{Clock as _, Criticality, SystemClock, Tasks, Time};
use tokio::sync::oneshot;

use crate::bell::{Bell, Wake};
use crate::file::{FileError, FollowedFile, Stamp};
use crate::watch::Watch;

/// Changes within this time are taken over together: editors and ConfigMap updates touch a file several times.
pub const DEBOUNCE: Duration = Duration::from_millis(50);
/// A new content counts once it has been the same for this long: a file that is written in place is not whole before, and
/// what there is of it may be good by itself.
pub const UNCHANGED_FOR: Duration = Duration::from_millis(200);
/// The file is looked at this often whatever the watch says: file systems exist that tell nothing. A change counts within a
/// second all the same.
pub const CHECK_EVERY: Duration = Duration::from_millis(750);
/// How long a content that is [not usable yet](Verdict::NotYet) waits until it is judged again, twice as long each time.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// Whoever uses the file. Each call tells of a change: what lasts is told once.
pub trait Consumer: Send + 'static {
    /// The file has another content than the one in use, and than one that was just refused.
    fn changed(&mut self, content: &[u8]) -> Verdict;

    /// The file still has the content that was last found to be [not usable yet](Verdict::NotYet). That it still is not is
    /// no news.
    fn again(&mut self, content: &[u8]) -> Verdict {
        self.changed(content)
    }

    /// There is nothing to be read, for another reason than before. What is in use stays so.
    fn unreadable(&mut self, error: &FileError);

    /// After trouble the file has the content that is in use.
    fn as_before(&mut self);

    /// The file is to be looked at; asked before each look.
    fn is_following(&self) -> bool {
        true
    }
}

/// What became of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is in use from now on.
    Taken,
    /// It is no good: what is in use stays so.
    Refused,
    /// The same for now, because of something outside the file, such as another file that it names: it is judged again
    /// after a while.
    NotYet,
}

/// Looks at a file, and tells a [`Consumer`] what is new.
#[derive(Debug)]
pub struct Follower {
    file: FollowedFile,
    bell: Arc<Bell>,
    watch: Watch,
    seen: Seen,
    /// What may still be changing.
    fresh: Option<Fresh>,
    /// The content in use.
    taken: Vec<u8>,
    /// What is wrong with the file at present, as it was told.
    trouble: Option<Trouble>,
}

#[derive(Debug, PartialEq, Eq)]
enum Trouble {
    Refused(Vec<u8>),
    NotYet(Postponed),
    Unreadable(String),
}

/// A content that is to be judged if it stays.
#[derive(Debug)]
struct Fresh {
    content: Vec<u8>,
    /// When it was first seen.
    since: Time,
}

/// A content that is to be judged again.
#[derive(Debug, PartialEq, Eq)]
struct Postponed {
    content: Vec<u8>,
    until: Time,
    /// How long it waits now.
    wait: Duration,
}

impl Follower {
    /// Watches `file` from now on. What it has is new to it, unless it is told what is in use.
    pub fn new(file: FollowedFile) -> Self {
        let bell = Arc::new(Bell::default());
        let watch = Watch::new(file.path().to_owned(), file.what(), Arc::clone(&bell));
        Self { file, bell, watch, seen: Seen::default(), fresh: None, taken: Vec::new(), trouble: None }
    }

    /// `content`, which was in the file, is in use.
    pub fn has_taken(&mut self, content: Vec<u8>) {
        self.taken = content;
    }

    /// Looks from now on, on a thread called `name`, until the process or `tasks` end.
    pub fn start(self, name: &'static str, consumer: impl Consumer, tasks: &Tasks) -> io::Result<()> {
        let stop = StopOnDrop(Arc::clone(&self.bell));
        let (ended, end) = oneshot::channel::<()>();
        let body = move || {
            // Dropped when the thread ends, by panic too.
            let _ended = ended;
            self.run(consumer);
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(body)?;
        tasks.spawn(name, Criticality::Critical, async move {
            let _stop = stop;
            // Nothing is ever sent: this waits for the end of the thread.
            end.await.unwrap_or_default();
        });
        Ok(())
    }

    /// Until the bell is stopped.
    fn run(mut self, mut consumer: impl Consumer) {
        let clock = SystemClock::start();
        while self.bell.wait(self.next_look(), DEBOUNCE) != Wake::Stopped {
            if consumer.is_following() {
                self.watch.follow();
                self.look(&mut consumer, clock.now());
            }
        }
    }

    /// How long the next look may take to come if nothing rings.
    const fn next_look(&self) -> Duration {
        if self.fresh.is_some() { UNCHANGED_FOR } else { CHECK_EVERY }
    }

    /// Looks once.
    fn look(&mut self, consumer: &mut impl Consumer, now: Time) {
        match self.news() {
            Ok(news) => {
                if let Some(content) = news {
                    self.note_fresh(content, now);
                }
                match self.take_unchanged(now) {
                    Some(content) => self.judge(content, consumer, now),
                    // What was postponed is no longer in the file if anything else is.
                    None if self.fresh.is_none() => self.judge_again(consumer, now),
                    None => {}
                }
            }
            Err(error) => {
                self.fresh = None;
                let trouble = Some(Trouble::Unreadable(error.to_string()));
                if self.trouble != trouble {
                    self.trouble = trouble;
                    consumer.unreadable(&error);
                }
            }
        }
    }

    /// Takes note of what is in the file.
    fn note_fresh(&mut self, content: Vec<u8>, now: Time) {
        let is_in_use = self.trouble.is_none() && content == self.taken;
        if is_in_use || self.is_refused(&content) {
            self.fresh = None;
        } else if self.fresh.as_ref().is_none_or(|fresh| fresh.content != content) {
            self.fresh = Some(Fresh { content, since: now });
        }
    }

    /// What has been in the file for long enough to be judged.
    fn take_unchanged(&mut self, now: Time) -> Option<Vec<u8>> {
        let is_unchanged = |fresh: &mut Fresh| now.saturating_since(fresh.since) >= UNCHANGED_FOR;
        self.fresh.take_if(is_unchanged).map(|fresh| fresh.content)
    }

    /// Whether `content` is what was judged last, and not taken.
    fn is_refused(&self, content: &[u8]) -> bool {
        match &self.trouble {
            Some(Trouble::Refused(refused) | Trouble::NotYet(Postponed { content: refused, .. })) => refused == content,
            Some(Trouble::Unreadable(_)) | None => false,
        }
    }

    fn judge(&mut self, content: Vec<u8>, consumer: &mut impl Consumer, now: Time) {
        if content == self.taken {
            if self.trouble.take().is_some() {
                consumer.as_before();
            }
            return;
        }
        let verdict = consumer.changed(&content);
        self.note(verdict, content, FIRST_RETRY, now);
    }

    /// If a content is waiting for that, and has waited long enough.
    fn judge_again(&mut self, consumer: &mut impl Consumer, now: Time) {
        match self.trouble.take() {
            Some(Trouble::NotYet(Postponed { content, until, wait })) if until <= now => {
                let verdict = consumer.again(&content);
                self.note(verdict, content, LONGEST_RETRY.min(wait * 2), now);
            }
            other => self.trouble = other,
        }
    }

    /// What became of `content`, which waits for `wait` if it has to.
    fn note(&mut self, verdict: Verdict, content: Vec<u8>, wait: Duration, now: Time) {
        match verdict {
            Verdict::Taken => (self.taken, self.trouble) = (content, None),
            Verdict::Refused => self.trouble = Some(Trouble::Refused(content)),
            Verdict::NotYet => {
                self.trouble = Some(Trouble::NotYet(Postponed { content, until: now.saturating_add(wait), wait }));
            }
        }
    }

    /// What is in the file, unless it has been read already.
    fn news(&mut self) -> Result<Option<Vec<u8>>, FileError> {
        let content = match self.file.stamp() {
            Ok(stamp) if !self.seen.is_news(&stamp) => return Ok(None),
            Ok(_) => self.file.read_stamped(),
            Err(error) => Err(error),
        };
        let (bytes, stamp) = content.inspect_err(|_| self.seen = Seen::default())?;
        self.seen.read(stamp);
        Ok(Some(bytes))
    }
}

/// Ends the thread with the task that stands for it.
struct StopOnDrop(Arc<Bell>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Which content has been read.
#[derive(Debug, Default)]
struct Seen {
    stamp: Option<Stamp>,
    /// Whether a second reading, later than the first by at least [`DEBOUNCE`], found the same stamp. Until then there
    /// may have been a change that left no trace, since file systems count time in steps of some milliseconds.
    settled: bool,
}

impl Seen {
    fn is_news(&self, stamp: &Stamp) -> bool {
        !self.settled || self.stamp.as_ref() != Some(stamp)
    }

    fn read(&mut self, stamp: Stamp) {
        self.settled = self.stamp == Some(stamp);
        self.stamp = Some(stamp);
    }
}

#[cfg(test)]
#[path = "follower_tests.rs"]
mod tests;
