//! Products of many rows of activations by cooperative matrices.
//!
//! A workgroup computes a square tile of the output. Activations are rounded to f16 once and weights are
//! dequantized to f16, so that results have the errors of f16 factors; f32 weights are left to
//! `gemm.wgsl`, which keeps them.

use stonechat_compute::DType;
use stonechat_compute::wgpu::ops::halves::{self, COLUMNS};
use stonechat_compute::wgpu::ops::{ACTIVATIONS, GpuRows, start};
use stonechat_compute::wgpu::{Bind, Gpu, GpuBuffer, Matrices, Source, TwinKind, Variant};

use super::matmul::{
    ACCESS, ACCESS_WITH_TWIN, Activations, GpuEpilogue, Params, binds, with_format,
};
use super::matrix::GpuMatrix;
use super::planes::Format;

/// Where an output goes as f16: beside f32, or nowhere else.
const BESIDE: u32 = 1;
const INSTEAD: u32 = 2;
/// Tiles that keep a large device busy; where large ones are fewer, smaller ones are used.
const ENOUGH_TILES: usize = 96;

/// Rows and columns of a tile, the larger ones where there are enough of them.
fn tile(matrices: Matrices, rows: usize, n: usize) -> usize {
    let [large, small] = tiles(matrices);
    let n_large = rows.div_ceil(large) * n.div_ceil(large);
    if n_large >= ENOUGH_TILES { large } else { small }
}

/// Sides of tiles: 64 and 128 matrices of 16 rows, or 32 and 64 of 8.
fn tiles(matrices: Matrices) -> [usize; 2] {
    [8, 4].map(|n| n * matrices.side as usize)
}

/// Invocations that share a tile: each moves an eighth of a row's 64 columns twice over.
fn workgroup(tile: usize) -> u32 {
    2 * tile as u32
}

/// Matrices of a subgroup, down and across the tile: as square as they can be.
fn grid(matrices: Matrices, tile: usize) -> (u32, u32) {
    let side = tile as u32 / matrices.side;
    let of_subgroup = side * side * matrices.subgroup / workgroup(tile);
    let down = 1 << of_subgroup.ilog2().div_ceil(2);
    (down, of_subgroup / down)
}

fn source(format: &Format, matrices: Matrices, tile: usize) -> Source {
    let name = format!("gemm-{}-matrices{tile}", format.dtype);
    let (down, across) = grid(matrices, tile);
    let source = start(name, ACCESS_WITH_TWIN, Variant::Subgroups, workgroup(tile))
        .with_matrices(matrices)
        .constant("DOWN", down)
        .constant("ACROSS", across)
        .file(include_str!("params.wgsl"))
        .file(include_str!("one_matrix.wgsl"))
        .file(ACTIVATIONS)
        .file(halves::VALUES);
    let weights = match format.dtype {
        DType::F16 => include_str!("weights_f16.wgsl"),
        _ => include_str!("weights_chunks.wgsl"),
    };
    let file = include_str!("gemm_matrices.wgsl");
    let counts = [("MATRICES", down * across), ("COLUMNS", COLUMNS as u32 / matrices.side)];
    with_format(source, format).file(weights).unrolled(file, &counts)
}

/// Whether [`product`] multiplies with `w`.
pub(super) fn serves(gpu: &Gpu, w: &GpuMatrix) -> bool {
    gpu.matrices().is_some() && w.format.dtype != DType::F32
}

/// The kernels for a format, for tests.
pub(super) fn sources(format: &Format, matrices: Matrices) -> Vec<Source> {
    let sides = if format.dtype == DType::F32 { vec![] } else { tiles(matrices).to_vec() };
    sides.into_iter().map(|tile| source(format, matrices, tile)).collect()
}

/// Compiles the kernels of [`product`] with `w`.
pub(super) fn warm(gpu: &Gpu, w: &GpuMatrix) {
    if let Some(matrices) = gpu.matrices().filter(|_| serves(gpu, w)) {
        for tile in tiles(matrices) {
            kernel(gpu, w.format, matrices, tile);
        }
    }
}

fn kernel(
    gpu: &Gpu,
    format: &'static Format,
    matrices: Matrices,
    tile: usize,
) -> std::sync::Arc<stonechat_compute::wgpu::Kernel> {
    let key = ("gemm_matrices", [format.code(), tile as u32, 0, 0]);
    gpu.kernel(key, || source(format, matrices, tile))
}

/// The product that [`matmul`](super::matmul) documents, of shapes that were checked; `finish` adds what follows the
/// bias.
pub(super) fn product(
    gpu: &Gpu,
    out: &GpuBuffer,
    x: GpuRows<'_>,
    w: &GpuMatrix,
    GpuEpilogue { bias, accumulate, consumer, .. }: GpuEpilogue<'_>,
    finish: impl Fn(Params) -> Params,
) {
    let Some(matrices) = gpu.matrices() else { return };
    let halves = match halves::halves(gpu, x, w.padded_k()) {
        Ok(buffer) => Activations { buffer, offset: 0, stride: w.padded_k() / 8 },
        Err(error) => return gpu.fault(error.to_string()),
    };
    // Four adjacent values are of one part.
    let is_whole = w.parts.iter().all(|part| part.first.is_multiple_of(4));
    let takes_halves = |consumer: &GpuMatrix| serves(gpu, consumer) && consumer.padded_k() == w.n();
    let is_only = is_whole && !accumulate && consumer.is_some_and(takes_halves);
    let twin = if is_only {
        match halves::room(gpu, out, x.rows, w.n()) {
            Ok(twin) => Some(twin),
            Err(error) => return gpu.fault(error.to_string()),
        }
    } else {
        halves::wanted(out, x.rows, w.n()).filter(|_| is_whole)
    };
    let code = twin.as_ref().map_or(0, |_| if is_only { INSTEAD } else { BESIDE });
    for part in w.parts.iter() {
        let tile = tile(matrices, x.rows, part.rows);
        let params = finish(Params::new(w, part, &halves, [x.rows, w.n()], bias));
        let params = Params { twin: code, ..params };
        let mut all = [Bind::from(twin.as_ref()); ACCESS_WITH_TWIN.len()];
        all[..ACCESS.len()].copy_from_slice(&binds(part, &halves, bias, out));
        // Tiles of the same weights are adjacent.
        let groups = [x.rows.div_ceil(tile) as u32, part.rows.div_ceil(tile) as u32, 1];
        gpu.record(0).dispatch(&kernel(gpu, w.format, matrices, tile), &params, all, groups);
    }
    if twin.is_some() {
        out.set_twin(TwinKind::Halves, [x.rows, w.n()]);
    }
}

#[cfg(test)]
mod tests {
    use stonechat_compute::wgpu::Matrices;

    use super::{grid, tile, tiles, workgroup};

    #[test]
    fn subgroups_share_a_tile_without_rest() {
        for side in [8, 16] {
            for subgroup in [8, 16, 32, 64].into_iter().filter(|n| *n >= side) {
                let matrices = Matrices { side, subgroup };
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
        let matrices = Matrices { side: 16, subgroup: 32 };
        assert_eq!(tile(matrices, 512, 4096), 128);
        assert_eq!(tile(matrices, 512, 1024), 64);
        assert_eq!(tile(matrices, 9, 4096), 64);
    }
}
