//! GGUF, versions 2 and 3, little-endian.
//!
//! ```text
//! "GGUF", u32 version, u64 n_tensors, u64 n_entries,
//! n_entries × { string key, u32 kind, value },
//! n_tensors × { string name, u32 n_dims, u64 ne[n_dims], u32 type, u64 offset },
//! padding to the alignment, data
//! string = u64 length, bytes;   array = u32 kind, u64 length, values
//! ```
//! `ne` counts from the innermost dimension; shapes here are the reverse. Offsets count from
//! the start of the data and are multiples of the alignment, which is 32 unless the entry
//! `general.alignment` says otherwise.
//!
//! Own reader and writer: no maintained crate reads GGUF.
//! Source: `docs/gguf.md` of ggml.

mod read;
mod write;

pub(crate) use read::parse;
pub use write::GgufWriter;

use crate::error::{Error, Result};
use crate::metadata::Metadata;
use crate::value::Value;

/// The first bytes of a file.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";

/// Dimensions that GGML has (`GGML_MAX_DIMS`).
const MAX_DIMS: usize = 4;

const ALIGNMENT_KEY: &str = "general.alignment";
const DEFAULT_ALIGNMENT: usize = 32;

/// Maximum alignment, larger than any memory page.
const MAX_ALIGNMENT: usize = 1 << 20;

/// The alignment of the data: the entry `general.alignment`, or the default.
fn alignment(metadata: &Metadata) -> Result<usize> {
    match metadata.get(ALIGNMENT_KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(&Value::U32(value)) if value.is_power_of_two() && value as usize <= MAX_ALIGNMENT => {
            Ok(value as usize)
        }
        Some(value) => Err(Error::metadata(
            ALIGNMENT_KEY,
            format!("a u32 that is a power of two up to {MAX_ALIGNMENT}"),
            format!("{} {value}", value.type_name()),
        )),
    }
}
