//! Matmul of activations and a weight matrix of any format.
//!
//! | rows of activations | kernel |
//! |---|---|
//! | up to [`MAX_GEMV_ROWS`] | `gemv` |
//! | more | `gemm` (`gemm_coop.wgsl`) on devices with cooperative matrices, else `gemm.wgsl` |

use std::sync::Arc;

use stonechat_compute::cpu::Activation;
use stonechat_compute::kernel_params;
use stonechat_compute::wgpu::ops::{
    ACTIVATIONS, GpuRows, activation_code, check_len, copy, kernel_source,
};
use stonechat_compute::wgpu::{
    Access, Bind, Gpu, GpuBuffer, Kernel, KernelParams, Source, Variant,
};

use super::gemm;
use super::gemv::{self, GemvGroup, MAX_GEMV_ROWS};
use super::input_norm::{InputNorm, MatmulInput};
use super::matrix::{GpuMatrix, RowSlice};
use super::planes::Format;

/// Rows and columns of a tile of `gemm.wgsl`.
const TILE: usize = 64;
const GEMM_WORKGROUP: u32 = 256;
/// Weights of one `dequantize16`.
pub(super) const CHUNK: usize = 16;

/// Epilogue of a matmul.
#[derive(Debug, Clone, Copy)]
pub struct GpuEpilogue<'a> {
    /// `[N]`, added to every row.
    pub bias: Option<&'a GpuBuffer>,
    /// Applied after the bias.
    pub activation: Activation,
    /// Add the result to the output.
    pub accumulate: bool,
    /// Matrix of the matmul that is the only reader of the output; the kernel may then write only the f16 copy.
    pub consumer: Option<&'a GpuMatrix>,
}

impl GpuEpilogue<'_> {
    /// No epilogue.
    pub const PLAIN: Self =
        Self { bias: None, activation: Activation::None, accumulate: false, consumer: None };

    /// Whether there is at most a bias.
    #[must_use]
    pub fn is_bias_only(&self) -> bool {
        self.activation == Activation::None && !self.accumulate
    }

    /// Whether there is neither bias, activation nor accumulation.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.is_bias_only() && self.bias.is_none()
    }
}

kernel_params! {
    pub(super) struct MatmulParams {
        pub(super) w_stride: u32,
        pub(super) w_blocks: u32,
        /// Chunks in a row of the matrix.
        pub(super) chunks: u32,
        /// Rows of activations.
        pub(super) rows: u32,
        /// Rows of the slice.
        pub(super) slice_rows: u32,
        /// First row of the slice.
        pub(super) slice_first: u32,
        /// Row length of the output.
        pub(super) n: u32,
        /// In vectors of 16 bytes, as `x_stride`.
        pub(super) x_offset: u32,
        pub(super) x_stride: u32,
        pub(super) has_bias: u32,
        pub(super) activation: u32,
        pub(super) accumulate: u32,
        pub(super) choices_per_row: u32,
        pub(super) norm_eps: f32,
        pub(super) f16_output: u32,
    }
}

impl MatmulParams {
    /// For `[rows, n]` outputs, without epilogue but `bias`.
    pub(super) fn new(
        w: &GpuMatrix,
        slice: &RowSlice,
        x: &Activations,
        [rows, n]: [usize; 2],
        bias: Option<&GpuBuffer>,
    ) -> Self {
        Self {
            w_stride: w.stride() as u32,
            w_blocks: w.n_blocks() as u32,
            chunks: (w.padded_k() / CHUNK) as u32,
            rows: rows as u32,
            slice_rows: slice.rows as u32,
            slice_first: slice.first as u32,
            n: n as u32,
            x_offset: x.offset as u32,
            x_stride: x.stride as u32,
            has_bias: u32::from(bias.is_some()),
            activation: activation_code(Activation::None),
            accumulate: 0,
            choices_per_row: 1,
            norm_eps: 0.0,
            f16_output: 0,
        }
    }
}

/// Matrix (as vectors), activations, bias, choices of experts, output, matrix again (as words).
pub(super) const ACCESS: &[Access] =
    &[Access::Read, Access::Read, Access::Read, Access::Read, Access::Write, Access::Read];

/// [`ACCESS`] and a cached copy of the output.
pub(super) const ACCESS_WITH_COPY: &[Access] =
    &Access::concat::<{ ACCESS.len() + 1 }>(ACCESS, &[Access::Write]);

/// Bindings of [`ACCESS`], without choices of experts.
pub(super) fn binds<'a>(
    slice: &'a RowSlice,
    x: &'a Activations,
    bias: Option<&'a GpuBuffer>,
    out: &'a GpuBuffer,
) -> [Bind<'a>; 6] {
    let (w, x, out) = (Bind::Buffer(&slice.buffer), Bind::Buffer(&x.buffer), Bind::Buffer(out));
    [w, x, bias.into(), Bind::Unused, out, w]
}

fn gemm_source(format: &Format, variant: Variant) -> Source {
    let name = format!("gemm-{}-tiled", format.dtype);
    let source = kernel_source(name, MatmulParams::LAYOUT, ACCESS, variant, GEMM_WORKGROUP)
        .file(include_str!("matmul_params.wgsl"))
        .file(include_str!("matrix_bindings.wgsl"));
    with_format(source, format).file(ACTIVATIONS).file(include_str!("gemm.wgsl"))
}

/// Appends `dequantize16` of a format, and `load_quants16` if it is quantized.
pub(super) fn with_format(source: Source, format: &Format) -> Source {
    let source = source.file(include_str!("plane_access.wgsl"));
    let source = format_files(format).into_iter().fold(source, |source, file| source.file(file));
    if format.is_quantized { source.file(include_str!("dequantize16.wgsl")) } else { source }
}

