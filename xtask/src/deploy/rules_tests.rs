use serde_json::{Value, json};

use super::objects::{Object, Rendering};
use super::rules;

/// An installation in which all is well. The tests change one place each, so the order of objects matters to them.
fn installation() -> Vec<Value> {
    let labels = json!({"app": "epp"});
    let confined = json!({
        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
    });
    let pod = json!({
        "serviceAccountName": "epp",
        "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{
            "name": "epp",
            "image": "registry.example:5000/epp:1.0",
            "args": ["--config-file=/config/epp.yaml", "--pool-name=chat"],
            "ports": [{"name": "grpc", "containerPort": 9002}, {"name": "metrics", "containerPort": 9090}],
            "readinessProbe": {"grpc": {"port": 9002}},
            "resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi"}},
            "securityContext": confined,
            "volumeMounts": [{"name": "config", "mountPath": "/config"}],
        }],
        "volumes": [{"name": "config", "configMap": {"name": "epp"}}],
        "topologySpreadConstraints": [{"labelSelector": {"matchLabels": labels}}],
    });
    let template = json!({"metadata": {"labels": labels}, "spec": pod});
    let deployment = json!({"selector": {"matchLabels": labels}, "template": template});
    let service = json!({
        "selector": labels, "ports": [
            {"name": "grpc", "port": 9002, "targetPort": "grpc"},
            {"name": "metrics", "port": 9090, "targetPort": "metrics"},
        ],
    });
    let policy = json!({"podSelector": {"matchLabels": labels}, "ingress": [{"ports": [{"port": "grpc"}]}]});
    let monitor = json!({"selector": {"matchLabels": labels}, "endpoints": [{"port": "metrics"}]});
    let named =
        |api: &str, kind: &str| json!({"apiVersion": api, "kind": kind, "metadata": {"name": "epp", "labels": labels}});
    let object = |api: &str, kind: &str, spec: Value| {
        let mut object = named(api, kind);
        object["spec"] = spec;
        object
    };
    let picker = json!({"endpointPickerRef": {"name": "epp", "port": {"number": 9002}}});
    let mut pool = object("inference.networking.k8s.io/v1", "InferencePool", picker);
    pool["metadata"]["name"] = json!("chat");
    let mut binding = named("rbac.authorization.k8s.io/v1", "RoleBinding");
    binding["roleRef"] = json!({"kind": "Role", "name": "epp"});
    binding["subjects"] = json!([{"kind": "ServiceAccount", "name": "epp"}]);
    let mut cluster_binding = named("rbac.authorization.k8s.io/v1", "ClusterRoleBinding");
    cluster_binding["roleRef"] = json!({"kind": "ClusterRole", "name": "epp"});
    cluster_binding["subjects"] = json!([
        {"kind": "ServiceAccount", "name": "epp", "namespace": "default"},
        {"kind": "ServiceAccount", "name": "prometheus", "namespace": "monitoring"},
    ]);
    let route = json!({"rules": [{"backendRefs": [{"kind": "InferencePool", "name": "chat"}]}]});
    vec![
        object("apps/v1", "Deployment", deployment),
        object("v1", "Service", service),
        object("networking.k8s.io/v1", "NetworkPolicy", policy),
        object("policy/v1", "PodDisruptionBudget", json!({"selector": {"matchLabels": labels}})),
        object("monitoring.coreos.com/v1", "ServiceMonitor", monitor),
        pool,
        object("gateway.networking.k8s.io/v1", "HTTPRoute", route),
        object("networking.istio.io/v1", "DestinationRule", json!({"host": "epp"})),
        binding,
        named("rbac.authorization.k8s.io/v1", "Role"),
        cluster_binding,
        named("rbac.authorization.k8s.io/v1", "ClusterRole"),
        named("v1", "ServiceAccount"),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "epp"}, "data": {"epp.yaml": ""}}),
    ]
}

fn rendering(objects: Vec<Value>) -> Rendering {
    Rendering { name: "here".to_owned(), objects: objects.into_iter().map(Object).collect() }
}

