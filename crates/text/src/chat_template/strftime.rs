//! `strftime_now`: the date that templates put into system prompts, in C's format language.

/// A point in time as a clock on the wall shows it, in the proleptic Gregorian calendar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Clock {
    year: i64,
    /// From 1.
    month: i64,
    /// From 1.
    day: i64,
    /// Days since the first of January.
    day_of_year: i64,
    /// From 0, which is Sunday.
    weekday: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// `format` filled in for `seconds` after 1970-01-01 00:00:00 of the clock to be shown.
///
/// Understands the directives of Python's `strftime` in the C locale, and `-` before a number for
/// no padding; others stay as they are. Time zones print as nothing, as for a naive `datetime`.
pub(super) fn strftime(format: &str, seconds: i64) -> String {
    let clock = Clock::at(seconds);
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
        match directive.and_then(|directive| clock.field(directive)) {
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

impl Clock {
    fn at(seconds: i64) -> Self {
        let days = seconds.div_euclid(86_400);
        let of_day = seconds.rem_euclid(86_400);
        // Howard Hinnant, "chrono-compatible low-level date algorithms", civil_from_days: years
        // start in March, so that the leap day is the last of the year.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * from_march + 2) / 153;
        let day = from_march - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        let february = i64::from(month > 2) * (if leap { 1 } else { 2 });
        Self {
            year,
            month,
            day,
            day_of_year: (367 * month - 362) / 12 - february + day - 1,
            weekday: (days + 4).rem_euclid(7),
            hour: of_day / 3_600,
            minute: of_day / 60 % 60,
            second: of_day % 60,
        }
    }

    /// What `%directive` prints; `None` if there is no such directive.
    fn field(&self, directive: char) -> Option<String> {
        let month = MONTHS[(self.month - 1).clamp(0, 11).unsigned_abs() as usize];
        let weekday = WEEKDAYS[self.weekday.clamp(0, 6).unsigned_abs() as usize];
        let hour_12 = if self.hour % 12 == 0 { 12 } else { self.hour % 12 };
        Some(match directive {
            'Y' => self.year.to_string(),
            'y' => format!("{:02}", self.year.rem_euclid(100)),
            'C' => format!("{:02}", self.year.div_euclid(100)),
            'm' => format!("{:02}", self.month),
            'B' => month.to_owned(),
            'b' | 'h' => month[..3].to_owned(),
            'd' => format!("{:02}", self.day),
            'e' => format!("{:2}", self.day),
            'j' => format!("{:03}", self.day_of_year + 1),
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'w' => self.weekday.to_string(),
            'u' => (if self.weekday == 0 { 7 } else { self.weekday }).to_string(),
            'U' => format!("{:02}", (self.day_of_year + 7 - self.weekday) / 7),
            'W' => format!("{:02}", (self.day_of_year + 7 - (self.weekday + 6) % 7) / 7),
            'H' => format!("{:02}", self.hour),
            'I' => format!("{hour_12:02}"),
            'M' => format!("{:02}", self.minute),
            'S' => format!("{:02}", self.second),
            'f' => "000000".to_owned(),
            'p' => (if self.hour < 12 { "AM" } else { "PM" }).to_owned(),
            'F' => strftime_fields(self, "Y-m-d")?,
            'T' | 'X' => strftime_fields(self, "H:M:S")?,
            'R' => strftime_fields(self, "H:M")?,
            'D' | 'x' => strftime_fields(self, "m/d/y")?,
            'r' => strftime_fields(self, "I:M:S p")?,
            'c' => strftime_fields(self, "a b e H:M:S Y")?,
            'z' | 'Z' => String::new(),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

/// A directive that stands for others: each letter of `fields` is one of them.
fn strftime_fields(clock: &Clock, fields: &str) -> Option<String> {
    let mut out = String::new();
    for c in fields.chars() {
        if c.is_ascii_alphabetic() {
            out.push_str(&clock.field(c)?);
        } else {
            out.push(c);
        }
    }
    Some(out)
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
