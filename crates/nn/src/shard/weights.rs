//! Weights of a group of devices: the values of the file, and the parts that ranks have loaded.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use stonechat_compute::op::{Weight, WeightInfo, WeightLayout};
use stonechat_compute::{DType, SharedBytes};

use crate::{Device, Error, MatrixSource};

/// A part of a weight: the same rows and columns of each of `stack` matrices of equal height, one below the other. Values of a
/// bias are rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Part {
    /// Number of matrices.
    pub(super) stack: usize,
    /// Rows of each; `None`: all.
    pub(super) rows: Option<Range<usize>>,
    /// Columns; `None`: all.
    pub(super) cols: Option<Range<usize>>,
}

impl Default for Part {
    /// The whole weight.
    fn default() -> Self {
        Self { stack: 1, rows: None, cols: None }
    }
}

impl Part {
    /// Rows of one matrix.
    pub(super) fn rows(rows: Range<usize>) -> Self {
        Self { rows: Some(rows), ..Self::default() }
    }

    /// Columns of one matrix.
    pub(super) fn cols(cols: Range<usize>) -> Self {
        Self { cols: Some(cols), ..Self::default() }
    }

    /// Ranges of rows of a weight of `n_rows`.
    pub(super) fn row_ranges(&self, n_rows: usize) -> impl Iterator<Item = Range<usize>> {
        let each = n_rows / self.stack;
        let rows = self.rows.clone().unwrap_or(0..each);
        (0..self.stack).map(move |i| i * each + rows.start..i * each + rows.end)
    }
}

#[derive(Debug)]
enum Source {
    Matrix { name: String, dtype: DType, rows: usize, cols: usize, bytes: SharedBytes },
    Values(Vec<f32>),
}

/// Weight of a group: each rank loads its part.
#[derive(Debug)]
struct ShardedWeight {
    source: Source,
    /// Loaded parts, by rank and range.
    parts: Mutex<HashMap<(usize, Part), Weight>>,
}

fn sharded(info: WeightInfo, source: Source) -> Weight {
    Weight::new(info, Arc::new(ShardedWeight { source, parts: Mutex::default() }))
}

/// A matrix of a group of devices: a reference to the bytes, which ranks load parts of when a program is compiled.
#[must_use]
pub fn sharded_matrix(source: MatrixSource<'_>) -> Weight {
    let MatrixSource { name, rows, cols, dtype, bytes } = source;
    let info = WeightInfo { dtype, rows, cols, layout: WeightLayout::Packed };
    let (name, bytes) = (name.to_owned(), bytes.clone());
    sharded(info, Source::Matrix { name, dtype, rows, cols, bytes })
}

/// Values of a group of devices.
#[must_use]
pub fn sharded_values(values: &[f32]) -> Weight {
    sharded(WeightInfo::values(values.len()), Source::Values(values.to_vec()))
}

/// The part of a weight on a rank, loaded when it is first asked for.
///
/// # Panics
/// If the weight is not of a group.
pub(super) fn load(
    weight: &Weight,
    (rank, device): (usize, &Device),
    part: Part,
) -> Result<Weight, Error> {
    let ShardedWeight { source, parts } =
        weight.data().unwrap_or_else(|| panic!("a weight of a group, got {weight:?}"));
    let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (rank, part);
    if let Some(weight) = parts.get(&key) {
        return Ok(weight.clone());
    }
    let weight = source.load(device, &key.1)?;
    parts.insert(key, weight.clone());
    Ok(weight)
}

impl Source {
    fn load(&self, device: &Device, part: &Part) -> Result<Weight, Error> {
        match self {
            Self::Matrix { name, dtype, rows, cols, bytes } => {
                let (bytes, [rows, cols]) = matrix_part(bytes, *dtype, [*rows, *cols], part);
                let dtype = *dtype;
                device.load_matrix(MatrixSource { name, rows, cols, dtype, bytes: &bytes })
            }
            Self::Values(values) => {
                let ranges = part.row_ranges(values.len());
                let values: Vec<f32> = ranges.flat_map(|range| &values[range]).copied().collect();
                device.load_values(&values)
            }
        }
    }
}

/// Bytes and shape of a part of a matrix `[rows, cols]`: a reference if they are adjacent, else a copy, whose source is released.
///
/// # Panics
/// If the columns are no whole blocks.
fn matrix_part(
    bytes: &SharedBytes,
    dtype: DType,
    [rows, cols]: [usize; 2],
    part: &Part,
) -> (SharedBytes, [usize; 2]) {
    let row_bytes = bytes.len() / rows.max(1);
    let part_cols = part.cols.clone().unwrap_or(0..cols);
    let shape = [part.row_ranges(rows).map(|rows| rows.len()).sum(), part_cols.len()];
    if part.cols.is_none() && (part.stack == 1 || part.rows.is_none()) {
        let rows = part.rows.clone().unwrap_or(0..rows);
        return (bytes.slice(rows.start * row_bytes..rows.end * row_bytes), shape);
    }
    let byte_of = |col: usize| dtype.bytes_for(col).expect("columns of whole blocks");
    let columns = byte_of(part_cols.start)..byte_of(part_cols.end);
    let mut copy = Vec::with_capacity(shape[0] * columns.len());
    for rows in part.row_ranges(rows) {
        let source = bytes.slice(rows.start * row_bytes..rows.end * row_bytes);
        for row in source.chunks_exact(row_bytes.max(1)) {
            copy.extend_from_slice(&row[columns.clone()]);
        }
        source.release();
    }
    (SharedBytes::from(copy), shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_references_or_copies_of_rows_and_columns() {
        // Two stacked matrices of 4 rows and 64 columns in blocks of 34 bytes.
        let row = |row: u8| [[row; 34], [row + 100; 34]].concat();
        let bytes = SharedBytes::from((0..8).flat_map(row).collect::<Vec<u8>>());
        let part = |part: Part| matrix_part(&bytes, DType::Q8_0, [8, 64], &part);
        let (whole, shape) = part(Part::default());
        assert_eq!((whole.as_ptr_range(), shape), (bytes.as_ptr_range(), [8, 64]));
        let (rows, shape) = part(Part::rows(2..5));
        assert_eq!(rows.as_ptr_range(), bytes[2 * 68..5 * 68].as_ptr_range());
        assert_eq!(shape, [3, 64]);
        let (cols, shape) = part(Part::cols(32..64));
        let expected: Vec<u8> = (100..108).flat_map(|row| [row; 34]).collect();
        assert_eq!((&cols[..], shape), (&expected[..], [8, 32]));
        let stacked = Part { stack: 2, ..Part::rows(1..3) };
        let (stacked, shape) = part(stacked);
        let expected = [&bytes[68..3 * 68], &bytes[5 * 68..7 * 68]].concat();
        assert_eq!((&stacked[..], shape), (&expected[..], [4, 64]));
    }
}
