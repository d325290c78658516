//! The pool, its pods and its objectives, as a Kubernetes API server tells of them.
//!
//! ```text
//! watch of the pool ─────────┐
//! watch of its pods ─────────┤            ┌─> EndpointTable
//! watches of objectives ─────┼──> Index ──┼─> priorities of objectives
//! watches of rewrites ───────┘   (pure)   ├─> rules of rewrites
//!                                         ├─> verdicts for their status ──> Reporter
//!                                         └─> whether all of it has been listed
//! ```
//!
//! The [`Index`] holds what was last said and knows no clock, no task and no network; [`Kubernetes::follow`] feeds it.
//!
//! Apart from that a [`Candidate`] takes part in the [election](Timings) of a leader, by a Lease, and a
//! [`Reviewer`] asks who a bearer token is of.

mod causes;
mod collection;
mod crd;
mod election;
mod index;
mod names;
mod objective;
mod pace;
mod pod;
mod pool;
mod received;
mod review;
mod rewrite;
mod source;
mod status;
mod token;
mod watch;

pub use collection::{Event, Key};
pub use crd::{
    Condition, InferenceModelRewrite, InferenceModelRewriteSpec, InferenceObjective, InferenceObjectiveSpec, MatchType,
    ModelMatch, ObjectiveStatus, PoolRef, RewriteMatch, RewriteRule, RewriteStatus, RewriteTarget, crds,
};
pub use election::{Candidate, Timings};
pub use index::{Change, Index, Objectives, PoolId, Rewrites, Topic};
pub use kube::Config;
pub use names::{check_name, check_namespace, check_selector};
pub use objective::Objective;
pub use pod::Pod;
pub use pool::{Pool, TargetPorts};
pub use review::{Access, ReviewError, Reviewer};
pub use rewrite::Rewrite;
pub use source::{AccessError, Kubernetes, Membership};
pub use status::{Bands, Conditions, Observed, Reporter, Stand, Subject, SubjectKind, Verdict};
pub use token::TokenError;
