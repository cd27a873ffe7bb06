//! Products of activations and a matrix of any format.
//!
//! Up to [`MAX_GEMV_ROWS`] rows of activations go through `gemv`, where a workgroup takes a few rows of the
//! matrix and reads them once; more go tile by tile through `gemm` where a
//! device has cooperative matrices, else through `gemm.wgsl`.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::cpu::Activation;
use stonechat_compute::wgpu::ops::{ACTIVATIONS, GpuRows, activation_code, check_len, copy, start};
use stonechat_compute::wgpu::{Access, Bind, Gpu, GpuBuffer, Source, Variant};

use super::gemm;
use super::gemv::{self, Group, MAX_GEMV_ROWS};
use super::matrix::{GpuMatrix, Part};
use super::normed::{Input, Normed};
use super::planes::Format;

/// Rows and columns of a tile of `gemm.wgsl`.
const TILE: usize = 64;
const GEMM_WORKGROUP: u32 = 256;
/// Weights that `dequantize16` gives.
pub(super) const CHUNK: usize = 16;

/// What happens to a result before it is stored.
#[derive(Debug, Clone, Copy)]
pub struct GpuEpilogue<'a> {
    /// `[N]`, added to every row.
    pub bias: Option<&'a GpuBuffer>,
    /// Applied after the bias.
    pub activation: Activation,
    /// Whether the result is added to the output.
    pub accumulate: bool,
    /// The matrix whose product with all rows is all that reads the result: the output may then hold it only as that
    /// takes it.
    pub consumer: Option<&'a GpuMatrix>,
}

impl GpuEpilogue<'_> {
    /// Nothing.
    pub const PLAIN: Self =
        Self { bias: None, activation: Activation::None, accumulate: false, consumer: None };

    /// Whether it adds a bias at most.
    #[must_use]
    pub fn is_sum(&self) -> bool {
        self.activation == Activation::None && !self.accumulate
    }

    /// Whether it does nothing.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.is_sum() && self.bias.is_none()
    }
}

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Params {
    pub(super) w_stride: u32,
    pub(super) w_blocks: u32,
    /// Chunks of a row.
    pub(super) chunks: u32,
    /// Rows of activations.
    pub(super) rows: u32,
    /// Rows of the part, and the first of them.
    pub(super) part_rows: u32,
    pub(super) first: u32,
    /// Values of an output row.
    pub(super) n: u32,
    /// In vectors of 4.
    pub(super) x_offset: u32,
    pub(super) x_stride: u32,
    pub(super) has_bias: u32,
    pub(super) activation: u32,
    pub(super) accumulate: u32,
    pub(super) choices_per_row: u32,
    pub(super) norm_eps: f32,
    pub(super) twin: u32,
}

impl Params {
    /// `rows` outputs of `n` values, of which `part` gives some, as they are.
    pub(super) fn new(
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
            norm_eps: 0.0,
            twin: 0,
        }
    }
}

/// Matrix, activations, bias, choices of experts, output, matrix again.
pub(super) const ACCESS: &[Access] =
    &[Access::Read, Access::Read, Access::Read, Access::Read, Access::Write, Access::Read];

/// The same, and a copy of the output.
pub(super) const ACCESS_WITH_TWIN: &[Access] =
    &Access::joined::<{ ACCESS.len() + 1 }>(ACCESS, &[Access::Write]);

/// What [`ACCESS`] lists, without choices of experts.
pub(super) fn binds<'a>(
    part: &'a Part,
    x: &'a Activations,
    bias: Option<&'a GpuBuffer>,
    out: &'a GpuBuffer,
) -> [Bind<'a>; 6] {
    let (w, x, out) = (Bind::Buffer(&part.buffer), Bind::Buffer(&x.buffer), Bind::Buffer(out));
    [w, x, bias.into(), Bind::Nothing, out, w]
}

fn gemm_source(format: &Format, variant: Variant) -> Source {
    // Nothing is summed over a workgroup: one kernel serves every adapter.
    let name = format!("gemm-{}-tiled", format.dtype);
    let source = start(name, ACCESS, variant, GEMM_WORKGROUP)
        .file(include_str!("params.wgsl"))
        .file(include_str!("one_matrix.wgsl"));
    with_format(source, format).file(ACTIVATIONS).file(include_str!("gemm.wgsl"))
}

/// Appends how a format is read.
pub(super) fn with_format(source: Source, format: &Format) -> Source {
    let source = source.file(include_str!("blocks.wgsl"));
    let source = format_files(format).into_iter().fold(source, |source, file| source.file(file));
    if format.has_codes { source.file(include_str!("codes.wgsl")) } else { source }
}

/// What tells the reading of a format from that of others.
pub(super) fn format_files(format: &Format) -> Vec<&'static str> {
    use stonechat_compute::DType;
    let mut files = match format.dtype {
        DType::Q4K | DType::Q5K => vec![include_str!("scales_k.wgsl")],
        DType::Mxfp4 => vec![include_str!("levels.wgsl")],
        DType::Iq4Nl | DType::Iq4Xs => {
            vec![include_str!("levels_iq4.wgsl"), include_str!("levels.wgsl")]
        }
        _ => vec![],
    };
    files.push(format.file);
    if format.has_codes {
        files.push(match format.dtype {
            DType::Q2K | DType::Q3K | DType::Q6K => include_str!("chunks_apart.wgsl"),
            _ => include_str!("chunks_adjacent.wgsl"),
        });
    }
    files
}

