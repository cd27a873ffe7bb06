//! Check of the GPU, whose results arrive while nothing runs.
//!
//! Scales of activations may be off by a rounding, which WGSL permits for divisions. Results must round to the integers.

use stonechat::compute::op::{Activation, Epilogue};
use stonechat::compute::wgpu::ops::GpuRows;
use stonechat::compute::wgpu::ops::operand::{GpuOperand, GpuOutput, OperandFormat, convert};
use stonechat::compute::wgpu::{CopyRange, Gpu, GpuBuffer, HostCopies, Recorder, adapters, pick};
use stonechat::compute::{DType, Error, Result, SharedBytes};
use stonechat::quant::wgpu::{GpuInput, GpuMatrix, MAX_GEMV_ROWS, matmul};
use stonechat_api::ApiError;
use wasm_bindgen::prelude::*;

use super::{K, N, activation, expected, failed, weights};
use crate::error::exception;

/// Rows of the products: one for each kind of kernel.
const ROWS: [usize; 2] = [1, 4 * MAX_GEMV_ROWS];

/// Checks GEMV and GEMM on the GPU of this browser, with the kernels that models will use. Its device is closed again.
///
/// # Errors
/// An exception if there is no GPU, the device fails or a result is wrong.
#[wasm_bindgen]
pub async fn self_test_gpu() -> std::result::Result<(), JsValue> {
    let all = adapters().await;
    let gpu = Gpu::open(pick(&all, Some(0)).map_err(failed)?, None).await.map_err(failed)?;
    for m in ROWS {
        let values = product(&gpu, m).await.map_err(failed)?;
        let mut pairs = values.iter().enumerate().map(|(i, &got)| (expected(i), got));
        if let Some((expected, got)) = pairs.find(|(expected, got)| got.round() != *expected) {
            let (name, kernels) = (&gpu.adapter().name, gpu.variant().name());
            let what = format!(
                "self-test of {name}, {kernels} kernels, {m} rows: expected {expected}, got {got}"
            );
            return Err(exception(&ApiError::server(what)));
        }
    }
    Ok(())
}

/// Product of `m` rows of activations with the weights.
async fn product(gpu: &Gpu, m: usize) -> Result<Vec<f32>> {
    let w = GpuMatrix::load(gpu, DType::Q8_0, (N, K), &SharedBytes::from(weights()))?;
    let words: Vec<u32> = (0..m * K).map(|i| (activation(i / K, i % K) as f32).to_bits()).collect();
    let x = GpuBuffer::new(gpu, 4 * words.len())?;
    gpu.write(&x, 0, &words);
    let out = GpuBuffer::new(gpu, 4 * m * N)?;
    let rows = GpuRows::packed(&x, m, K);
    let codes = GpuBuffer::new(gpu, OperandFormat::Q8.bytes(m, K))?;
    let mut recorder = Recorder::new(gpu, 1)?;
    let mut list = loop {
        let x = if m > MAX_GEMV_ROWS {
            GpuOperand::Values(rows)
        } else {
            convert(&mut recorder, &codes, OperandFormat::Q8, rows);
            GpuOperand::Converted(OperandFormat::Q8, &codes)
        };
        let input = GpuInput { x, rows: m, norm: None };
        let epilogue = Epilogue { bias: None, activation: Activation::None, accumulate: false };
        matmul(&mut recorder, GpuOutput::from(&out), input, &w, epilogue);
        if let Some(list) = recorder.finish()? {
            break list;
        }
    };
    let mut copies = HostCopies::default();
    let range = CopyRange { src: &out, offset: 0, len: 4 * m * N };
    gpu.submit_with_copies(Some(&mut list), &[range], &mut copies)?;
    gpu.map(&mut copies);
    let mut values = Vec::with_capacity(m * N);
    let append = |bytes: &[u8]| {
        let words = bytes.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]);
        values.extend(words.map(f32::from_le_bytes));
    };
    gpu.read(copies, append).await?;
    if values.len() == m * N {
        return Ok(values);
    }
    let message = format!("self-test: expected {} results, got {}", m * N, values.len());
    Err(Error::Device { message })
}
