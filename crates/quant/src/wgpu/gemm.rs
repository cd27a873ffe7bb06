//! GEMM: matmuls of more than [`MAX_GEMV_ROWS`](super::MAX_GEMV_ROWS) rows of activations. A workgroup computes a square
//! tile of the output.
//!
//! | shader | device and weights |
//! |---|---|
//! | `gemm_coop.wgsl` | cooperative matrices, all weights but f32 |
//! | `gemm.wgsl` | others, in f32 |
//!
//! For cooperative matrices, activations are rounded to f16 once and weights are dequantized to f16: results have the
//! error of f16 operands.

use std::sync::Arc;

use stonechat_compute::DType;
use stonechat_compute::op::Epilogue;
use stonechat_compute::wgpu::ops::operand::{COLUMNS, GpuOutput};
use stonechat_compute::wgpu::ops::{ACTIVATIONS, f16, kernel_source};
use stonechat_compute::wgpu::{
    Bind, CoopMatrices, Gpu, GpuBuffer, Kernel, KernelParams, Recorder, Source, Variant,
};

use super::matmul_args::{
    ACCESS, ACCESS_WITH_OPERAND, Activations, MatmulParams, binds, with_format,
};
use super::matrix::GpuMatrix;
use super::planes::Format;

/// Tiles that fill a large device; below, tiles are smaller.
const MIN_TILES: usize = 96;

/// Side of the tiles for `rows` rows of activations and `n` of the matrix.
fn tile(matrices: CoopMatrices, rows: usize, n: usize) -> usize {
    let [large, small] = tiles(matrices);
    let n_large = rows.div_ceil(large) * n.div_ceil(large);
    if n_large >= MIN_TILES { large } else { small }
}

/// Sides of large and small tiles: 128 and 64 with matrices of 16 rows, 64 and 32 with 8.
fn tiles(matrices: CoopMatrices) -> [usize; 2] {
    [8, 4].map(|n| n * matrices.side as usize)
}

/// Invocations of a tile. A step of 64 columns has 8 vectors (16 bytes of f16) per row; an invocation moves 4 of each operand.
fn workgroup(tile: usize) -> u32 {
    2 * tile as u32
}

/// Matrices of a subgroup, down and across the tile: as square as possible.
fn grid(matrices: CoopMatrices, tile: usize) -> (u32, u32) {
    let side = tile as u32 / matrices.side;
    let per_subgroup = side * side * matrices.subgroup / workgroup(tile);
    let down = 1 << per_subgroup.ilog2().div_ceil(2);
    (down, per_subgroup / down)
}

fn source(format: &Format, matrices: CoopMatrices, tile: usize) -> Source {
    let name = format!("gemm-{}-coop{tile}", format.dtype);
    let (down, across) = grid(matrices, tile);
    let (params, access) = (MatmulParams::LAYOUT, ACCESS_WITH_OPERAND);
    let source = kernel_source(name, params, access, Variant::Subgroups, workgroup(tile))
        .with_matrices(matrices)
        .constant("DOWN", down)
        .constant("ACROSS", across)
        .file(include_str!("matmul_params.wgsl"))
        .file(include_str!("matrix_bindings.wgsl"))
        .file(ACTIVATIONS)
        .file(f16::PACK);
    let weights = match format.dtype {
        DType::F16 => include_str!("gemm_coop_f16.wgsl"),
        _ => include_str!("gemm_coop_dequantize.wgsl"),
    };
    let file = include_str!("gemm_coop.wgsl");
    let counts = [("MATRICES", down * across), ("COLUMNS", COLUMNS as u32 / matrices.side)];
    with_format(source, format).file(weights).unrolled(file, &counts)
}

/// Whether the device multiplies weights of the format by cooperative matrices.
pub(super) fn supports(gpu: &Gpu, format: &Format) -> bool {
    gpu.matrices().is_some() && format.dtype != DType::F32
}

/// Every shader of a format, for tests.
pub(super) fn sources(format: &Format, matrices: CoopMatrices) -> Vec<Source> {
    let sides = if format.dtype == DType::F32 { vec![] } else { tiles(matrices).to_vec() };
    sides.into_iter().map(|tile| source(format, matrices, tile)).collect()
}

