use std::error::Error;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// A place in a text: line and column from 1, the column in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub line: u32,
    pub column: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The configuration cannot be used.
    Error,
    /// It can, but part of it does not do what its author may think.
    Warning,
}

/// One thing that is wrong with a configuration, and where.
///
/// Prints as one line: `file:line:column: path: message, did you mean "x"?; hint`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    pub severity: Severity,
    /// The name of the text, usually a file.
    pub source: Arc<str>,
    pub position: Position,
    /// The setting, such as `plugins[2].parameters.path`; empty for the text as a whole.
    pub path: String,
    /// What is wrong; quotes the offending text.
    pub message: String,
    /// What may have been meant instead.
    pub suggestion: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
    /// What says so.
    pub rule: Rule,
}

/// What a configuration is held to: a rule is the place in the source of this program where it is applied, so that a list
/// of them all can be had from there, and that of rules without a test is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule(&'static Location<'static>);

impl Rule {
    /// The rule that the caller applies.
    #[track_caller]
    fn here() -> Self {
        Self(Location::caller())
    }

    /// As the compiler was told, usually from the root of the workspace.
    pub fn file(self) -> &'static str {
        self.0.file()
    }

    pub fn line(self) -> u32 {
        self.0.line()
    }
}

/// A setting: where it stands and what it is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) position: Position,
    pub(crate) path: String,
}

/// A remark before it is bound to a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remark {
    message: String,
    suggestion: Option<String>,
    hint: Option<String>,
    rule: Rule,
}

impl Remark {
    /// Where this is called is the [`Rule`].
    #[track_caller]
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), suggestion: None, hint: None, rule: Rule::here() }
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn suggest(mut self, suggestion: impl Into<String>) -> Self {
        self.suggestion = Some(suggestion.into());
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// Everything there is to say about one configuration: mistakes and warnings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostics {
    source: Arc<str>,
    list: Vec<Diagnostic>,
    errors: usize,
}

impl Diagnostics {
    /// No more errors than this are kept.
    pub(crate) const MAX_ERRORS: usize = 100;

    pub(crate) const fn new(source: Arc<str>) -> Self {
        Self { source, list: Vec::new(), errors: 0 }
    }

    pub(crate) fn error(&mut self, place: Place, remark: Remark) {
        self.errors += 1;
        if self.errors <= Self::MAX_ERRORS {
            self.push(Severity::Error, place, remark);
        }
    }

    pub(crate) fn warn(&mut self, place: Place, remark: Remark) {
        self.push(Severity::Warning, place, remark);
    }

    /// Nothing yet, of the same text.
    pub(crate) fn none_yet(&self) -> Self {
        Self::new(Arc::clone(&self.source))
    }

    /// Takes over the errors of `other`, and none of its warnings.
    pub(crate) fn add_errors(&mut self, other: Self) {
        self.errors += other.errors;
        self.list.extend(other.list.into_iter().filter(|diagnostic| diagnostic.severity == Severity::Error));
    }

    fn push(&mut self, severity: Severity, place: Place, remark: Remark) {
        let Place { position, path } = place;
        let Remark { message, suggestion, hint, rule } = remark;
        self.list.push(Diagnostic {
            severity,
            source: Arc::clone(&self.source),
            position,
            path,
            message,
            suggestion,
            hint,
            rule,
        });
    }

    /// Puts them in the order of the text, each once.
    pub(crate) fn sort(&mut self) {
        self.list.sort_by_key(|diagnostic| diagnostic.position);
        // Two rules that say the same of a place say it once.
        self.list.dedup_by(|later, earlier| later.says(earlier));
    }

    pub(crate) const fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// Further errors would not be kept.
    pub(crate) const fn is_full(&self) -> bool {
        self.errors > Self::MAX_ERRORS
    }

    /// There is an error in the setting `path` or inside of it.
    pub(crate) fn has_errors_in(&self, path: &str) -> bool {
        self.list.iter().any(|diagnostic| {
            let inside = diagnostic.path.strip_prefix(path);
            diagnostic.severity == Severity::Error
                && inside.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        })
    }

    /// In the order of the text.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Diagnostic> {
        self.list.iter()
    }

    /// How many errors were found, also those beyond the ones kept.
    pub const fn errors(&self) -> usize {
        self.errors
    }

    /// Says that there were more, if there were.
    pub fn unkept(&self) -> Option<String> {
        let kept = Self::MAX_ERRORS;
        self.is_full().then(|| format!("{}: there are more mistakes than the {kept} shown", self.source))
    }

    pub(crate) fn into_list(self) -> Vec<Diagnostic> {
        self.list
    }
}

impl Diagnostic {
    /// It reads as `other` does.
    fn says(&self, other: &Self) -> bool {
        let Self { severity, source, position, path, message, suggestion, hint, rule: _ } = self;
        (severity, source, position, path) == (&other.severity, &other.source, &other.position, &other.path)
            && (message, suggestion, hint) == (&other.message, &other.suggestion, &other.hint)
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { severity, source, position: Position { line, column }, path, message, suggestion, hint, rule: _ } =
            self;
        write!(f, "{source}:{line}:{column}: ")?;
        if *severity == Severity::Warning {
            f.write_str("warning: ")?;
        }
        if !path.is_empty() {
            write!(f, "{path}: ")?;
        }
        f.write_str(message)?;
        if let Some(suggestion) = suggestion {
            write!(f, ", did you mean {suggestion:?}?")?;
        }
        if let Some(hint) = hint {
            write!(f, "; {hint}")?;
        }
        Ok(())
    }
}

/// One line for each, and one if there were too many to keep.
impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, diagnostic) in self.list.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            diagnostic.fmt(f)?;
        }
        self.unkept().map_or(Ok(()), |line| write!(f, "\n{line}"))
    }
}

impl Error for Diagnostics {}
