//! The simulated model: which token follows a text.
//!
//! A token is a word: a run of bytes other than ASCII white space. What a model would compute from its
//! weights is here a hash of every byte of the text so far, so that the next token is a function of the
//! *whole* text before it and of nothing else. A text cut after any token and sent again as a prompt
//! therefore goes on exactly as it would have, on any server with the same seed, and the tokens of the parts
//! add up to the tokens of the whole.

use std::num::NonZeroU32;

const CONSONANTS: &[u8; 16] = b"bdfghjklmnprstvz";
const VOWELS: &[u8; 5] = b"aeiou";
const SYLLABLES: u32 = 80;
const SYLLABLES_PER_WORD: usize = 3;

/// The bytes of a vocabulary word.
pub const WORD_LENGTH: usize = 2 * SYLLABLES_PER_WORD;

/// How many words the model knows; token ids run from 0 to here.
pub const VOCABULARY: u32 = SYLLABLES.pow(3);

/// A word of the vocabulary, by its token id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Word(u32);

impl Word {
    /// The word with this token id; `None` outside the vocabulary.
    pub fn from_token_id(id: u32) -> Option<Self> {
        (id < VOCABULARY).then_some(Self(id))
    }

    /// How the word is written. No two words are written alike.
    pub fn spelling(self) -> [u8; WORD_LENGTH] {
        let mut spelling = [0; WORD_LENGTH];
        let mut rest = self.0 as usize;
        for syllable in spelling.chunks_exact_mut(2).rev() {
            let index = rest % SYLLABLES as usize;
            rest /= SYLLABLES as usize;
            syllable.copy_from_slice(&[CONSONANTS[index / VOWELS.len()], VOWELS[index % VOWELS.len()]]);
        }
        spelling
    }
}

/// What the model says next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// A word, after a space if `spaced`: the text so far did not end in white space.
    Word { word: Word, spaced: bool },
    /// The end of the text. It counts as a token and is written as nothing.
    EndOfText,
}

impl Token {
    /// Appends the token's text, which never needs escaping in JSON.
    pub fn write(self, out: &mut Vec<u8>) {
        let Self::Word { word, spaced } = self else { return };
        if spaced {
            out.push(b' ');
        }
        out.extend_from_slice(&word.spelling());
    }
}

