//! The eviction policies of llm-d-router's EPP, which there, too, change nothing: who is evicted is not up to plugins.

use sluice_config::{BuildContext, BuildError, Plugin, Roles, Stability};

use crate::ignored_params::IgnoredParams;

macro_rules! without_effect {
    ($(#[$doc:meta])* $name:ident, $plugin_type:literal, $instead:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name;

        impl Plugin for $name {
            const TYPE: &'static str = $plugin_type;
            const STABILITY: Stability = Stability::Stable;
            type Params = IgnoredParams;

            fn build(_params: Self::Params, cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
                Ok(nothing(cx, $instead))
            }
        }
    };
}

/// `instead` says why there is nothing.
fn nothing(cx: &mut BuildContext<'_>, instead: &str) -> Roles {
    cx.warn_of_plugin(instead);
    Roles::default()
}

without_effect!(
    /// What may be evicted.
    SheddableEvictionFilter,
    "sheddable-eviction-filter",
    "has no effect: requests of negative priority may be evicted, and no others"
);
without_effect!(
    /// In which order.
    PriorityThenTime,
    "priority-then-time-eviction-order-policy",
    "has no effect: the lowest priority is evicted first, and among equals who sluice.eviction.victimOrder says"
);
