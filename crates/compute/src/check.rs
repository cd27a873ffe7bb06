//! One wording of checks of shapes.

/// Asserts that two values are equal: "`what`: expected ..., got ...".
#[doc(hidden)]
#[macro_export]
macro_rules! check_eq {
    ($got:expr, $expected:expr, $($what:tt)+) => {{
        let (got, expected) = ($got, $expected);
        assert!(
            got == expected,
            "{}: expected {expected:?}, got {got:?}",
            format_args!($($what)+)
        );
    }};
}