/// The `tokens` tokens that follow `prompt` on a server with this seed, if the model does not end the text before.
/// What a client has put together from several answers is right if it is this.
pub fn expected_text(seed: u64, prompt: &str, tokens: u32) -> String {
    let mut context = Context::new(seed);
    context.push_text(prompt.as_bytes());
    let mut text = Vec::new();
    for _ in 0..tokens {
        let token = context.next_word();
        token.write(&mut text);
        if let Token::Word { word, .. } = token {
            context.push_word(word);
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Everything before the next token, condensed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    hash: u64,
    words: u32,
    ends_in_space: bool,
}

impl Context {
    /// The empty text. Models with different seeds say different things.
    pub fn new(seed: u64) -> Self {
        Self { hash: scramble(seed), words: 0, ends_in_space: true }
    }

    /// The tokens of the text.
    pub fn tokens(&self) -> u32 {
        self.words
    }

    /// Appends text from outside the model, cut anywhere.
    pub fn push_text(&mut self, text: &[u8]) {
        for &byte in text {
            let space = byte.is_ascii_whitespace();
            self.words = self.words.saturating_add(u32::from(self.ends_in_space && !space));
            self.ends_in_space = space;
            self.push_byte(byte);
        }
    }

    /// Appends one word, set off from the text before it.
    pub fn push_word(&mut self, word: Word) {
        if !self.ends_in_space {
            self.push_byte(b' ');
        }
        for byte in word.spelling() {
            self.push_byte(byte);
        }
        self.words = self.words.saturating_add(1);
        self.ends_in_space = false;
    }

    /// The word that follows, whether or not the model would rather end here.
    pub fn next_word(&self) -> Token {
        // Multiply and shift: uniform over the vocabulary to one part in 2^13.
        let draw = ((scramble(self.hash) >> 32) * u64::from(VOCABULARY)) >> 32;
        let word = u32::try_from(draw).ok().and_then(Word::from_token_id).unwrap_or(Word(0));
        Token::Word { word, spaced: !self.ends_in_space }
    }

    /// Whether the model ends the text here, as it does once in `mean_length` tokens. It does not end a text in
    /// white space, so that the answer in a chat, which begins on a new line, is never empty.
    pub fn ends_here(&self, mean_length: NonZeroU32) -> bool {
        const SALT: u64 = 0x5851_f42d_4c95_7f2d;
        !self.ends_in_space && scramble(self.hash ^ SALT).is_multiple_of(u64::from(mean_length.get()))
    }

    /// One step of 64-bit FNV-1a.
    fn push_byte(&mut self, byte: u8) {
        const PRIME: u64 = 0x0000_0100_0000_01b3;
        self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(PRIME);
    }
}

/// The finaliser of splitmix64: every bit of the input moves every bit of the output.
fn scramble(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn context(text: &str) -> Context {
        let mut context = Context::new(7);
        context.push_text(text.as_bytes());
        context
    }

    #[test]
    fn words_are_spelled_differently() {
        let spellings: BTreeSet<_> = (0..VOCABULARY).map(|id| Word(id).spelling()).collect();
        assert_eq!(spellings.len(), VOCABULARY as usize);
        assert_eq!(Word::from_token_id(VOCABULARY), None);
    }

    #[test]
    fn a_space_stands_between_words_and_not_before_the_first() {
        assert!(matches!(context("once upon").next_word(), Token::Word { spaced: true, .. }));
        assert!(matches!(context("once upon ").next_word(), Token::Word { spaced: false, .. }));
        assert!(matches!(context("").next_word(), Token::Word { spaced: false, .. }));
    }

    #[test]
    fn the_seed_and_the_first_byte_matter() {
        assert_ne!(expected_text(7, "abc", 4), expected_text(7, "bbc", 4));
        assert_ne!(Context::new(1).next_word(), Context::new(2).next_word());
    }

    #[test]
    fn texts_end_once_in_the_mean_length() {
        let mean = NonZeroU32::new(50).unwrap();
        let mut context = context("x");
        let mut ends = 0;
        for _ in 0..50_000 {
            ends += u32::from(context.ends_here(mean));
            context.push_text(b" x");
        }
        assert!((900..1_100).contains(&ends), "{ends} ends in 50,000 tokens");
    }

    #[test]
    fn no_text_ends_in_white_space() {
        let always = NonZeroU32::MIN;
        assert!(context("user: hi").ends_here(always));
        assert!(!context("user: hi\n").ends_here(always));
    }

    proptest! {
        #[test]
        fn resuming_at_any_cut_gives_the_same_text(prompt in "[ a-z\\n\u{e9}]{0,40}", length in 1..20u32) {
            let whole = expected_text(7, &prompt, length);
            for cut in 0..length {
                let saved = expected_text(7, &prompt, cut);
                let rest = expected_text(7, &format!("{prompt}{saved}"), length - cut);
                prop_assert_eq!(context(&format!("{prompt}{saved}")).tokens(), context(&prompt).tokens() + cut);
                prop_assert_eq!(&format!("{saved}{rest}"), &whole);
            }
        }

        #[test]
        fn tokens_are_the_words(text in "[ a-z\\t]{0,60}", cut in 0..60usize) {
            prop_assert_eq!(context(&text).tokens() as usize, text.split_ascii_whitespace().count());
            let mut in_two = Context::new(7);
            let (head, tail) = text.as_bytes().split_at(cut.min(text.len()));
            in_two.push_text(head);
            in_two.push_text(tail);
            prop_assert_eq!(in_two, context(&text));
        }
    }
}
