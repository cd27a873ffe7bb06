//! Products of activations and a matrix of any format.
//!
//! Up to [`MAX_GEMV_ROWS`] rows of activations go through `gemv.wgsl`, where a workgroup takes a few rows of the
//! matrix and reads them once; more go through `gemm.wgsl`, tile by tile. Both are the same text around the
//! `dequantize16` of a format.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::cpu::Activation;
use stonechat_compute::wgpu::ops::{ACTIVATIONS, GpuRows, activation_code, check_len, copy, start};
use stonechat_compute::wgpu::{Access, Bind, Gpu, GpuBuffer, Source, Variant};

use super::matrix::{GpuMatrix, Part};
use super::planes::Format;

/// Rows of activations up to which a matrix is read once for all of them.
pub const MAX_GEMV_ROWS: usize = 8;
/// Rows of activations that there are kernels for.
const GEMV_WIDTHS: [u32; 4] = [1, 2, 4, MAX_GEMV_ROWS as u32];
/// Rows of the matrix that a workgroup of `gemv.wgsl` takes.
const GEMV_ROWS: u32 = 4;
/// Its invocations.
const GEMV_WORKGROUP: u32 = 64;
/// Rows and columns of a tile of `gemm.wgsl`.
const TILE: usize = 64;
const GEMM_WORKGROUP: u32 = 256;
/// Weights that `dequantize16` gives.
const CHUNK: usize = 16;

/// What happens to a result before it is stored.
#[derive(Debug, Clone, Copy)]
pub struct GpuEpilogue<'a> {
    /// `[N]`, added to every row.
    pub bias: Option<&'a GpuBuffer>,
    /// Applied after the bias.
    pub activation: Activation,
    /// Whether the result is added to the output.
    pub accumulate: bool,
}

/// Arguments of [`matmul_experts`].
#[derive(Debug, Clone, Copy)]
pub struct ExpertProduct<'a> {
    /// `[T * n_used]` pairs of words: expert and weight.
    pub choices: &'a GpuBuffer,
    /// How many there are.
    pub n_choices: usize,
    /// Choices that share a row of the activations.
    pub choices_per_row: usize,
    /// Rows of an expert's matrix.
    pub n: usize,
    /// `[E * n]`.
    pub bias: Option<&'a GpuBuffer>,
}

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    w_stride: u32,
    w_blocks: u32,
    /// Chunks of a row.
    chunks: u32,
    /// Rows of activations.
    rows: u32,
    /// Rows of the part, and the first of them.
    part_rows: u32,
    first: u32,
    /// Values of an output row.
    n: u32,
    /// In vectors of 4.
    x_offset: u32,
    x_stride: u32,
    has_bias: u32,
    activation: u32,
    accumulate: u32,
    choices_per_row: u32,
}

impl Params {
    /// `rows` outputs of `n` values, of which `part` gives some, as they are.
    fn new(
        w: &GpuMatrix,
        part: &Part,
        x: &Activations,
        [rows, n]: [usize; 2],
        bias: Option<&GpuBuffer>,
    ) -> Self {
        Self {
            w_stride: w.stride() as u32,
            w_blocks: w.n_blocks() as u32,
            chunks: (w.padded_k() / CHUNK) as u32,
            rows: rows as u32,
            part_rows: part.rows as u32,
            first: part.first as u32,
            n: n as u32,
            x_offset: x.offset as u32,
            x_stride: x.stride as u32,
            has_bias: u32::from(bias.is_some()),
            activation: activation_code(Activation::None),
            accumulate: 0,
            choices_per_row: 1,
        }
    }
}

/// Matrix, activations, bias, choices of experts, output.
const ACCESS: &[Access] = &[Access::Read, Access::Read, Access::Read, Access::Read, Access::Write];

/// Rows of activations that a kernel is made for.
fn gemv_width(rows: usize) -> u32 {
    rows.next_power_of_two() as u32
}

