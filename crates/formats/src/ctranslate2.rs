//! CTranslate2's `model.bin`, binary versions 1 to 6.
//!
//! ```text
//! u32 version, string spec (v2+), u32 revision (v2+), u32 n_variables,
//! n_variables × { string name, u8 rank, u32 dims[rank],
//!                 u8 dtype, u32 n_bytes            (v4+)
//!                 u8 item_size, u32 n_items        (before)
//!                 data },
//! u32 n_aliases (v3+), n_aliases × { string alias, string variable }
//! string = u16 length with the final NUL, bytes, NUL;   all little-endian, unaligned
//! ```
//!
//! Conventions of the content: linear weights are `[out, in]`,
//! convolutions `[out, in, kernel]`. An i8 weight `W` has a tensor `W_scale`, f32 `[out]`, with
//! `value = q / scale[row]`; an i16 weight has one scalar scale with the same rule. Flags and
//! numbers are scalar tensors (shape `[]`), strings are i8 tensors `[length]`.
//!
//! Own reader: no maintained crate reads this format.
//! Source: `Model::load` in CTranslate2's `src/models/model.cc`, `ModelSpec._serialize` in its
//! `python/ctranslate2/specs/model_spec.py`.

use stonechat_compute::DType;

use crate::error::{Error, Result, printable};
use crate::metadata::Metadata;
use crate::parsed::Parsed;
use crate::reader::Reader;
use crate::tensor::{Place, TensorInfo, TensorTable};

/// The newest binary version that is read.
const MAX_VERSION: u32 = 6;

/// Highest version that detection accepts; versions above [`MAX_VERSION`] are refused later, by number.
const PLAUSIBLE_VERSION: u32 = 64;

/// The highest rank that is read; real models stop at 3.
const MAX_RANK: usize = 8;

/// Bytes of the smallest variable: name, rank, dtype, size.
const MIN_VARIABLE_BYTES: usize = 3 + 1 + 1 + 4;

/// Bytes of the smallest alias: two names.
const MIN_ALIAS_BYTES: usize = 3 + 3;

/// Whether `r` starts with a plausible version followed by a name. Fails if `r` cannot be read.
pub(crate) fn looks_like(r: &mut Reader<'_>) -> Result<bool> {
    let mut try_read = || -> Result<bool> {
        let version = r.u32("version")?;
        if version == 1 {
            r.u32("number of variables")?;
        }
        let name = string(r, "name")?;
        let is_name = |b: u8| b.is_ascii_graphic();
        Ok((1..=PLAUSIBLE_VERSION).contains(&version)
            && !name.is_empty()
            && name.bytes().all(is_name))
    };
    match try_read() {
        Err(Error::Truncated { .. } | Error::Invalid { .. }) => Ok(false),
        read => read,
    }
}

pub(crate) fn parse(r: &mut Reader<'_>) -> Result<Parsed> {
    let version = r.u32("CTranslate2 version")?;
    if !(1..=MAX_VERSION).contains(&version) {
        return Err(Error::Version {
            what: "CTranslate2 binary version",
            expected: "1 to 6",
            got: version.into(),
        });
    }
    let mut metadata = Metadata::new();
    metadata.set("ctranslate2.version", version);
    if version >= 2 {
        metadata.set("ctranslate2.spec", string(r, "specification name")?);
        metadata.set("ctranslate2.revision", r.u32("specification revision")?);
    }

    let mut tensors = TensorTable::default();
    let count = r.u32("number of variables")?;
    let count = r.fits(count.into(), MIN_VARIABLE_BYTES, "variables")?;
    for _ in 0..count {
        let (info, place) = variable(r, version)?;
        tensors.push(info, place)?;
    }
    if version >= 3 {
        let count = r.u32("number of aliases")?;
        let count = r.fits(count.into(), MIN_ALIAS_BYTES, "aliases")?;
        let mut aliases = Vec::with_capacity(count);
        for _ in 0..count {
            let alias = string(r, "alias")?;
            let name = string(r, "aliased variable")?;
            if !tensors.push_alias(&alias, &name)? {
                let expected = format!("a variable called `{}`", printable(&name));
                return Err(Error::tensor(&alias, expected, "none"));
            }
            aliases.push((alias, name));
        }
        // An alias of a weight also names its scale. The converter lists some scale aliases, in any
        // order.
        for (alias, name) in aliases {
            let alias_scale = format!("{alias}_scale");
            if !tensors.contains(&alias_scale) {
                // A variable without a scale needs no scale alias.
                tensors.push_alias(&alias_scale, &format!("{name}_scale"))?;
            }
        }
    }
    if r.remaining() > 0 {
        return Err(Error::Invalid {
            what: "end of file",
            offset: r.pos(),
            expected: "no bytes after the last alias".into(),
            got: format!("{} bytes", r.remaining()),
        });
    }
    Ok(Parsed { version, metadata, tensors })
}

