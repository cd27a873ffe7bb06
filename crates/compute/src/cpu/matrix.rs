//! Strided views of f32 matrices.

use std::ops::Range;

use crate::Parts;
use crate::simd::prefetch_span;

/// Read-only view of `rows × cols` values: row `r` is `data[r * stride..][..cols]`. With a stride below `cols` rows overlap,
/// as a convolution reads its input.
#[derive(Debug, Clone, Copy)]
pub struct MatRef<'a> {
    /// The values.
    pub data: &'a [f32],
    /// Number of rows.
    pub rows: usize,
    /// Values in a row.
    pub cols: usize,
    /// Distance between the starts of two rows.
    pub stride: usize,
}

/// Mutable view of `rows × cols` values: row `r` is `data[r * stride..][..cols]`; rows do not overlap.
#[derive(Debug)]
pub struct MatMut<'a> {
    /// The values.
    pub data: &'a mut [f32],
    /// Number of rows.
    pub rows: usize,
    /// Values in a row.
    pub cols: usize,
    /// Distance between the starts of two rows, at least `cols`.
    pub stride: usize,
}

/// Length of the data that the rows span; saturates, so that no length passes for an overflowing one.
fn end(rows: usize, cols: usize, stride: usize) -> usize {
    if rows == 0 { 0 } else { (rows - 1).saturating_mul(stride).saturating_add(cols) }
}

impl<'a> MatRef<'a> {
    /// View of rows without gaps.
    ///
    /// # Panics
    /// If `data` is shorter than `rows * cols`.
    #[must_use]
    #[track_caller]
    pub fn packed(data: &'a [f32], rows: usize, cols: usize) -> Self {
        Self::new(data, rows, cols, cols)
    }

    /// View of rows whose starts are `stride` apart.
    ///
    /// # Panics
    /// If `data` ends before the last row does.
    #[must_use]
    #[track_caller]
    pub fn new(data: &'a [f32], rows: usize, cols: usize, stride: usize) -> Self {
        Self { data, rows, cols, stride }.checked()
    }

    /// Row `r`.
    #[must_use]
    #[inline]
    pub fn row(self, r: usize) -> &'a [f32] {
        &self.data[r * self.stride..][..self.cols]
    }

    /// View of the rows `from .. from + rows`.
    ///
    /// # Panics
    /// If there are fewer rows.
    #[must_use]
    #[track_caller]
    pub fn slice(self, from: usize, rows: usize) -> Self {
        let end = from + rows;
        assert!(end <= self.rows, "rows {from}..{end}: expected at most {}", self.rows);
        let data = if rows == 0 { &[] } else { &self.data[from * self.stride..] };
        Self { data, rows, ..self }
    }

    #[track_caller]
    pub(crate) fn checked(self) -> Self {
        let Self { rows, cols, stride, .. } = self;
        let needed = end(rows, cols, stride);
        assert!(
            self.data.len() >= needed,
            "{rows}x{cols} matrix of stride {stride}: expected at least {needed} values, got {}",
            self.data.len()
        );
        self
    }
}

impl<'a> MatMut<'a> {
    /// View of rows without gaps.
    ///
    /// # Panics
    /// If `data` is shorter than `rows * cols`.
    #[must_use]
    #[track_caller]
    pub fn packed(data: &'a mut [f32], rows: usize, cols: usize) -> Self {
        Self::new(data, rows, cols, cols)
    }

    /// View of rows whose starts are `stride` apart.
    ///
    /// # Panics
    /// If `data` ends before the last row does, or if rows overlap.
    #[must_use]
    #[track_caller]
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize, stride: usize) -> Self {
        Self { data, rows, cols, stride }.checked()
    }

    /// Row `r`.
    #[must_use]
    #[inline]
    pub fn row_mut(&mut self, r: usize) -> &mut [f32] {
        &mut self.data[r * self.stride..][..self.cols]
    }

    /// View with a shorter lifetime.
    #[must_use]
    pub fn reborrow(&mut self) -> MatMut<'_> {
        MatMut { data: &mut *self.data, rows: self.rows, cols: self.cols, stride: self.stride }
    }

    /// View of the rows `from .. from + rows`.
    ///
    /// # Panics
    /// If there are fewer rows.
    #[must_use]
    #[track_caller]
    pub fn slice(self, from: usize, rows: usize) -> Self {
        let end = from + rows;
        assert!(end <= self.rows, "rows {from}..{end}: expected at most {}", self.rows);
        let data = if rows == 0 { &mut [] } else { &mut self.data[from * self.stride..] };
        Self { data, rows, ..self }
    }

    #[track_caller]
    pub(crate) fn checked(self) -> Self {
        let Self { rows, cols, stride, .. } = self;
        let needed = end(rows, cols, stride);
        assert!(
            self.data.len() >= needed && (stride >= cols || rows <= 1),
            "{rows}x{cols} output of stride {stride}: expected at least {needed} values and \
             disjoint rows, got {} values",
            self.data.len()
        );
        self
    }

    /// View that several threads can write.
    ///
    /// # Panics
    /// If the data ends before the last row does, or if rows overlap.
    #[must_use]
    #[track_caller]
    pub fn shared(self) -> SharedMut<'a> {
        let Self { data, rows, cols, stride } = self.checked();
        SharedMut { data: Parts::new(data), rows, cols, stride }
    }
}

/// Output of a parallel op ([`MatMut::shared`]): tasks write disjoint spans of its rows.
#[derive(Debug, Clone, Copy)]
pub struct SharedMut<'a> {
    data: Parts<'a, f32>,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) stride: usize,
}

impl<'a> SharedMut<'a> {
    /// Columns `col .. col + len` of row `r`.
    ///
    /// # Safety
    /// - No other reference to any of these values is alive while the result is.
    /// - No copy of `self` hands out any of them meanwhile, on any thread.
    ///
    /// # Panics
    /// If there is no such row or it has no such columns.
    #[must_use]
    #[inline(always)]
    pub unsafe fn span(self, r: usize, col: usize, len: usize) -> &'a mut [f32] {
        let Self { rows, cols, stride, .. } = self;
        let is_inside = r < rows && col <= cols && len <= cols - col;
        assert!(
            is_inside,
            "columns {col}+{len} of row {r}: expected a part of a {rows}x{cols} output"
        );
        let start = r * stride + col;
        // SAFETY: rows do not overlap, so that the caller's promise about columns is one about elements.
        unsafe { self.data.part(start..start + len) }
    }

    /// Prefetches columns `cols` of row `r`, up to the end of the row.
    #[inline(always)]
    pub fn prefetch(self, r: usize, cols: Range<usize>) {
        let len = cols.end.min(self.cols).saturating_sub(cols.start);
        prefetch_span(self.data.address(r * self.stride + cols.start), len);
    }
}

#[cfg(test)]
mod tests {
    use super::{MatMut, MatRef};

    #[test]
    #[should_panic(expected = "columns 1+2 of row 1: expected a part of a 2x2 output")]
    fn a_span_beyond_its_row_is_refused() {
        let mut data = [0.0; 8];
        let out = MatMut::new(&mut data, 2, 2, 4).shared();
        // SAFETY: this is the only reference.
        let _ = unsafe { out.span(1, 1, 2) };
    }

    #[test]
    #[should_panic(expected = "matrix of stride")]
    fn a_shape_that_overflows_is_refused() {
        let _ = MatRef::new(&[0.0; 8], 3, 2, usize::MAX / 2 + 1);
    }
}
