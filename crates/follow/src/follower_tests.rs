use std::fs;
use std::io::Write as _;
use std::path::Path;

use super::*;
use crate::file::open;

/// Refuses what begins with an exclamation mark, cannot use what begins with a question mark until it is answered, and
/// notes what it is told.
#[derive(Debug, Default)]
struct Notes {
    told: Vec<String>,
    answer: Option<Verdict>,
}

impl Consumer for Notes {
    fn changed(&mut self, content: &[u8]) -> Verdict {
        self.told.push(String::from_utf8_lossy(content).into_owned());
        match content.first() {
            Some(b'!') => Verdict::Refused,
            Some(b'?') => self.answer.unwrap_or(Verdict::NotYet),
            _ => Verdict::Taken,
        }
    }

    fn again(&mut self, content: &[u8]) -> Verdict {
        let verdict = self.changed(content);
        self.told.push("(again)".to_owned());
        verdict
    }

    fn unreadable(&mut self, error: &FileError) {
        let kind = match error {
            FileError::Read { source, .. } => source.kind().to_string(),
            FileError::NotRegular { .. } => "not regular".to_owned(),
        };
        self.told.push(format!("({kind})"));
    }

    fn as_before(&mut self) {
        self.told.push("(as before)".to_owned());
    }
}

/// A follower whose looks the test takes itself.
struct Looked {
    follower: Follower,
    notes: Notes,
    now: Time,
}

impl Looked {
    fn new(path: &Path) -> Self {
        let file = FollowedFile::new(path.to_owned(), "file of a test", 10);
        let mut follower = Follower::new(file.clone());
        follower.has_taken(file.read().unwrap());
        Self { follower, notes: Notes::default(), now: Time::ZERO }
    }

    /// Looks `times` times, so far apart that what has not changed in between counts; returns what was told.
    fn look(&mut self, times: usize) -> Vec<String> {
        (0..times).flat_map(|_| self.look_after(UNCHANGED_FOR)).collect()
    }

    /// Looks once, `pause` after the last time; returns what was told.
    fn look_after(&mut self, pause: Duration) -> Vec<String> {
        self.now = self.now.saturating_add(pause);
        self.follower.look(&mut self.notes, self.now);
        std::mem::take(&mut self.notes.told)
    }

    /// Looks once in each of the next `seconds`; returns the seconds from now in which anything was told.
    fn seconds_told(&mut self, seconds: u64) -> Vec<u64> {
        let told = |second: &u64| {
            let told = self.look_after(Duration::from_secs(1));
            assert!(told.is_empty() || told.ends_with(&["(again)".to_owned()]), "{told:?} in second {second}");
            !told.is_empty()
        };
        (1..=seconds).filter(told).collect()
    }

    fn settled(&self) -> bool {
        self.follower.file.stamp().is_ok_and(|stamp| !self.follower.seen.is_news(&stamp))
    }
}

#[test]
fn a_lasting_fault_is_told_once_and_so_is_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    fs::write(&path, "1").unwrap();
    let mut looked = Looked::new(&path);
    assert!(looked.look(3).is_empty());

    fs::write(&path, "!").unwrap();
    assert_eq!(looked.look(3), ["!"]);
    fs::write(&path, "!!").unwrap();
    assert_eq!(looked.look(3), ["!!"], "another fault");
    fs::remove_file(&path).unwrap();
    assert_eq!(looked.look(3), ["(entity not found)"], "another one");
    fs::create_dir(&path).unwrap();
    assert_eq!(looked.look(3), ["(not regular)"], "yet another");
    fs::remove_dir(&path).unwrap();
    fs::write(&path, "!!").unwrap();
    assert_eq!(looked.look(3), ["!!"], "and back to an earlier one");
    fs::write(&path, "1").unwrap();
    assert_eq!(looked.look(3), ["(as before)"]);

    fs::remove_file(&path).unwrap();
    looked.look(1);
    fs::write(&path, "2").unwrap();
    assert_eq!(looked.look(3), ["2"]);
    fs::write(&path, "2").unwrap();
    assert!(looked.look(3).is_empty(), "written again, not changed");
}

#[test]
fn what_was_read_twice_is_not_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    fs::write(&path, "1").unwrap();
    let mut looked = Looked::new(&path);
    assert!(!looked.settled(), "a change within the same step of the clock would be missed");
    looked.look(2);
    assert!(looked.settled());
    for name in ["unrelated", "f~"] {
        fs::write(directory.path().join(name), "x").unwrap();
    }
    assert!(looked.settled());
    assert!(looked.look(2).is_empty());
    fs::write(&path, "!").unwrap();
    looked.look(2);
    assert!(looked.settled(), "bad content is no reason to read again");
}

#[test]
fn a_change_of_same_length_and_time_is_seen() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    fs::write(&path, "1").unwrap();
    let mut looked = Looked::new(&path);
    looked.look(2);
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(b"2").unwrap();
    file.set_modified(modified).unwrap();
    assert_eq!(looked.look(2), ["2"]);
}

