//! Mistakes in scheduling profiles, and what is filled in.

use insta::assert_snapshot;

use crate::support::{accept, diagnose};

#[test]
fn profiles_have_unique_names() {
    assert_snapshot!(diagnose("
plugins: [{type: test-handler}]
schedulingProfiles:
  - {name: a}
  - {name: a}
  - {plugins: []}
"), @r#"
    c.yaml:2:11: plugins[0]: does not suit the scheduling profiles: 3 are too many
    c.yaml:5:12: schedulingProfiles[1].name: there is a profile "a" already
    c.yaml:6:5: schedulingProfiles[2].name: the field "name" is missing
    "#);
}

#[test]
fn a_profile_has_one_picker() {
    assert_snapshot!(diagnose("
plugins: [{type: test-picker}, {type: max-score-picker}]
schedulingProfiles:
  - name: main
    plugins: [{pluginRef: test-picker}, {pluginRef: max-score-picker}]
"), @r#"c.yaml:5:41: schedulingProfiles[0].plugins[1]: a second picker in the profile "main""#);
    // The default profile takes every declared picker.
    assert_snapshot!(diagnose("plugins: [{type: test-picker}, {type: max-score-picker}]"), @r#"c.yaml:1:32: plugins[1]: a second picker in the profile "default"; list the plugins to use under schedulingProfiles"#);
}

#[test]
fn several_profiles_need_one_handler_that_accepts_them() {
    assert_snapshot!(diagnose("schedulingProfiles: [{name: a}, {name: b}]"), @"c.yaml:1:33: schedulingProfiles[1]: there are 2 profiles and no profile handler to choose between them");
    assert_snapshot!(diagnose("
plugins: [{type: single-profile-handler}, {type: test-handler}]
schedulingProfiles: [{name: a}, {name: b}]
"), @r#"
    c.yaml:2:11: plugins[0]: does not suit the scheduling profiles: 2 are too many
    c.yaml:2:43: plugins[1]: a second profile handler, "single-profile-handler" is one already
    "#);
    assert_snapshot!(diagnose("
plugins: [{type: test-handler}]
schedulingProfiles: [{name: a}, {name: b}, {name: c}]
"), @"c.yaml:2:11: plugins[0]: does not suit the scheduling profiles: 3 are too many");
    assert_snapshot!(diagnose("plugins: [{type: test-handler}]\nschedulingProfiles: [{name: a}, {name: b}]"), @"ok");
    // The handler may be the plugin that is not there yet.
    assert_snapshot!(diagnose("
plugins: [{type: disagg-profile-handler}]
schedulingProfiles: [{name: a}, {name: b}]
"), @r#"c.yaml:2:18: plugins[0].type: the plugin type "disagg-profile-handler" is known but not available in this version"#);
}

#[test]
fn weights_are_finite_and_only_for_scorers() {
    assert_snapshot!(diagnose("
plugins: [{type: test-scorer}, {type: test-filter}]
schedulingProfiles:
  - name: main
    plugins:
      - {pluginRef: test-scorer, weight: .nan}
      - {pluginRef: test-scorer, weight: -.inf}
      - {pluginRef: test-scorer, weight: 1e300}
      - {pluginRef: test-scorer, weight: heavy}
      - {pluginRef: test-filter, weight: 2}
"), @r#"
    c.yaml:6:42: schedulingProfiles[0].plugins[0].weight: a weight must be a finite number
    c.yaml:7:9: warning: schedulingProfiles[0].plugins[1]: the scorer "test-scorer" counts twice, its weights add up
    c.yaml:7:42: schedulingProfiles[0].plugins[1].weight: a weight must be a finite number
    c.yaml:8:9: warning: schedulingProfiles[0].plugins[2]: the scorer "test-scorer" counts twice, its weights add up
    c.yaml:8:42: schedulingProfiles[0].plugins[2].weight: a weight must be a finite number
    c.yaml:9:9: warning: schedulingProfiles[0].plugins[3]: the scorer "test-scorer" counts twice, its weights add up
    c.yaml:9:42: schedulingProfiles[0].plugins[3].weight: expected a number, found the string "heavy"
    c.yaml:10:42: warning: schedulingProfiles[0].plugins[4].weight: has no effect: only a scorer has a weight
    "#);
}

#[test]
fn entries_without_effect_are_warnings() {
    assert_snapshot!(diagnose("
plugins: [{type: test-scorer}, {type: test-handler}]
schedulingProfiles:
  - name: main
    plugins:
      - pluginRef: test-handler
      - {pluginRef: test-scorer, weight: 2}
      - {pluginRef: test-scorer, weight: 3}
"), @r#"
    c.yaml:6:9: warning: schedulingProfiles[0].plugins[0]: has no effect: "test-handler" is neither filter, scorer nor picker
    c.yaml:8:9: warning: schedulingProfiles[0].plugins[2]: the scorer "test-scorer" counts twice, its weights add up
    ok
    "#);
}

#[test]
fn a_profile_without_picker_takes_the_first_declared() {
    assert_snapshot!(diagnose("
plugins: [{name: first, type: test-picker}, {name: second, type: max-score-picker}, {type: test-handler}]
schedulingProfiles:
  - {name: a}
  - {name: b, plugins: [{pluginRef: second}]}
"), @r#"
    c.yaml:4:5: warning: schedulingProfiles[0]: names no picker, so it takes "first", the first one declared; name the picker
    ok
    "#);
    let profiles = "
plugins: [{name: first, type: test-picker}, {name: second, type: max-score-picker}, {type: test-handler}]
schedulingProfiles:
  - {name: a}
  - {name: b, plugins: [{pluginRef: second}]}
";
    assert!(format!("{:?}", accept(profiles).scheduler).contains("picker: TestPicker"));
}

#[test]
fn without_profiles_the_default_one_has_every_plugin_in_the_order_of_declaration() {
    let assembled = accept(
        "
plugins:
  - {name: c, type: test-filter}
  - {name: b, type: test-scorer}
  - {name: a, type: test-scorer}
  - {type: test-handler}
",
    );
    assert_snapshot!(format!("{:#?}", assembled.scheduler), @r#"
    Scheduler {
        handler: TestHandler,
        profiles: [
            Profile {
                name: "default",
                filters: [
                    TestFilter,
                ],
                scorers: [
                    WeightedScorer {
                        scorer: TestScorer,
                        weight: 1.0,
                    },
                    WeightedScorer {
                        scorer: TestScorer,
                        weight: 1.0,
                    },
                ],
                picker: MaxScorePicker,
            },
        ],
    }
    "#);
}

#[test]
fn what_is_left_out_is_filled_in() {
    assert_snapshot!(format!("{:#?}", accept("{}").scheduler), @r#"
    Scheduler {
        handler: SingleProfileHandler,
        profiles: [
            Profile {
                name: "default",
                filters: [],
                scorers: [],
                picker: MaxScorePicker,
            },
        ],
    }
    "#);
}

#[test]
fn weights_reach_the_scheduler() {
    let assembled = accept(
        "
plugins: [{type: test-scorer}, {name: other, type: test-scorer}]
schedulingProfiles:
  - name: main
    plugins: [{pluginRef: other, weight: -1.5}, {pluginRef: test-scorer}]
",
    );
    let scheduler = format!("{:?}", assembled.scheduler);
    assert!(scheduler.contains("weight: -1.5") && scheduler.contains("weight: 1.0"), "{scheduler}");
}
