//! Stores the sums of a task's panels through the epilogue.

use std::ops::Range;

use stonechat_compute::simd::{Int8, NullaryFnOnce};

use super::chunk::{NR, RowSums, nr_rows};
use crate::packed::panel::PANEL_ROWS;
use crate::packed::task::PanelTask;

/// Stores sums of `rows`.
pub(super) struct StoreSums<'a, S: Int8> {
    pub(super) task: &'a PanelTask<'a>,
    pub(super) s: S,
    pub(super) rows: Range<usize>,
    /// `rows.len()` up to whole row blocks.
    pub(super) padded: usize,
    /// `[tiles][padded]`.
    pub(super) sums: &'a [RowSums<S>],
}

impl<S: Int8> NullaryFnOnce for StoreSums<'_, S> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        match const { nr_rows::<S>() } {
            32 => self.store::<32>(),
            16 => self.store::<16>(),
            8 => self.store::<8>(),
            other => unreachable!("no vectors of {} lanes", other / NR),
        }
    }
}

impl<S: Int8> StoreSums<'_, S> {
    /// `COLS` are the columns of [`NR`] vectors: with a constant length the epilogue has no remainder.
    #[inline(always)]
    fn store<const COLS: usize>(self) {
        let Self { task, s, rows, padded, sums } = self;
        let first = task.panels.start * PANEL_ROWS;
        let wanted = first.max(task.rows.start)..(task.panels.end * PANEL_ROWS).min(task.rows.end);
        // Row by row, since neighbouring lines of an output row are on the same page of memory.
        for (m, row) in rows.enumerate() {
            for (sums, at) in sums[m..].iter().step_by(padded).zip((first..).step_by(COLS)) {
                let sums: &[f32] = bytemuck::cast_slice(sums);
                let cols = at.max(wanted.start)..(at + COLS).min(wanted.end);
                // Both ends of the task may have half a panel that nobody wants.
                if cols.is_empty() {
                    continue;
                }
                let col = cols.start - task.rows.start;
                // SAFETY: `row` is a row of `x`, and so of the output, which the caller checked; the columns are
                // of this task alone.
                let out = unsafe { task.out.span(row, col, cols.len()) };
                match (<&[f32; COLS]>::try_from(sums), <&mut [f32; COLS]>::try_from(&mut *out)) {
                    (Ok(sums), Ok(out)) => task.epilogue.finish(s, sums, col, out),
                    _ => task.epilogue.finish(s, &sums[cols.start - at..cols.end - at], col, out),
                }
            }
        }
    }
}
