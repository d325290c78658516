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

    /// Calls `visit` for each line of a wanted family, with the index of its name; without a sample if the line cannot be
    /// read.
    ///
    /// A counter of OpenMetrics, whose samples are named for its family and `_total`, is found under either name, or both.
    pub(super) fn scan<'p>(&self, page: &'p [u8], mut visit: impl FnMut(usize, Kind, Option<Sample<'p>>)) {
        let mut kinds: SmallVec<[Kind; 16]> = SmallVec::from_elem(Kind::Level, self.names.len());
        let mut begin = 0;
        for end in memchr::memchr_iter(b'\n', page) {
            let mut line = &page[begin..end];
            begin = end + 1;
            match line.first() {
                Some(b'#') => {
                    self.note_kind(line, &mut kinds);
                    continue;
                }
                Some(b' ' | b'\t') => line = line.trim_ascii_start(),
                Some(_) => {}
                None => continue,
            }
            if self.candidates(line).is_empty() {
                continue;
            }
            for (family, rest) in self.families_of(line, &kinds) {
                visit(family, kinds[family], Sample::parse(rest));
            }
        }
        // Without its end a line may be the beginning of one: 12 of 123.
        if let Some((family, _)) = self.families_of(&page[begin..], &kinds).next() {
            visit(family, kinds[family], None);
        }
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
        let Some(declaration) = comment.strip_prefix(b"# TYPE ") else { return };
        for family in self.candidates(declaration) {
            let name = &*self.names[family];
            let kind = declaration.strip_prefix(name).or_else(|| declaration.strip_prefix(stem(name)));
            let Some([b' ', kind @ ..]) = kind else { continue };
            kinds[family] = match kind.trim_ascii() {
                b"counter" => Kind::Counter,
                b"histogram" | b"gaugehistogram" | b"summary" => Kind::Distribution,
                _ => Kind::Level,
            };
        }
    }
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
