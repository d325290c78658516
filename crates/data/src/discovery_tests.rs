use std::fs;

use sluice_core::{BoxFuture, Spawn};

use super::*;

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
    tokio::time::sleep(DEBOUNCE * 4).await;
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
        tokio::time::sleep(DEBOUNCE * 4).await;
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
    tokio::time::sleep(DEBOUNCE * 4).await;
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
    assert!(matches!(start(&path, false), Err(DiscoveryError::Read { .. })));
    assert!(start(Path::new("/nowhere/endpoints.yaml"), true).is_err());
}
