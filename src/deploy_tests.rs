//! What the manifests in `deploy/` and the `Dockerfile` ask of the picker is what it does. That the manifests fit
//! together is for `cargo xtask deploy` to say.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use sluice_config::{Options, Source};
use sluice_plugins::BUILTIN;

use crate::flags::CommandLine;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files in `deploy/`.
fn files() -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    let mut pending = vec![root().join("deploy")];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                pending.push(path);
            } else {
                let text = fs::read_to_string(&path).unwrap();
                files.push((path, text));
            }
        }
    }
    files
}

/// The specifications of pods in Deployments and in patches of them, each with the name of its file.
fn pods() -> Vec<(String, Value)> {
    let deployments = files().into_iter().filter(|(_, text)| text.contains("\nkind: Deployment\n"));
    deployments
        .map(|(path, text)| {
            let mut object: Value = serde_saphyr::from_str(&text).unwrap();
            (path.display().to_string(), object["spec"]["template"]["spec"].take())
        })
        .collect()
}

/// How the pods start the picker.
fn command_lines() -> Vec<(String, CommandLine)> {
    let mut lines = Vec::new();
    for (file, pod) in pods() {
        for container in pod["containers"].as_array().into_iter().flatten().filter(|one| one["name"] == "epp") {
            let Some(arguments) = container["args"].as_array() else { continue };
            let arguments = arguments.iter().map(|argument| argument.as_str().unwrap());
            let line = CommandLine::parse(["epp"].into_iter().chain(arguments));
            lines.push((file.clone(), line.unwrap_or_else(|error| panic!("{file}: {error}"))));
        }
    }
    assert!(!lines.is_empty());
    lines
}

#[test]
fn the_picker_takes_every_flag_that_it_is_started_with_and_each_has_an_effect() {
    for (file, line) in command_lines() {
        assert_eq!(line.ignored, Vec::<String>::new(), "{file}");
        assert_eq!(line.flags.warnings(), Vec::<String>::new(), "{file}");
    }
}

#[test]
fn the_ports_of_containers_and_image_are_those_that_the_picker_listens_on() {
    let base = pods().into_iter().find(|(file, _)| file.ends_with("base/deployment.yaml")).unwrap().1;
    let ports = base["containers"][0]["ports"].as_array().unwrap().iter();
    let ports: Vec<_> = ports.map(|port| port["containerPort"].as_u64().unwrap()).collect();
    for (file, line) in command_lines() {
        let flags = line.flags;
        let expected = [flags.grpc_port, flags.grpc_health_port, flags.metrics_port].map(u64::from);
        assert_eq!(ports, expected, "{file}");
    }
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).unwrap();
    let exposed = ports.iter().map(|port| format!(" {port}")).collect::<String>();
    assert!(dockerfile.contains(&format!("\nEXPOSE{exposed}\n")), "EXPOSE{exposed}");
}

#[test]
fn a_pod_is_given_the_time_that_the_picker_takes_to_stop() {
    let graces = pods().into_iter().filter_map(|(_, pod)| pod["terminationGracePeriodSeconds"].as_u64());
    let graces: Vec<_> = graces.map(Duration::from_secs).collect();
    assert!(!graces.is_empty());
    for (file, line) in command_lines() {
        let needed = line.flags.drain_timeout + line.flags.stream_drain_timeout;
        assert!(graces.iter().all(|grace| *grace > needed), "{file}");
    }
}

/// A picker that waits is never ready: an update that waits for it does not end, and a budget that counts it as missing
/// keeps the node of the leader from being drained.
#[test]
fn where_a_leader_is_elected_nothing_waits_for_the_others_to_be_ready() {
    let electing = command_lines().into_iter().filter(|(_, line)| line.flags.ha_enable_leader_election);
    let electing: Vec<PathBuf> = electing.map(|(file, _)| file.into()).collect();
    assert!(!electing.is_empty());
    for file in electing {
        let deployment: Value = serde_saphyr::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        let strategy = &deployment["spec"]["strategy"];
        assert_eq!((&strategy["type"], &strategy["rollingUpdate"]), (&"Recreate".into(), &Value::Null), "{file:?}");
        let beside = files().into_iter().filter(|(other, _)| other.parent() == file.parent());
        for (other, text) in beside.filter(|(_, text)| text.contains("\nkind: PodDisruptionBudget\n")) {
            let budget: Value = serde_saphyr::from_str(&text).unwrap();
            let spec = &budget["spec"];
            assert_eq!((&spec["maxUnavailable"], &spec["minAvailable"]), (&"100%".into(), &Value::Null), "{other:?}");
        }
    }
}

#[test]
fn every_configuration_of_the_picker_loads_without_a_warning() {
    let configs = files().into_iter().filter(|(_, text)| text.contains("\nkind: EndpointPickerConfig\n"));
    let mut loaded = 0;
    for (path, text) in configs {
        let source = Source::new(&path.display().to_string(), text);
        let assembled = sluice_config::load(&source, BUILTIN, &Options::default());
        let assembled = assembled.unwrap_or_else(|mistakes| panic!("{mistakes:?}"));
        assert!(assembled.warnings.is_empty(), "{:?}", assembled.warnings);
        loaded += 1;
    }
    assert!(loaded > 0);
}

#[test]
fn the_values_for_charts_of_the_reference_name_this_version_and_flags_that_have_an_effect() {
    let values = fs::read_to_string(root().join("deploy/values-sluice.yaml")).unwrap();
    let values: Value = serde_saphyr::from_str(&values).unwrap();
    let epp = &values["router"]["epp"];
    assert_eq!(epp["image"]["tag"], env!("CARGO_PKG_VERSION"));
    // As the charts write them, after those that they give themselves.
    let own = ["epp", "--pool-name=chat", "--config-file=/config/default-plugins.yaml", "--grpc-health-port=9003"];
    let flags = epp["flags"].as_object().unwrap().iter();
    let flags = flags.map(|(flag, value)| format!("--{flag}={}", value.as_str().unwrap()));
    let line = CommandLine::parse(own.map(str::to_owned).into_iter().chain(flags)).unwrap();
    assert_eq!(line.ignored, Vec::<String>::new());
    let grace = Duration::from_secs(130);
    assert!(line.flags.drain_timeout + line.flags.stream_drain_timeout < grace);
}

/// The rows of a table of rights that a file in `deploy/` begins with.
fn rows_of(role: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join("deploy").join(role)).unwrap();
    let role: Value = serde_saphyr::from_str(text.split("\n---\n").next().unwrap()).unwrap();
    let quoted = |list: &Value| {
        let texts = list.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).filter(|text| !text.is_empty());
        texts.map(|text| format!("`{text}`")).collect::<Vec<_>>().join(", ")
    };
    let rules = role["rules"].as_array().unwrap().iter();
    let cells = rules.map(|rule| ["apiGroups", "resources", "verbs"].map(|field| quoted(&rule[field])));
    cells.map(|cells| format!("| {} |", cells.join(" | ")).replace("|  |", "| |")).collect()
}

#[test]
fn the_page_lists_exactly_the_rights_that_are_granted() {
    let page = fs::read_to_string(root().join("docs/deploy.md")).unwrap();
    let section = page.split_once("\n## What it may do\n").unwrap().1.split("\n## ").next().unwrap();
    let tables = section.split("|---|---|---|\n").skip(1);
    let rows = tables.map(|table| table.lines().take_while(|line| line.starts_with('|')).map(str::to_owned).collect());
    let rows: Vec<Vec<String>> = rows.collect();
    assert_eq!(rows, [rows_of("base/role.yaml"), rows_of("overlays/monitoring/reviews.yaml")]);
}
