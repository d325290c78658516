//! Pages for whoever wants to know what the process does.

use crate::support::{Epp, arguments, directory, epp};

#[test]
fn the_configuration_in_force_is_shown_with_what_was_left_out() {
    let epp = Epp::serving(epp(&arguments(&directory("debug-config"))));
    let page = epp.configuration();
    assert_eq!(page["source"], "--config-text");
    assert_eq!(page["followed"], false);
    let config = &page["config"];
    assert_eq!(config["dataLayer"]["discovery"]["pluginRef"], "file-discovery");
    assert_eq!(config["schedulingProfiles"][0]["plugins"][0]["pluginRef"], "max-score-picker");
    assert_eq!(config["sluice"]["unknownObjective"], "default");
}
