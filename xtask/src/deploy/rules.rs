//! How rendered objects have to fit together, and what every pod has to forgo. One function per rule; each returns what
//! is wrong, a line per finding.

use std::collections::BTreeSet;

use serde_json::Value;

use super::objects::{Object, Rendering, containers, items, selects, text};

/// API groups that a cluster has only where somebody has put them in.
pub(super) const EXTENSION_GROUPS: [&str; 4] =
    ["gateway.networking.k8s.io", "inference.networking.k8s.io", "monitoring.coreos.com", "networking.istio.io"];

type Rule = fn(&Rendering) -> Vec<String>;

const RULES: [Rule; 7] = [
    deployments_own_pods,
    selectors_find_something,
    ports_agree,
    references_exist,
    pools_and_pickers_know_each_other,
    files_are_mounted,
    pods_are_confined,
];

/// What is wrong with an installation: objects that are to be there together.
pub(super) fn findings(installation: &Rendering) -> Vec<String> {
    let findings = RULES.iter().flat_map(|rule| rule(installation));
    findings.map(|finding| format!("{}: {finding}", installation.name)).collect()
}

/// Objects whose kind a plain cluster does not have.
pub(super) fn needs_no_extension(rendering: &Rendering) -> Vec<String> {
    let foreign = rendering.objects.iter().filter(|object| EXTENSION_GROUPS.contains(&object.group()));
    foreign.map(|object| format!("{}: not every cluster has a kind for {object}", rendering.name)).collect()
}

/// Ports that are named in monitors and policies and that no installation has. One installation alone need not have
/// them all: what goes beside it is made for every one.
pub(super) fn unused_port_names(installations: &[Rendering]) -> Vec<String> {
    let have: Vec<&Value> = installations.iter().flat_map(pods).flat_map(|(_, pod)| names_of_ports(pod)).collect();
    // A monitor names the port of a Service.
    let ports_of_services =
        || installations.iter().flat_map(|found| found.of_kind("Service")).flat_map(|it| items(&it.spec()["ports"]));
    let mut unused = BTreeSet::new();
    for installation in installations {
        let monitors = installation.of_kind("ServiceMonitor");
        let monitored =
            monitors.flat_map(|monitor| items(&monitor.spec()["endpoints"]).map(move |port| (monitor, port)));
        let policies = installation.of_kind("NetworkPolicy");
        let allowed = policies.flat_map(|policy| {
            items(&policy.spec()["ingress"]).flat_map(|rule| items(&rule["ports"])).map(move |port| (policy, port))
        });
        let monitored = monitored
            .map(|(monitor, port)| (monitor, port, ports_of_services().any(|own| own["name"] == port["port"])));
        let allowed = allowed.map(|(policy, port)| (policy, port, have.contains(&&port["port"])));
        for (object, port, _) in monitored.chain(allowed).filter(|(.., found)| !found) {
            unused.insert(format!("{object}: no installation has a port {}", port["port"]));
        }
    }
    unused.into_iter().collect()
}

/// The pods of an installation, with the Deployment that makes them.
fn pods(rendering: &Rendering) -> impl Iterator<Item = (&Object, &Value)> {
    rendering.of_kind("Deployment").map(|deployment| (deployment, &deployment.spec()["template"]["spec"]))
}

/// What others may call the ports of a pod: their numbers, and those names that every cluster resolves. Before 1.32 the
/// names of a container that runs beside the others, which is one of `initContainers`, are not found.
fn names_of_ports(pod: &Value) -> impl Iterator<Item = &Value> {
    let names = items(&pod["containers"]).flat_map(|container| items(&container["ports"])).map(|port| &port["name"]);
    let ports = containers(pod).flat_map(|container| items(&container["ports"]));
    names.chain(ports.map(|port| &port["containerPort"]))
}

fn deployments_own_pods(rendering: &Rendering) -> Vec<String> {
    let deployments = rendering.of_kind("Deployment");
    let strangers = deployments.filter(|deployment| {
        let spec = deployment.spec();
        !selects(&spec["selector"]["matchLabels"], &spec["template"]["metadata"]["labels"])
    });
    strangers.map(|deployment| format!("{deployment} does not select its own pods")).collect()
}

