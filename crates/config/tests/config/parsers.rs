//! Which parsers there are, and in which order they are asked.

use insta::assert_snapshot;
use sluice_payload::Parser;

use crate::support::{accept, diagnose};

fn parsers(text: &str) -> Vec<Parser> {
    accept(text).parsers.iter().collect()
}

#[test]
fn without_a_word_the_default_ones_are_asked_as_far_as_there_are_such_types() {
    let default = [Parser::OpenAi, Parser::Anthropic, Parser::Passthrough];
    assert_eq!(parsers("{}"), default);
    assert_eq!(parsers("requestHandler: {parsers: []}"), default);
    assert_eq!(accept("{}").effective["requestHandler"]["parsers"][2]["pluginRef"], "passthrough-parser");
}

#[test]
fn the_order_of_the_list_counts_and_a_type_need_not_be_declared() {
    let text = "
plugins: [{name: mine, type: openai-parser}]
requestHandler: {parsers: [{pluginRef: anthropic-parser}, {pluginRef: mine}]}
";
    assert_eq!(parsers(text), [Parser::Anthropic, Parser::OpenAi]);
    assert_snapshot!(diagnose(text), @"ok");
    assert_eq!(parsers("parser: {pluginRef: passthrough-parser}"), [Parser::Passthrough]);
}

#[test]
fn one_that_would_never_be_asked_is_a_warning() {
    assert_snapshot!(diagnose("
plugins: [{name: one, type: openai-parser}, {name: two, type: openai-parser}, {name: rest, type: passthrough-parser}, {type: anthropic-parser}]
requestHandler: {parsers: [{pluginRef: one}, {pluginRef: two}, {pluginRef: rest}, {pluginRef: anthropic-parser}]}
"), @r#"
    c.yaml:3:58: warning: requestHandler.parsers[1].pluginRef: has no effect: there is a parser of this type before
    c.yaml:3:95: warning: requestHandler.parsers[3].pluginRef: has no effect: "rest" takes every request that comes to it
    ok
    "#);
    assert_snapshot!(diagnose("
plugins: [{name: one, type: openai-parser}]
"), @r#"
    c.yaml:2:11: warning: plugins[0]: has no effect: nothing refers to the plugin "one"
    ok
    "#);
}

#[test]
fn what_is_no_parser_is_refused() {
    assert_snapshot!(diagnose("
plugins: [{type: test-scorer}]
requestHandler:
  parsers: [{pluginRef: test-scorer}, {pluginRef: test-picker}, {pluginRef: vllmgrpc-parser}, {pluginRef: opnai-parser}, {}]
"), @r#"
    c.yaml:4:25: requestHandler.parsers[0].pluginRef: the plugin "test-scorer" of type "test-scorer" is not a parser
    c.yaml:4:51: requestHandler.parsers[1].pluginRef: the plugin type "test-picker" is not a parser
    c.yaml:4:77: requestHandler.parsers[2].pluginRef: the plugin type "vllmgrpc-parser" is known but not available in this version; the passthrough-parser passes such requests on without reading them
    c.yaml:4:107: requestHandler.parsers[3].pluginRef: there is no plugin "opnai-parser", did you mean "openai-parser"?
    c.yaml:4:122: requestHandler.parsers[4].pluginRef: the field "pluginRef" is missing
    "#);
}
