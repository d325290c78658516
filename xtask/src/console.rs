use std::fmt;
use std::io::{self, Write};

/// A line on standard output. A reader that went away is no reason to stop.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    drop(writeln!(io::stdout().lock(), "{line}"));
}

/// A line on standard error.
pub(crate) fn complain(line: fmt::Arguments<'_>) {
    drop(writeln!(io::stderr().lock(), "{line}"));
}
