use super::*;

fn addresses(text: &str) -> Vec<String> {
    parse_endpoint_file(text).unwrap().iter().map(|spec| format!("{} {}", spec.id, spec.address)).collect()
}

#[test]
fn reads_yaml_and_json() {
    let yaml = "endpoints:\n- {name: a, address: 10.0.0.1, port: '8000', labels: {role: decode, rank: 1}}\n";
    let json = r#"{"endpoints":[{"name":"a","address":"10.0.0.1","port":8000,"labels":{"role":"decode","rank":"1"}}]}"#;
    let specs = parse_endpoint_file(yaml).unwrap();
    assert_eq!(specs, parse_endpoint_file(json).unwrap());
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
            matches!(parse_endpoint_file(text), Err(EndpointFileError::NoList | EndpointFileError::Syntax(_))),
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
fn a_file_that_is_no_yaml_tells_where() {
    let error = parse_endpoint_file("endpoints:\n- {name: a\n- b: }").unwrap_err();
    assert!(matches!(error, EndpointFileError::Syntax(_)), "{error}");
    assert!(error.to_string().contains("line"), "{error}");
}

#[test]
fn too_large_is_refused() {
    let text = format!("# {}\nendpoints: []", "x".repeat(1 << 20));
    assert_eq!(parse_endpoint_file(&text), Err(EndpointFileError::TooLarge));
}