#[test]
fn no_more_is_read_than_tells_that_it_is_too_much() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    fs::write(&path, "1").unwrap();
    let mut looked = Looked::new(&path);
    fs::write(&path, "0123456789abc").unwrap();
    assert_eq!(looked.look(2), ["0123456789a"]);
}

#[test]
fn what_cannot_be_used_yet_is_judged_again_ever_more_rarely() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    fs::write(&path, "1").unwrap();
    let mut looked = Looked::new(&path);
    fs::write(&path, "?").unwrap();
    assert_eq!(looked.look(3), ["?"], "not at once");
    assert_eq!(looked.seconds_told(130), [1, 3, 7, 15, 31, 61, 91, 121]);

    looked.notes.answer = Some(Verdict::Taken);
    assert_eq!(looked.seconds_told(100), [21], "in use, and no longer asked about");
    fs::write(&path, "1").unwrap();
    assert_eq!(looked.look(2), ["1"], "the other is what is in use");
}

#[test]
fn what_is_judged_again_may_be_refused_for_good() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    fs::write(&path, "1").unwrap();
    let mut looked = Looked::new(&path);
    fs::write(&path, "?").unwrap();
    looked.look(2);
    looked.notes.answer = Some(Verdict::Refused);
    assert_eq!(looked.seconds_told(100), [1]);
}

#[test]
fn what_takes_the_place_of_a_content_that_waits_ends_its_wait() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    fs::write(&path, "1").unwrap();
    let mut looked = Looked::new(&path);
    fs::write(&path, "?").unwrap();
    looked.look(2);
    looked.seconds_told(20);
    fs::write(&path, "??").unwrap();
    assert_eq!(looked.look(2), ["??"]);
    assert_eq!(looked.seconds_told(10), [1, 3, 7], "another content begins anew");
    fs::remove_file(&path).unwrap();
    assert_eq!(looked.look(1), ["(entity not found)"]);
    assert_eq!(looked.seconds_told(60), [0; 0]);
    fs::write(&path, "??").unwrap();
    assert_eq!(looked.look(2), ["??"]);
    fs::write(&path, "1").unwrap();
    assert_eq!(looked.look(2), ["(as before)"]);
    assert_eq!(looked.seconds_told(60), [0; 0]);
}

#[test]
fn what_is_still_changing_is_not_judged_however_good() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    fs::write(&path, "1").unwrap();
    let mut looked = Looked::new(&path);
    let almost = UNCHANGED_FOR - Duration::from_millis(1);
    for written in ["2", "22", "222", "!", ""] {
        fs::write(&path, written).unwrap();
        assert!(looked.look_after(almost).is_empty(), "{written}");
    }
    fs::write(&path, "2222").unwrap();
    assert!(looked.look_after(almost).is_empty());
    assert!(looked.look_after(almost / 2).is_empty(), "looks that come early do not make it older");
    assert!(looked.look_after(almost / 2).is_empty());
    assert_eq!(looked.look_after(almost / 2), ["2222"]);
    assert!(looked.look(3).is_empty());
}

#[test]
fn what_was_there_for_a_moment_only_is_never_heard_of() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    fs::write(&path, "1").unwrap();
    let mut looked = Looked::new(&path);
    fs::write(&path, "?").unwrap();
    looked.look(2);
    fs::write(&path, "2").unwrap();
    assert!(looked.look(1).is_empty());
    fs::write(&path, "?").unwrap();
    assert!(looked.look(1).is_empty());
    assert_eq!(looked.seconds_told(1), [1], "what waits for its time goes on waiting");
    fs::write(&path, "1").unwrap();
    assert_eq!(looked.look(2), ["(as before)"]);
    fs::write(&path, "2").unwrap();
    assert!(looked.look(1).is_empty());
    fs::write(&path, "1").unwrap();
    assert!(looked.look(3).is_empty());
}

#[test]
fn the_next_look_at_what_is_new_comes_soon() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    fs::write(&path, "1").unwrap();
    let mut looked = Looked::new(&path);
    looked.look(2);
    assert_eq!(looked.follower.next_look(), CHECK_EVERY);
    fs::write(&path, "2").unwrap();
    looked.look(1);
    assert_eq!(looked.follower.next_look(), UNCHANGED_FOR);
    looked.look(1);
    assert_eq!(looked.follower.next_look(), CHECK_EVERY);
    assert!(CHECK_EVERY + UNCHANGED_FOR < Duration::from_secs(1), "a change counts within a second");
}

/// As when it takes the place of the file between a look at what stands there and the opening of it.
#[test]
fn a_pipe_without_another_end_is_opened_without_waiting_for_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(open(&path).map(drop)));
    is_done.recv_timeout(Duration::from_secs(10)).expect("it waits").unwrap();
}
