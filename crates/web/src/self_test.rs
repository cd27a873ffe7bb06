//! Check of the binary in this browser.
//!
//! A browser that accepts an instruction may still run it wrong. Products of 8-bit codes below are integers, so that any
//! difference is an error: weights have the scale 1, and activations are integers with a maximum of 127.

#[cfg(feature = "gpu")]
mod on_gpu;

use stonechat::compute::cpu::{Epilogue, MatMut, MatRef};
use stonechat::compute::{Cpu, DType, Isa, ThreadTeam};
use stonechat::quant::{ActivationBuffer, PackedMatmul, PackedMatrix, matmul_packed};
use stonechat_api::ApiError;
use wasm_bindgen::prelude::*;

use crate::error::{exception, thrown};

/// Rows and columns of the weights.
const N: usize = 64;
const K: usize = 64;
/// Columns of a block with a scale of its own.
const BLOCK: usize = 32;
/// 1 as f16.
const ONE: [u8; 2] = [0x00, 0x3c];

/// Checks GEMV and GEMM.
///
/// # Errors
/// An exception if a result is not exact.
#[wasm_bindgen]
pub fn self_test() -> Result<(), JsValue> {
    let isa = Isa::best().map_err(failed)?;
    let threads = ThreadTeam::new(1).map_err(failed)?;
    let cpu = Cpu { isa, threads };
    for m in [1, 32] {
        let wrong = wrong_product(&cpu, m)?;
        if let Some((expected, got)) = wrong {
            let what = format!("self-test of {isa}, {m} rows: expected {expected}, got {got}");
            return Err(exception(&ApiError::server(what)));
        }
    }
    Ok(())
}

/// Exception of an error of the device.
fn failed(error: stonechat::compute::Error) -> JsValue {
    thrown(stonechat::Error::from(stonechat::nn::Error::from(error)))
}

/// A value in -127..=127 for a row and a column.
fn value(row: usize, column: usize, factor: usize) -> i32 {
    (row * 31 + column * factor) as i32 % 255 - 127
}

/// Activation of a row; the first of each block is the maximum.
fn activation(row: usize, column: usize) -> i32 {
    if column % BLOCK == 0 { 127 } else { value(row, column, 89) }
}

/// The weights as a file holds them.
fn weights() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(N * (K + 2 * K / BLOCK));
    for row in 0..N {
        for block in 0..K / BLOCK {
            bytes.extend(ONE);
            let columns = block * BLOCK..(block + 1) * BLOCK;
            bytes.extend(columns.map(|column| value(row, column, 57) as i8 as u8));
        }
    }
    bytes
}

/// Result `i` of a product.
fn expected(i: usize) -> f32 {
    let products = (0..K).map(|column| activation(i / N, column) * value(i % N, column, 57));
    products.sum::<i32>() as f32
}

/// Expected and computed value of the first difference.
fn wrong_product(cpu: &Cpu, m: usize) -> Result<Option<(f32, f32)>, JsValue> {
    let no_memory =
        || exception(&ApiError::server("self-test: expected a packed matrix, got no memory"));
    let packed = PackedMatrix::zeroed(cpu.isa, DType::Q8_0, N, K);
    let mut w = packed.ok().flatten().ok_or_else(no_memory)?;
    w.pack(cpu, 0, &weights());
    let x: Vec<f32> = (0..m * K).map(|i| activation(i / K, i % K) as f32).collect();
    let mut activations = ActivationBuffer::new();
    activations.prepare(cpu, MatRef::packed(&x, m, K));
    let mut y = vec![0.0; m * N];
    let out = MatMut::packed(&mut y, m, N);
    let product = PackedMatmul { out, w: &w, rows: 0..N, epilogue: Epilogue::default() };
    matmul_packed(cpu, &activations, [Some(product)]);
    Ok(y.iter()
        .enumerate()
        .map(|(i, &got)| (expected(i), got))
        .find(|(expected, got)| expected != got))
}
