//! Split of row-wise ops into tasks.

use std::ops::Range;

use crate::Cpu;

/// Values of a task: a decode step's few rows stay on the calling thread.
const TASK_LEN: usize = 32 << 10;
/// Rows of a task at most.
const MAX_ROWS: usize = 256;

/// Calls `task` in parallel with disjoint ranges that together are `0..n_rows`; rows have `row_len` values.
pub(super) fn for_row_ranges(
    cpu: &Cpu,
    n_rows: usize,
    row_len: usize,
    task: impl Fn(Range<usize>) + Sync,
) {
    let per_task = (TASK_LEN / row_len.max(1)).clamp(1, MAX_ROWS);
    cpu.threads.run(n_rows.div_ceil(per_task), |i| {
        task(i * per_task..n_rows.min((i + 1) * per_task));
    });
}
