//! Configurations in files, and what is said of each: broken ones, one for each rule, and good ones of the kinds that are
//! in use, some of which name what is not there yet.

use std::fs;
use std::path::{Path, PathBuf};

use sluice_config::{Options, Source, load};
use sluice_plugins::BUILTIN;

use crate::repository;

const DIRECTORY: &str = "crates/config/tests/fixtures";

pub(crate) fn fixtures(kind: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(repository().join(DIRECTORY).join(kind)).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|name| name == "yaml")).collect();
    paths.sort();
    paths
}

/// Everything that is said, ending in `ok` if the configuration can be used; and whether it can.
fn said_of(path: &Path) -> (String, bool) {
    let name = path.file_name().unwrap().to_str().unwrap();
    match load(&Source::new(name, fs::read(path).unwrap()), BUILTIN, &Options::default()) {
        Ok(assembled) => {
            let again = load(&Source::new(name, assembled.effective_yaml().unwrap()), BUILTIN, &Options::default());
            assert_eq!(again.unwrap().effective, assembled.effective, "{name}: what is shown means something else");
            let warnings = assembled.warnings.iter().map(ToString::to_string);
            (warnings.chain(["ok".to_owned()]).collect::<Vec<_>>().join("\n"), true)
        }
        Err(diagnostics) => (diagnostics.to_string(), false),
    }
}

fn assert_as_before(kind: &str, path: &Path, said: &str) {
    let name = path.file_stem().unwrap().to_str().unwrap();
    let directory = repository().join(DIRECTORY).join(kind);
    insta::with_settings!({
        snapshot_path => directory.canonicalize().unwrap(),
        prepend_module_to_snapshot => false,
        omit_expression => true,
    }, {
        insta::assert_snapshot!(name, said);
    });
}

#[test]
fn every_broken_configuration_is_told_what_is_wrong_and_where() {
    let broken = fixtures("broken");
    assert!(broken.len() >= 60, "{}", broken.len());
    for path in broken {
        let (said, is_usable) = said_of(&path);
        assert!(!is_usable, "{} can be used", path.display());
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(said.lines().all(|line| line.starts_with(&format!("{name}:"))), "{said}");
        assert_as_before("broken", &path, &said);
    }
}

#[test]
fn every_kind_of_sample_loads_or_says_what_is_not_there_yet() {
    for path in fixtures("good") {
        let (said, is_usable) = said_of(&path);
        let is_mistake = |line: &&str| !line.contains(": warning: ") && !line.contains("not available in this version");
        assert!(is_usable || !said.lines().any(|line| is_mistake(&line)), "{}: {said}", path.display());
        assert_as_before("good", &path, &said);
    }
}