fn gemv_source(format: &Format, rows: u32, by_expert: bool, variant: Variant) -> Source {
    let kind = if by_expert { "gemv_experts" } else { "gemv" };
    let name = format!("{kind}-{}-{rows}-{}", format.dtype, variant.name());
    let sums = match variant {
        Variant::Portable => include_str!("gemv.portable.wgsl"),
        Variant::Subgroups => include_str!("gemv.subgroups.wgsl"),
    };
    let source = start(name, ACCESS, variant, GEMV_WORKGROUP)
        .constant("R", GEMV_ROWS)
        .constant("T", rows)
        .constant("BY_EXPERT", u32::from(by_expert))
        .file(include_str!("params.wgsl"));
    with_format(source, format).file(ACTIVATIONS).file(sums).file(include_str!("gemv.wgsl"))
}

fn gemm_source(format: &Format, variant: Variant) -> Source {
    // Nothing is summed over a workgroup: one kernel serves every adapter.
    let name = format!("gemm-{}-tiled", format.dtype);
    let source = start(name, ACCESS, variant, GEMM_WORKGROUP).file(include_str!("params.wgsl"));
    with_format(source, format).file(ACTIVATIONS).file(include_str!("gemm.wgsl"))
}

/// Appends how a format is read.
pub(super) fn with_format(source: Source, format: &Format) -> Source {
    use stonechat_compute::DType;
    let source = source.file(include_str!("blocks.wgsl"));
    let source = match format.dtype {
        DType::Q4K | DType::Q5K => source.file(include_str!("scales_k.wgsl")),
        DType::Mxfp4 => source.file(include_str!("levels.wgsl")),
        DType::Iq4Nl | DType::Iq4Xs => {
            source.file(include_str!("levels_iq4.wgsl")).file(include_str!("levels.wgsl"))
        }
        _ => source,
    };
    source.file(format.file)
}

pub(super) fn sources(format: &Format, variant: Variant) -> Vec<Source> {
    let mut all: Vec<_> =
        GEMV_WIDTHS.into_iter().map(|rows| gemv_source(format, rows, false, variant)).collect();
    all.push(gemv_source(format, 1, true, variant));
    all.push(gemm_source(format, variant));
    all
}

/// Compiles the kernels of [`matmul`] with `w`.
pub fn warm(gpu: &Gpu, w: &GpuMatrix) {
    for rows in GEMV_WIDTHS {
        gemv_kernel(gpu, w.format, rows, false);
    }
    gemm_kernel(gpu, w.format);
}

fn gemv_kernel(
    gpu: &Gpu,
    format: &'static Format,
    rows: u32,
    by_expert: bool,
) -> std::sync::Arc<stonechat_compute::wgpu::Kernel> {
    let key = [format.code(), rows, u32::from(by_expert), 0];
    gpu.kernel(("gemv", key), || gemv_source(format, rows, by_expert, gpu.variant()))
}

fn gemm_kernel(
    gpu: &Gpu,
    format: &'static Format,
) -> std::sync::Arc<stonechat_compute::wgpu::Kernel> {
    gpu.kernel(("gemm", [format.code(), 0, 0, 0]), || gemm_source(format, gpu.variant()))
}

/// Activations as kernels read them: rows of `padded_k` values at multiples of four.
struct Activations {
    /// Where they were copied to, if they had to be.
    copied: Option<std::sync::Arc<GpuBuffer>>,
    offset: usize,
    stride: usize,
}

/// Copies `x` where its rows are not aligned or not as long as those of `w`.
fn aligned(gpu: &Gpu, w: &GpuMatrix, x: GpuRows<'_>) -> Option<Activations> {
    let is_aligned = x.offset.is_multiple_of(4)
        && (x.stride.is_multiple_of(4) || x.rows <= 1)
        && x.cols == w.padded_k();
    if is_aligned {
        return Some(Activations { copied: None, offset: x.offset / 4, stride: x.stride / 4 });
    }
    match gpu.scratch("matmul", 4 * x.rows * w.padded_k()) {
        Ok(scratch) => {
            copy::copy(gpu, &scratch, 0, w.padded_k(), x);
            Some(Activations { copied: Some(scratch), offset: 0, stride: w.padded_k() / 4 })
        }
        Err(error) => {
            gpu.fault(error.to_string());
            None
        }
    }
}

