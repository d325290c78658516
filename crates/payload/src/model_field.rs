use std::ops::Range;

use bytes::Bytes;

/// A JSON object in which another model is to stand, and that is not made yet: a short text may have room for very many
/// models, so whoever has it made can look at its length first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelReplacement {
    object: Bytes,
    /// The name, as JSON.
    model: String,
    length: usize,
}

impl ModelReplacement {
    /// `object`, which is a JSON object, with `model` in its field of that name: in the place of every value that stands
    /// there, of whatever type, since of a repeated key servers take different ones, or in a field in front where there is
    /// none. All other bytes are as they were. None if it is not an object.
    pub fn new(object: Bytes, model: &str) -> Option<Self> {
        let model = serde_json::to_string(model).ok()?;
        let mut length = object.len();
        for_each_splice(&object, |Splice { gone, before, after }| {
            length = length + before.len() + model.len() + after.len() - gone.len();
        })?;
        Some(Self { object, model, length })
    }

    /// Bytes of the object that will be made.
    pub const fn length(&self) -> usize {
        self.length
    }

    /// Makes it.
    pub fn make(self) -> Bytes {
        let Self { object, model, length } = self;
        let mut made = Vec::with_capacity(length);
        let mut copied = 0;
        let all = for_each_splice(&object, |Splice { gone, before, after }| {
            made.extend_from_slice(object.get(copied..gone.start).unwrap_or_default());
            for text in [before, &model, after] {
                made.extend_from_slice(text.as_bytes());
            }
            copied = gone.end;
        });
        debug_assert!(all.is_some(), "it was gone through before");
        made.extend_from_slice(object.get(copied..).unwrap_or_default());
        made.into()
    }
}

/// The model stands in the place of the bytes `gone`, between two texts.
struct Splice {
    gone: Range<usize>,
    before: &'static str,
    after: &'static str,
}

/// Calls `act` for each place in which the model is to stand, in their order. None if `object` is no object.
fn for_each_splice(object: &[u8], mut act: impl FnMut(Splice)) -> Option<()> {
    let mut cursor = Cursor { text: object, at: 0 };
    let inside = cursor.enter()?;
    let (mut has_model, mut is_empty) = (false, true);
    while let Some((key, value)) = cursor.field() {
        is_empty = false;
        if is_model(object.get(key)?) {
            has_model = true;
            act(Splice { gone: value, before: "", after: "" });
        }
    }
    if !has_model {
        act(Splice { gone: inside..inside, before: "\"model\":", after: if is_empty { "" } else { "," } });
    }
    Some(())
}

/// Whether a key, as it is written, says `model`.
fn is_model(key: &[u8]) -> bool {
    // Each of its letters, as an escape.
    const LONGEST: usize = r#""\u006d\u006f\u0064\u0065\u006c""#.len();
    let is_escaped = key.len() <= LONGEST && key.contains(&b'\\');
    key == b"\"model\"" || is_escaped && serde_json::from_slice::<String>(key).is_ok_and(|key| key == "model")
}

