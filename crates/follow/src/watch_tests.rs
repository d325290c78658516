use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use super::*;
use crate::bell::Wake;

const SHORT: Duration = Duration::from_millis(20);
const LONG: Duration = Duration::from_secs(20);

/// Swallows what is still on its way.
fn quiet(bell: &Bell) {
    while bell.wait(SHORT * 5, SHORT) != Wake::Silent {}
}

#[test]
fn rings_in_the_directory_of_the_link_and_in_that_of_its_present_target() {
    let root = tempfile::tempdir().unwrap();
    let target = |name: &str| root.path().join(name).join("real.yaml");
    for name in ["links", "first", "second"] {
        fs::create_dir(root.path().join(name)).unwrap();
        fs::write(target(name), "").unwrap();
    }
    let path = root.path().join("links/e.yaml");
    symlink(target("first"), &path).unwrap();
    let bell = Arc::new(Bell::default());
    let mut watch = Watch::new(path.clone(), "file of a test", Arc::clone(&bell));
    quiet(&bell);
    fs::write(target("first"), "a").unwrap();
    assert_eq!(bell.wait(LONG, SHORT), Wake::Rung);
    quiet(&bell);

    fs::remove_file(&path).unwrap();
    symlink(target("second"), &path).unwrap();
    assert_eq!(bell.wait(LONG, SHORT), Wake::Rung);
    watch.follow();
    quiet(&bell);
    fs::write(target("second"), "a").unwrap();
    assert_eq!(bell.wait(LONG, SHORT), Wake::Rung);
    quiet(&bell);
    fs::write(target("first"), "b").unwrap();
    assert_eq!(bell.wait(SHORT * 5, SHORT), Wake::Silent, "no longer concerned");
}

#[test]
fn rings_in_the_directory_that_has_the_name_now() {
    let root = tempfile::tempdir().unwrap();
    let (directory, old) = (root.path().join("d"), root.path().join("old"));
    fs::create_dir(&directory).unwrap();
    let path = directory.join("e.yaml");
    fs::write(&path, "a").unwrap();
    let bell = Arc::new(Bell::default());
    let mut watch = Watch::new(path.clone(), "file of a test", Arc::clone(&bell));
    fs::rename(&directory, &old).unwrap();
    watch.follow();
    fs::create_dir(&directory).unwrap();
    watch.follow();
    quiet(&bell);
    fs::write(&path, "b").unwrap();
    assert_eq!(bell.wait(LONG, SHORT), Wake::Rung);
}

#[test]
fn reading_the_file_does_not_ring() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("e.yaml");
    fs::write(&path, "a").unwrap();
    let bell = Arc::new(Bell::default());
    let _watch = Watch::new(path.clone(), "file of a test", Arc::clone(&bell));
    quiet(&bell);
    fs::read(&path).unwrap();
    assert_eq!(bell.wait(SHORT * 5, SHORT), Wake::Silent);
}
