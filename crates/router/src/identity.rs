//! Who a request is from and how urgent it is: from headers, or from what the proxy vouches for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use sluice_core::{Headers, Priority, nearest};

use crate::Rejection;
use crate::rejection::excerpt;

/// The tenant of requests that name none.
pub const DEFAULT_TENANT: &str = "default-flow";

// Each pair: the present name, which counts wherever it is present, and the older one.
const OBJECTIVE: [&str; 2] = ["x-llm-d-inference-objective", "x-gateway-inference-objective"];
const FAIRNESS_ID: [&str; 2] = ["x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"];

/// The priority band and the tenant's queue that a request belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub priority: Priority,
    pub tenant: Arc<str>,
}

/// What the proxy's metadata says of a request; an absent field is as good as an empty one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Vouched {
    pub objective: Option<String>,
    pub fairness_id: Option<String>,
    /// The model to ask the model server for.
    pub model_name_rewrite: Option<String>,
}

/// The priorities of all objectives, by name.
pub type Objectives = BTreeMap<String, Priority>;

/// How identities are resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdentityRules {
    /// Clients are not asked: only [`Vouched`] counts.
    pub only_vouched: bool,
    /// The objective of a request that names none.
    pub default_objective: Option<String>,
    /// A request with an objective nobody has defined is refused; otherwise it runs as if it had named none.
    pub refuse_unknown: bool,
    /// Headers that name the tenant where no fairness id is given, the first non-empty one counting; in lower case.
    pub tenant_headers: Vec<String>,
}

/// Objectives that may change at any time; a request sees one state of them. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct SharedObjectives(Arc<ArcSwap<Objectives>>);

impl From<Objectives> for SharedObjectives {
    fn from(objectives: Objectives) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(objectives)))
    }
}

impl SharedObjectives {
    /// Puts other objectives in force, for requests that come from now on.
    pub fn replace(&self, objectives: Objectives) {
        self.0.store(Arc::new(objectives));
    }
}

/// Resolves identities.
#[derive(Debug, Default)]
pub struct Identities {
    rules: IdentityRules,
    objectives: SharedObjectives,
    unknown: UnknownNames,
}

/// An identity, and whether its objective was one that nobody has defined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    pub identity: Identity,
    pub unknown_objective: bool,
}

impl Identities {
    pub fn new(rules: IdentityRules, objectives: Objectives) -> Self {
        Self::sharing(rules, objectives.into())
    }

    /// By objectives that others may replace.
    pub fn sharing(rules: IdentityRules, objectives: SharedObjectives) -> Self {
        Self { rules, objectives, unknown: UnknownNames::default() }
    }

    /// Clients are not asked: only [`Vouched`] counts.
    pub(crate) const fn heeds_only_vouched(&self) -> bool {
        self.rules.only_vouched
    }

    pub(crate) fn resolve(&self, headers: &Headers, vouched: Option<&Vouched>) -> Result<Resolved, Rejection> {
        let (objective, fairness_id) = if self.rules.only_vouched {
            let text = |field: fn(&Vouched) -> Option<&String>| vouched.and_then(field).map(String::as_bytes);
            (text(|vouched| vouched.objective.as_ref()), text(|vouched| vouched.fairness_id.as_ref()))
        } else {
            (either(headers, OBJECTIVE), either(headers, FAIRNESS_ID))
        };
        let (priority, unknown_objective) = self.priority(objective.filter(|name| !name.is_empty()))?;
        // What is not text names no tenant.
        let fairness_id = fairness_id.and_then(|id| std::str::from_utf8(id).ok());
        let tenant = fairness_id.filter(|id| !id.is_empty()).or_else(|| self.tenant_from_headers(headers));
        let identity = Identity { priority, tenant: tenant.unwrap_or(DEFAULT_TENANT).into() };
        Ok(Resolved { identity, unknown_objective })
    }

