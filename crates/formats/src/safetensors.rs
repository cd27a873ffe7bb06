//! safetensors: a JSON header and the tensors behind it.
//!
//! ```text
//! u64 header length, JSON { name: { dtype, shape, data_offsets: [begin, end] }, … }, data
//! ```
//! Offsets count from the end of the header. As in the reference implementation the data must
//! be covered without holes or overlaps, and a file ends with its last tensor.
//!
//! The reference crate is not used: its errors name no tensor, it drops duplicate names, and it
//! needs a crate for temporary files. Source: the format section of the safetensors README.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use stonechat_compute::DType;

use crate::error::{Error, Result};
use crate::metadata::Metadata;
use crate::model_file::Parsed;
use crate::reader::Reader;
use crate::tensor::{Place, TensorInfo, TensorTable};

/// The longest header that is read, the reference implementation's limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The header's key that is no tensor.
const METADATA_KEY: &str = "__metadata__";

/// Whether `bytes` start with a header length and a JSON object.
pub(crate) fn looks_like(bytes: &[u8]) -> bool {
    let mut r = Reader::new(bytes);
    let len = r.u64("header length");
    matches!(len, Ok(2..=MAX_HEADER_BYTES)) && matches!(r.u8("header"), Ok(b'{'))
}

pub(crate) fn parse(bytes: &[u8]) -> Result<Parsed> {
    let mut r = Reader::new(bytes);
    let len = r.u64("header length")?;
    if len > MAX_HEADER_BYTES {
        return Err(Error::Invalid {
            what: "header length",
            offset: 0,
            expected: format!("at most {MAX_HEADER_BYTES} bytes"),
            got: len.to_string(),
        });
    }
    let header = r.take_u64(len, "header")?;
    let header: Header = serde_json::from_slice(header)
        .map_err(|source| Error::Json { what: "the safetensors header".into(), source })?;

    let data_start = r.pos();
    let mut entries = header.entries;
    entries.sort_by_key(|(_, entry)| entry.data_offsets);
    let mut tensors = TensorTable::default();
    let mut covered = 0;
    for (name, entry) in entries {
        let dtype = dtype(&name, &entry.dtype)?;
        let info = TensorInfo { name, dtype, shape: entry.shape };
        let n_bytes = info.data_bytes()?;
        let (begin, end) = entry.data_offsets;
        if begin != covered || end.checked_sub(begin) != Some(n_bytes) {
            let expected = format!("{n_bytes} bytes of data at offset {covered}");
            return Err(Error::tensor(&info.name, expected, format!("offsets {begin}..{end}")));
        }
        r.take(n_bytes, "tensor data")?;
        let range = data_start + begin..data_start + end;
        tensors.push(info, Place { shard: 0, range })?;
        covered = end;
    }
    if r.remaining() > 0 {
        return Err(Error::Invalid {
            what: "end of file",
            offset: r.pos(),
            expected: "no bytes after the last tensor".into(),
            got: format!("{} bytes", r.remaining()),
        });
    }
    Ok(Parsed { version: 0, metadata: header.metadata, tensors, whisper_bin: None })
}

fn dtype(name: &str, text: &str) -> Result<DType> {
    Ok(match text {
        "F64" => DType::F64,
        "F32" => DType::F32,
        "F16" => DType::F16,
        "BF16" => DType::BF16,
        "I64" => DType::I64,
        "I32" => DType::I32,
        "I16" => DType::I16,
        "I8" => DType::I8,
        _ => {
            let expected = "dtype F64, F32, F16, BF16, I64, I32, I16 or I8";
            return Err(Error::tensor(name, expected, crate::error::printable(text)));
        }
    })
}

/// One tensor of the header.
#[derive(serde::Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

/// The header's tensors, duplicates included, and its free-form part.
struct Header {
    entries: Vec<(String, Entry)>,
    metadata: Metadata,
}

/// The free-form part, each name once.
struct FreeForm(Metadata);

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
                        let FreeForm(metadata) = map.next_value()?;
                        header.metadata = metadata;
                    } else {
                        header.entries.push((name, map.next_value()?));
                    }
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}

impl<'de> Deserialize<'de> for FreeForm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct FreeFormVisitor;
        impl<'de> Visitor<'de> for FreeFormVisitor {
            type Value = FreeForm;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<FreeForm, A::Error> {
                let mut metadata = Metadata::new();
                while let Some((key, value)) = map.next_entry::<String, String>()? {
                    metadata.set(key, value);
                }
                Ok(FreeForm(metadata))
            }
        }
        deserializer.deserialize_map(FreeFormVisitor)
    }
}