/// WGSL specific to a format.
pub(super) fn format_files(format: &Format) -> Vec<&'static str> {
    use stonechat_compute::DType;
    let mut files = match format.dtype {
        DType::Q4K | DType::Q5K => vec![include_str!("scales_k.wgsl")],
        DType::Mxfp4 => vec![include_str!("codebook.wgsl")],
        DType::Iq4Nl | DType::Iq4Xs => {
            vec![include_str!("codebook_iq4.wgsl"), include_str!("codebook.wgsl")]
        }
        _ => vec![],
    };
    files.push(format.file);
    if format.is_quantized {
        files.push(match format.dtype {
            DType::Q2K | DType::Q3K | DType::Q6K => "const CHUNK_STRIDE: u32 = 2u;\n",
            _ => "const CHUNK_STRIDE: u32 = 1u;\n",
        });
        files.push(include_str!("chunks.wgsl"));
    }
    files
}

pub(super) fn sources(format: &'static Format, variant: Variant) -> Vec<Source> {
    let mut all = gemv::sources(format, variant);
    all.push(gemm_source(format, variant));
    all
}

/// Compiles the kernels of [`matmul`] with `w`.
pub fn warm_up(gpu: &Gpu, w: &GpuMatrix) {
    gemv::warm_up(gpu, w);
    gemm_kernel(gpu, w.format);
    gemm::warm_up(gpu, w);
}

fn gemm_kernel(gpu: &Gpu, format: &'static Format) -> Arc<Kernel> {
    gpu.kernel(("gemm", [format.code(), 0, 0, 0]), || gemm_source(format, gpu.variant()))
}

/// Activations in the format that a kernel reads; offset and stride in vectors of 16 bytes.
pub(super) struct Activations {
    pub(super) buffer: GpuBuffer,
    pub(super) offset: usize,
    pub(super) stride: usize,
}

impl Activations {
    /// One row of f32 values, of which the kernel computes the norm.
    pub(super) fn before_norm(norm: InputNorm<'_>) -> Self {
        let GpuRows { buffer, offset, .. } = norm.x;
        Self { buffer: buffer.clone(), offset: offset / 4, stride: 0 }
    }

    /// F32 values of `x`; copied if rows are not aligned to vectors or shorter than those of `w`.
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

/// `out[t, n] (+)= act(Σ_k x[t, k] w[n, k] + bias[n])`. Shapes: `x` = `[T, K]`, `w` = `[N, K]`, `out` = `[T, N]`, packed.
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
    dispatch_matmul(gpu, out, &mut MatmulInput::new(x, None), w, epilogue);
}

/// [`matmul`] of the same activations with several matrices, in one kernel where possible. With a norm, `x` is its output
/// and is written, too.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn matmul_all<'a>(
    gpu: &Gpu,
    x: GpuRows<'_>,
    norm: Option<InputNorm<'_>>,
    matmuls: impl IntoIterator<Item = (&'a GpuBuffer, &'a GpuMatrix, GpuEpilogue<'a>)>,
) {
    let mut input = MatmulInput::new(x, norm);
    let mut group = GemvGroup::default();
    for (out, w, epilogue) in matmuls {
        let is_grouped = x.cols == w.k()
            && epilogue.is_bias_only()
            && group.try_push(gpu, x.rows, (out, w, epilogue.bias));
        if !is_grouped {
            dispatch_matmul(gpu, out, &mut input, w, epilogue);
        }
    }
    match group.matmuls() {
        [] => {}
        [(out, w, bias)] => {
            let epilogue = GpuEpilogue { bias: *bias, ..GpuEpilogue::PLAIN };
            dispatch_matmul(gpu, out, &mut input, w, epilogue);
        }
        _ => group.record(gpu, &mut input),
    }
    input.flush_norm(gpu);
}

/// Records a matmul by the kernel for its shape.
#[track_caller]
fn dispatch_matmul(
    gpu: &Gpu,
    out: &GpuBuffer,
    input: &mut MatmulInput<'_>,
    w: &GpuMatrix,
    epilogue: GpuEpilogue<'_>,
) {
    let x = input.x.checked();
    // im2col pads rows to `padded_k`.
    assert!(x.cols == w.k() || x.cols == w.padded_k(), "matmul: {} of {} columns", x.cols, w.k());
    check_len("matmul", out, x.rows * w.n());
    epilogue.bias.inspect(|bias| check_len("matmul", bias, w.n()));
    if x.rows == 0 || w.n() == 0 {
        return;
    }
    let finish = |params| MatmulParams {
        activation: activation_code(epilogue.activation),
        accumulate: u32::from(epilogue.accumulate),
        ..params
    };
    if x.rows <= MAX_GEMV_ROWS {
        return gemv::matmul(gpu, out, input, w, epilogue.bias, finish);
    }
    input.flush_norm(gpu);
    if gemm::supports(gpu, w) {
        return gemm::matmul(gpu, out, x, w, epilogue, finish);
    }
    let Some(activations) = Activations::values(gpu, w, x) else { return };
    let kernel = gemm_kernel(gpu, w.format);
    for slice in w.slices.iter() {
        let params =
            finish(MatmulParams::new(w, slice, &activations, [x.rows, w.n()], epilogue.bias));
        let binds = binds(slice, &activations, epilogue.bias, out);
        let groups = [slice.rows.div_ceil(TILE) as u32, x.rows.div_ceil(TILE) as u32, 1];
        gpu.record(0).dispatch(&kernel, &params, binds, groups);
    }
}
