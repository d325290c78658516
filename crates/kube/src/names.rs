//! What an API server takes for a name, a group or a label selector, so that a mistake is told before it is asked.

use std::iter::Peekable;

const LONGEST_SUBDOMAIN: usize = 253;
const LONGEST_LABEL: usize = 63;

/// As of an object: parts of small letters, digits and hyphens, with dots between them.
pub fn check_name(name: &str) -> Result<(), String> {
    if name.len() <= LONGEST_SUBDOMAIN && name.split('.').all(is_dns_part) {
        return Ok(());
    }
    Err(format!("{name:?} is no name: small letters, digits, hyphens and dots, up to {LONGEST_SUBDOMAIN}"))
}

/// As of a namespace: small letters, digits and hyphens.
pub fn check_namespace(name: &str) -> Result<(), String> {
    if name.len() <= LONGEST_LABEL && is_dns_part(name) {
        return Ok(());
    }
    Err(format!("{name:?} is no namespace: small letters, digits and hyphens, up to {LONGEST_LABEL}"))
}

/// `app=vllm, tier in (a,b), !draining`. One without a requirement chooses everything.
pub fn check_selector(selector: &str) -> Result<(), String> {
    let mut tokens = Tokens(selector).peekable();
    if tokens.peek().is_none() {
        return Ok(());
    }
    loop {
        requirement(&mut tokens)?;
        match tokens.next() {
            None => return Ok(()),
            Some(",") => {}
            Some(other) => return Err(format!("{other:?} stands where a comma or the end is expected")),
        }
    }
}

/// Words and symbols, without the space between them.
struct Tokens<'a>(&'a str);

const fn is_symbol(letter: char) -> bool {
    matches!(letter, '=' | '!' | '(' | ')' | ',' | '<' | '>')
}

impl<'a> Iterator for Tokens<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let rest = self.0.trim_start();
        let length = if rest.starts_with("==") || rest.starts_with("!=") {
            2
        } else if rest.starts_with(is_symbol) {
            1
        } else {
            rest.find(|letter: char| is_symbol(letter) || letter.is_whitespace()).unwrap_or(rest.len())
        };
        let (token, rest) = rest.split_at(length);
        self.0 = rest;
        (!token.is_empty()).then_some(token)
    }
}

fn requirement(tokens: &mut Peekable<Tokens<'_>>) -> Result<(), String> {
    if tokens.next_if_eq(&"!").is_some() {
        return key(tokens);
    }
    key(tokens)?;
    let Some(operator) = tokens.next_if(|token| *token != ",") else { return Ok(()) };
    match operator {
        "=" | "==" | "!=" => value(tokens).map(drop),
        "<" | ">" => number(tokens),
        "in" | "notin" => values(tokens),
        other => Err(format!("{other:?} is no operator: there are =, ==, !=, in, notin, < and >")),
    }
}

fn key(tokens: &mut Peekable<Tokens<'_>>) -> Result<(), String> {
    let Some(key) = word(tokens) else {
        let found = tokens.peek().map_or_else(|| "the end".to_owned(), |token| format!("{token:?}"));
        return Err(format!("{found} stands where the key of a label is expected"));
    };
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    if prefix.is_none_or(|prefix| check_name(prefix).is_ok()) && is_label(name) {
        return Ok(());
    }
    Err(format!("{key:?} is no key of a label"))
}

/// May be empty.
fn value<'a>(tokens: &mut Peekable<Tokens<'a>>) -> Result<&'a str, String> {
    let value = word(tokens).unwrap_or_default();
    if value.is_empty() || is_label(value) { Ok(value) } else { Err(format!("{value:?} is no value of a label")) }
}

fn number(tokens: &mut Peekable<Tokens<'_>>) -> Result<(), String> {
    let value = value(tokens)?;
    value.parse::<i64>().map(drop).map_err(|_| format!("{value:?} is no whole number"))
}

