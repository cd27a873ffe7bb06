//! Ops on rows of logits. Each row is a task: a vocabulary is long.

use stonechat_compute::Cpu;
use stonechat_compute::cpu::{self, MatMut, MatRef, TopKEntry};
use stonechat_compute::op::LogitFilter;

use crate::tasks::for_each;

/// Applies the filter of each row; `suppressed` is the list that filters index.
///
/// # Panics
/// If the filters do not fit the rows.
pub(super) fn filter(cpu: &Cpu, rows: MatMut<'_>, filters: &[LogitFilter], suppressed: &[u32]) {
    assert_eq!(filters.len(), rows.rows, "logit_filter: a filter a row");
    let items = rows.data.chunks_exact_mut(rows.cols).zip(filters);
    for_each(&cpu.threads, rows.rows, items, |(row, filter)| {
        filter.apply(cpu.isa, row, suppressed);
    });
}

/// Writes the `k` largest values of each row, then their columns, to `out`, `[T, 2k]`. `scratch` is memory of each row.
///
/// # Panics
/// If `k` is 0 or larger than a row.
pub(super) fn top_k(
    cpu: &Cpu,
    out: &mut [f32],
    x: MatRef<'_>,
    k: usize,
    scratch: &mut Vec<Vec<TopKEntry>>,
) {
    assert!((1..=x.cols).contains(&k), "top_k: {k} of {} values", x.cols);
    scratch.resize_with(scratch.len().max(x.rows), Vec::new);
    let rows = out.chunks_exact_mut(2 * k).zip(scratch).enumerate();
    for_each(&cpu.threads, x.rows, rows, |(t, (row, entries))| {
        cpu::top_k(x.row(t), k, entries);
        let (values, columns) = row.split_at_mut(k);
        for (i, entry) in entries.iter().enumerate() {
            (values[i], columns[i]) = (entry.value, entry.index as f32);
        }
    });
}

/// Writes the log-sum-exp of each row to `out`, `[T]`.
pub(super) fn log_sum_exp(cpu: &Cpu, out: &mut [f32], x: MatRef<'_>) {
    for_each(&cpu.threads, x.rows, out.iter_mut().enumerate(), |(t, out)| {
        *out = cpu::log_sum_exp(cpu.isa, x.row(t));
    });
}
