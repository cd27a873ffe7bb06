//! One wording of checks: "`what`: expected ..., got ...".

/// Asserts that two values are equal.
#[doc(hidden)]
#[macro_export]
macro_rules! check_eq {
    ($got:expr, $expected:expr, $($what:tt)+) => {{
        let (got, expected) = ($got, $expected);
        let is_met = got == expected;
        assert!(is_met, "{}: expected {expected:?}, got {got:?}", format_args!($($what)+));
    }};
}

/// Asserts that a number is at most `$max`.
#[doc(hidden)]
#[macro_export]
macro_rules! check_at_most {
    ($got:expr, $max:expr, $($what:tt)+) => {{
        let (got, max) = ($got, $max);
        assert!(got <= max, "{}: expected at most {max}, got {got}", format_args!($($what)+));
    }};
}

/// Asserts that an index is below `$end`.
#[doc(hidden)]
#[macro_export]
macro_rules! check_below {
    ($got:expr, $end:expr, $($what:tt)+) => {{
        let (got, end) = ($got, $end);
        assert!(got < end, "{}: expected less than {end}, got {got}", format_args!($($what)+));
    }};
}

/// Asserts that a number is a multiple of `$factor`, which is not 0.
#[doc(hidden)]
#[macro_export]
macro_rules! check_multiple {
    ($got:expr, $factor:expr, $($what:tt)+) => {{
        let (got, factor) = ($got, $factor);
        let is_met = factor > 0 && got.is_multiple_of(factor);
        assert!(is_met, "{}: expected a multiple of {factor}, got {got}", format_args!($($what)+));
    }};
}
