use std::fs;
use std::io::Write as _;
use std::path::Path;

use tracing::Level;

use super::*;
use crate::log_lines::Lines;

/// A follower whose looks the test takes itself, with what it logged.
struct Looked {
    follower: Follower,
    lines: Lines,
}

impl Looked {
    fn new(path: &Path) -> Self {
        let table = Arc::new(EndpointTable::default());
        let mut follower = Follower::new(path.to_owned(), Arc::default(), Arc::clone(&table));
        let file = follower.source.load().unwrap();
        file.fill(path, &table);
        follower.has_taken(file);
        Self { follower, lines: Lines::default() }
    }

    /// Looks `times` times; returns what was logged.
    fn look(&mut self, times: usize) -> Vec<(Level, String)> {
        tracing::subscriber::with_default(self.lines.clone(), || {
            for _ in 0..times {
                self.follower.look();
            }
        });
        self.lines.take()
    }

    fn settled(&self) -> bool {
        self.follower.source.stamp().is_ok_and(|stamp| !self.follower.seen.is_news(&stamp))
    }

    fn port(&self) -> u16 {
        self.follower.table.snapshot().endpoints()[0].address.port()
    }
}

fn entry(port: u16) -> String {
    format!("endpoints: [{{name: a, address: 127.0.0.1, port: {port}}}]")
}

fn levels(lines: &[(Level, String)]) -> Vec<Level> {
    lines.iter().map(|(level, _)| *level).collect()
}

#[test]
fn a_lasting_fault_is_logged_once_and_so_is_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("e.yaml");
    fs::write(&path, entry(1)).unwrap();
    let mut looked = Looked::new(&path);
    assert_eq!(looked.look(3), []);

    fs::write(&path, "{").unwrap();
    let lines = looked.look(3);
    assert_eq!(levels(&lines), [Level::ERROR], "{lines:?}");
    assert!(lines[0].1.contains("e.yaml: line 1"), "{lines:?}");
    fs::remove_file(&path).unwrap();
    assert_eq!(levels(&looked.look(3)), [Level::ERROR], "another fault");
    fs::create_dir(&path).unwrap();
    assert_eq!(levels(&looked.look(3)), [Level::ERROR], "yet another");
    assert_eq!(looked.port(), 1);

    fs::remove_dir(&path).unwrap();
    fs::write(&path, entry(1)).unwrap();
    let lines = looked.look(3);
    assert_eq!(levels(&lines), [Level::INFO], "{lines:?}");
    assert!(lines[0].1.contains("good again"), "{lines:?}");

    fs::remove_file(&path).unwrap();
    looked.look(1);
    fs::write(&path, entry(2)).unwrap();
    assert_eq!(levels(&looked.look(3)), [Level::INFO]);
    assert_eq!(looked.port(), 2);
}

#[test]
fn what_was_read_twice_is_not_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("e.yaml");
    fs::write(&path, entry(1)).unwrap();
    let mut looked = Looked::new(&path);
    assert!(!looked.settled(), "a change within the same step of the clock would be missed");
    looked.look(1);
    assert!(looked.settled());
    for name in ["unrelated", "e.yaml~"] {
        fs::write(directory.path().join(name), "x").unwrap();
    }
    assert!(looked.settled());
    assert_eq!(looked.look(2), []);
    fs::write(&path, "{").unwrap();
    looked.look(2);
    assert!(looked.settled(), "bad content is no reason to read again");
}

#[test]
fn a_change_of_same_length_and_time_is_seen() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("e.yaml");
    fs::write(&path, entry(1)).unwrap();
    let mut looked = Looked::new(&path);
    looked.look(2);
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    let mut file = fs::File::create(&path).unwrap();
    file.write_all(entry(2).as_bytes()).unwrap();
    file.set_modified(modified).unwrap();
    looked.look(1);
    assert_eq!(looked.port(), 2);
}

#[test]
fn repeated_endpoints_are_warned_of_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("e.yaml");
    fs::write(&path, entry(1)).unwrap();
    let mut looked = Looked::new(&path);
    let twice = "endpoints: [{name: a, address: 127.0.0.1, port: 2}, {name: a, address: 127.0.0.1, port: 3}]";
    fs::write(&path, twice).unwrap();
    let lines = looked.look(3);
    assert_eq!(levels(&lines), [Level::WARN, Level::INFO], "{lines:?}");
    assert!(lines[0].1.contains("default/a"), "{lines:?}");
    assert_eq!(looked.port(), 3);
}
