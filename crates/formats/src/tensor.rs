//! Tensors of any format: descriptions, views, and the table.

use std::collections::HashMap;
use std::ops::Range;

use stonechat_compute::DType;

use crate::error::{Error, Result, printable};
use crate::tensor_data::TensorData;

/// A tensor's name, element type and shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name as the file spells it.
    pub name: String,
    /// The element type.
    pub dtype: DType,
    /// Dimensions, outermost first (row-major); empty for a scalar.
    pub shape: Vec<usize>,
}

impl TensorInfo {
    /// A description from its parts.
    pub fn new(name: impl Into<String>, dtype: DType, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), dtype, shape: shape.into() }
    }

    /// Bytes of the tensor's data.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the innermost dimension is no whole number of blocks or the size
    /// overflows.
    pub fn data_bytes(&self) -> Result<usize> {
        data_bytes(&self.name, self.dtype, &self.shape)
    }
}

/// A tensor in an open file.
#[derive(Debug, Clone, Copy)]
pub struct TensorView<'a> {
    /// The name as the file spells it.
    pub name: &'a str,
    /// The element type.
    pub dtype: DType,
    /// Dimensions, outermost first (row-major); empty for a scalar.
    pub shape: &'a [usize],
    /// Little-endian elements or blocks, `dtype.bytes_for(n_elements)` bytes.
    pub data: TensorData<'a>,
}

impl TensorView<'_> {
    /// The number of elements, 1 for a scalar.
    #[must_use]
    pub fn n_elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Bytes of a tensor, checking every product and that rows are whole blocks.
pub(crate) fn data_bytes(name: &str, dtype: DType, shape: &[usize]) -> Result<usize> {
    let row_len = shape.last().copied().unwrap_or(1);
    if !row_len.is_multiple_of(dtype.block_len()) {
        return Err(Error::tensor(
            name,
            format!("rows of a multiple of {} elements for {dtype}", dtype.block_len()),
            format!("shape {}", shape_text(shape)),
        ));
    }
    // Multiplied in full even after a zero, so that no later product of a part of the shape
    // overflows.
    shape
        .iter()
        .filter(|&&d| d != 0)
        .try_fold(1usize, |n, &d| n.checked_mul(d))
        .and_then(|n| dtype.bytes_for(n))
        .map(|bytes| if shape.contains(&0) { 0 } else { bytes })
        .ok_or_else(|| Error::tensor(name, "a size that fits in memory", shape_text(shape)))
}

/// `[1, 2, 3]`, shortened when it is absurdly long.
pub(crate) fn shape_text(shape: &[usize]) -> String {
    printable(&format!("{shape:?}"))
}

/// Location of a tensor's data: shard and byte range.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) shard: usize,
    pub(crate) range: Range<u64>,
}

impl Place {
    /// `n_bytes` at `start` of the only shard.
    pub(crate) fn new(start: u64, n_bytes: usize) -> Self {
        Self { shard: 0, range: start..start + n_bytes as u64 }
    }

    /// Number of bytes. Parsers take it from the tensor's shape, so it is a `usize`.
    pub(crate) fn n_bytes(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }
}

/// The tensors of a model in file order, with look-up by name.
#[derive(Debug, Default)]
pub(crate) struct TensorTable {
    tensors: Vec<(TensorInfo, Place)>,
    index: HashMap<String, usize>,
}

impl TensorTable {
    /// Adds a tensor. `place.range` must lie in the shard and have the tensor's size, which the
    /// parsers check; a second tensor of the same name is an error.
    pub(crate) fn push(&mut self, info: TensorInfo, place: Place) -> Result<()> {
        debug_assert_eq!(info.data_bytes().ok(), Some(place.n_bytes()));
        if self.index.contains_key(&info.name) {
            return Err(Error::tensor(&info.name, "one tensor of this name", "a second one"));
        }
        self.index.insert(info.name.clone(), self.tensors.len());
        self.tensors.push((info, place));
        Ok(())
    }

    /// Adds `alias` as another name of `name`'s data; false if there is no such tensor.
    pub(crate) fn push_alias(&mut self, alias: &str, name: &str) -> Result<bool> {
        let Some((info, place)) = self.get(name).cloned() else {
            return Ok(false);
        };
        self.push(TensorInfo { name: alias.to_owned(), ..info }, place)?;
        Ok(true)
    }

    /// Adds the tensors of another shard.
    pub(crate) fn append_shard(&mut self, other: Self, shard: usize) -> Result<()> {
        other
            .tensors
            .into_iter()
            .try_for_each(|(info, place)| self.push(info, Place { shard, ..place }))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&(TensorInfo, Place)> {
        self.index.get(name).map(|&i| &self.tensors[i])
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.index.contains_key(name)
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &(TensorInfo, Place)> {
        self.tensors.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::{DType, Place, TensorInfo, TensorTable};

    #[track_caller]
    fn check(dtype: DType, shape: &[usize], expected: Option<usize>) {
        assert_eq!(TensorInfo::new("t", dtype, shape).data_bytes().ok(), expected);
    }

    #[test]
    fn sizes() {
        check(DType::F32, &[], Some(4));
        check(DType::F16, &[3, 5], Some(30));
        check(DType::Q4_0, &[2, 64], Some(72));
        check(DType::Q4_0, &[64, 2], None);
        check(DType::F32, &[0, 7], Some(0));
        check(DType::F32, &[usize::MAX, 2], None);
        check(DType::F32, &[0, usize::MAX, 2], None);
        check(DType::F32, &[usize::MAX / 2], None);
    }

    #[test]
    fn names_are_unique() {
        let mut table = TensorTable::default();
        let place = || Place::new(0, 4);
        table.push(TensorInfo::new("a", DType::F32, [1]), place()).unwrap();
        assert!(table.push(TensorInfo::new("a", DType::F32, [1]), place()).is_err());
        assert!(table.push_alias("b", "a").unwrap());
        assert!(!table.push_alias("c", "missing").unwrap());
        assert_eq!(table.get("b").unwrap().1.range, 0..4);
    }
}