fn selectors_find_something(rendering: &Rendering) -> Vec<String> {
    let pod_labels = || rendering.of_kind("Deployment").map(|object| &object.spec()["template"]["metadata"]["labels"]);
    let service_labels = || rendering.of_kind("Service").map(|service| &service.0["metadata"]["labels"]);
    let mut findings = Vec::new();
    for object in &rendering.objects {
        let spec = object.spec();
        let found = match object.kind() {
            "Service" => pod_labels().any(|labels| selects(&spec["selector"], labels)),
            "PodDisruptionBudget" => pod_labels().any(|labels| selects(&spec["selector"]["matchLabels"], labels)),
            "NetworkPolicy" => pod_labels().any(|labels| selects(&spec["podSelector"]["matchLabels"], labels)),
            "ServiceMonitor" => service_labels().any(|labels| selects(&spec["selector"]["matchLabels"], labels)),
            "Deployment" => items(&spec["template"]["spec"]["topologySpreadConstraints"]).all(|constraint| {
                selects(&constraint["labelSelector"]["matchLabels"], &spec["template"]["metadata"]["labels"])
            }),
            _ => true,
        };
        if !found {
            findings.push(format!("{object} selects nothing"));
        }
    }
    findings
}

/// A Service has the number of the container's port, so that there is one number per port to know; a probe asks a port
/// of its own container.
fn ports_agree(rendering: &Rendering) -> Vec<String> {
    let mut findings = Vec::new();
    for service in rendering.of_kind("Service") {
        for port in items(&service.spec()["ports"]) {
            let has = |(_, pod)| {
                let mut ports = containers(pod).flat_map(|container| items(&container["ports"]));
                names_of_ports(pod).any(|name| *name == port["targetPort"])
                    && ports.any(|own| {
                        [&own["name"], &own["containerPort"]].contains(&&port["targetPort"])
                            && own["containerPort"] == port["port"]
                    })
            };
            if !pods(rendering).any(has) {
                findings.push(format!("{service}: no container has a port {} {}", port["targetPort"], port["port"]));
            }
        }
    }
    for (deployment, pod) in pods(rendering) {
        for container in containers(pod) {
            let probes = ["livenessProbe", "readinessProbe", "startupProbe"].map(|probe| &container[probe]);
            let asked = probes.into_iter().flat_map(|probe| [&probe["grpc"]["port"], &probe["httpGet"]["port"]]);
            for port in asked.filter(|port| !port.is_null()) {
                if !items(&container["ports"]).any(|own| own["name"] == *port || own["containerPort"] == *port) {
                    findings.push(format!("{deployment}: {} has no port {port} to probe", container["name"]));
                }
            }
        }
    }
    findings
}

fn references_exist(rendering: &Rendering) -> Vec<String> {
    let mut references: Vec<(&Object, &str, &Value)> = Vec::new();
    for (deployment, pod) in pods(rendering) {
        references.push((deployment, "ServiceAccount", &pod["serviceAccountName"]));
        let names = items(&pod["volumes"]).map(|volume| &volume["configMap"]["name"]).filter(|name| !name.is_null());
        references.extend(names.map(|name| (deployment, "ConfigMap", name)));
    }
    for binding in rendering.of_kind("RoleBinding").chain(rendering.of_kind("ClusterRoleBinding")) {
        let named = items(&binding.0["subjects"]).filter(|subject| is_own(subject)).chain([&binding.0["roleRef"]]);
        references.extend(named.map(|named| (binding, text(&named["kind"]), &named["name"])));
    }
    for route in rendering.of_kind("HTTPRoute") {
        let backends = items(&route.spec()["rules"]).flat_map(|rule| items(&rule["backendRefs"]));
        references.extend(backends.map(|backend| (route, text(&backend["kind"]), &backend["name"])));
    }
    let hosts = rendering.of_kind("DestinationRule").map(|rule| (rule, "Service", &rule.spec()["host"]));
    references.extend(hosts);
    let missing = references.into_iter().filter(|(_, kind, name)| rendering.find(kind, text(name)).is_none());
    missing.map(|(object, kind, name)| format!("{object}: there is no {kind} {name}")).collect()
}

/// Somebody of another installation is bound by a namespace; here it stands for the one that is set later.
fn is_own(subject: &Value) -> bool {
    subject["namespace"].is_null() || subject["namespace"] == "default"
}

