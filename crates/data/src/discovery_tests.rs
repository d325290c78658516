use std::fs;
use std::path::Path;
use std::time::Duration;

use sluice_core::{BoxFuture, Criticality, Spawn};
use sluice_follow::{DEBOUNCE, UNCHANGED_FOR};
use tracing::Level;

use super::*;
use crate::log_lines::Lines;

/// For a change to count, and some more.
const LONG_ENOUGH: Duration = DEBOUNCE.saturating_add(UNCHANGED_FOR).saturating_mul(2);

/// Runs tasks on the runtime of the test, which ends them.
struct TestTasks;

impl Spawn for TestTasks {
    #[expect(clippy::disallowed_methods, reason = "this is what Tasks::spawn calls here")]
    fn spawn(&self, _name: &'static str, _criticality: Criticality, body: BoxFuture) {
        drop(tokio::spawn(body));
    }
}

fn entry(port: u16) -> String {
    format!("endpoints: [{{name: a, address: 127.0.0.1, port: {port}}}]")
}

fn ports(table: &EndpointTable) -> Vec<u16> {
    table.snapshot().endpoints().iter().map(|endpoint| endpoint.address.port()).collect()
}

async fn until(table: &EndpointTable, expected: &[u16]) {
    for _ in 0..500 {
        if ports(table) == expected {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the endpoints are {:?}, not {expected:?}", ports(table));
}

fn start(path: &Path, watch: bool) -> Result<Arc<EndpointTable>, DiscoveryError> {
    let table = Arc::new(EndpointTable::default());
    let discovery = Discovery::File(FileDiscovery { path: path.to_owned(), watch });
    discovery.start(&table, &Tasks::new(TestTasks))?;
    Ok(table)
}

#[tokio::test]
async fn changes_in_place_and_by_replacement_are_followed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("endpoints.yaml");
    fs::write(&path, entry(1)).unwrap();
    let table = start(&path, true).unwrap();
    assert_eq!(ports(&table), [1]);

    fs::write(&path, entry(2)).unwrap();
    until(&table, &[2]).await;

    let new = directory.path().join("new");
    fs::write(&new, entry(3)).unwrap();
    fs::rename(&new, &path).unwrap();
    until(&table, &[3]).await;

    // Gone for a while, then back.
    fs::remove_file(&path).unwrap();
    tokio::time::sleep(LONG_ENOUGH).await;
    assert_eq!(ports(&table), [3]);
    fs::write(&path, "endpoints: []").unwrap();
    until(&table, &[]).await;
}

#[tokio::test]
async fn a_config_map_swap_is_followed() {
    let directory = tempfile::tempdir().unwrap();
    let link = |target: &str, name: &str| {
        let temporary = directory.path().join("tmp-link");
        std::os::unix::fs::symlink(target, &temporary).unwrap();
        fs::rename(&temporary, directory.path().join(name)).unwrap();
    };
    for (version, port) in [("v1", 1), ("v2", 2)] {
        fs::create_dir(directory.path().join(version)).unwrap();
        fs::write(directory.path().join(version).join("endpoints.yaml"), entry(port)).unwrap();
    }
    link("v1", "..data");
    link("..data/endpoints.yaml", "endpoints.yaml");
    let table = start(&directory.path().join("endpoints.yaml"), true).unwrap();
    assert_eq!(ports(&table), [1]);
    link("v2", "..data");
    until(&table, &[2]).await;
}

#[tokio::test]
async fn a_bad_change_keeps_the_previous_endpoints() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("endpoints.yaml");
    fs::write(&path, entry(1)).unwrap();
    let table = start(&path, true).unwrap();
    let first = table.snapshot();
    for bad in ["endpoints: [{name: a, address: 127.0.0.1, port: 0}]", "{", "", "other: 1"] {
        fs::write(&path, bad).unwrap();
        tokio::time::sleep(LONG_ENOUGH).await;
        assert!(Arc::ptr_eq(&first, &table.snapshot()), "{bad:?} changed the endpoints");
    }
    fs::write(&path, entry(2)).unwrap();
    until(&table, &[2]).await;
}

#[tokio::test]
async fn without_watching_the_file_is_read_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("endpoints.yaml");
    fs::write(&path, entry(1)).unwrap();
    let table = start(&path, false).unwrap();
    fs::write(&path, entry(2)).unwrap();
    tokio::time::sleep(LONG_ENOUGH).await;
    assert_eq!(ports(&table), [1]);
}

