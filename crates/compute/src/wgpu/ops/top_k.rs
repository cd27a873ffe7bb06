//! Top-k values of rows with their columns, as on the CPU: descending, of equal values the lower column first.
//!
//! ```text
//! candidates = the columns of a row
//! repeat
//!     split the candidates into chunks of CHUNK; sort each (bitonic); keep k of each as candidates
//! until there was one chunk
//! ```

use super::kernel::{GpuRows, check_len, kernel_source};
use crate::kernel_params;
use crate::wgpu::{Access, Bind, GpuBuffer, KernelParams, Recorder, Source, Variant};

/// Invocations in a workgroup, each with four candidates.
const WORKGROUP: u32 = 256;
/// Candidates in a chunk.
const CHUNK: usize = 4 * WORKGROUP as usize;
const ACCESS: &[Access] = &[Access::Read, Access::Write];

pub(super) fn source(variant: Variant) -> Source {
    let name = format!("top_k-{}", variant.name());
    let source = kernel_source(name, TopKParams::LAYOUT, ACCESS, variant, WORKGROUP);
    let source = source.file(match variant {
        Variant::Portable => include_str!("shuffle_xor.portable.wgsl"),
        Variant::Subgroups => include_str!("shuffle_xor.subgroups.wgsl"),
    });
    source.file(include_str!("top_k.wgsl"))
}

kernel_params! {
    struct TopKParams {
        rows: u32,
        /// Chunks of a row.
        chunks: u32,
        /// Candidates of a row.
        n: u32,
        k: u32,
        offset: u32,
        stride: u32,
        is_first: u32,
        /// The last round writes k values, then k columns, as f32.
        is_last: u32,
        /// Candidates to sort in a chunk, a power of two.
        sort_len: u32,
    }
}

/// Writes the `k` largest values of every row of `x`, in descending order, of equal values the lower column first.
/// `out` is packed `[T, 2k]`: row `t` holds `k` values, then `k` column numbers as f32.
///
/// # Panics
/// If `k` is 0, more than the columns or more than half a chunk, or the shapes do not fit.
#[track_caller]
pub fn top_k(list: &mut Recorder, out: &GpuBuffer, x: GpuRows<'_>, k: usize) {
    let GpuRows { buffer, offset, rows, cols, stride } = x.checked();
    // Every round must reduce the candidates.
    let max = cols.min(CHUNK / 2);
    assert!((1..=max).contains(&k), "top_k: expected k of 1 to {max}, got {k}");
    check_len("top_k", out, 2 * k * rows);
    let kernel = list.gpu().kernel(("top_k", [0; 4]), || source(list.gpu().variant()));
    let (mut src, mut n) = (buffer.clone(), cols);
    for round in 0.. {
        let chunks = n.div_ceil(CHUNK);
        let is_last = chunks == 1;
        let dst = if is_last {
            out.clone()
        } else {
            let name = ["top_k even rounds", "top_k odd rounds"][round % 2];
            list.scratch(name, 8 * rows * chunks * k)
        };
        let params = TopKParams {
            rows: rows as u32,
            chunks: chunks as u32,
            n: n as u32,
            k: k as u32,
            offset: offset as u32,
            stride: stride as u32,
            is_first: u32::from(round == 0),
            is_last: u32::from(is_last),
            sort_len: n.next_power_of_two().min(CHUNK) as u32,
        };
        let binds = [Bind::Buffer(&src), Bind::Buffer(&dst)];
        list.dispatch_linear(&kernel, &params, binds, rows * chunks);
        if is_last {
            break;
        }
        (src, n) = (dst, chunks * k);
    }
}
