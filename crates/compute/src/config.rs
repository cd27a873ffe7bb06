//! The only reader of the process environment.

use std::env;

/// Variable that limits the tier of [`Isa::best`](crate::simd::Isa::best).
pub(crate) const ISA_VARIABLE: &str = "STONECHAT_ISA";

/// Value of `STONECHAT_ISA`, if it is set and not empty. Invalid Unicode becomes replacement characters, which match no
/// tier.
pub(crate) fn isa_limit() -> Option<String> {
    let value = env::var_os(ISA_VARIABLE)?;
    (!value.is_empty()).then(|| value.to_string_lossy().into_owned())
}
