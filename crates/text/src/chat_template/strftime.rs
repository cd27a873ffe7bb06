//! `strftime_now`: the date that templates put into system prompts, in C's format language.
//!
//! Fields are those of `chrono`. Own parser of the format: `chrono` refuses a format with an unknown
//! directive, of which Python keeps the text, and has directives that Python has not.

use chrono::{DateTime, NaiveDateTime, Utc};

/// Directives that `chrono` prints as Python does in the C locale.
const DIRECTIVES: &str = "YyCmBbhdejAawuUWHIMSpFTXRDxrcnt%";

/// `format` filled in for `seconds` after 1970-01-01 00:00:00 of the clock to be shown.
///
/// Understands the directives of Python's `strftime` in the C locale, and `-` before a number for
/// no padding; others stay as they are. Time zones print as nothing, as for a naive `datetime`.
pub(super) fn strftime(format: &str, seconds: i64) -> String {
    let limit = if seconds < 0 { DateTime::<Utc>::MIN_UTC } else { DateTime::<Utc>::MAX_UTC };
    let time = DateTime::from_timestamp(seconds, 0).unwrap_or(limit).naive_utc();
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let rest = chars.as_str();
        let (unpadded, directive) = match chars.next() {
            Some('-') => (true, chars.next()),
            directive => (false, directive),
        };
        match directive.and_then(|directive| field(time, directive)) {
            Some(text) if unpadded => {
                let trimmed = text.trim_start_matches(['0', ' ']);
                out.push_str(if trimmed.is_empty() { "0" } else { trimmed });
            }
            Some(text) => out.push_str(&text),
            None => {
                out.push('%');
                let read = rest.len() - chars.as_str().len();
                out.push_str(&rest[..read]);
            }
        }
    }
    out
}

/// The text of `%directive`; `None` if there is no such directive.
fn field(time: NaiveDateTime, directive: char) -> Option<String> {
    match directive {
        // Microseconds, where `chrono` has nanoseconds.
        'f' => Some("000000".to_owned()),
        'z' | 'Z' => Some(String::new()),
        _ => DIRECTIVES
            .contains(directive)
            .then(|| time.format(&format!("%{directive}")).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[track_caller]
    fn check(seconds: i64, format: &str, expected: &str) {
        assert_eq!(strftime(format, seconds), expected);
    }

    // Expected: `date -u -d @SECONDS +FORMAT` of GNU coreutils in the C locale.
    #[test]
    fn dates_are_those_of_the_calendar() {
        check(0, "%Y-%m-%d %H:%M:%S %A %j", "1970-01-01 00:00:00 Thursday 001");
        check(951_782_400, "%d %b %Y, %a, day %j", "29 Feb 2000, Tue, day 060");
        check(1_735_689_599, "%F %T %U %W %u %w", "2024-12-31 23:59:59 52 53 2 2");
        check(1_772_323_200, "%B %-d, %Y %I %p %y %j", "March 1, 2026 12 AM 26 060");
        check(-1, "%c", "Wed Dec 31 23:59:59 1969");
        check(4_107_542_400, "%D %R %e", "03/01/00 00:00  1");
    }

    #[test]
    fn what_is_no_directive_stays() {
        check(0, "100%% %Q %-Q %", "100% %Q %-Q %");
        check(0, "%-m/%-H", "1/0");
    }
}
