//! Writing GGUF, version 3.

use std::io::Write;

use super::{MAGIC, MAX_DIMS, alignment};
use crate::error::{Error, Result, printable};
use crate::metadata::Metadata;
use crate::tensor::TensorInfo;
use crate::value::{Array, Value};

const VERSION: u32 = 3;

/// Writes a GGUF file: the header at construction, then the data of each tensor as it is passed.
/// Equal input gives equal bytes.
#[derive(Debug)]
pub struct GgufWriter<W> {
    out: W,
    /// The tensors still to come, the next one last.
    pending: Vec<TensorInfo>,
    alignment: usize,
}

impl<W: Write> GgufWriter<W> {
    /// Writes the header. Data is aligned to the entry `general.alignment`, or to 32 bytes.
    ///
    /// # Errors
    /// [`Error::Tensor`] for a name that comes twice or a shape that GGUF cannot hold,
    /// [`Error::Metadata`] for a bad alignment, [`Error::Write`] if `out` fails.
    pub fn new(out: W, metadata: &Metadata, tensors: Vec<TensorInfo>) -> Result<Self> {
        let alignment = alignment(metadata)?;
        let mut header = Vec::new();
        header.extend_from_slice(&MAGIC);
        header.extend_from_slice(&VERSION.to_le_bytes());
        put_len(&mut header, tensors.len());
        put_len(&mut header, metadata.len());
        for (key, value) in metadata.iter() {
            put_string(&mut header, key);
            put_u32(&mut header, value.kind_id());
            put_value(&mut header, value);
        }
        put_tensor_infos(&mut header, &tensors, alignment)?;
        header.resize(header.len().next_multiple_of(alignment), 0);

        let pending = tensors.into_iter().rev().collect();
        let mut writer = Self { out, pending, alignment };
        writer.bytes(&header)?;
        Ok(writer)
    }

    /// Writes the data of the next tensor, which must be the one called `name`.
    ///
    /// # Errors
    /// [`Error::Tensor`] for another name than the next or data of another size,
    /// [`Error::Write`] if the output fails.
    pub fn write_tensor(&mut self, name: &str, data: &[u8]) -> Result<()> {
        let Some(info) = self.pending.last().filter(|info| info.name == name) else {
            let expected = self.pending.last().map_or_else(
                || "no more tensors".to_owned(),
                |info| format!("`{}` to be next", printable(&info.name)),
            );
            return Err(Error::tensor(name, expected, "this one"));
        };
        let n_bytes = info.data_bytes()?;
        if data.len() != n_bytes {
            let got = format!("{} bytes", data.len());
            return Err(Error::tensor(name, format!("{n_bytes} bytes of data"), got));
        }
        self.pending.pop();
        self.bytes(data)?;
        let padding = n_bytes.next_multiple_of(self.alignment) - n_bytes;
        self.bytes(&vec![0; padding])
    }

    /// Flushes the output and returns it.
    ///
    /// # Errors
    /// [`Error::MissingTensor`] if a tensor was announced and not written, [`Error::Write`] if
    /// the output fails.
    pub fn finish(mut self) -> Result<W> {
        if let Some(info) = self.pending.last() {
            return Err(Error::MissingTensor { tensor: info.name.clone() });
        }
        self.out.flush().map_err(|source| Error::Write { source })?;
        Ok(self.out)
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(|source| Error::Write { source })
    }
}

fn put_tensor_infos(header: &mut Vec<u8>, tensors: &[TensorInfo], alignment: usize) -> Result<()> {
    let mut names = std::collections::HashSet::new();
    let mut offset = 0usize;
    for info in tensors {
        let TensorInfo { name, dtype, shape } = info;
        if !names.insert(name) {
            return Err(Error::tensor(name, "one tensor of this name", "a second one"));
        }
        if shape.len() > MAX_DIMS || shape.contains(&0) {
            let expected = format!("at most {MAX_DIMS} dimensions of 1 or more");
            return Err(Error::tensor(name, expected, format!("{shape:?}")));
        }
        put_string(header, name);
        put_u32(header, shape.len() as u32);
        for &dim in shape.iter().rev() {
            put_len(header, dim);
        }
        put_u32(header, dtype.ggml_id());
        put_len(header, offset);
        offset = offset
            .checked_add(info.data_bytes()?)
            .and_then(|end| end.checked_next_multiple_of(alignment))
            .ok_or_else(|| Error::tensor(name, "a file that fits in memory", "a larger one"))?;
    }
    Ok(())
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_len(out: &mut Vec<u8>, value: usize) {
    out.extend_from_slice(&(value as u64).to_le_bytes());
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    put_len(out, text.len());
    out.extend_from_slice(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I8(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::F32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::String(v) => put_string(out, v),
        Value::Array(v) => put_array(out, v),
        Value::U64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::F64(v) => out.extend_from_slice(&v.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    put_u32(out, array.element_kind_id());
    put_len(out, array.len());
    match array {
        Array::U8(v) => out.extend_from_slice(v),
        Array::I8(v) => v.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes())),
        Array::U16(v) => v.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes())),
        Array::I16(v) => v.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes())),
        Array::U32(v) => v.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes())),
        Array::I32(v) => v.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes())),
        Array::F32(v) => v.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes())),
        Array::Bool(v) => out.extend(v.iter().map(|&v| u8::from(v))),
        Array::String(v) => v.iter().for_each(|v| put_string(out, v)),
        Array::U64(v) => v.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes())),
        Array::I64(v) => v.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes())),
        Array::F64(v) => v.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes())),
        Array::Array(v) => v.iter().for_each(|v| put_array(out, v)),
    }
}
