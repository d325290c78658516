//! `docs/flags.md` is what the command line takes.

use clap::{Arg, ArgAction, Command, CommandFactory as _};

use crate::flags::{Flags, WithoutEffect};

const PAGE: &str = include_str!("../docs/flags.md");
const WIDTH: usize = 120;

/// An item of a list, broken into lines.
fn item(text: &str) -> String {
    let mut lines = vec!["*".to_owned()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WIDTH => *line += &format!(" {word}"),
            _ => lines.push(format!("  {word}")),
        }
    }
    lines.join("\n") + "\n"
}

fn spelling(flag: &Arg) -> String {
    let short = flag.get_short().map(|short| format!("-{short}"));
    let long = flag.get_long().filter(|long| long.len() > 1).map(|long| format!("--{long}"));
    let spelled = short.into_iter().chain(long).collect::<Vec<_>>().join(", ");
    let value = flag.get_value_names().and_then(|names| names.first());
    // Where no name was given for the value, it is that of the flag: the default then shows what it is.
    let is_own = |name: &&clap::builder::Str| !name.eq_ignore_ascii_case(flag.get_id().as_str());
    match value.filter(is_own).filter(|_| !flag.is_require_equals_set()) {
        Some(value) => format!("`{spelled} {value}`"),
        None => format!("`{spelled}`"),
    }
}

/// What is documented of the flags that do something.
fn flags() -> String {
    let without_effect = WithoutEffect::command();
    let is_effective = |flag: &&Arg| without_effect.get_arguments().all(|other| other.get_id() != flag.get_id());
    let is_own = |flag: &&Arg| !matches!(flag.get_action(), ArgAction::Help | ArgAction::Version);
    let command: Command = Flags::command();
    let flags = command.get_arguments().filter(is_own).filter(is_effective);
    flags
        .map(|flag| {
            let default = flag.get_default_values().first().map(|value| value.to_string_lossy());
            let default = default.map(|value| format!(" (`{value}`)")).unwrap_or_default();
            let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
            item(&format!("{}{default}: {}.", spelling(flag), help.trim_end_matches('.')))
        })
        .collect()
}

/// The names of those that do nothing.
fn without_effect() -> String {
    let command = WithoutEffect::command();
    let names = command.get_arguments().filter_map(|flag| Some(format!("`--{}`", flag.get_long()?)));
    let mut names: Vec<String> = names.filter(|name| !["`--help`", "`--version`"].contains(&name.as_str())).collect();
    names.sort_unstable();
    item(&names.join(", "))
}

fn section(heading: &str) -> &'static str {
    let rest = PAGE.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("no section {heading}")).1;
    rest.split("\n## ").next().unwrap()
}

/// The list at the end of a section.
fn list(heading: &str) -> String {
    let lines = section(heading).trim().lines().skip_while(|line| !line.starts_with("* "));
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn every_flag_is_documented_and_no_other() {
    for (heading, expected) in [("Flags", flags()), ("Without effect", without_effect())] {
        assert!(list(heading) == expected, "under {heading} should stand\n\n{expected}");
    }
}

#[test]
fn no_line_is_wider_than_the_page() {
    for line in PAGE.lines() {
        assert!(line.chars().count() <= WIDTH, "{line}");
    }
}
