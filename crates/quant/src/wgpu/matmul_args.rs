//! Operands, parameters and sources that all matmuls share.

use stonechat_compute::kernel_params;
use stonechat_compute::op::{Epilogue, InputNorm};
use stonechat_compute::wgpu::ops::operand::{GpuOperand, OperandFormat};
use stonechat_compute::wgpu::ops::{copy, q8};
use stonechat_compute::wgpu::{Access, Bind, GpuBuffer, Recorder, Source};
use stonechat_compute::{check_at_most, check_eq};

use super::matrix::{GpuMatrix, RowSlice};
use super::planes::{CHUNK, Format};

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
        /// Offset of `x` in vectors of 16 bytes; `x_stride` has the same unit.
        pub(super) x_offset: u32,
        pub(super) x_stride: u32,
        pub(super) has_bias: u32,
        pub(super) activation: u32,
        pub(super) accumulate: u32,
        pub(super) routes_per_row: u32,
        pub(super) norm_eps: f32,
        pub(super) f16_output: u32,
    }
}

impl MatmulParams {
    /// Parameters of `[rows, n]` outputs from the activations `x`.
    pub(super) fn new(
        w: &GpuMatrix,
        slice: &RowSlice,
        x: &Activations<'_>,
        [rows, n]: [usize; 2],
        epilogue: Epilogue<&GpuBuffer>,
    ) -> Self {
        Self {
            w_stride: w.stride() as u32,
            w_blocks: w.n_blocks() as u32,
            chunks: (w.padded_k / CHUNK) as u32,
            rows: rows as u32,
            slice_rows: slice.rows as u32,
            slice_first: slice.first as u32,
            n: n as u32,
            x_offset: x.offset as u32,
            x_stride: x.stride as u32,
            has_bias: u32::from(epilogue.bias.is_some()),
            activation: epilogue.activation.code(),
            accumulate: u32::from(epilogue.accumulate),
            routes_per_row: 1,
            norm_eps: x.norm.map_or(0.0, |norm| norm.eps),
            f16_output: 0,
        }
    }
}

/// Matrix (as vectors), activations, bias, routes, output, matrix again (as words).
pub(super) const ACCESS: &[Access] =
    &[Access::Read, Access::Read, Access::Read, Access::Read, Access::Write, Access::Read];

/// [`ACCESS`] and the output as an operand.
pub(super) const ACCESS_WITH_OPERAND: &[Access] =
    &Access::concat::<{ ACCESS.len() + 1 }>(ACCESS, &[Access::Write]);

/// Bindings of [`ACCESS`], without routes.
pub(super) fn binds<'a>(
    slice: &'a RowSlice,
    x: &'a Activations<'_>,
    bias: Option<&'a GpuBuffer>,
    out: Bind<'a>,
) -> [Bind<'a>; 6] {
    let (w, x) = (Bind::Buffer(&slice.buffer), Bind::Buffer(&x.buffer));
    [w, x, bias.into(), Bind::Unused, out, w]
}

/// Appends `dequantize16` of a format, and `load_quants16` if it is quantized.
pub(super) fn with_format(source: Source, format: &Format) -> Source {
    let source = source.file(include_str!("plane_access.wgsl"));
    let source = format_files(format).into_iter().fold(source, |source, file| source.file(&file));
    if format.is_quantized { source.file(include_str!("dequantize16.wgsl")) } else { source }
}

/// WGSL specific to a format.
pub(super) fn format_files(format: &Format) -> Vec<String> {
    let mut files: Vec<String> = format.files.iter().map(|&file| file.to_owned()).collect();
    if let Some(codebook) = format.codebook {
        // Four bytes per word, the first one low.
        let word = |four: &[i8]| {
            four.iter().rev().fold(0, |word, &x| word << 8 | u32::from(x.cast_unsigned()))
        };
        let words: Vec<_> =
            codebook.chunks(4).map(|four| format!("{:#010x}u", word(four))).collect();
        files.push(format!("const CODEBOOK: vec4<u32> = vec4<u32>({});\n", words.join(", ")));
    }
    if format.is_quantized {
        files.push(format!("const CHUNK_STRIDE: u32 = {}u;\n", format.chunk_stride));
        files.push(include_str!("chunks.wgsl").to_owned());
    }
    files
}

/// Input of matmuls.
#[derive(Debug, Clone, Copy)]
pub struct GpuInput<'a> {
    /// Activations, in the format that the kernel of the weights reads.
    pub x: GpuOperand<'a>,
    /// Number of rows.
    pub rows: usize,
    /// RMS norm to apply to the only row, which is in f32.
    pub norm: Option<InputNorm<&'a GpuBuffer>>,
}

/// Activations as a kernel binds them; offset and stride in vectors of 16 bytes.
#[derive(Debug)]
pub(super) struct Activations<'a> {
    pub(super) buffer: GpuBuffer,
    pub(super) offset: usize,
    pub(super) stride: usize,
    pub(super) norm: Option<InputNorm<&'a GpuBuffer>>,
}

impl<'a> Activations<'a> {
    /// Input for a kernel with `w`. F32 values are copied if their rows are not aligned to vectors or are shorter than the rows of `w`.
    ///
    /// # Panics
    /// If the input is not in `format`, or its columns differ from those of `w`.
    #[track_caller]
    pub(super) fn new(
        list: &mut Recorder,
        w: &GpuMatrix,
        input: GpuInput<'a>,
        format: Option<OperandFormat>,
    ) -> Self {
        let (norm, padded) = (input.norm, w.padded_k);
        let x = match input.x {
            GpuOperand::Converted(got, buffer) => {
                check_eq!(Some(got), format, "matmul: format of the operand");
                let stride = match got {
                    OperandFormat::Q8 => q8::row_vectors(padded),
                    OperandFormat::F16 => padded / 8,
                };
                let needed = got.bytes(input.rows, w.k);
                check_at_most!(needed, buffer.bytes(), "matmul: bytes of the operand");
                return Self { buffer: buffer.clone(), offset: 0, stride, norm };
            }
            GpuOperand::Values(x) => x.checked(),
        };
        assert!(
            format.is_none() || norm.is_some(),
            "matmul: expected an operand in {format:?}, got f32 without a norm"
        );
        check_eq!(x.rows, input.rows, "matmul: rows of the operand");
        // im2col pads rows to `padded_k`.
        assert!(
            x.cols == w.k || x.cols == padded,
            "matmul: expected {} or {padded} columns, got {}",
            w.k,
            x.cols
        );
        let is_aligned = x.offset.is_multiple_of(4)
            && (x.stride.is_multiple_of(4) || x.rows <= 1)
            && x.cols == padded;
        if is_aligned {
            let (offset, stride) = (x.offset / 4, x.stride / 4);
            return Self { buffer: x.buffer.clone(), offset, stride, norm };
        }
        assert!(
            norm.is_none(),
            "matmul: expected an aligned row for a fused norm, got a padded one"
        );
        let buffer = list.scratch("matmul", 4 * x.rows * padded);
        copy::copy(list, &buffer, 0, padded, x);
        Self { buffer, offset: 0, stride: padded / 4, norm }
    }
}
