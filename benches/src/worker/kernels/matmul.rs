//! Products of weights of every type with one row of activations and with many, convolution, and loading
//! of weights.

use anyhow::{Context, Result};
use stonechat_benches::protocol::{PeakKind, Unit};
use stonechat_compute::{DType, SharedBytes};
use stonechat_nn::op::{ConvArgs, Count, MatmulArgs, Op, Rows, Weight};
use stonechat_nn::{Activation, Device, MatrixSource};
use stonechat_quant::QuantMatrix;
use stonechat_testkit::{Lcg, random_weights};

use super::{Case, Ops, Repeated, STREAM_BYTES};

/// `(N, K)` of the largest matrix of a layer of Qwen 2.5 1.5B.
const LARGE: (usize, usize) = (8960, 1536);
/// `(N, K)` of matrices of Qwen 2.5 1.5B, SmolLM2 135M and Whisper base, the vocabulary's last.
const OTHERS: [(usize, usize); 4] = [(1536, 8960), (1536, 576), (512, 2048), (51_865, 512)];
/// Types that are also measured at the other shapes.
const MAIN_TYPES: [DType; 3] = [DType::F16, DType::Q8_0, DType::Q4K];
/// Rows of a prompt.
const PROMPT: usize = 128;
/// Rows of Whisper's encoder, with `(N, K)` of its base model.
const ENCODER: (usize, usize, usize) = (1500, 2048, 512);
/// Rows of a step of Whisper's decoder: five beams of one window, of two and of eight.
const BEAMS: [usize; 3] = [5, 10, 40];
/// Rows that are packed; the weights repeat them, since packing K types takes long.
const DIFFERENT_ROWS: usize = 64;

pub(super) fn cases() -> Vec<Case> {
    let dense = [DType::F32, DType::F16, DType::BF16];
    let quantized = DType::ALL.iter().copied().filter(|&dtype| QuantMatrix::holds(dtype));
    let types: Vec<DType> = dense.into_iter().chain(quantized).collect();
    let is_main = |dtype: &DType| MAIN_TYPES.contains(dtype);
    let mut cases = Vec::new();
    for &dtype in &types {
        cases.push(gemv(dtype, LARGE));
    }
    for shape in OTHERS {
        // Rows that are no whole number of blocks have no such weights.
        let fits = |dtype: &&DType| is_main(dtype) && shape.1.is_multiple_of(dtype.block_len());
        cases.extend(types.iter().filter(fits).map(|&dtype| gemv(dtype, shape)));
    }
    for &dtype in &types {
        cases.push(gemm(dtype, (PROMPT, LARGE.0, LARGE.1)));
    }
    for &dtype in &types {
        cases.push(gemm(dtype, ENCODER));
    }
    for shape in [(51_865, 512), (2048, 512), (512, 2048)] {
        cases.extend(BEAMS.map(|rows| gemm(DType::F16, (rows, shape.0, shape.1))));
    }
    cases.extend([conv((3000, 80, 512), 1), conv((3000, 512, 512), 2)]);
    cases.extend(types.iter().map(|&dtype| loading(dtype)));
    cases
}

fn gemv(dtype: DType, (n, k): (usize, usize)) -> Case {
    Case {
        name: format!("gemv {dtype} 1x{n}x{k}"),
        quick: (n, k) == LARGE && MAIN_TYPES.contains(&dtype),
        open: Box::new(move |cpu| {
            let bytes = weights(dtype, n, k)?;
            let n_copies = STREAM_BYTES.div_ceil(bytes.len());
            let device = Device::from(cpu.clone());
            let mut ops = Ops::new(1);
            let mut kernel = String::new();
            for _ in 0..n_copies {
                // Weights that are not repacked keep the file's bytes.
                let w = matrix(&device, dtype, (n, k), &SharedBytes::from(bytes.to_vec()))?;
                kernel = cpu.matmul_kernel(&w, 1);
                // Products of one operand would share a parallel loop.
                let x = ops.tokens(k);
                let y = ops.recorder.op(Op::Matmul(plain(w)), &[x]);
                ops.output(y);
            }
            let run = ops.runner(&device)?;
            let work = (bytes.len() as f64, Unit::Bytes);
            let repeated = Repeated::new(work, run).of_calls(n_copies);
            Ok(repeated.bounded(PeakKind::Read).kernel(kernel))
        }),
    }
}

