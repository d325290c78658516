/// What the environment says, read once. An empty value counts as not there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Environment {
    /// `NAMESPACE`: the namespace of the pool where `--pool-namespace` names none.
    pub(crate) namespace: Option<String>,
    /// `POD_NAME`: the pod that the process runs in.
    pub(crate) pod_name: Option<String>,
}

/// The letters and digits of which Kubernetes makes the ends of names.
const RANDOM_LETTERS: &str = "bcdfghjklmnpqrstvwxz2456789";

impl Environment {
    pub(crate) fn read() -> Self {
        let value = |name: &str| std::env::var_os(name)?.into_string().ok().filter(|value| !value.is_empty());
        Self { namespace: value("NAMESPACE"), pod_name: value("POD_NAME") }
    }

    /// What the process runs on: its pod, or else the machine.
    pub(crate) fn host(&self) -> String {
        let machine = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
        let host = self.pod_name.clone().or_else(machine).unwrap_or_default();
        host.trim().to_owned()
    }

    /// The name of what the process belongs to: a Deployment, a StatefulSet, or else its pod.
    pub(crate) fn workload(&self) -> Option<&str> {
        self.pod_name.as_deref().map(workload)
    }
}

fn workload(pod: &str) -> &str {
    let is_random = |part: &str| part.chars().all(|letter| RANDOM_LETTERS.contains(letter));
    let Some((owner, end)) = pod.rsplit_once('-') else { return pod };
    if !end.is_empty() && end.bytes().all(|digit| digit.is_ascii_digit()) {
        // A replica of a StatefulSet has a number.
        return owner;
    }
    match owner.rsplit_once('-') {
        Some((deployment, replica_set)) if end.len() == 5 && is_random(end) && is_random(replica_set) => deployment,
        _ => pod,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_called_by_what_it_belongs_to() {
        for (pod, expected) in [
            ("picker-7d4b9c6f5-x2k8z", "picker"),
            ("chat-picker-7d4b9c6f5-x2k8z", "chat-picker"),
            ("picker-0", "picker"),
            ("chat-picker-12", "chat-picker"),
            ("picker", "picker"),
            ("chat-picker", "chat-picker"),
            ("my-own-pod", "my-own-pod"),
            ("picker-", "picker-"),
            ("", ""),
        ] {
            let environment = Environment { pod_name: Some(pod.to_owned()), ..Environment::default() };
            assert_eq!(environment.workload(), Some(expected), "{pod}");
        }
        assert_eq!(Environment::default().workload(), None);
    }
}
