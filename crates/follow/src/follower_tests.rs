use std::fs;
use std::io::Write as _;
use std::path::Path;

use super::*;

/// Refuses what begins with an exclamation mark, and notes what it is told.
#[derive(Debug, Default)]
struct Notes(Vec<String>);

impl Consumer for Notes {
    fn changed(&mut self, content: &[u8]) -> Verdict {
        self.0.push(String::from_utf8_lossy(content).into_owned());
        if content.starts_with(b"!") { Verdict::Refused } else { Verdict::Taken }
    }

    fn unreadable(&mut self, error: &FileError) {
        let kind = match error {
            FileError::Read { source, .. } => source.kind().to_string(),
            FileError::NotRegular { .. } => "not regular".to_owned(),
        };
        self.0.push(format!("({kind})"));
    }

    fn as_before(&mut self) {
        self.0.push("(as before)".to_owned());
    }
}

/// A follower whose looks the test takes itself.
struct Looked {
    follower: Follower,
    notes: Notes,
}

impl Looked {
    fn new(path: &Path) -> Self {
        let file = FollowedFile::new(path.to_owned(), "file of a test", 10);
        let mut follower = Follower::new(file.clone());
        follower.has_taken(file.read().unwrap());
        Self { follower, notes: Notes::default() }
    }

    /// Looks `times` times; returns what was told.
    fn look(&mut self, times: usize) -> Vec<String> {
        for _ in 0..times {
            self.follower.look(&mut self.notes);
        }
        std::mem::take(&mut self.notes.0)
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
    assert_eq!(looked.look(1), ["2"]);
}

#[test]
fn no_more_is_read_than_tells_that_it_is_too_much() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    fs::write(&path, "1").unwrap();
    let mut looked = Looked::new(&path);
    fs::write(&path, "0123456789abc").unwrap();
    assert_eq!(looked.look(1), ["0123456789a"]);
}