fn gemm(dtype: DType, (m, n, k): (usize, usize, usize)) -> Case {
    Case {
        name: format!("gemm {dtype} {m}x{n}x{k}"),
        quick: m == PROMPT && MAIN_TYPES.contains(&dtype),
        open: Box::new(move |cpu| {
            let device = Device::from(cpu.clone());
            let w = matrix(&device, dtype, (n, k), &weights(dtype, n, k)?)?;
            let kernel = cpu.matmul_kernel(&w, m);
            let mut ops = Ops::new(m);
            let x = ops.tokens(k);
            let y = ops.recorder.op(Op::Matmul(plain(w)), &[x]);
            ops.output(y);
            let run = ops.runner(&device)?;
            let work = 2.0 * (m * n * k) as f64;
            let (unit, peak) = match dtype.is_quantized() {
                true => (Unit::IntOps, PeakKind::Int8),
                false => (Unit::Flops, PeakKind::F32),
            };
            Ok(Repeated::new((work, unit), run).bounded(peak).kernel(kernel))
        }),
    }
}

/// Convolution with kernel 3 of `t` frames of `c_in` channels, as Whisper begins.
fn conv((t, c_in, c_out): (usize, usize, usize), stride: usize) -> Case {
    Case {
        name: format!("conv1d f16 {t}x{c_in} to {c_out} stride {stride}"),
        quick: stride == 2,
        open: Box::new(move |cpu| {
            let device = Device::from(cpu.clone());
            let shape = (c_out, 3 * c_in);
            let w = matrix(&device, DType::F16, shape, &weights(DType::F16, shape.0, shape.1)?)?;
            let kernel = cpu.matmul_kernel(&w, t);
            let mut ops = Ops::new(t);
            let x = ops.import(Rows { count: Count::Windows, each: t }, c_in);
            let args = ConvArgs { matmul: plain(w), stride };
            let y = ops.recorder.op(Op::Conv1d(args), &[x]);
            ops.output(y);
            let run = ops.runner(&device)?;
            let flops = 2.0 * (t.div_ceil(stride) * 3 * c_in * c_out) as f64;
            let repeated = Repeated::new((flops, Unit::Flops), run);
            Ok(repeated.bounded(PeakKind::F32).kernel(kernel))
        }),
    }
}

/// Loading weights from a file, repacked where the device repacks.
fn loading(dtype: DType) -> Case {
    let (n, k) = LARGE;
    Case {
        name: format!("take over {dtype} {n}x{k}"),
        quick: dtype == DType::Q4K,
        open: Box::new(move |cpu| {
            let bytes = weights(dtype, n, k)?;
            let device = Device::from(cpu.clone());
            let kernel = cpu.matmul_kernel(&matrix(&device, dtype, (n, k), &bytes)?, 1);
            let work = (bytes.len() as f64, Unit::Bytes);
            let run = move || {
                let taken = matrix(&device, dtype, (n, k), &bytes);
                assert!(taken.is_ok(), "the same weights were taken over before");
            };
            Ok(Repeated::new(work, run).bounded(PeakKind::Read).kernel(kernel))
        }),
    }
}

/// Random rows of a type.
fn weights(dtype: DType, n: usize, k: usize) -> Result<SharedBytes> {
    let few = n.min(DIFFERENT_ROWS);
    let row_bytes = dtype.bytes_for(k).with_context(|| format!("{dtype} has no rows of {k}"))?;
    let rows = random_weights(dtype, &mut Lcg::new(1), (few, k), 0.05);
    let bytes: Vec<u8> = rows.into_iter().cycle().take(n * row_bytes).collect();
    Ok(SharedBytes::from(bytes))
}

fn matrix(
    device: &Device,
    dtype: DType,
    (n, k): (usize, usize),
    bytes: &SharedBytes,
) -> Result<Weight> {
    Ok(device.load_matrix(MatrixSource { name: "bench", rows: n, cols: k, dtype, bytes })?)
}

fn plain(weight: Weight) -> MatmulArgs {
    MatmulArgs { weight, bias: None, activation: Activation::None }
}
