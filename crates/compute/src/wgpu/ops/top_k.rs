//! The greatest values of rows, and where they stand: pieces of a row are sorted apart, what is greatest in each goes
//! on to the next round, until a round has one piece.

use bytemuck::{Pod, Zeroable};

use super::{GpuRows, check_len, start};
use crate::Result;
use crate::wgpu::{Access, Bind, Gpu, GpuBuffer, Source, Variant};

/// Invocations of a workgroup, which take four items each.
const WORKGROUP: u32 = 256;
/// Items of a piece.
const PIECE: usize = 4 * WORKGROUP as usize;

pub(super) fn source(variant: Variant) -> Source {
    let name = format!("top_k-{}", variant.name());
    let source = start(name, &[Access::Read, Access::Write], variant, WORKGROUP);
    let source = source.file(match variant {
        Variant::Portable => include_str!("across.portable.wgsl"),
        Variant::Subgroups => include_str!("across.subgroups.wgsl"),
    });
    source.file(include_str!("top_k.wgsl"))
}

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    rows: u32,
    pieces: u32,
    n: u32,
    k: u32,
    offset: u32,
    stride: u32,
    is_first: u32,
    is_last: u32,
    sorted: u32,
}

/// The `k` greatest values of every row of `x` in descending order, of equals the lower column first: row `t` of
/// `out`, packed `[T, 2k]`, gets the values and then the numbers of their columns.
///
/// # Errors
/// If the device has no room for what goes from round to round.
///
/// # Panics
/// If `k` is 0, more than the columns or more than half a piece, or the shapes do not fit.
#[track_caller]
pub fn top_k(gpu: &Gpu, out: &GpuBuffer, x: GpuRows<'_>, k: usize) -> Result<()> {
    let GpuRows { buffer, offset, rows, cols, stride } = x.checked();
    // A round leaves fewer than it was given.
    assert!((1..=cols.min(PIECE / 2)).contains(&k), "top_k: {k} of {cols} values");
    check_len("top_k", out, 2 * k * rows);
    let kernel = gpu.kernel(("top_k", [0; 4]), || source(gpu.variant()));
    let (mut src, mut n) = (buffer.clone(), cols);
    for round in 0.. {
        let pieces = n.div_ceil(PIECE);
        let is_last = pieces == 1;
        let dst = if is_last {
            out.clone()
        } else {
            let name = ["top_k of even rounds", "top_k of odd rounds"][round % 2];
            gpu.scratch(name, 8 * rows * pieces * k)?
        };
        let params = Params {
            rows: rows as u32,
            pieces: pieces as u32,
            n: n as u32,
            k: k as u32,
            offset: offset as u32,
            stride: stride as u32,
            is_first: u32::from(round == 0),
            is_last: u32::from(is_last),
            sorted: n.next_power_of_two().min(PIECE) as u32,
        };
        let binds = [Bind::Buffer(&src), Bind::Buffer(&dst)];
        gpu.record(0).dispatch_line(&kernel, &params, binds, rows * pieces);
        if is_last {
            break;
        }
        (src, n) = (dst, pieces * k);
    }
    Ok(())
}