/// Reads on in a text that was found to be JSON before: what is not ends it.
struct Cursor<'a> {
    text: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    /// Goes into the object; the place behind its brace.
    fn enter(&mut self) -> Option<usize> {
        self.expect(b'{')?;
        Some(self.at)
    }

    /// The next field of the object that it is in: where its key and its value are.
    fn field(&mut self) -> Option<(Range<usize>, Range<usize>)> {
        if self.peek()? == b',' {
            self.at += 1;
        }
        self.peek().filter(|&next| next == b'"')?;
        let key = self.value()?;
        self.expect(b':')?;
        Some((key, self.value()?))
    }

    fn value(&mut self) -> Option<Range<usize>> {
        let first = self.peek()?;
        let start = self.at;
        match first {
            b'"' => self.string()?,
            b'{' | b'[' => self.nested()?,
            _ => {
                let rest = self.text.get(start..)?;
                let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n');
                self.at += rest.iter().position(ends).unwrap_or(rest.len());
            }
        }
        Some(start..self.at)
    }

    /// Goes over an object or an array.
    fn nested(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            match self.text.get(self.at)? {
                b'"' => {
                    self.string()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Some(());
            }
        }
    }

    /// Goes over a string.
    fn string(&mut self) -> Option<()> {
        self.at += 1;
        loop {
            self.at += memchr::memchr2(b'"', b'\\', self.text.get(self.at..)?)?;
            if self.text.get(self.at) == Some(&b'"') {
                self.at += 1;
                return Some(());
            }
            self.at += 2;
        }
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        self.peek().filter(|&next| next == byte)?;
        self.at += 1;
        Some(())
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        let rest = self.text.get(self.at..)?;
        self.at += rest.iter().position(|byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n'))?;
        self.text.get(self.at).copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn replace(object: &[u8], model: &str) -> Option<Bytes> {
        let replacement = ModelReplacement::new(Bytes::copy_from_slice(object), model)?;
        let length = replacement.length();
        let made = replacement.make();
        assert_eq!(made.len(), length, "as it was announced");
        Some(made)
    }

    fn replaced(object: &str, model: &str) -> String {
        String::from_utf8(replace(object.as_bytes(), model).unwrap().into()).unwrap()
    }

    #[test]
    fn only_the_value_changes() {
        for (before, after) in [
            (r#"{"model":"a"}"#, r#"{"model":"b"}"#),
            (
                " {\n \"z\" : 1e400 , \"model\" :\t\"a\" , \"a\":[ ] } \n",
                " {\n \"z\" : 1e400 , \"model\" :\t\"b\" , \"a\":[ ] } \n",
            ),
            (
                r#"{"id":12345678901234567890,"model":"a","text":"\u003c<é\ud800"}"#,
                r#"{"id":12345678901234567890,"model":"b","text":"\u003c<é\ud800"}"#,
            ),
            (
                r#"{"x":{"model":"a"},"y":["model",{"model":"a"}],"model":"a"}"#,
                r#"{"x":{"model":"a"},"y":["model",{"model":"a"}],"model":"b"}"#,
            ),
            (r#"{"text":"\"model\":\"a\"\\","model":"a"}"#, r#"{"text":"\"model\":\"a\"\\","model":"b"}"#),
            (r#"{"model":null,"n":-1}"#, r#"{"model":"b","n":-1}"#),
            (r#"{"model":{"a":"}"},"n":1}"#, r#"{"model":"b","n":1}"#),
        ] {
            assert_eq!(replaced(before, "b"), after);
        }
    }

    #[test]
    fn a_key_that_is_repeated_or_escaped_is_replaced_wherever_it_stands() {
        assert_eq!(replaced(r#"{"model":"a","n":1,"model":7}"#, "b"), r#"{"model":"b","n":1,"model":"b"}"#);
        assert_eq!(replaced(r#"{"\u006dodel":"a","Model":"a"}"#, "b"), r#"{"\u006dodel":"b","Model":"a"}"#);
    }

    #[test]
    fn a_field_that_is_missing_is_put_in_front() {
        assert_eq!(replaced(r#"{"n":1}"#, "b"), r#"{"model":"b","n":1}"#);
        assert_eq!(replaced(" { } ", "b"), r#" {"model":"b" } "#);
    }

    #[test]
    fn a_name_is_escaped() {
        assert_eq!(replaced(r#"{"model":"a"}"#, "a\"\\\n/é"), r#"{"model":"a\"\\\n/é"}"#);
    }

    #[test]
    fn how_long_it_would_be_is_known_before_it_is_made() {
        let object = format!("{{{}}}", ["\"model\":0"; 50_000].join(","));
        let replacement = ModelReplacement::new(object.clone().into(), &"T".repeat(1_000_000)).unwrap();
        assert_eq!(replacement.length(), object.len() + 50_000 * 1_000_001);
    }

    #[test]
    fn what_is_not_an_object_is_left_alone() {
        for text in ["", " ", "[]", "7", r#""model""#, "null"] {
            assert_eq!(replace(text.as_bytes(), "b"), None, "{text}");
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[\\PC\"\\\\{}\\[\\],:\n]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 20, 4, |inner| {
            let key = prop_oneof![Just("model".to_owned()), "[a-m\"\\\\]{0,5}"];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((key, inner), 0..4).prop_map(|fields| fields.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn it_says_the_same_but_for_the_model(value in value(), model in "\\PC{0,6}", pretty in any::<bool>()) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) }.unwrap();
            let changed = replace(text.as_bytes(), &model);
            prop_assert_eq!(changed.is_some(), value.is_object());
            if let Some(changed) = changed {
                let mut expected = value;
                expected["model"] = json!(model);
                prop_assert_eq!(serde_json::from_slice::<Value>(&changed).unwrap(), expected);
            }
        }

        #[test]
        fn whatever_the_bytes_are_it_ends(text in prop::collection::vec(prop::sample::select(&b"{}[]\":,\\m1 \xff"[..]), 0..40)) {
            drop(replace(&text, "b"));
        }
    }
}
