//! Tensors: values with one producer, whose number of rows the step decides.

use crate::check_at_most;
use std::fmt;

/// Number of rows that a step decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Count {
    /// Tokens `T` of the batch.
    Tokens,
    /// Tokens whose logits are computed. The [`Count::TopK`] tokens come first.
    Logits,
    /// Tokens whose top-k logits are read. The [`Count::LogProbs`] tokens come first.
    TopK,
    /// Tokens whose log-sum-exp of the logits is read.
    LogProbs,
    /// Tokens whose hidden states are read.
    Hidden,
    /// Windows, the inputs of an encoder.
    Windows,
    /// Windows whose keys are exported: 0 or [`Count::Windows`].
    CapturedWindows,
    /// Tokens whose queries are exported: 0 or [`Count::Tokens`].
    CapturedTokens,
}

impl Count {
    /// Number of counts.
    pub const N: usize = 8;
}

/// Number of rows of a tensor: `each` for every one of `count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rows {
    /// Count that the step decides.
    pub count: Count,
    /// Rows for each one counted.
    pub each: usize,
}

impl Rows {
    /// One row for each of `count`.
    #[must_use]
    pub const fn of(count: Count) -> Self {
        Self { count, each: 1 }
    }
}

impl fmt::Display for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.each {
            1 => write!(f, "{:?}", self.count),
            each => write!(f, "{each}*{:?}", self.count),
        }
    }
}

/// Type and order of the values of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TensorType {
    /// f32, row-major.
    F32,
    /// f16, row-major.
    F16,
    /// int8 in groups of 32 with a scale, row-major.
    Q8,
    /// Words: routes to experts and their order.
    U32,
    /// Activations of products, in the type and order of the device's kernels: q8 blocks, or bf16 tiles with AMX.
    Operand,
}

impl TensorType {
    /// Name for messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8 => "q8",
            Self::U32 => "u32",
            Self::Operand => "operand",
        }
    }
}

/// Type and shape of a value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TensorInfo {
    /// Number of rows.
    pub rows: Rows,
    /// Values in a row.
    pub cols: usize,
    /// Type and order.
    pub dtype: TensorType,
}

impl fmt::Debug for TensorInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows, cols, dtype } = self;
        write!(f, "{}[{rows}, {cols}]", dtype.name())
    }
}

impl TensorInfo {
    /// Whether `x`, of a value of this shape, is all of it.
    #[must_use]
    pub fn is_whole(&self, x: Tensor) -> bool {
        (x.first_col, x.cols, x.rows) == (0, self.cols, self.rows)
    }

    /// f32 values, row-major.
    #[must_use]
    pub const fn f32(rows: Rows, cols: usize) -> Self {
        Self { rows, cols, dtype: TensorType::F32 }
    }
}

/// A value, or its first rows and a range of its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tensor {
    /// Index of the value in its program.
    pub id: usize,
    /// Rows that are read.
    pub rows: Rows,
    /// First column that is read.
    pub first_col: usize,
    /// Columns that are read.
    pub cols: usize,
}

impl Tensor {
    /// The columns `from .. from + cols`.
    ///
    /// # Panics
    /// If the columns are not inside the tensor.
    #[must_use]
    #[track_caller]
    pub fn columns(self, from: usize, cols: usize) -> Self {
        check_at_most!(from + cols, self.cols, "columns from {from} on: end");
        Self { first_col: self.first_col + from, cols, ..self }
    }

    /// The first `count` rows.
    ///
    /// # Panics
    /// If `count` does not count rows of this tensor.
    #[must_use]
    #[track_caller]
    pub fn first(self, count: Count) -> Self {
        let is_part = match count {
            Count::TopK | Count::LogProbs => self.rows.count == Count::Logits,
            Count::CapturedTokens => self.rows.count == Count::Tokens,
            Count::CapturedWindows => self.rows.count == Count::Windows,
            _ => self.rows.count == count,
        };
        assert!(
            is_part,
            "first rows: expected a count that is part of {}, got {count:?}",
            self.rows
        );
        Self { rows: Rows { count, ..self.rows }, ..self }
    }
}