/// A pool names the Service of a picker, and a picker the pool.
fn pools_and_pickers_know_each_other(rendering: &Rendering) -> Vec<String> {
    let mut findings = Vec::new();
    for pool in rendering.of_kind("InferencePool") {
        let picker = &pool.spec()["endpointPickerRef"];
        let ports = rendering.find("Service", text(&picker["name"])).map(|service| &service.spec()["ports"]);
        if !ports.is_some_and(|ports| items(ports).any(|port| port["port"] == picker["port"]["number"])) {
            findings
                .push(format!("{pool}: there is no Service {} with port {}", picker["name"], picker["port"]["number"]));
        }
        if !follows_pool(rendering, pool.name()) {
            findings.push(format!("{pool}: no picker follows it"));
        }
    }
    findings
}

/// Whether a picker is told to take its endpoints from the InferencePool of that name.
pub(super) fn follows_pool(rendering: &Rendering, name: &str) -> bool {
    let mut arguments = pods(rendering).flat_map(|(_, pod)| containers(pod)).flat_map(|one| items(&one["args"]));
    arguments.any(|argument| text(argument).strip_prefix("--pool-name=") == Some(name))
}

/// Files that arguments name come from mounted ConfigMaps, and the whole directory is mounted: a file that is mounted
/// by itself (`subPath`) stays as it was when the ConfigMap changes.
fn files_are_mounted(rendering: &Rendering) -> Vec<String> {
    let mut findings = Vec::new();
    for (deployment, pod) in pods(rendering) {
        for container in containers(pod) {
            let mounts = || items(&container["volumeMounts"]);
            if mounts().any(|mount| !mount["subPath"].is_null()) {
                findings.push(format!("{deployment}: {} mounts a single file", container["name"]));
            }
            let files: Vec<String> = mounts().flat_map(|mount| mounted_files(rendering, pod, mount)).collect();
            let arguments = items(&container["args"]).map(text);
            let named = arguments.map(|argument| argument.split_once('=').map_or(argument, |(_, value)| value));
            for path in named.filter(|value| value.starts_with('/')) {
                if !files.iter().any(|file| file == path) {
                    findings.push(format!("{deployment}: {} has no file {path}", container["name"]));
                }
            }
        }
    }
    findings
}

/// The paths of what a mounted ConfigMap holds.
fn mounted_files(rendering: &Rendering, pod: &Value, mount: &Value) -> Vec<String> {
    let volume = items(&pod["volumes"]).find(|volume| volume["name"] == mount["name"]);
    let config_map = volume.and_then(|volume| rendering.find("ConfigMap", text(&volume["configMap"]["name"])));
    let keys = config_map.and_then(|config_map| config_map.0["data"].as_object()).into_iter().flatten();
    keys.map(|(key, _)| format!("{}/{key}", text(&mount["mountPath"]))).collect()
}

/// What the profile "restricted" of Kubernetes' pod security standards asks for, a root file system that nobody writes
/// to, and bounded memory.
fn pods_are_confined(rendering: &Rendering) -> Vec<String> {
    let mut findings = Vec::new();
    for (deployment, pod) in pods(rendering) {
        let mut demand = |holds: bool, what: &str| {
            if !holds {
                findings.push(format!("{deployment}: {what}"));
            }
        };
        let context = &pod["securityContext"];
        demand(context["runAsNonRoot"] == true && context["runAsUser"] == 65532, "runs as another user than 65532");
        demand(context["seccompProfile"]["type"] == "RuntimeDefault", "runs without a seccomp profile");
        for container in containers(pod) {
            let (name, context, resources) =
                (&container["name"], &container["securityContext"], &container["resources"]);
            demand(context["allowPrivilegeEscalation"] == false, &format!("{name} may gain privileges"));
            demand(context["readOnlyRootFilesystem"] == true, &format!("{name} may write to its root file system"));
            demand(context["capabilities"]["drop"][0] == "ALL", &format!("{name} keeps capabilities"));
            demand(!resources["limits"]["memory"].is_null(), &format!("{name} has no limit of memory"));
            demand(!resources["requests"]["cpu"].is_null(), &format!("{name} asks for no CPU"));
            let tag = text(&container["image"]).rsplit('/').next().and_then(|image| image.split_once(':'));
            demand(tag.is_some_and(|(_, tag)| tag != "latest"), &format!("the image of {name} has no version"));
        }
    }
    findings
}
