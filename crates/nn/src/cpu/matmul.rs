//! Matmuls of rows of activations with weights of any storage.
//!
//! ```text
//! storage of w      operand, up to MAX_INT_DOT_ROWS rows     operand, more rows
//! f32, f16, bf16    values: matmul                           values: matmul
//! panels            quantized: matmul_packed                 quantized: matmul_packed
//! blocks, no panels quantized: int8 dot products             values: dequantize a row of weights, f32
//! other blocks      values: dequantize a row of weights, f32 values: dequantize a row of weights, f32
//! ```

use stonechat_compute::cpu::{self, MatMut, MatRef, matmul, matmul_dequantized};
use stonechat_quant::{ActivationBuffer, PackedMatmul, matmul_packed};

use super::row_kernels;
use super::weights::Weights;

/// Result, weights and epilogue of a matmul.
pub(super) type Matmul<'a> = (MatMut<'a>, Weights<'a>, cpu::Epilogue<'a>);

/// Matmuls of one operand, as values or quantized, as their weights need it. The ones with panels share one parallel loop.
pub(super) fn matmul_group<const N: usize>(
    device: &stonechat_compute::Cpu,
    (values, quantized): (Option<MatRef<'_>>, Option<&ActivationBuffer>),
    all: [Option<Matmul<'_>>; N],
) {
    let mut packed = [const { None }; N];
    let values = || values.expect("values, as `Weights::reads_quantized` says");
    for (args, packed) in all.into_iter().zip(&mut packed) {
        let Some((out, w, epilogue)) = args else { continue };
        match (w, quantized) {
            (Weights::Dense(w), _) => matmul(device, out, values(), w, epilogue),
            (Weights::Packed(w, start, end), _) => {
                *packed = Some(PackedMatmul { out, w, rows: start..end, epilogue });
            }
            (Weights::Quant(matrix), Some(x)) if w.reads_quantized(x.rows()) => {
                row_kernels::multiply(device, out, x, matrix, epilogue);
            }
            (Weights::Quant(w), _) => {
                let dequantize = |rows, values: &mut [f32]| {
                    w.dequantize_rows(device.isa, rows, values);
                };
                matmul_dequantized(device, out, values(), &dequantize, epilogue);
            }
        }
    }
    if packed.iter().any(Option::is_some) {
        let x = quantized.expect("quantized rows, as `Weights::reads_quantized` says");
        matmul_packed(device, x, packed);
    }
}

/// Matmuls of `x`, which is quantized into `quantized` if one of them needs it.
pub(super) fn quantize_and_matmul<const N: usize>(
    device: &stonechat_compute::Cpu,
    quantized: &mut ActivationBuffer,
    x: MatRef<'_>,
    all: [Option<Matmul<'_>>; N],
) {
    let reads_quantized = all.iter().flatten().any(|(_, w, _)| w.reads_quantized(x.rows));
    if reads_quantized {
        quantized.prepare(device, x);
    }
    let quantized = reads_quantized.then_some(&*quantized);
    matmul_group(device, (Some(x), quantized), all);
}
