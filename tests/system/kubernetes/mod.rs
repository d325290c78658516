//! The pool, its pods and its objectives in Kubernetes: an API server that is made for the test, real Envoy, and model
//! servers at addresses of their own as pods.

mod access;
mod churn;
mod cluster;
mod fleet;
mod in_pod;
mod inheritance;
mod leading;
mod objectives;
mod odd;
mod pool;
mod rewrites;
mod rights;
mod rolling;
