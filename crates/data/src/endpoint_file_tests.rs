use super::*;

fn addresses(text: &str) -> Vec<String> {
    parse_endpoint_file(text).unwrap().endpoints.iter().map(|spec| format!("{} {}", spec.id, spec.address)).collect()
}

#[test]
fn reads_yaml_and_json() {
    let yaml = "endpoints:\n- {name: a, address: 10.0.0.1, port: '8000', labels: {role: decode, rank: 1}}\n";
    let json = r#"{"endpoints":[{"name":"a","address":"10.0.0.1","port":8000,"labels":{"role":"decode","rank":"1"}}]}"#;
    let specs = parse_endpoint_file(yaml).unwrap().endpoints;
    assert_eq!(specs, parse_endpoint_file(json).unwrap().endpoints);
    assert_eq!(specs[0].labels["rank"], "1");
    assert_eq!(specs[0].id.to_string(), "default/a");
}

#[test]
fn ipv6_namespaces_and_unknown_keys_are_fine() {
    let text = "version: 3\nendpoints:\n- {name: a, namespace: rack1, address: 'fd00::1', port: 1, comment: x}\n\
        - {name: b, address: '[fd00::2]', port: 65535}\n";
    assert_eq!(addresses(text), ["rack1/a [fd00::1]:1", "default/b [fd00::2]:65535"]);
}

#[test]
fn an_empty_pool_must_be_written_out() {
    assert_eq!(addresses("endpoints: []"), Vec::<String>::new());
    for text in ["", "endpoints:", "endpoints: {}", "other: []", "[]", "3"] {
        assert!(
            matches!(parse_endpoint_file(text), Err(EndpointFileError::NoList | EndpointFileError::Syntax { .. })),
            "{text:?}"
        );
    }
}

#[test]
fn every_bad_entry_is_named() {
    let text = "endpoints:\n- {name: a, address: host, port: 0}\n- {name: b, address: 10.0.0.1, port: 1}\n\
        - {address: 10.0.0.1}\n- 7\n- {name: e, address: 10.0.0.1, port: 70000, labels: [x]}\n";
    let error = parse_endpoint_file(text).unwrap_err().to_string();
    assert_eq!(
        error,
        "endpoints[0] (a): address: \"host\" is not an IPv4 or IPv6 address; \
         endpoints[0] (a): port: 0 is not a port from 1 to 65535; \
         endpoints[2]: port: missing; \
         endpoints[3]: not a mapping; \
         endpoints[4] (e): port: 70000 is not a port from 1 to 65535; \
         endpoints[4] (e): labels: not a mapping"
    );
}

#[test]
fn a_file_that_is_no_yaml_tells_where_in_one_line() {
    let bomb = format!("a: &a [x,x,x,x,x,x,x,x,x]\n{}endpoints: *g\n", {
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        let line =
            |pair: &[&str]| format!("{}: &{} [{}]\n", pair[1], pair[1], vec![format!("*{}", pair[0]); 9].join(","));
        names.windows(2).map(line).collect::<String>()
    });
    let tower = format!("endpoints: {}", "[".repeat(5_000));
    for (text, line) in [
        ("endpoints:\n- {name: secret\n- b: }", 3),
        ("endpoints:\n\t- secret", 2),
        ("endpoints: *secret", 1),
        ("endpoints: []\nendpoints: [secret]", 2),
        ("endpoints: []\n---\nendpoints: []", 3),
        ("endpoints: [.nan]", 1),
        ("endpoints: [\"secret", 1),
        ("endpoints: !!int secret", 1),
        ("{", 1),
        (bomb.as_str(), 1),
        (tower.as_str(), 1),
    ] {
        let error = parse_endpoint_file(text).unwrap_err().to_string();
        println!("{error}");
        assert!(error.starts_with(&format!("line {line}")) || line == 1 && error.starts_with("line "), "{error}");
        assert!(!error.contains('\n') && error.len() < 200, "{error}");
        for foreign in ["Options", "option", "from_", "serde", "DuplicateKeyPolicy", "set ", "- {name"] {
            assert!(!error.contains(foreign), "{error}");
        }
    }
}

fn warnings(text: &str) -> Vec<String> {
    parse_endpoint_file(text).unwrap().warnings.iter().map(ToString::to_string).collect()
}

#[test]
fn keys_of_entries_that_mean_nothing_are_named_with_their_lines() {
    let entries: String =
        (1..9).map(|n| format!("- {{name: n{n}, address: 10.0.0.{n}, port: 1, rack: {n}}}\n")).collect();
    let text = format!("version: 3\nendpoints:\n- name: a\n  address: 10.0.0.9\n  port: 1\n  lables: {{}}\n{entries}");
    assert_eq!(
        warnings(&text),
        [
            "line 3: the key \"lables\" means nothing, did you mean \"labels\"?",
            "lines 7, 8, 9, 10, 11 and 3 more: the key \"rack\" means nothing"
        ]
    );
    assert_eq!(
        warnings("endpoints:\n- {name: a, address: 10.0.0.1, port: 1, namespace: b, labels: {x: y}}\n"),
        [""; 0]
    );
    assert_eq!(warnings(r#"{"endpoints": [{"name": "a", "address": "10.0.0.1", "port": 1, "x": {}}]}"#).len(), 1);
}

#[test]
fn what_is_listed_twice_is_named_with_its_lines() {
    let text = "endpoints:\n- {name: a, address: 10.0.0.1, port: 1}\n- {address: 10.0.0.2, port: 1}\n\
        - {name: a, address: 10.0.0.3, port: 1}\n- {address: 10.0.0.4, port: 1}\n- {address: 10.0.0.5, port: 1}\n\
        - {name: a, namespace: other, address: 10.0.0.6, port: 1}\n";
    assert_eq!(
        warnings(text),
        [
            "lines 3, 5 and 6: default/(no name) is listed more than once, the last entry counts",
            "lines 2 and 4: default/a is listed more than once, the last entry counts"
        ]
    );
    let text = "endpoints:\n- {name: b, address: '::1', port: 1}\n- {name: a, address: '[0:0::1]', port: '1'}\n\
        - {name: c, address: '::1', port: 2}\n";
    assert_eq!(
        warnings(text),
        [
            "lines 2 and 3: default/b and default/a have the same address [::1]:1: it is sent as much as all of them together"
        ]
    );
    let moved = "endpoints:\n- {name: a, address: 10.0.0.1, port: 1}\n- {name: b, address: 10.0.0.1, port: 1}\n\
        - {name: b, address: 10.0.0.2, port: 1}\n";
    assert_eq!(warnings(moved), ["lines 3 and 4: default/b is listed more than once, the last entry counts"]);
}

#[test]
fn too_large_is_refused() {
    let text = format!("# {}\nendpoints: []", "x".repeat(1 << 20));
    assert_eq!(parse_endpoint_file(&text), Err(EndpointFileError::TooLarge));
}
