use sluice_payload::Parsers;

use super::Assembler;
use crate::diagnostics::Remark;
use crate::document::Located;
use crate::resolve::Choice;

/// The parsers that are asked, and the names of their plugins.
#[derive(Debug)]
pub(super) struct ChosenParsers {
    pub(super) parsers: Parsers,
    pub(super) names: Vec<String>,
}

impl Assembler<'_, '_> {
    /// The parsers of `chosen` in that order, without those that would never be asked, which are warned of.
    pub(super) fn parsers(&mut self, chosen: &[Located<Choice>]) -> ChosenParsers {
        let mut parsers = Parsers::NONE;
        let mut names: Vec<String> = Vec::new();
        for Located { value: choice, node } in chosen {
            let (name, parser) = match *choice {
                Choice::Declared(reference) => {
                    let name = self.instances[reference.value].name.clone();
                    (name, self.role(reference, "a parser", |roles| roles.parser))
                }
                Choice::Default(plugin_type) => {
                    let Some(roles) = self.inject(plugin_type) else { continue };
                    if roles.parser.is_none() {
                        self.error(*node, Remark::new(format!("the plugin type {plugin_type:?} is not a parser")));
                    }
                    (self.name_of_injected(plugin_type), roles.parser)
                }
            };
            let Some(parser) = parser else { continue };
            if parsers.add(parser) {
                names.push(name);
                continue;
            }
            let before = names.last().map(String::as_str).unwrap_or_default();
            let is_same = parsers.iter().any(|earlier| earlier == parser);
            let why = if is_same {
                "there is a parser of this type before".to_owned()
            } else {
                format!("{before:?} takes every request that comes to it")
            };
            self.warn(*node, Remark::new(format!("has no effect: {why}")));
        }
        ChosenParsers { parsers, names }
    }
}
