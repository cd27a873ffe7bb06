//! The only reader of the process environment.

use std::env;

/// Variable that limits the tier of [`Isa::best`](crate::simd::Isa::best).
pub(crate) const ISA_VARIABLE: &str = "STONECHAT_ISA";

/// Value of `STONECHAT_ISA`, if it is set and not empty.
pub(crate) fn isa_limit() -> Option<String> {
    variable(ISA_VARIABLE)
}

/// Value of a variable, if it is set and not empty. Invalid Unicode becomes replacement characters, which match no value.
pub(crate) fn variable(name: &str) -> Option<String> {
    let value = env::var_os(name)?;
    (!value.is_empty()).then(|| value.to_string_lossy().into_owned())
}
