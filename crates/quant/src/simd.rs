//! 8-bit dot products, the instructions that do not generalise over instruction sets.

mod i8dot;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use i8dot::I8Dot;