    /// A `name` that is not text is one that nobody has defined.
    fn priority(&self, name: Option<&[u8]>) -> Result<(Priority, bool), Rejection> {
        let objectives = self.objectives.0.load();
        let defined = |name| objectives.get(std::str::from_utf8(name).ok()?).copied();
        if let Some(priority) = name.and_then(defined) {
            return Ok((priority, false));
        }
        if let Some(name) = name {
            self.unknown.tell(name, &objectives);
            if self.rules.refuse_unknown {
                return Err(Rejection::unknown_objective(name));
            }
        }
        let default = self.rules.default_objective.as_ref().and_then(|name| objectives.get(name));
        Ok((default.copied().unwrap_or_default(), name.is_some()))
    }

    fn tenant_from_headers<'a>(&self, headers: &'a Headers) -> Option<&'a str> {
        if self.rules.only_vouched {
            return None;
        }
        self.rules.tenant_headers.iter().filter_map(|name| headers.last_str(name)).find(|value| !value.is_empty())
    }
}

/// The names of objectives that nobody has defined and that the log has told of: each is worth one line.
#[derive(Debug, Default)]
struct UnknownNames(Mutex<BTreeSet<String>>);

impl UnknownNames {
    /// Clients choose the names: so many are told, and no more.
    const MOST: usize = 100;

    fn tell(&self, name: &[u8], objectives: &Objectives) {
        if let Some(name) = self.news(name) {
            let did_you_mean = nearest(&name, objectives.keys().map(String::as_str));
            tracing::warn!(objective = name, did_you_mean, "requests name an objective that nobody has defined");
        }
    }

    /// The name as the log shows it, the first time.
    fn news(&self, name: &[u8]) -> Option<String> {
        let name = excerpt(name);
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (told.len() < Self::MOST && told.insert(name.clone())).then_some(name)
    }
}

