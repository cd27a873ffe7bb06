//! Reading GGUF.

use stonechat_compute::DType;

use super::{MAGIC, MAX_DIMS, alignment};
use crate::error::{Error, Result, printable};
use crate::metadata::Metadata;
use crate::parsed::Parsed;
use crate::reader::Reader;
use crate::tensor::{Place, TensorInfo, TensorTable};
use crate::value::{Array, Value};

/// Maximum levels of nested arrays; known files nest none.
const MAX_ARRAY_DEPTH: usize = 4;

/// Bytes of the smallest metadata entry: key length, kind, one byte.
const MIN_ENTRY_BYTES: usize = 8 + 4 + 1;

/// Bytes of the smallest tensor description: name length, rank, type, offset.
const MIN_INFO_BYTES: usize = 8 + 4 + 4 + 8;

/// Bytes of the smallest array within an array: kind, length.
const MIN_ARRAY_BYTES: usize = 4 + 8;

pub(crate) fn parse(r: &mut Reader<'_>) -> Result<Parsed> {
    r.take(MAGIC.len(), "magic")?;
    let version = r.u32("GGUF version")?;
    if !(2..=3).contains(&version) {
        let big_endian = (2..=3).contains(&version.swap_bytes());
        return Err(Error::Version {
            what: if big_endian { "GGUF byte order (big-endian version)" } else { "GGUF version" },
            expected: "2 or 3, little-endian",
            got: version.into(),
        });
    }
    let n_tensors = r.u64("number of tensors")?;
    let n_entries = r.u64("number of metadata entries")?;
    let n_tensors = r.fits(n_tensors, MIN_INFO_BYTES, "tensor descriptions")?;
    let n_entries = r.fits(n_entries, MIN_ENTRY_BYTES, "metadata entries")?;

    let metadata = metadata(r, n_entries)?;
    let alignment = alignment(&metadata)?;
    let mut infos = Vec::new();
    for _ in 0..n_tensors {
        infos.push(tensor_info(r, alignment)?);
    }
    // A file without tensors may end without padding.
    let data_start = r.pos().next_multiple_of(alignment as u64).min(r.len());
    let tensors = place(infos, data_start, r.len())?;
    Ok(Parsed { version, metadata, tensors })
}

fn metadata(r: &mut Reader<'_>, n_entries: usize) -> Result<Metadata> {
    let mut metadata = Metadata::new();
    for _ in 0..n_entries {
        let key = name(r, "metadata key")?;
        if metadata.get(&key).is_some() {
            return Err(Error::metadata(&key, "one entry of this key", "a second one"));
        }
        let value = value(r).map_err(|e| match e {
            Error::Metadata { expected, got, .. } => Error::metadata(&key, expected, got),
            other => other,
        })?;
        metadata.set(key, value);
    }
    Ok(metadata)
}

/// A key or tensor name: UTF-8.
fn name(r: &mut Reader<'_>, what: &'static str) -> Result<String> {
    let len = r.u64(what)?;
    let offset = r.pos();
    let bytes = r.take_u64(len, what)?;
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Error::Invalid {
        what,
        offset,
        expected: "UTF-8".into(),
        got: printable(&String::from_utf8_lossy(bytes)),
    })
}

/// A string value. Files with a stray byte in a licence or a token exist and load elsewhere, so
/// invalid UTF-8 becomes U+FFFD here.
fn string(r: &mut Reader<'_>) -> Result<String> {
    let len = r.u64("string length")?;
    Ok(String::from_utf8_lossy(r.take_u64(len, "string")?).into_owned())
}

fn bool(r: &mut Reader<'_>) -> Result<bool> {
    let offset = r.pos();
    match r.u8("bool")? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Error::Invalid {
            what: "bool",
            offset,
            expected: "0 or 1".into(),
            got: other.to_string(),
        }),
    }
}

fn value(r: &mut Reader<'_>) -> Result<Value> {
    const WHAT: &str = "metadata value";
    let kind = r.u32("metadata kind")?;
    Ok(match kind {
        0 => Value::U8(r.u8(WHAT)?),
        1 => Value::I8(r.i8(WHAT)?),
        2 => Value::U16(r.u16(WHAT)?),
        3 => Value::I16(r.i16(WHAT)?),
        4 => Value::U32(r.u32(WHAT)?),
        5 => Value::I32(r.i32(WHAT)?),
        6 => Value::F32(r.f32(WHAT)?),
        7 => Value::Bool(bool(r)?),
        8 => Value::String(string(r)?),
        Array::KIND_ID => Value::Array(array(r, MAX_ARRAY_DEPTH)?),
        10 => Value::U64(r.u64(WHAT)?),
        11 => Value::I64(r.i64(WHAT)?),
        12 => Value::F64(r.f64(WHAT)?),
        _ => return Err(unknown_kind(kind)),
    })
}