/// A variable's description and the place of its data.
fn variable(r: &mut Reader<'_>, version: u32) -> Result<(TensorInfo, Place)> {
    let name = string(r, "variable name")?;
    let rank = usize::from(r.u8("rank")?);
    if rank > MAX_RANK {
        let expected = format!("at most {MAX_RANK} dimensions");
        return Err(Error::tensor(&name, expected, rank.to_string()));
    }
    let mut shape = Vec::with_capacity(rank);
    for _ in 0..rank {
        shape.push(r.u32("dimension")? as usize);
    }
    let type_id = r.u8("dtype")?;
    let size = r.u32("variable size")?;
    let (dtype, stored_bytes) = if version >= 4 {
        (dtype_of_id(&name, type_id)?, u64::from(size))
    } else {
        (dtype_of_item_size(&name, type_id)?, u64::from(size) * u64::from(type_id))
    };
    let info = TensorInfo { name, dtype, shape };
    let n_bytes = info.data_bytes()?;
    if n_bytes as u64 != stored_bytes {
        let expected = format!("{n_bytes} bytes for {dtype} {:?}", info.shape);
        return Err(Error::tensor(&info.name, expected, format!("{stored_bytes} bytes")));
    }
    let place = Place::new(r.pos(), n_bytes);
    r.skip(n_bytes, "variable data")?;
    Ok((info, place))
}

/// `enum class DataType` of CTranslate2's `types.h`.
fn dtype_of_id(name: &str, id: u8) -> Result<DType> {
    const TYPES: [DType; 6] =
        [DType::F32, DType::I8, DType::I16, DType::I32, DType::F16, DType::BF16];
    TYPES
        .get(usize::from(id))
        .copied()
        .ok_or_else(|| Error::tensor(name, "a CTranslate2 dtype of 0 to 5", format!("dtype {id}")))
}

/// Type of a file before version 4, which stores the size of an element alone.
fn dtype_of_item_size(name: &str, size: u8) -> Result<DType> {
    match size {
        4 => Ok(DType::F32),
        2 => Ok(DType::I16),
        1 => Ok(DType::I8),
        _ => Err(Error::tensor(name, "elements of 1, 2 or 4 bytes", size.to_string())),
    }
}

/// A string, without the NUL that ends it.
fn string(r: &mut Reader<'_>, what: &'static str) -> Result<String> {
    let offset = r.pos();
    let len = r.u16(what)?;
    let bytes = r.take(len.into(), what)?;
    let text = bytes.strip_suffix(&[0]).filter(|text| !text.contains(&0));
    let text = text.and_then(|text| std::str::from_utf8(text).ok()).map(str::to_owned);
    text.ok_or_else(|| Error::Invalid {
        what,
        offset,
        expected: "UTF-8 text that ends with its only NUL".into(),
        got: format!("\"{}\"", printable(&String::from_utf8_lossy(bytes))),
    })
}