fn kernel(gpu: &Gpu, format: &'static Format, matrices: CoopMatrices, tile: usize) -> Arc<Kernel> {
    let key = ("gemm_coop", [format.code(), tile as u32, 0, 0]);
    gpu.kernel(key, || source(format, matrices, tile))
}

/// Rows and columns of a tile of `gemm.wgsl`.
const TILE: usize = 64;
const TILED_WORKGROUP: u32 = 256;

/// Shader of a device without cooperative matrices, and of f32 weights.
pub(super) fn tiled_source(format: &Format, variant: Variant) -> Source {
    let name = format!("gemm-{}-tiled", format.dtype);
    let source = kernel_source(name, MatmulParams::LAYOUT, ACCESS, variant, TILED_WORKGROUP)
        .file(include_str!("matmul_params.wgsl"))
        .file(include_str!("matrix_bindings.wgsl"));
    with_format(source, format).file(ACTIVATIONS).file(include_str!("gemm.wgsl"))
}

/// [`matmul`](super::matmul) of more than [`MAX_GEMV_ROWS`](super::MAX_GEMV_ROWS) rows, with checked arguments.
pub(super) fn gemm(
    list: &mut Recorder,
    out: GpuOutput<'_>,
    (x, rows): (&Activations<'_>, usize),
    w: &GpuMatrix,
    epilogue: Epilogue<&GpuBuffer>,
) {
    let matrices = list.gpu().matrices().filter(|_| supports(list.gpu(), w.format));
    let operand = out.operand.map(|(_, buffer)| buffer);
    for slice in w.slices.iter() {
        let params = MatmulParams::new(w, slice, x, [rows, w.n], epilogue);
        let binds = binds(slice, x, epilogue.bias, out.values.into());
        let groups = |tile| [slice.rows.div_ceil(tile) as u32, rows.div_ceil(tile) as u32, 1];
        let Some(matrices) = matrices else {
            let (format, variant) = (w.format, list.gpu().variant());
            let key = ("gemm", [format.code(), 0, 0, 0]);
            let kernel = list.gpu().kernel(key, || tiled_source(format, variant));
            list.dispatch(&kernel, &params, binds, groups(TILE));
            continue;
        };
        let tile = tile(matrices, rows, slice.rows);
        let params = MatmulParams { f16_output: u32::from(operand.is_some()), ..params };
        let mut all = [Bind::from(operand); ACCESS_WITH_OPERAND.len()];
        all[..ACCESS.len()].copy_from_slice(&binds);
        let [columns, rows, _] = groups(tile);
        // Adjacent workgroups share weights.
        let groups = [rows, columns, 1];
        list.dispatch(&kernel(list.gpu(), w.format, matrices, tile), &params, all, groups);
    }
}

#[cfg(test)]
mod tests {
    use stonechat_compute::wgpu::CoopMatrices;

    use super::{grid, tile, tiles, workgroup};

    #[test]
    fn subgroups_share_a_tile_without_rest() {
        for side in [8, 16] {
            for subgroup in [8, 16, 32, 64].into_iter().filter(|n| *n >= side) {
                let matrices = CoopMatrices { side, subgroup };
                for tile in tiles(matrices) {
                    let (down, across) = grid(matrices, tile);
                    let in_row = tile as u32 / (side * across);
                    let in_column = tile as u32 / (side * down);
                    assert_eq!(in_row * across * side, tile as u32, "{matrices:?}");
                    assert_eq!(in_row * in_column * subgroup, workgroup(tile), "{matrices:?}");
                }
            }
        }
    }

    #[test]
    fn small_outputs_get_small_tiles() {
        let matrices = CoopMatrices { side: 16, subgroup: 32 };
        assert_eq!(tile(matrices, 512, 4096), 128);
        assert_eq!(tile(matrices, 512, 1024), 64);
        assert_eq!(tile(matrices, 9, 4096), 64);
    }
}