#[tokio::test]
async fn a_bad_file_at_start_is_an_error_that_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("endpoints.yaml");
    assert!(start(&path, true).unwrap_err().to_string().contains("endpoints.yaml"));
    fs::write(&path, "endpoints: [{name: a, address: x, port: 1}]").unwrap();
    let error = start(&path, false).unwrap_err().to_string();
    assert!(error.contains("endpoints.yaml") && error.contains("endpoints[0] (a): address"), "{error}");
    fs::write(&path, b"\xff\xfe").unwrap();
    let error = start(&path, false).unwrap_err().to_string();
    assert!(error.ends_with("endpoints.yaml: not UTF-8 from byte 0 on"), "{error}");
    // In the middle of a letter at the end of what is read.
    fs::write(&path, "ä".repeat(1 << 20)).unwrap();
    assert!(start(&path, false).unwrap_err().to_string().contains("larger than"));
    assert!(start(Path::new("/nowhere/endpoints.yaml"), true).is_err());
}

fn make_pipe(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[tokio::test]
async fn what_is_no_regular_file_is_refused_and_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    make_pipe(&pipe);
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&pipe, &link).unwrap();
    for path in [&pipe, &link, directory.path(), Path::new("/dev/null")] {
        for watch in [false, true] {
            let error = start(path, watch).unwrap_err();
            assert!(matches!(error, DiscoveryError::File(FileError::NotRegular { .. })), "{}: {error}", path.display());
            assert!(error.to_string().contains(&path.display().to_string()));
        }
    }
}

#[tokio::test]
async fn a_pipe_in_place_of_the_file_keeps_the_previous_endpoints() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("endpoints.yaml");
    fs::write(&path, entry(1)).unwrap();
    let table = start(&path, true).unwrap();
    fs::remove_file(&path).unwrap();
    make_pipe(&path);
    tokio::time::sleep(LONG_ENOUGH).await;
    assert_eq!(ports(&table), [1]);
    fs::remove_file(&path).unwrap();
    fs::write(&path, entry(2)).unwrap();
    until(&table, &[2]).await;
}

#[tokio::test]
async fn a_file_that_moves_to_another_directory_is_followed_there() {
    let directory = tempfile::tempdir().unwrap();
    let (path, other) = (directory.path().join("e.yaml"), directory.path().join("other"));
    fs::create_dir(&other).unwrap();
    fs::write(&path, entry(1)).unwrap();
    let table = start(&path, true).unwrap();
    let target = other.join("real.yaml");
    fs::write(&target, entry(2)).unwrap();
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&target, &path).unwrap();
    until(&table, &[2]).await;
    fs::write(&target, entry(3)).unwrap();
    until(&table, &[3]).await;
}

#[tokio::test]
async fn a_directory_that_takes_the_place_of_another_is_followed() {
    let root = tempfile::tempdir().unwrap();
    let (directory, old) = (root.path().join("d"), root.path().join("d.old"));
    let path = directory.join("e.yaml");
    fs::create_dir(&directory).unwrap();
    fs::write(&path, entry(1)).unwrap();
    let table = start(&path, true).unwrap();
    fs::rename(&directory, &old).unwrap();
    fs::create_dir(&directory).unwrap();
    for port in [2, 3] {
        fs::write(&path, entry(port)).unwrap();
        until(&table, &[port]).await;
    }
}

#[test]
fn the_thread_ends_with_the_tasks() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("endpoints.yaml");
    fs::write(&path, entry(1)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let table = runtime.block_on(async { start(&path, true).unwrap() });
    assert_eq!(Arc::strong_count(&table), 2, "the thread holds the table");
    drop(runtime);
    let ended = || Arc::strong_count(&table) == 1;
    let patient = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    patient.block_on(async {
        for _ in 0..500 {
            if ended() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert!(ended(), "the thread outlives the runtime");
}

#[test]
fn the_log_tells_of_each_change_and_of_its_end() {
    let lines = Lines::default();
    lines.hear(|| {
        let file = FollowedFile::new("e.yaml".into(), "endpoint file", MAX_BYTES);
        let mut pool = Pool { file, table: Arc::default() };
        let told = |text: &str| lines.take().iter().any(|(level, line)| *level == Level::ERROR && line.contains(text));
        assert_eq!(pool.changed(b"{"), Verdict::Refused);
        assert!(told("e.yaml: line 1"));
        pool.unreadable(&FileError::NotRegular { what: "endpoint file", path: "e.yaml".into() });
        assert!(told("e.yaml: not a regular file"));
        pool.as_before();
        assert!(lines.take().iter().any(|(level, line)| *level == Level::INFO && line.contains("good again")));

        let twice = "endpoints: [{name: a, address: 127.0.0.1, port: 2}, {name: a, address: 127.0.0.1, port: 3}]";
        assert_eq!(pool.changed(twice.as_bytes()), Verdict::Taken);
        let lines = lines.take();
        assert_eq!(lines.iter().map(|(level, _)| *level).collect::<Vec<_>>(), [Level::WARN, Level::INFO], "{lines:?}");
        assert!(lines[0].1.contains("default/a"), "{lines:?}");
        assert_eq!(ports(&pool.table), [3]);
    });
}