/// The value under the present name if that is there at all, else under the older one.
fn either<'a>(headers: &'a Headers, [present, older]: [&str; 2]) -> Option<&'a [u8]> {
    headers.last(present).or_else(|| headers.last(older)).map(|value| &value[..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identities(rules: IdentityRules) -> Identities {
        let objectives = [("premium", 100), ("batch", -10), ("max", i32::MAX), ("min", i32::MIN)];
        Identities::new(rules, objectives.map(|(name, priority)| (name.to_owned(), Priority(priority))).into())
    }

    fn headers(lines: &[(&str, &[u8])]) -> Headers {
        let mut headers = Headers::new();
        for &(name, value) in lines {
            headers.push(name, value.to_vec());
        }
        headers
    }

    fn resolve(rules: IdentityRules, lines: &[(&str, &[u8])]) -> (i32, String) {
        let resolved = identities(rules).resolve(&headers(lines), None).unwrap();
        (resolved.identity.priority.0, resolved.identity.tenant.to_string())
    }

    #[test]
    fn an_objective_gives_its_priority_over_the_whole_range() {
        for (name, priority) in [("premium", 100), ("batch", -10), ("max", i32::MAX), ("min", i32::MIN)] {
            let lines = [("x-llm-d-inference-objective", name.as_bytes())];
            assert_eq!(resolve(IdentityRules::default(), &lines), (priority, "default-flow".into()));
        }
    }

    #[test]
    fn the_present_name_wins_by_being_there() {
        let rules = IdentityRules::default;
        let older: (&str, &[u8]) = ("X-Gateway-Inference-Objective", b"premium");
        assert_eq!(resolve(rules(), &[older]).0, 100);
        assert_eq!(resolve(rules(), &[older, ("X-Llm-D-Inference-Objective", b"batch")]).0, -10);
        assert_eq!(resolve(rules(), &[("x-llm-d-inference-objective", b""), older]).0, 0);

        let older: (&str, &[u8]) = ("x-gateway-inference-fairness-id", b"old");
        assert_eq!(resolve(rules(), &[older]).1, "old");
        assert_eq!(resolve(rules(), &[("x-llm-d-inference-fairness-id", b"new"), older]).1, "new");
        assert_eq!(resolve(rules(), &[("x-llm-d-inference-fairness-id", b""), older]).1, "default-flow");
    }

    #[test]
    fn hostile_values_name_nothing() {
        for value in [&b"\xff\xfe"[..], b" premium", b"PREMIUM", b"premium\0", &[b'x'; 10_000]] {
            let lines = [("x-llm-d-inference-objective", value)];
            assert_eq!(resolve(IdentityRules::default(), &lines).0, 0);
            let resolved = identities(IdentityRules::default()).resolve(&headers(&lines), None).unwrap();
            assert!(resolved.unknown_objective, "{value:?} is counted");
            let strict = IdentityRules { refuse_unknown: true, ..IdentityRules::default() };
            let rejection = identities(strict).resolve(&headers(&lines), None).unwrap_err();
            assert_eq!(rejection, Rejection::unknown_objective(value));
            assert!(rejection.to_string().len() < 500, "{rejection}");
        }
        assert_eq!(resolve(IdentityRules::default(), &[("x-llm-d-inference-fairness-id", b"\xff")]).1, "default-flow");
    }

    #[test]
    fn a_default_objective_stands_in_for_none_and_for_unknown_ones() {
        let rules = IdentityRules { default_objective: Some("batch".into()), ..IdentityRules::default() };
        assert_eq!(resolve(rules.clone(), &[]).0, -10);
        let unknown = headers(&[("x-llm-d-inference-objective", b"nobody")]);
        let resolved = identities(rules).resolve(&unknown, None).unwrap();
        assert_eq!((resolved.identity.priority.0, resolved.unknown_objective), (-10, true));
    }

    #[test]
    fn an_unknown_objective_can_be_refused() {
        let rules = IdentityRules { refuse_unknown: true, ..IdentityRules::default() };
        let unknown = headers(&[("x-llm-d-inference-objective", b"nobody")]);
        let rejection = identities(rules.clone()).resolve(&unknown, None).unwrap_err();
        assert_eq!(rejection, Rejection::unknown_objective(b"nobody"));
        assert_eq!(resolve(rules, &[]).0, 0, "naming none is not naming an unknown one");
    }

    #[test]
    fn only_what_the_proxy_vouches_for_counts_if_so_ruled() {
        let rules =
            IdentityRules { only_vouched: true, tenant_headers: vec!["session-id".into()], ..IdentityRules::default() };
        let lines = headers(&[
            ("x-llm-d-inference-objective", b"premium"),
            ("x-llm-d-inference-fairness-id", b"mallory"),
            ("session-id", b"mallory"),
        ]);
        let identities = identities(rules);
        let identity = identities.resolve(&lines, None).unwrap().identity;
        assert_eq!(identity, Identity { priority: Priority(0), tenant: DEFAULT_TENANT.into() });
        let vouched =
            Vouched { objective: Some("batch".into()), fairness_id: Some("alice".into()), ..Vouched::default() };
        let identity = identities.resolve(&lines, Some(&vouched)).unwrap().identity;
        assert_eq!(identity, Identity { priority: Priority(-10), tenant: "alice".into() });
    }

    #[test]
    fn other_headers_may_name_the_tenant() {
        let rules = IdentityRules { tenant_headers: vec!["a".into(), "session-id".into()], ..IdentityRules::default() };
        assert_eq!(resolve(rules.clone(), &[("session-id", b"s1"), ("a", b"")]).1, "s1");
        let both: [(&str, &[u8]); 2] = [("session-id", b"s1"), ("x-llm-d-inference-fairness-id", b"f")];
        assert_eq!(resolve(rules, &both).1, "f");
    }

    #[test]
    fn each_unknown_name_is_told_once_and_not_too_many() {
        let unknown = UnknownNames::default();
        assert_eq!(unknown.news(b"premum").as_deref(), Some("premum"));
        assert_eq!(unknown.news(b"premum"), None);
        assert_eq!(unknown.news(&[b'x'; 10_000]).map(|name| name.len()), Some(100));
        let told = (0..1_000).filter(|number| unknown.news(number.to_string().as_bytes()).is_some()).count();
        assert_eq!(told, UnknownNames::MOST - 2);
    }

    #[test]
    fn new_objectives_count_at_once() {
        let objectives = SharedObjectives::default();
        let identities = Identities::sharing(IdentityRules::default(), objectives.clone());
        objectives.replace([("premium".to_owned(), Priority(7))].into());
        let lines = headers(&[("x-llm-d-inference-objective", b"premium")]);
        assert_eq!(identities.resolve(&lines, None).unwrap().identity.priority, Priority(7));
    }
}
