//! Near misses: what someone may have meant by a name that does not exist.

/// More names than this are not looked at: nobody has them by hand.
const MAX_NAMES: usize = 1000;

/// The name among `known` that is closest to `written`, if one is close enough to have been meant.
pub fn nearest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let written = fold(written);
    // A third of the letters may be wrong, but never all of them.
    let tolerance = (written.chars().count() / 3).max(1);
    known
        .into_iter()
        .take(MAX_NAMES)
        .map(|name| (strsim::osa_distance(&written, &fold(name)), name))
        .filter(|&(distance, name)| distance <= tolerance && distance < name.chars().count())
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, name)| name)
}

/// Without case and separators, so that `max_requests` is near `maxRequests`. Cut off, because nobody
/// means a short name by a very long one.
fn fold(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).take(64).collect::<String>().to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn finds_typos_and_other_spellings() {
        let known = ["weight", "pluginRef", "maxRequests", "max-score-picker"];
        for (written, expected) in [
            ("wieght", "weight"),
            ("pluginref", "pluginRef"),
            ("max_requests", "maxRequests"),
            ("max-requests", "maxRequests"),
            ("max-scores-picker", "max-score-picker"),
        ] {
            assert_eq!(nearest(written, known), Some(expected), "{written}");
        }
    }

    #[test]
    fn what_is_far_away_is_not_suggested() {
        let known = ["weight", "name", "a"];
        for written in ["", "x", "colour", "völlig anders", "🦀"] {
            assert_eq!(nearest(written, known), None, "{written}");
        }
    }
}