/// Error without its key, which the caller fills in.
fn unknown_kind(kind: u32) -> Error {
    Error::metadata("", "a value kind of 0 to 12", kind.to_string())
}

fn array(r: &mut Reader<'_>, depth: usize) -> Result<Array> {
    const WHAT: &str = "array element";
    if depth == 0 {
        let expected = format!("at most {MAX_ARRAY_DEPTH} levels of nested arrays");
        return Err(Error::metadata("", expected, "more"));
    }
    let kind = r.u32("array kind")?;
    let len = r.u64("array length")?;
    // Each arm names the fewest bytes of its element, which bounds the allocation for `len`.
    Ok(match kind {
        0 => Array::U8(elements(r, len, 1, |r| r.u8(WHAT))?),
        1 => Array::I8(elements(r, len, 1, |r| r.i8(WHAT))?),
        2 => Array::U16(elements(r, len, 2, |r| r.u16(WHAT))?),
        3 => Array::I16(elements(r, len, 2, |r| r.i16(WHAT))?),
        4 => Array::U32(elements(r, len, 4, |r| r.u32(WHAT))?),
        5 => Array::I32(elements(r, len, 4, |r| r.i32(WHAT))?),
        6 => Array::F32(elements(r, len, 4, |r| r.f32(WHAT))?),
        7 => Array::Bool(elements(r, len, 1, bool)?),
        8 => Array::String(elements(r, len, 8, string)?),
        Array::KIND_ID => Array::Array(elements(r, len, MIN_ARRAY_BYTES, |r| array(r, depth - 1))?),
        10 => Array::U64(elements(r, len, 8, |r| r.u64(WHAT))?),
        11 => Array::I64(elements(r, len, 8, |r| r.i64(WHAT))?),
        12 => Array::F64(elements(r, len, 8, |r| r.f64(WHAT))?),
        _ => return Err(unknown_kind(kind)),
    })
}

fn elements<T>(
    r: &mut Reader<'_>,
    len: u64,
    min_bytes: usize,
    mut read: impl FnMut(&mut Reader<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let len = r.fits(len, min_bytes, "array")?;
    let mut values = Vec::with_capacity(len);
    for _ in 0..len {
        values.push(read(r)?);
    }
    Ok(values)
}

/// A tensor's description and the offset of its data.
fn tensor_info(r: &mut Reader<'_>, alignment: usize) -> Result<(TensorInfo, u64)> {
    let name = name(r, "tensor name")?;
    let n_dims = r.u32("number of dimensions")? as usize;
    if n_dims > MAX_DIMS {
        let expected = format!("at most {MAX_DIMS} dimensions");
        return Err(Error::tensor(&name, expected, n_dims.to_string()));
    }
    let mut shape = Vec::with_capacity(n_dims);
    for _ in 0..n_dims {
        let dim = r.u64("dimension")?;
        let fits = usize::try_from(dim).ok().filter(|&d| d > 0);
        shape.push(fits.ok_or_else(|| {
            Error::tensor(&name, "a dimension of 1 or more that fits in memory", dim.to_string())
        })?);
    }
    shape.reverse();
    let type_id = r.u32("tensor type")?;
    let dtype = DType::from_ggml_id(type_id).ok_or_else(|| {
        Error::tensor(&name, "a supported GGML type", format!("type id {type_id}"))
    })?;
    let offset = r.u64("tensor offset")?;
    if !offset.is_multiple_of(alignment as u64) {
        let expected = format!("an offset that is a multiple of {alignment}");
        return Err(Error::tensor(&name, expected, offset.to_string()));
    }
    Ok((TensorInfo { name, dtype, shape }, offset))
}

/// Tensor table; each tensor must be inside the file, without overlaps.
fn place(infos: Vec<(TensorInfo, u64)>, data_start: u64, file_len: u64) -> Result<TensorTable> {
    let data_len = file_len - data_start;
    let mut placed = Vec::with_capacity(infos.len());
    for (info, offset) in infos {
        let n_bytes = info.data_bytes()?;
        let end = offset.checked_add(n_bytes as u64);
        if end.is_none_or(|end| end > data_len) {
            let expected = format!("{n_bytes} bytes at offset {offset} of the data");
            return Err(Error::tensor(&info.name, expected, format!("{data_len} bytes of data")));
        }
        placed.push((info, Place::new(data_start + offset, n_bytes)));
    }

    let mut order: Vec<usize> = (0..placed.len()).collect();
    order.sort_by_key(|&i| placed[i].1.range.start);
    for pair in order.windows(2) {
        let ((before, a), (after, b)) = (&placed[pair[0]], &placed[pair[1]]);
        if a.range.end > b.range.start {
            let expected = format!("data after the end of `{}`", printable(&before.name));
            return Err(Error::tensor(&after.name, expected, "data that overlaps it"));
        }
    }

    let mut tensors = TensorTable::default();
    for (info, place) in placed {
        tensors.push(info, place)?;
    }
    Ok(tensors)
}
