//! Ids that are made here, from random numbers that are handed in.

use sluice_core::Headers;

/// A random UUID (version 4).
pub(crate) fn uuid(random: &mut dyn FnMut() -> u64) -> String {
    let (high, low) = (random(), random());
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xfff,
        low >> 48 & 0x3fff | 0x8000,
        low & 0xffff_ffff_ffff,
    )
}

/// The `traceparent` (W3C Trace Context) of what follows behind the picker: the trace and flags of the request, and a
/// span of the picker's own as the parent. None where the request belongs to no trace, or says so in a way that the
/// standard does not allow.
pub(crate) fn traceparent(headers: &Headers, random: &mut dyn FnMut() -> u64) -> Option<String> {
    let mut lines = headers.iter().filter(|(name, _)| *name == "traceparent");
    let (Some((_, value)), None) = (lines.next(), lines.next()) else { return None };
    let (trace, flags) = trace_and_flags(std::str::from_utf8(value).ok()?)?;
    let span = random().max(1);
    Some(format!("00-{trace}-{span:016x}-{flags}"))
}

fn trace_and_flags(value: &str) -> Option<(&str, &str)> {
    let mut parts = value.split('-');
    let [version, trace, parent, flags] = [(); 4].map(|()| parts.next().unwrap_or_default());
    // A later version may append fields.
    let is_whole = version != "00" || parts.next().is_none();
    let valid = is_hex(version, 2) && version != "ff" && is_id(trace, 32) && is_id(parent, 16) && is_hex(flags, 2);
    (is_whole && valid).then_some((trace, flags))
}

fn is_id(text: &str, length: usize) -> bool {
    is_hex(text, length) && text.bytes().any(|byte| byte != b'0')
}

fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn continued(lines: &[&str]) -> Option<String> {
        let mut headers = Headers::new();
        for line in lines {
            headers.push("traceparent", line.as_bytes().to_vec());
        }
        traceparent(&headers, &mut || 0x1234)
    }

    #[test]
    fn a_uuid_has_its_version_and_variant() {
        for random in [0, u64::MAX] {
            let id = uuid(&mut || random);
            let lengths: Vec<usize> = id.split('-').map(str::len).collect();
            assert_eq!(lengths, [8, 4, 4, 4, 12], "{id}");
            assert_eq!(id.as_bytes()[14], b'4', "{id}");
            assert!(matches!(id.as_bytes()[19], b'8'..=b'b'), "{id}");
        }
    }

    #[test]
    fn a_trace_goes_on_with_a_span_of_the_pickers_own() {
        const SENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        const KEPT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000001234-01";
        assert_eq!(continued(&[SENT]).as_deref(), Some(KEPT));
        // A later version with more fields is read as far as it is known.
        let later = SENT.replacen("00", "01", 1) + "-more";
        assert_eq!(continued(&[&later]).as_deref(), Some(KEPT));
    }

    #[test]
    fn what_is_no_trace_context_is_left_alone() {
        for bad in [
            "",
            "nonsense",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x",
        ] {
            assert_eq!(continued(&[bad]), None, "{bad:?}");
        }
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_eq!(continued(&[good, good]), None, "two parents are none");
        assert_eq!(continued(&[]), None);
    }
}
