//! Views of f32 matrices with a row stride.

use std::ops::Range;

use crate::simd::prefetch_span;

/// `rows × cols` values to read: row `r` is `data[r * stride..][..cols]`. A stride below `cols`
/// makes rows overlap, which is how a convolution reads its input.
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

/// `rows × cols` values to write: row `r` is `data[r * stride..][..cols]`; rows do not overlap.
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

/// One past the last index that is touched.
fn end(rows: usize, cols: usize, stride: usize) -> usize {
    if rows == 0 { 0 } else { (rows - 1) * stride + cols }
}

impl<'a> MatRef<'a> {
    /// Rows that follow each other without gaps.
    ///
    /// # Panics
    /// If `data` is shorter than `rows * cols`.
    #[must_use]
    #[track_caller]
    pub fn packed(data: &'a [f32], rows: usize, cols: usize) -> Self {
        Self::new(data, rows, cols, cols)
    }

    /// Rows whose starts are `stride` apart.
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

    /// The rows `from .. from + rows`.
    ///
    /// # Panics
    /// If these rows end before.
    #[must_use]
    #[track_caller]
    pub fn slice(self, from: usize, rows: usize) -> Self {
        assert!(from + rows <= self.rows, "rows {from}+{rows} of {}", self.rows);
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
    /// Rows that follow each other without gaps.
    ///
    /// # Panics
    /// If `data` is shorter than `rows * cols`.
    #[must_use]
    #[track_caller]
    pub fn packed(data: &'a mut [f32], rows: usize, cols: usize) -> Self {
        Self::new(data, rows, cols, cols)
    }

    /// Rows whose starts are `stride` apart.
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

    /// The same rows for a shorter time.
    #[must_use]
    pub fn reborrow(&mut self) -> MatMut<'_> {
        MatMut { data: &mut *self.data, rows: self.rows, cols: self.cols, stride: self.stride }
    }

    /// The rows `from .. from + rows`.
    ///
    /// # Panics
    /// If these rows end before.
    #[must_use]
    #[track_caller]
    pub fn slice(self, from: usize, rows: usize) -> Self {
        assert!(from + rows <= self.rows, "rows {from}+{rows} of {}", self.rows);
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

    /// The same rows for several threads.
    ///
    /// # Panics
    /// If the data ends before the last row does, or if rows overlap.
    #[must_use]
    #[track_caller]
    pub fn shared(self) -> SharedMut<'a> {
        let Self { data, rows, cols, stride } = self.checked();
        SharedMut { data: data.as_mut_ptr(), rows, cols, stride, _life: std::marker::PhantomData }
    }
}

/// A checked output ([`MatMut::shared`]) that several threads write, each to rectangles of its own.
#[derive(Debug, Clone, Copy)]
pub struct SharedMut<'a> {
    data: *mut f32,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) stride: usize,
    _life: std::marker::PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointer is only turned into references by `span`, whose callers promise disjointness.
unsafe impl Send for SharedMut<'_> {}
// SAFETY: as for `Send`.
unsafe impl Sync for SharedMut<'_> {}

impl<'a> SharedMut<'a> {
    /// Columns `col .. col + len` of row `r`.
    ///
    /// # Safety
    /// - There are such a row and such columns.
    /// - No other reference to any of these values lives at the same time.
    #[must_use]
    #[inline(always)]
    pub unsafe fn span(self, r: usize, col: usize, len: usize) -> &'a mut [f32] {
        debug_assert!(r < self.rows && col + len <= self.cols);
        // SAFETY: `shared` checked that all rows lie inside the buffer; the caller vouches for the place
        // and for exclusive use.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(r * self.stride + col), len) }
    }

    /// Asks for the memory of columns `cols` of row `r`, as far as there are such columns.
    #[inline(always)]
    pub fn prefetch(self, r: usize, cols: Range<usize>) {
        let len = cols.end.min(self.cols).saturating_sub(cols.start);
        prefetch_span(self.data.wrapping_add(r * self.stride + cols.start), len);
    }
}