fn values(tokens: &mut Peekable<Tokens<'_>>) -> Result<(), String> {
    if tokens.next_if_eq(&"(").is_none() {
        return Err("the values of in and notin stand in parentheses".to_owned());
    }
    loop {
        value(tokens)?;
        match tokens.next() {
            Some(",") => {}
            Some(")") => return Ok(()),
            Some(other) => return Err(format!("{other:?} stands among the values of in or notin")),
            None => return Err("the values of in or notin have no end".to_owned()),
        }
    }
}

fn word<'a>(tokens: &mut Peekable<Tokens<'a>>) -> Option<&'a str> {
    tokens.next_if(|token| !token.starts_with(is_symbol))
}

/// The name in a label's key, or its value.
fn is_label(text: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    text.len() <= LONGEST_LABEL && text.bytes().all(inside) && ends_with(text, |byte| byte.is_ascii_alphanumeric())
}

fn is_dns_part(text: &str) -> bool {
    let at_the_ends = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.bytes().all(|byte| at_the_ends(byte) || byte == b'-') && ends_with(text, at_the_ends)
}

/// It has a first and a last byte of a kind.
fn ends_with(text: &str, is_of_kind: impl Fn(u8) -> bool) -> bool {
    [text.bytes().next(), text.bytes().next_back()].into_iter().all(|end| end.is_some_and(&is_of_kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_taken_in_every_form_that_an_api_server_takes() {
        for selector in [
            "",
            "  ",
            "app",
            "!app",
            "! app",
            "app=vllm",
            "app==vllm",
            "app = vllm , tier != batch",
            "app=",
            "app=,tier",
            "in in (in, notin)",
            "app in (a,b),tier notin (c)",
            "app in (a,)",
            "app in ()",
            "app in(a)",
            "llm-d.ai/model-name=Qwen_3.5",
            "a.b-c.d/App_1=1",
            "gpus>4,gpus < 9",
            "x=in",
        ] {
            assert_eq!(check_selector(selector), Ok(()), "{selector}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_selector_is_told() {
        for (selector, expected) in [
            ("!!", "\"!\" stands where the key of a label"),
            (",app", "\",\" stands where the key"),
            ("app,", "the end stands where the key"),
            ("=a", "\"=\" stands where the key"),
            ("a b", "\"b\" is no operator"),
            ("a=b c", "\"c\" stands where a comma or the end"),
            ("a=!b", "\"!\" stands where a comma or the end"),
            ("a in b", "in parentheses"),
            ("a in (b", "have no end"),
            ("a in (b c)", "\"c\" stands among the values"),
            ("a>b", "\"b\" is no whole number"),
            ("a>", "\"\" is no whole number"),
            ("-a=b", "\"-a\" is no key"),
            ("a/b/c=d", "\"a/b/c\" is no key"),
            ("A.b/c", "\"A.b/c\" is no key"),
            ("/c", "\"/c\" is no key"),
            ("a=b-", "\"b-\" is no value"),
            ("a=\"b\"", "is no value"),
            ("ä=b", "\"ä\" is no key"),
            ("!a=b", "\"=\" stands where a comma or the end"),
        ] {
            let error = check_selector(selector).unwrap_err();
            assert!(error.contains(expected), "{selector}: {error}");
        }
        assert!(check_selector(&format!("a={}", "b".repeat(63))).is_ok());
        assert!(check_selector(&format!("a={}", "b".repeat(64))).is_err());
    }

    #[test]
    fn names_are_those_of_objects_and_namespaces_have_no_dots() {
        for name in ["a", "0", "chat-pool", "chat.v1", "a-0.b"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["", "A/B", "Chat", "a_b", "-a", "a-", "a..b", ".a", "a.", "a b", "ä"] {
            assert!(check_name(name).is_err(), "{name}");
            assert!(check_namespace(name).is_err(), "{name}");
        }
        assert!(check_namespace("chat.v1").is_err());
        assert!(check_namespace(&"a".repeat(63)).is_ok() && check_namespace(&"a".repeat(64)).is_err());
        assert!(check_name(&"a".repeat(253)).is_ok() && check_name(&"a".repeat(254)).is_err());
    }
}