pub(super) fn sources(format: &'static Format, variant: Variant) -> Vec<Source> {
    let mut all = gemv::sources(format, variant);
    all.push(gemm_source(format, variant));
    all
}

/// Compiles the kernels of [`matmul`] with `w`.
pub fn warm(gpu: &Gpu, w: &GpuMatrix) {
    gemv::warm(gpu, w);
    gemm_kernel(gpu, w.format);
    gemm::warm(gpu, w);
}

fn gemm_kernel(
    gpu: &Gpu,
    format: &'static Format,
) -> std::sync::Arc<stonechat_compute::wgpu::Kernel> {
    gpu.kernel(("gemm", [format.code(), 0, 0, 0]), || gemm_source(format, gpu.variant()))
}

/// Activations as kernels read them, in vectors of 16 bytes.
pub(super) struct Activations {
    pub(super) buffer: GpuBuffer,
    pub(super) offset: usize,
    pub(super) stride: usize,
}

impl Activations {
    /// One row that a kernel makes the norm of.
    pub(super) fn normed(normed: Normed<'_>) -> Self {
        let GpuRows { buffer, offset, .. } = normed.x;
        Self { buffer: buffer.clone(), offset: offset / 4, stride: 0 }
    }

    /// The values of `x`, copied where its rows are not aligned or not as long as those of `w`.
    pub(super) fn values(gpu: &Gpu, w: &GpuMatrix, x: GpuRows<'_>) -> Option<Self> {
        let is_aligned = x.offset.is_multiple_of(4)
            && (x.stride.is_multiple_of(4) || x.rows <= 1)
            && x.cols == w.padded_k();
        if is_aligned {
            let buffer = x.buffer.clone();
            return Some(Self { buffer, offset: x.offset / 4, stride: x.stride / 4 });
        }
        match gpu.scratch("matmul", 4 * x.rows * w.padded_k()) {
            Ok(buffer) => {
                copy::copy(gpu, &buffer, 0, w.padded_k(), x);
                Some(Self { buffer, offset: 0, stride: w.padded_k() / 4 })
            }
            Err(error) => {
                gpu.fault(error.to_string());
                None
            }
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
    product(gpu, out, &mut Input::new(x, None), w, epilogue);
}

/// [`matmul`] of the same activations with several matrices, which share what is done to activations first. Where
/// `x` is still to be made of what is `normed`, it is afterwards.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn matmul_all<'a>(
    gpu: &Gpu,
    x: GpuRows<'_>,
    normed: Option<Normed<'_>>,
    products: impl IntoIterator<Item = (&'a GpuBuffer, &'a GpuMatrix, GpuEpilogue<'a>)>,
) {
    let mut input = Input::new(x, normed);
    let mut group = Group::default();
    for (out, w, epilogue) in products {
        let is_taken = x.cols == w.k()
            && epilogue.is_sum()
            && group.take(gpu, x.rows, (out, w, epilogue.bias));
        if !is_taken {
            product(gpu, out, &mut input, w, epilogue);
        }
    }
    match group.products() {
        [] => {}
        [(out, w, bias)] => {
            let epilogue = GpuEpilogue { bias: *bias, ..GpuEpilogue::PLAIN };
            product(gpu, out, &mut input, w, epilogue);
        }
        _ => group.record(gpu, &mut input),
    }
    input.make(gpu);
}

#[track_caller]
fn product(
    gpu: &Gpu,
    out: &GpuBuffer,
    input: &mut Input<'_>,
    w: &GpuMatrix,
    epilogue: GpuEpilogue<'_>,
) {
    let x = input.x.checked();
    // Windows of a convolution have zeros beyond the matrix.
    assert!(x.cols == w.k() || x.cols == w.padded_k(), "matmul: {} of {} columns", x.cols, w.k());
    check_len("matmul", out, x.rows * w.n());
    epilogue.bias.inspect(|bias| check_len("matmul", bias, w.n()));
    if x.rows == 0 || w.n() == 0 {
        return;
    }
    let finish = |params| Params {
        activation: activation_code(epilogue.activation),
        accumulate: u32::from(epilogue.accumulate),
        ..params
    };
    if x.rows <= MAX_GEMV_ROWS {
        return gemv::product(gpu, out, input, w, epilogue.bias, finish);
    }
    input.make(gpu);
    if gemm::serves(gpu, w) {
        return gemm::product(gpu, out, x, w, epilogue, finish);
    }
    let Some(activations) = Activations::values(gpu, w, x) else { return };
    let kernel = gemm_kernel(gpu, w.format);
    for part in w.parts.iter() {
        let params = finish(Params::new(w, part, &activations, [x.rows, w.n()], epilogue.bias));
        let binds = binds(part, &activations, epilogue.bias, out);
        let groups = [part.rows.div_ceil(TILE) as u32, x.rows.div_ceil(TILE) as u32, 1];
        gpu.record(0).dispatch(&kernel, &params, binds, groups);
    }
}
