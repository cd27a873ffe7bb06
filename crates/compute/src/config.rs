//! The only reader of the process environment.

use std::env;

/// Lowers the instruction-set tier that [`Isa::best`](crate::simd::Isa::best) picks.
pub(crate) const ISA_VARIABLE: &str = "STONECHAT_ISA";

/// The value of `STONECHAT_ISA`, if it is set and not empty. Bytes that are no Unicode become
/// replacement characters, which no tier is called.
pub(crate) fn isa_limit() -> Option<String> {
    let value = env::var_os(ISA_VARIABLE)?;
    (!value.is_empty()).then(|| value.to_string_lossy().into_owned())
}