#[test]
fn nothing_is_found_where_all_is_well() {
    let sound = rendering(installation());
    assert_eq!(rules::findings(&sound), [""; 0]);
    assert_eq!(rules::unused_port_names(&[sound]), [""; 0]);
}

#[test]
fn one_wrong_place_is_one_finding_that_names_it() {
    const CONTAINER: &str = "/0/spec/template/spec/containers/0";
    let container = |field: &str| format!("{CONTAINER}/{field}");
    let other = || json!("other");
    let other_label = || json!({"app": "other"});
    let cases = [
        ("/0/spec/selector/matchLabels".to_owned(), other_label(), "does not select its own pods"),
        ("/1/spec/selector".to_owned(), other_label(), "Service epp selects nothing"),
        ("/1/spec/selector".to_owned(), json!({}), "Service epp selects nothing"),
        ("/2/spec/podSelector/matchLabels".to_owned(), other_label(), "NetworkPolicy epp selects nothing"),
        ("/3/spec/selector/matchLabels".to_owned(), other_label(), "PodDisruptionBudget epp selects nothing"),
        ("/4/spec/selector/matchLabels".to_owned(), other_label(), "ServiceMonitor epp selects nothing"),
        (
            "/0/spec/template/spec/topologySpreadConstraints/0/labelSelector/matchLabels".to_owned(),
            other_label(),
            "Deployment epp selects nothing",
        ),
        ("/1/spec/ports/1/port".to_owned(), json!(9091), "no container has a port \"metrics\" 9091"),
        ("/1/spec/ports/1/targetPort".to_owned(), other(), "no container has a port \"other\" 9090"),
        (container("readinessProbe/grpc/port"), json!(9003), "no port 9003 to probe"),
        ("/0/spec/template/spec/serviceAccountName".to_owned(), other(), "there is no ServiceAccount \"other\""),
        ("/5/spec/endpointPickerRef/name".to_owned(), other(), "no Service \"other\" with port 9002"),
        ("/5/spec/endpointPickerRef/port/number".to_owned(), json!(9003), "no Service \"epp\" with port 9003"),
        (container("args/1"), json!("--pool-name=code"), "InferencePool chat: no picker follows it"),
        (
            "/6/spec/rules/0/backendRefs/0/name".to_owned(),
            other(),
            "HTTPRoute epp: there is no InferencePool \"other\"",
        ),
        ("/7/spec/host".to_owned(), other(), "DestinationRule epp: there is no Service \"other\""),
        ("/8/roleRef/name".to_owned(), other(), "RoleBinding epp: there is no Role \"other\""),
        ("/8/subjects/0/name".to_owned(), other(), "RoleBinding epp: there is no ServiceAccount \"other\""),
        ("/10/roleRef/name".to_owned(), other(), "ClusterRoleBinding epp: there is no ClusterRole \"other\""),
        ("/10/subjects/0/name".to_owned(), other(), "ClusterRoleBinding epp: there is no ServiceAccount \"other\""),
        ("/10/subjects/1/namespace".to_owned(), Value::Null, "there is no ServiceAccount \"prometheus\""),
        (container("args/0"), json!("--config-file=/config/other.yaml"), "no file /config/other.yaml"),
        (
            container("volumeMounts/0"),
            json!({"name": "config", "mountPath": "/config", "subPath": "x"}),
            "a single file",
        ),
        ("/0/spec/template/spec/securityContext/runAsUser".to_owned(), json!(0), "another user than 65532"),
        ("/0/spec/template/spec/securityContext/seccompProfile".to_owned(), Value::Null, "without a seccomp profile"),
        (container("securityContext/allowPrivilegeEscalation"), json!(true), "may gain privileges"),
        (container("securityContext/readOnlyRootFilesystem"), Value::Null, "may write to its root file system"),
        (container("securityContext/capabilities"), Value::Null, "keeps capabilities"),
        (container("resources/limits"), Value::Null, "no limit of memory"),
        (container("resources/requests"), Value::Null, "asks for no CPU"),
        (container("image"), json!("registry.example:5000/epp"), "has no version"),
        (container("image"), json!("epp:latest"), "has no version"),
    ];
    for (place, value, expected) in cases {
        let mut objects = Value::Array(installation());
        *objects.pointer_mut(&place).unwrap_or_else(|| panic!("no {place}")) = value;
        let Value::Array(objects) = objects else { unreachable!() };
        let findings = rules::findings(&rendering(objects));
        assert_eq!(findings.len(), 1, "{place}: {findings:?}");
        assert!(findings[0].starts_with("here: ") && findings[0].contains(expected), "{place}: {findings:?}");
    }
}

