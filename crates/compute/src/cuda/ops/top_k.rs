//! Largest values of rows.

use bytemuck::{Pod, Zeroable};

use super::{Rows, launch};
use crate::cuda::CommandList;
use crate::op::MAX_TOP_K;

/// Columns of a chunk.
const CHUNK: usize = 4096;

/// Bytes of counters of a number of rows, zeros at first.
#[must_use]
pub fn counter_bytes(rows: usize) -> usize {
    12 * rows
}

/// Bytes of candidates of the chunks of rows.
#[must_use]
pub fn candidate_bytes(x: Rows, k: usize) -> usize {
    8 * x.rows * x.cols.div_ceil(CHUNK) * k
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct TopKParams {
    x: u64,
    out: u64,
    best: u64,
    counts: u64,
    found: u64,
    n_rows: u32,
    cols: u32,
    stride: u32,
    k: u32,
    n_chunks: u32,
    unused: u32,
}

/// `k` largest values of every row, then their columns as f32. Addresses of [`counter_bytes`], left as zeros, and of
/// [`candidate_bytes`].
///
/// # Panics
/// If `k` is 0, above [`MAX_TOP_K`] or more than the columns.
pub fn top_k(
    list: &mut CommandList,
    out: u64,
    x: Rows,
    k: usize,
    (counters, candidates): (u64, u64),
) {
    let most = MAX_TOP_K.min(x.cols);
    assert!((1..=most).contains(&k), "top k: {k} of at most {most}");
    let params = TopKParams {
        x: x.address,
        out,
        best: counters,
        counts: counters + 8 * x.rows as u64,
        found: candidates,
        n_rows: x.rows as u32,
        cols: x.cols as u32,
        stride: x.stride as u32,
        k: k as u32,
        n_chunks: x.cols.div_ceil(CHUNK) as u32,
        unused: 0,
    };
    if k == 1 {
        let blocks = x.cols.div_ceil(2048).min(64);
        launch(list, ("top_k", "arg_max"), [blocks, x.rows, 1], 256, &params);
    } else {
        let chunks = x.cols.div_ceil(CHUNK);
        launch(list, ("top_k", "top_k_chunks"), [chunks, x.rows, 1], 1024, &params);
        launch(list, ("top_k", "top_k"), [x.rows, 1, 1], 1024, &params);
    }
}
