//! The `Dockerfile` cannot be built where there is no container engine; what it relies on can be looked at.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use sluice_testkit::workspace;

/// An instruction and its arguments, with continued lines joined.
struct Instruction {
    name: String,
    rest: String,
}

fn dockerfile() -> Vec<Instruction> {
    let text = fs::read_to_string(workspace::root().join("Dockerfile")).unwrap();
    let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let joined = lines.join("\n").replace("\\\n", " ");
    let instructions = joined.lines().filter_map(|line| line.trim().split_once(' '));
    instructions.map(|(name, rest)| Instruction { name: name.to_owned(), rest: rest.trim().to_owned() }).collect()
}

fn all(name: &str) -> Vec<String> {
    dockerfile()
        .into_iter()
        .filter(|instruction| instruction.name == name)
        .map(|instruction| instruction.rest)
        .collect()
}

/// What `.dockerignore` lets through: everything is ignored but the names with an exclamation mark.
fn context() -> Vec<String> {
    let text = fs::read_to_string(workspace::root().join(".dockerignore")).unwrap();
    let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    assert_eq!(lines.next(), Some("*"));
    lines.map(|line| line.strip_prefix('!').unwrap_or_else(|| panic!("{line} is no exception")).to_owned()).collect()
}

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        fs::create_dir(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let name = entry.unwrap().file_name();
            copy(&from.join(&name), &to.join(&name));
        }
    } else {
        fs::copy(from, to).unwrap();
    }
}

#[test]
fn the_image_runs_the_picker_as_a_user_without_rights() {
    assert_eq!(all("USER"), ["65532:65532"]);
    assert_eq!(all("ENTRYPOINT"), [r#"["/app/epp"]"#]);
    let last = all("FROM").pop().unwrap();
    assert!(last.starts_with("gcr.io/distroless/") && last.ends_with(":nonroot"), "{last}");
    assert!(all("COPY").contains(&"--from=build /app/epp /app/epp".to_owned()));
}

#[test]
fn the_image_is_built_from_the_lock_file_with_the_compiler_of_the_workspace() {
    let commands = all("RUN").join(" && ");
    assert_eq!(commands.matches("cargo ").count(), 1, "{commands}");
    assert!(commands.contains("cargo build --locked --release --package epp --bin epp"), "{commands}");

    let toolchain = fs::read_to_string(workspace::root().join("rust-toolchain.toml")).unwrap();
    let channel = toolchain.lines().find_map(|line| line.strip_prefix("channel = ")).unwrap().trim_matches('"');
    assert!(all("FROM")[0].contains(&format!("/rust:{channel}-")), "{}", all("FROM")[0]);
    // It would make rustup fetch a second toolchain.
    assert!(!context().contains(&"rust-toolchain.toml".to_owned()));
}

#[test]
fn both_stages_have_the_same_debian() {
    let debian = [("bookworm", "debian12"), ("trixie", "debian13")];
    let [build, run] = all("FROM").try_into().unwrap_or_else(|from| panic!("{from:?}"));
    assert!(debian.iter().any(|(name, number)| build.contains(name) && run.contains(number)), "{build}, {run}");
}

#[test]
fn the_image_has_the_version_of_the_workspace_and_so_have_the_manifests() {
    let version = env!("CARGO_PKG_VERSION");
    assert!(all("ARG").contains(&format!("VERSION={version}")));
    let base = fs::read_to_string(workspace::root().join("deploy/base/kustomization.yaml")).unwrap();
    let base: Value = serde_saphyr::from_str(&base).unwrap();
    assert_eq!(base["images"][0]["newTag"], version);
}

#[test]
fn what_the_builder_is_given_is_a_whole_workspace() {
    let root = workspace::root();
    let place = tempfile::tempdir().unwrap();
    for name in context() {
        copy(&root.join(&name), &place.path().join(&name));
    }
    for source in all("COPY").iter().filter(|copy| !copy.starts_with("--from")) {
        let source = source.split_whitespace().next().unwrap();
        assert!(place.path().join(source).exists(), "{source} is not let through by .dockerignore");
    }
    // Only cargo knows what makes a workspace whole: every member, each with its targets.
    let mut metadata = Command::new(env!("CARGO"));
    metadata.args(["metadata", "--locked", "--offline", "--no-deps", "--format-version", "1"]);
    let output = metadata.current_dir(place.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let epp = packages.iter().find(|package| package["name"] == "epp").unwrap();
    assert!(epp["targets"].as_array().unwrap().iter().any(|target| target["kind"][0] == "bin"));
}
