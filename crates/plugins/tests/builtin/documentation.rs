use std::collections::BTreeSet;
use std::fs;

use sluice_config::{PluginType, Settings};
use sluice_core::{Priority, Time};
use sluice_data::{Discovery, FileDiscovery, parse_endpoint_file};
use sluice_flow::policy::BandView;
use sluice_plugins::BUILTIN;

use crate::{read, read_silently, repository};

pub(crate) fn page(name: &str) -> String {
    fs::read_to_string(repository().join("docs").join(name)).unwrap()
}

/// The YAML in a page.
fn yaml_blocks(page: &str) -> Vec<&str> {
    page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// The headings `` ### `type` `` of a page and what stands under each.
pub(crate) fn plugin_sections(page: &str) -> Vec<(&str, &str)> {
    page.split("\n### `")
        .skip(1)
        .map(|section| {
            let (name, rest) = section.split_once('`').unwrap();
            (name, rest.split("\n## ").next().unwrap())
        })
        .collect()
}

#[test]
fn every_example_configuration_works() {
    let mut configurations = 0;
    for entry in fs::read_dir(repository().join("config")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        if name.starts_with("endpoints") {
            assert!(!parse_endpoint_file(&text).unwrap().endpoints.is_empty(), "{name}");
        } else {
            read_silently(name, &text);
            configurations += 1;
        }
    }
    assert!(configurations > 0);
}

#[test]
fn the_standalone_example_follows_the_endpoint_file() {
    let text = fs::read_to_string(repository().join("config/standalone.yaml")).unwrap();
    let expected = FileDiscovery { path: "endpoints.yaml".into(), watch: true };
    assert_eq!(read_silently("standalone.yaml", &text).discovery, Some(Discovery::File(expected)));
}

#[test]
fn the_examples_of_flow_control_hold_back_what_they_say() {
    let priorities = [100, 0, -10];
    for (name, expected) in [
        ("tiers.yaml", "[1.0, 1.0, 1.0]"),
        ("tenants.yaml", "[1.0, 1.0, 1.0]"),
        ("tokens.yaml", "[1.0, 1.0, 1.0]"),
        ("holdback.yaml", "[1.0, 0.8, 0.6]"),
    ] {
        let text = fs::read_to_string(repository().join("config").join(name)).unwrap();
        let config = read_silently(name, &text).flow_control.unwrap().config;
        let bands = priorities.map(|priority| BandView { priority: Priority(priority), provisioned: true });
        let mut ceilings = [0.0; 3];
        config.usage_limit.new_state().ceilings(Time::ZERO, &bands, 0.0, &mut ceilings);
        assert_eq!(format!("{ceilings:?}"), expected, "{name}");
    }
}

#[test]
fn every_plugin_and_each_of_its_parameters_is_documented() {
    let page = page("plugins.md");
    let sections = plugin_sections(&page);
    for plugin_type in BUILTIN {
        let name = plugin_type.name();
        let of_plugin: Vec<_> = sections.iter().filter(|(heading, _)| *heading == name).collect();
        let [(_, section)] = of_plugin.as_slice() else {
            panic!("docs/plugins.md has {} sections for {name}", of_plugin.len());
        };
        for parameter in plugin_type.parameters() {
            assert!(section.contains(&format!("| `{parameter}` |")), "{name}: {parameter} is not documented");
        }
    }
}

#[test]
fn the_types_that_are_not_there_yet_are_listed() {
    let page = page("plugins.md");
    let (_, list) = page.split_once("that are not here yet\n").unwrap();
    let items = list.split("\n* ").skip(1).flat_map(|item| item.split('`').skip(1).step_by(2));
    let listed: BTreeSet<&str> = items.collect();
    let is_there = |name: &&str| BUILTIN.iter().any(|known| known.name() == *name);
    let missing: BTreeSet<&str> = sluice_config::known_types().filter(|name| !is_there(name)).collect();
    assert_eq!(listed, missing);
}

#[test]
fn nothing_is_documented_that_is_not_there() {
    let page = page("plugins.md");
    for (name, section) in plugin_sections(&page) {
        let plugin_type: &PluginType = BUILTIN.iter().find(|known| known.name() == name).unwrap();
        for line in section.lines().filter(|line| line.starts_with("| `")) {
            let parameter = line.split('`').nth(1).unwrap();
            assert!(plugin_type.parameters().contains(&parameter), "{name} has no parameter {parameter}");
        }
    }
}

#[test]
fn the_configurations_in_the_pages_are_valid() {
    for name in ["plugins.md", "configuration.md"] {
        let page = page(name);
        let blocks = yaml_blocks(&page);
        assert!(!blocks.is_empty(), "{name}");
        for block in blocks {
            if let Err(error) = read(block) {
                panic!("{name}: {error}\n{block}");
            }
        }
    }
}

#[test]
fn the_defaults_of_the_sluice_section_are_as_documented() {
    let page = page("configuration.md");
    let block = yaml_blocks(&page).into_iter().find(|block| block.starts_with("sluice:")).unwrap();
    assert_eq!(read(block).unwrap().settings, Settings::default());
}
