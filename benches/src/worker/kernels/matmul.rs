//! Products of weights of every type with one row of activations and with many, convolution, and loading
//! of weights.

use anyhow::{Context, Result};
use stonechat_benches::protocol::{PeakKind, Unit};
use stonechat_compute::{DType, SharedBytes};
use stonechat_nn::{Activation, Backend, Cpu, CpuMatrix, Epilogue, MatmulOp, MatrixSource, View};
use stonechat_quant::QuantMatrix;
use stonechat_testkit::{Lcg, random_weights};

use super::{Case, Repeated, STREAM_BYTES, filled};

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
    let quantized = DType::ALL.iter().copied().filter(|&dtype| QuantMatrix::has_kernel(dtype));
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
        open: Box::new(move |backend| {
            let bytes = weights(dtype, n, k)?;
            let n_copies = STREAM_BYTES.div_ceil(bytes.len());
            let matrices: Vec<CpuMatrix> = (0..n_copies)
                // Weights that are not repacked keep the file's bytes.
                .map(|_| matrix(backend, dtype, (n, k), &SharedBytes::from(bytes.to_vec())))
                .collect::<Result<_>>()?;
            let kernel = backend.matmul_kernel(&matrices[0], 1);
            let (x, mut out) = (filled(backend, k)?, backend.alloc(n)?);
            let device = backend.clone();
            let mut next = 0;
            let run = move || {
                let x = View::packed(&x, 1, k);
                let product = MatmulOp {
                    out: &mut out,
                    w: &matrices[next],
                    epilogue: plain(),
                    consumer: None,
                };
                device.matmul(x, [product]);
                next = (next + 1) % matrices.len();
            };
            let work = (bytes.len() as f64, Unit::Bytes);
            Ok(Repeated::new(work, run).bounded(PeakKind::Read).kernel(kernel))
        }),
    }
}

fn gemm(dtype: DType, (m, n, k): (usize, usize, usize)) -> Case {
    Case {
        name: format!("gemm {dtype} {m}x{n}x{k}"),
        quick: m == PROMPT && MAIN_TYPES.contains(&dtype),
        open: Box::new(move |backend| {
            let w = matrix(backend, dtype, (n, k), &weights(dtype, n, k)?)?;
            let kernel = backend.matmul_kernel(&w, m);
            let (x, mut out) = (filled(backend, m * k)?, backend.alloc(m * n)?);
            let device = backend.clone();
            let run = move || {
                let product = MatmulOp { out: &mut out, w: &w, epilogue: plain(), consumer: None };
                device.matmul(View::packed(&x, m, k), [product]);
            };
            let ops = 2.0 * (m * n * k) as f64;
            let (unit, peak) = match dtype.is_quantized() {
                true => (Unit::IntOps, PeakKind::Int8),
                false => (Unit::Flops, PeakKind::F32),
            };
            Ok(Repeated::new((ops, unit), run).bounded(peak).kernel(kernel))
        }),
    }
}

/// Convolution with kernel 3 of `t` frames of `c_in` channels, as Whisper begins.
fn conv((t, c_in, c_out): (usize, usize, usize), stride: usize) -> Case {
    Case {
        name: format!("conv1d f16 {t}x{c_in} to {c_out} stride {stride}"),
        quick: stride == 2,
        open: Box::new(move |backend| {
            let shape = (c_out, 3 * c_in);
            let w = matrix(backend, DType::F16, shape, &weights(DType::F16, shape.0, shape.1)?)?;
            let kernel = backend.matmul_kernel(&w, t);
            let rows = t.div_ceil(stride);
            let (x, mut out) = (filled(backend, t * c_in)?, backend.alloc(rows * c_out)?);
            let device = backend.clone();
            let run =
                move || device.conv1d(&mut out, View::packed(&x, t, c_in), &w, stride, plain());
            let flops = 2.0 * (rows * 3 * c_in * c_out) as f64;
            let repeated = Repeated::new((flops, Unit::Flops), run);
            Ok(repeated.bounded(PeakKind::F32).kernel(kernel))
        }),
    }
}

/// Loading weights from a file, repacked where the backend repacks.
fn loading(dtype: DType) -> Case {
    let (n, k) = LARGE;
    Case {
        name: format!("take over {dtype} {n}x{k}"),
        quick: dtype == DType::Q4K,
        open: Box::new(move |backend| {
            let bytes = weights(dtype, n, k)?;
            let kernel = backend.matmul_kernel(&matrix(backend, dtype, (n, k), &bytes)?, 1);
            let device = backend.clone();
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
    backend: &Cpu,
    dtype: DType,
    (n, k): (usize, usize),
    bytes: &SharedBytes,
) -> Result<CpuMatrix> {
    Ok(backend.matrix(MatrixSource { name: "bench", rows: n, cols: k, dtype, bytes })?)
}

fn plain<'a>() -> Epilogue<'a, Cpu> {
    Epilogue { bias: None, activation: Activation::default(), accumulate: false }
}