#[test]
fn a_config_map_that_is_missing_is_named_and_so_are_its_files() {
    let mut objects = installation();
    objects.pop();
    let findings = rules::findings(&rendering(objects));
    assert_eq!(findings.len(), 2, "{findings:?}");
    assert!(
        findings[0].contains("no ConfigMap \"epp\"") && findings[1].contains("no file /config/epp.yaml"),
        "{findings:?}"
    );
}

#[test]
fn a_container_that_runs_beside_the_others_has_its_ports_by_number_only() {
    let mut objects = installation();
    let beside =
        json!({"name": "proxy", "restartPolicy": "Always", "ports": [{"name": "http", "containerPort": 8081}]});
    objects[0]["spec"]["template"]["spec"]["initContainers"] = json!([beside]);
    let mut find = |target: &Value| {
        objects[1]["spec"]["ports"][0] = json!({"name": "http", "port": 8081, "targetPort": target});
        objects[2]["spec"]["ingress"][0]["ports"][0]["port"] = target.clone();
        let installation = rendering(objects.clone());
        [rules::findings(&installation), rules::unused_port_names(&[installation])].concat()
    };
    let by_name = find(&json!("http"));
    assert!(by_name.iter().any(|finding| finding.contains("no container has a port \"http\" 8081")), "{by_name:?}");
    assert!(by_name.iter().any(|finding| finding.contains("NetworkPolicy epp: no installation has")), "{by_name:?}");
    let by_number = find(&json!(8081));
    assert!(!by_number.iter().any(|finding| finding.contains("8081") || finding.contains("Policy")), "{by_number:?}");
}

#[test]
fn a_port_that_only_another_installation_has_may_be_named() {
    let mut objects = installation();
    objects[2]["spec"]["ingress"][0]["ports"][0]["port"] = json!("http");
    let with = |objects: &[Value]| rendering(objects.to_vec());
    let unused = rules::unused_port_names(&[with(&objects), with(&installation())]);
    assert_eq!(unused, ["NetworkPolicy epp: no installation has a port \"http\""]);
    let mut other = installation();
    other[0]["spec"]["template"]["spec"]["containers"][0]["ports"][1]["name"] = json!("http");
    assert_eq!(rules::unused_port_names(&[with(&objects), with(&other), with(&installation())]), [""; 0]);
}

#[test]
fn a_kind_that_not_every_cluster_has_is_named() {
    let mut objects = installation();
    objects.retain(|object| !object["spec"]["endpoints"].is_null() || object["kind"] == "Service");
    let findings = rules::needs_no_extension(&rendering(objects));
    assert_eq!(findings, ["here: not every cluster has a kind for ServiceMonitor epp"]);
}

#[test]
fn documents_are_told_apart_by_lines_of_their_own() {
    let yaml = "kind: ConfigMap\ndata:\n  text: |\n    a\n    ---\n    b\n---\nkind: Service\n";
    let rendering = Rendering::parse("here", yaml).unwrap();
    assert_eq!(rendering.objects.iter().map(Object::kind).collect::<Vec<_>>(), ["ConfigMap", "Service"]);
    assert_eq!(rendering.objects[0].0["data"]["text"], "a\n---\nb\n");
}
