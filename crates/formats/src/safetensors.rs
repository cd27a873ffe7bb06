//! safetensors: a JSON header, then the tensors.
//!
//! ```text
//! u64 header length, JSON { name: { dtype, shape, data_offsets: [begin, end] }, … }, data
//! ```
//! Offsets count from the end of the header. The data must be covered without holes or overlaps,
//! and a file ends with its last tensor.
//!
//! The crate `safetensors` validates the header. It keeps neither the order of the entries nor names
//! that come twice, and its errors lack tensor, offset and sizes: the header is read here for these.

use std::collections::HashSet;
use std::fmt;

use safetensors::Dtype;
use safetensors::tensor::{Metadata as ReferenceHeader, TensorInfo as Entry};
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use stonechat_compute::DType;

use crate::error::{Error, Result, printable};
use crate::metadata::Metadata;
use crate::parsed::Parsed;
use crate::reader::Reader;
use crate::tensor::{Place, TensorInfo, TensorTable};

/// The longest header that is read, the limit of the crate.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The header's key that is no tensor.
const METADATA_KEY: &str = "__metadata__";

/// Whether `bytes` start with a header length and a JSON object.
pub(crate) fn looks_like(bytes: &[u8]) -> bool {
    let (Some(&len), Some(b'{')) = (bytes.first_chunk(), bytes.get(size_of::<u64>())) else {
        return false;
    };
    (2..=MAX_HEADER_BYTES).contains(&u64::from_le_bytes(len))
}

pub(crate) fn parse(r: &mut Reader<'_>) -> Result<Parsed> {
    let len = r.u64("header length")?;
    if len > MAX_HEADER_BYTES {
        return Err(Error::Invalid {
            what: "header length",
            offset: 0,
            expected: format!("at most {MAX_HEADER_BYTES} bytes"),
            got: len.to_string(),
        });
    }
    let json = r.take_u64(len, "header")?;
    let header: Header = serde_json::from_slice(json).map_err(invalid_json)?;
    check_names(&header.entries)?;
    let checked = serde_json::from_slice::<ReferenceHeader>(json);
    let data_start = r.pos();
    check_offsets(&header.entries, r)?;
    checked.map_err(invalid_json)?;

    let mut tensors = TensorTable::default();
    for (name, entry) in &header.entries {
        let (info, n_bytes) = tensor_info(name, entry)?;
        tensors.push(info, Place::new(data_start + entry.data_offsets.0 as u64, n_bytes))?;
    }
    Ok(Parsed { version: 0, metadata: header.metadata, tensors })
}

fn invalid_json(source: serde_json::Error) -> Error {
    Error::Json { what: "the safetensors header".into(), source }
}

/// Refuses repeated names: the crate keeps the last one silently.
fn check_names(entries: &[(String, Entry)]) -> Result<()> {
    let mut names = HashSet::with_capacity(entries.len());
    match entries.iter().find(|(name, _)| !names.insert(name)) {
        None => Ok(()),
        Some((name, _)) => Err(Error::tensor(name, "one tensor of this name", "a second one")),
    }
}

/// Description of a tensor and its bytes. The crate accepts any dimensions beside a zero.
fn tensor_info(name: &str, entry: &Entry) -> Result<(TensorInfo, usize)> {
    let info = TensorInfo::new(name, dtype(name, entry.dtype)?, entry.shape.as_slice());
    let n_bytes = info.data_bytes()?;
    Ok((info, n_bytes))
}

/// Checks that the tensors, in the order of the data, cover it without holes or overlaps.
fn check_offsets(entries: &[(String, Entry)], r: &mut Reader<'_>) -> Result<()> {
    let mut covered = 0;
    for (name, entry) in entries {
        let (_, n_bytes) = tensor_info(name, entry)?;
        let (begin, end) = entry.data_offsets;
        if begin != covered || end.checked_sub(begin) != Some(n_bytes) {
            let expected = format!("{n_bytes} bytes of data at offset {covered}");
            return Err(Error::tensor(name, expected, format!("offsets {begin}..{end}")));
        }
        r.skip(n_bytes, "tensor data")?;
        covered = end;
    }
    match r.remaining() {
        0 => Ok(()),
        n => Err(Error::Invalid {
            what: "end of file",
            offset: r.pos(),
            expected: "no bytes after the last tensor".into(),
            got: format!("{n} bytes"),
        }),
    }
}

fn dtype(name: &str, dtype: Dtype) -> Result<DType> {
    Ok(match dtype {
        Dtype::F64 => DType::F64,
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::I64 => DType::I64,
        Dtype::I32 => DType::I32,
        Dtype::I16 => DType::I16,
        Dtype::I8 => DType::I8,
        _ => {
            let expected = "dtype F64, F32, F16, BF16, I64, I32, I16 or I8";
            return Err(Error::tensor(name, expected, dtype.to_string()));
        }
    })
}

/// Header in the order of the data, repeated names included.
struct Header {
    entries: Vec<(String, Entry)>,
    /// Strings in the order of the file, each name once.
    metadata: Metadata,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Header, A::Error> {
                let mut header = Header { entries: Vec::new(), metadata: Metadata::new() };
                while let Some(name) = map.next_key::<String>()? {
                    if name == METADATA_KEY {
                        let strings: serde_json::Map<String, serde_json::Value> =
                            map.next_value()?;
                        for (key, value) in &strings {
                            header.metadata.set(key, value.as_str().unwrap_or_default());
                        }
                    } else {
                        let entry = map.next_value().map_err(|e| {
                            let text = printable(&e.to_string());
                            A::Error::custom(format_args!("tensor `{}`: {text}", printable(&name)))
                        })?;
                        header.entries.push((name, entry));
                    }
                }
                header.entries.sort_by_key(|(_, entry)| entry.data_offsets);
                Ok(header)
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}
