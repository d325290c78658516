//! Whatever is in a configuration file, reading it ends soon, in a result or in errors.

use std::fs;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::sample::Index;
use sluice_config::{Options, Source, load};
use sluice_plugins::BUILTIN;

use crate::fixtures::fixtures;

/// For a text of half a megabyte, without optimisation and on a machine that does much else: seconds at most.
const PATIENCE: Duration = Duration::from_secs(30);

static SEEDS: LazyLock<Vec<Vec<u8>>> =
    LazyLock::new(|| ["broken", "good"].into_iter().flat_map(fixtures).map(|path| fs::read(path).unwrap()).collect());

/// What a text is made of that a random byte would seldom hit.
const PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ": ",
    ", ",
    "- ",
    "\n",
    "\n  ",
    "&a ",
    "*a",
    "<<: *a",
    "!!int ",
    "!x ",
    "|\n",
    ">",
    "\"",
    "'",
    "#",
    "---\n",
    "~",
    "? ",
    "\t",
    "\u{feff}",
    "\0",
    "-1",
    "1e400",
    ".nan",
    "-.inf",
    "0x7fffffffffffffff",
    "1h2m",
    "-0",
    "1Ei",
    "99999999999999999999999999",
    "true",
    "null",
    "parameters: ",
    "pluginRef: ",
    "priorityBands: ",
    "maxRequests: ",
];

#[derive(Clone, Debug)]
enum Damage {
    Cut(Index, usize),
    Insert(Index, Vec<u8>),
    /// A piece of another text.
    Graft(Index, Index, Index, usize),
    Repeat(Index, usize, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let piece = prop::sample::select(PIECES).prop_map(|piece| piece.as_bytes().to_vec());
    let bytes = prop::collection::vec(any::<u8>(), 1..6);
    prop_oneof![
        (any::<Index>(), 1_usize..40).prop_map(|(at, length)| Damage::Cut(at, length)),
        (any::<Index>(), prop_oneof![piece, bytes]).prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        (any::<Index>(), any::<Index>(), any::<Index>(), 1_usize..120)
            .prop_map(|(at, from, start, length)| Damage::Graft(at, from, start, length)),
        (any::<Index>(), 1_usize..30, 1_usize..200).prop_map(|(at, length, times)| Damage::Repeat(at, length, times)),
    ]
}

fn apply(text: &mut Vec<u8>, damage: &Damage) {
    if text.is_empty() {
        return;
    }
    let range = |at: usize, length: usize, text: &[u8]| at..(at + length).min(text.len());
    match damage {
        Damage::Cut(at, length) => drop(text.drain(range(at.index(text.len()), *length, text))),
        Damage::Insert(at, bytes) => {
            let at = at.index(text.len());
            text.splice(at..at, bytes.iter().copied());
        }
        Damage::Graft(at, from, start, length) => {
            let other = &SEEDS[from.index(SEEDS.len())];
            let graft = other[range(start.index(other.len()), *length, other)].to_vec();
            let at = at.index(text.len());
            text.splice(at..at, graft);
        }
        Damage::Repeat(at, length, times) => {
            let at = at.index(text.len());
            let piece = text[range(at, *length, text)].repeat(*times);
            text.splice(at..at, piece);
        }
    }
}

/// What is accepted can be shown, and is accepted again.
#[expect(clippy::disallowed_methods, reason = "how long it takes is the question")]
fn read(text: &[u8]) {
    let start = Instant::now();
    let result = load(&Source::new("c.yaml", text), BUILTIN, &Options::default());
    assert!(start.elapsed() < PATIENCE, "took {:?}: {:?}", start.elapsed(), String::from_utf8_lossy(text));
    match result {
        Ok(assembled) => {
            let shown = assembled.effective_yaml().unwrap();
            let again = load(&Source::new("shown.yaml", shown.as_str()), BUILTIN, &Options::default());
            let again = again.unwrap_or_else(|error| panic!("{error}\n{shown}"));
            assert_eq!(again.effective, assembled.effective, "{shown}");
        }
        Err(diagnostics) => assert!(diagnostics.errors() > 0, "refused without a reason: {diagnostics}"),
    }
}

proptest! {
    #[test]
    fn a_damaged_configuration_is_read_or_refused(
        seed in any::<Index>(),
        damages in prop::collection::vec(damage(), 1..10),
    ) {
        let mut text = SEEDS[seed.index(SEEDS.len())].clone();
        for damage in &damages {
            apply(&mut text, damage);
        }
        read(&text);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        read(&bytes);
    }
}

#[test]
fn what_grows_when_it_is_read_is_refused_soon() {
    let mut bombs = vec!["plugins: ".to_owned() + &"[".repeat(100_000), "{a: ".repeat(100_000), "- ".repeat(200_000)];
    let doubled = |n: usize| format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(","));
    bombs.push("a0: &a0 [lol]\n".to_owned() + &(1..12).map(doubled).collect::<String>());
    let merged = |n: usize| format!("a{n}: &a{n} {{<<: [{}]}}\n", vec![format!("*a{}", n - 1); 10].join(","));
    bombs.push("a0: &a0 {x: 1}\n".to_owned() + &(1..12).map(merged).collect::<String>());
    bombs.push(format!("flowControl: {{maxBytes: {}}}", "9".repeat(500_000)));
    bombs.push(format!("flowControl: {{maxBytes: 1e{}}}", "9".repeat(1_000)));
    bombs.push(format!("flowControl: {{defaultRequestTTL: {}}}", "1h".repeat(200_000)));
    bombs.push("plugins:\n".to_owned() + &"  - {type: queue-scorer}\n".repeat(20_000));
    bombs.push("sluice: {objectives: [".to_owned() + &"{name: a}, ".repeat(10_000) + "]}");
    for bomb in bombs {
        read(bomb.as_bytes());
    }
}