/// `out[t, n] = Σ_k x[t, k] w[n, k]` with an epilogue, `out` packed `[T, N]`.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn matmul(
    gpu: &Gpu,
    out: &GpuBuffer,
    x: GpuRows<'_>,
    w: &GpuMatrix,
    epilogue: GpuEpilogue<'_>,
) {
    let x = x.checked();
    // Windows of a convolution have zeros beyond the matrix.
    assert!(x.cols == w.k() || x.cols == w.padded_k(), "matmul: {} of {} columns", x.cols, w.k());
    check_len("matmul", out, x.rows * w.n());
    epilogue.bias.inspect(|bias| check_len("matmul", bias, w.n()));
    if x.rows == 0 || w.n() == 0 {
        return;
    }
    let Some(activations) = aligned(gpu, w, x) else { return };
    for part in &w.parts {
        let params = Params {
            activation: activation_code(epilogue.activation),
            accumulate: u32::from(epilogue.accumulate),
            ..Params::new(w, part, &activations, [x.rows, w.n()], epilogue.bias)
        };
        let binds = [
            Bind::Buffer(&part.buffer),
            Bind::Buffer(activations.copied.as_deref().unwrap_or(x.buffer)),
            epilogue.bias.into(),
            Bind::Nothing,
            Bind::Buffer(out),
        ];
        if x.rows <= MAX_GEMV_ROWS {
            let kernel = gemv_kernel(gpu, w.format, gemv_width(x.rows), false);
            let groups = part.rows.div_ceil(GEMV_ROWS as usize);
            gpu.record(0).dispatch_line(&kernel, &params, binds, groups);
        } else {
            let kernel = gemm_kernel(gpu, w.format);
            let groups = [part.rows.div_ceil(TILE) as u32, x.rows.div_ceil(TILE) as u32, 1];
            gpu.record(0).dispatch(&kernel, &params, binds, groups);
        }
    }
}

/// For every choice `i` of an expert `e`, `out[i, n] = Σ_k x[i / choices_per_row, k] w[e * N + n, k]` and
/// the bias, `out` packed.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn matmul_experts(
    gpu: &Gpu,
    out: &GpuBuffer,
    x: GpuRows<'_>,
    w: &GpuMatrix,
    args: ExpertProduct<'_>,
) {
    let x = x.checked();
    let ExpertProduct { choices, n_choices, choices_per_row, n, bias } = args;
    assert_eq!((x.cols, x.rows * choices_per_row), (w.k(), n_choices), "experts: shape of x");
    assert!(w.n().is_multiple_of(n), "experts: {} rows are no multiple of {n}", w.n());
    check_len("experts", out, n_choices * n);
    check_len("experts", choices, 2 * n_choices);
    bias.inspect(|bias| check_len("experts", bias, w.n()));
    let Some(activations) = aligned(gpu, w, x) else { return };
    for part in &w.parts {
        let params = Params {
            choices_per_row: choices_per_row as u32,
            ..Params::new(w, part, &activations, [n_choices, n], bias)
        };
        let binds = [
            Bind::Buffer(&part.buffer),
            Bind::Buffer(activations.copied.as_deref().unwrap_or(x.buffer)),
            bias.into(),
            Bind::Buffer(choices),
            Bind::Buffer(out),
        ];
        let kernel = gemv_kernel(gpu, w.format, 1, true);
        let groups = [n.div_ceil(GEMV_ROWS as usize) as u32, n_choices as u32, 1];
        gpu.record(0).dispatch(&kernel, &params, binds, groups);
    }
}
