use std::ops::Range;

use smallvec::SmallVec;

use super::sample::Sample;

/// What a page declares a family to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A gauge, or anything else whose sample stands for itself.
    Level,
    Counter,
    /// A histogram or a summary: its samples are parts of something.
    Distribution,
}

/// Longer lines are not read.
const MAX_LINE: usize = 64 << 10;

/// No more lines of one family are read.
pub(super) const MAX_SAMPLES: u32 = 10_000;

/// A page that is being read.
#[derive(Clone, Debug)]
pub(super) struct Lines<'p> {
    page: &'p [u8],
    /// Of the next line.
    begin: usize,
    /// Of each family, as far as the page has said it.
    kinds: SmallVec<[Kind; 16]>,
    /// How many lines there were of each family.
    read: SmallVec<[u32; 16]>,
}

/// A line of a wanted family.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found<'p> {
    Sample(Sample<'p>),
    /// It cannot be read.
    Broken,
    /// It is not looked at, after [`MAX_SAMPLES`] others.
    TooMany,
}

/// The families that are wanted of a page, arranged to reject the lines of all others by one byte.
#[derive(Clone, Debug)]
pub(super) struct Families {
    /// In order.
    names: Vec<Box<[u8]>>,
    /// How long a prefix all names have in common, not counting the endings of OpenMetrics; less than the shortest name.
    common: usize,
    /// Which `names` have this byte behind the common prefix: a line is one of theirs or of no wanted family.
    by_next_byte: Box<[(u32, u32); 256]>,
}

impl Families {
    /// `names` are in order, each once, none empty.
    pub(super) fn new(names: Vec<Box<[u8]>>) -> Self {
        let stems = || names.iter().map(|name| stem(name));
        let common = stems().map(|name| common_prefix(name, &names[0])).min().unwrap_or(0);
        let common = common.min(stems().map(<[u8]>::len).min().map_or(0, |shortest| shortest.saturating_sub(1)));
        let mut by_next_byte = Box::new([(0, 0); 256]);
        for (index, name) in (0_u32..).zip(&names) {
            let range = &mut by_next_byte[usize::from(name[common])];
            // Names in order with a common prefix are in order of the byte behind it.
            *range = (if range.1 == 0 { index } else { range.0 }, index + 1);
        }
        Self { names, common, by_next_byte }
    }

    /// The lines of `page`, none of which is read yet.
    pub(super) fn lines<'p>(&self, page: &'p [u8]) -> Lines<'p> {
        let families = self.names.len();
        let (kinds, read) = (SmallVec::from_elem(Kind::Level, families), SmallVec::from_elem(0, families));
        Lines { page, begin: 0, kinds, read }
    }

    /// Reads the lines that begin in the next `bytes` bytes, one at the least, and calls `visit` for each that is of a wanted
    /// family, with the index of its name. Tells whether that was the end of the page.
    ///
    /// A counter of OpenMetrics, whose samples are named for its family and `_total`, is found under either name, or both.
    pub(super) fn read<'p>(
        &self,
        lines: &mut Lines<'p>,
        bytes: usize,
        mut visit: impl FnMut(usize, Kind, Found<'p>),
    ) -> bool {
        let page = lines.page;
        let enough = lines.begin.saturating_add(bytes.max(1));
        let (first, mut begin) = (lines.begin, lines.begin);
        for end in memchr::memchr_iter(b'\n', &page[first..]).map(|end| first + end) {
            if begin >= enough {
                lines.begin = begin;
                return false;
            }
            let whole = &page[begin..end];
            begin = end + 1;
            // Most lines are done with here.
            if self.candidates(whole).is_empty() && !matches!(whole.first(), Some(b'#' | b' ' | b'\t')) {
                continue;
            }
            let mut line = &whole[..whole.len().min(MAX_LINE)];
            match line.first() {
                Some(b'#') => {
                    self.note_kind(line, &mut lines.kinds);
                    continue;
                }
                Some(b' ' | b'\t') => line = line.trim_ascii_start(),
                Some(_) | None => {}
            }
            for (family, rest) in self.families_of(line, &lines.kinds) {
                lines.read[family] += 1;
                let found = match lines.read[family] {
                    ..=MAX_SAMPLES if whole.len() > MAX_LINE => Found::Broken,
                    ..=MAX_SAMPLES => Sample::parse(rest).map_or(Found::Broken, Found::Sample),
                    _ => Found::TooMany,
                };
                visit(family, lines.kinds[family], found);
            }
        }
        lines.begin = begin;
        // Without its end a line may be the beginning of one: 12 of 123.
        let unfinished = &page[lines.begin..];
        if let Some((family, _)) = self.families_of(&unfinished[..unfinished.len().min(MAX_LINE)], &lines.kinds).next()
        {
            visit(family, lines.kinds[family], Found::Broken);
        }
        true
    }

    /// The families of a line, and what follows the name.
    fn families_of<'p>(&self, line: &'p [u8], kinds: &[Kind]) -> impl Iterator<Item = (usize, &'p [u8])> {
        self.candidates(line).filter_map(|family| {
            let rest = line.strip_prefix(&*self.names[family])?;
            let rest = match rest.strip_prefix(b"_total") {
                Some(rest) if kinds[family] == Kind::Counter => rest,
                _ => rest,
            };
            matches!(rest.first(), None | Some(b'{' | b' ' | b'\t' | b'\r')).then_some((family, rest))
        })
    }

    fn candidates(&self, line: &[u8]) -> Range<usize> {
        let (first, end) = line.get(self.common).map_or((0, 0), |&byte| self.by_next_byte[usize::from(byte)]);
        first as usize..end as usize
    }

    /// Takes note of what `# TYPE name kind` says of a wanted family.
    fn note_kind(&self, comment: &[u8], kinds: &mut [Kind]) {
        let Some(declaration) = after_word(comment, b"#").and_then(|rest| after_word(rest, b"TYPE")) else { return };
        for family in self.candidates(declaration) {
            let name = &*self.names[family];
            let kind = after_word(declaration, name).or_else(|| after_word(declaration, stem(name)));
            let Some(kind) = kind else { continue };
            kinds[family] = match kind.trim_ascii() {
                b"counter" => Kind::Counter,
                b"histogram" | b"gaugehistogram" | b"summary" => Kind::Distribution,
                _ => Kind::Level,
            };
        }
    }
}

/// What follows `word` and the blanks behind it; none if `text` begins with another one.
fn after_word<'t>(text: &'t [u8], word: &[u8]) -> Option<&'t [u8]> {
    let rest = text.strip_prefix(word).filter(|rest| matches!(rest.first(), Some(b' ' | b'\t')))?;
    Some(rest.trim_ascii_start())
}

/// The name by which OpenMetrics declares a family whose samples have this name.
fn stem(name: &[u8]) -> &[u8] {
    match name.strip_suffix(b"_total") {
        Some(stem) if !stem.is_empty() => stem,
        _ => name,
    }
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
