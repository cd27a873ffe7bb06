//! int8 products of every block format against f64, on given instruction sets: of panels, or of rows for formats without
//! panels.

use stonechat_compute::cpu::{Epilogue, MatMut, MatRef};
use stonechat_compute::{Cpu, DType, Isa, ThreadTeam};
use stonechat_quant::{
    ActivationBuffer, PackedMatmul, PackedMatrix, QuantMatrix, dequantize_row, gemv_blocks,
    matmul_packed, needs_importance, quantize_rows,
};

use crate::{Lcg, random_weights};

/// Rounding error of f32 sums, relative to the sum of the magnitudes of the terms.
const TOLERANCE: f64 = 1e-6;

/// Runs every check on each of `tiers`.
///
/// # Panics
/// At the first value out of tolerance, with the format, the shape, the tier and the index.
pub fn run(tiers: &[Isa], threads: &ThreadTeam) {
    products_match_f64(tiers, threads);
    rows_of_384_use_blocks_of_32(tiers, threads);
    several_tasks_cover_all_outputs(tiers, threads);
    a_buffer_serves_one_matmul_after_another(tiers, threads);
    non_finite_activations_show(tiers, threads);
}

/// Block formats with integer products.
pub fn formats() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|&dtype| QuantMatrix::holds(dtype))
}

/// Products of one row up to more than a tile of GEMM has.
///
/// # Panics
/// Like [`run`].
pub fn products_match_f64(tiers: &[Isa], threads: &ThreadTeam) {
    for dtype in formats() {
        for m in [1, 2, 3, 4, 5, 6, 11, 16] {
            for (n, blocks) in [(1, 1), (3, 2), (33, 1), (70, 3)] {
                check(&Case { dtype, m, n, k: blocks * dtype.block_len() }, tiers, threads);
            }
        }
        check(&Case { dtype, m: 23, n: 70, k: 3 * dtype.block_len() }, tiers, threads);
    }
}

/// Rows whose length is a multiple of 32 and not of 256.
///
/// # Panics
/// Like [`run`].
pub fn rows_of_384_use_blocks_of_32(tiers: &[Isa], threads: &ThreadTeam) {
    for dtype in formats().filter(|dtype| dtype.block_len() == 32) {
        for k in [32, 160, 384, 2080] {
            check(&Case { dtype, m: 2, n: 5, k }, tiers, threads);
        }
        check(&Case { dtype, m: 17, n: 40, k: 544 }, tiers, threads);
    }
}

/// More weight rows than a task has.
///
/// # Panics
/// Like [`run`].
pub fn several_tasks_cover_all_outputs(tiers: &[Isa], threads: &ThreadTeam) {
    for dtype in formats() {
        let k = dtype.block_len();
        let n = 3 * 32 * 1024 / dtype.block_bytes() + 17;
        check(&Case { dtype, m: 1, n, k }, tiers, threads);
    }
}

/// Matmuls of other shapes leave nothing in the activations of the next one.
///
/// # Panics
/// If a result is another than with a new buffer.
pub fn a_buffer_serves_one_matmul_after_another(tiers: &[Isa], threads: &ThreadTeam) {
    for &isa in tiers {
        let cpu = Cpu { isa, threads: threads.clone() };
        let mut activations = ActivationBuffer::new();
        activations.reserve(4, 512);
        let random = &mut Lcg::new(5);
        for (m, k) in [(4, 512), (1, 256), (3, 512), (19, 256), (1, 64)] {
            let x = random.uniforms(m * k);
            activations.prepare(&cpu, MatRef::packed(&x, m, k));
            let mut fresh = ActivationBuffer::new();
            fresh.prepare(&cpu, MatRef::packed(&x, m, k));
            let case = Case { dtype: DType::Q5_1, m, n: 9, k };
            let (bytes, _) = weights(&case, random);
            let w = (&case, &bytes[1..]);
            let [mut y, mut expected] = [vec![0.0; m * 9], vec![1.0; m * 9]];
            let out = MatMut::packed(&mut y, m, 9);
            multiply(&cpu, out, &activations, w, Epilogue::default());
            multiply(&cpu, MatMut::packed(&mut expected, m, 9), &fresh, w, Epilogue::default());
            assert_eq!(y, expected, "{m}x{k} on {isa}");
        }
    }
}

/// NaN and infinities of activations reach the outputs.
///
/// # Panics
/// If an output is finite.
pub fn non_finite_activations_show(tiers: &[Isa], threads: &ThreadTeam) {
    for dtype in formats() {
        let k = 2 * dtype.block_len();
        let random = &mut Lcg::new(9);
        let case = Case { dtype, m: 1, n: 3, k };
        let (bytes, _) = weights(&case, random);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = random.uniforms(k);
            x[k - 7] = bad;
            for &isa in tiers {
                let cpu = Cpu { isa, threads: threads.clone() };
                let mut activations = ActivationBuffer::new();
                activations.quantize(&cpu, MatRef::packed(&x, 1, k));
                let mut y = [0.0; 3];
                let out = MatMut::packed(&mut y, 1, 3);
                multiply(&cpu, out, &activations, (&case, &bytes[1..]), Epilogue::default());
                assert!(y.iter().all(|v| !v.is_finite()), "{dtype} on {isa}: {bad} gave {y:?}");
            }
        }
    }
}

struct Case {
    dtype: DType,
    m: usize,
    n: usize,
    k: usize,
}

/// Quantized weights at an odd address, and their dequantized values.
fn weights(case: &Case, random: &mut Lcg) -> (Vec<u8>, Vec<f32>) {
    let Case { dtype, n, k, .. } = *case;
    let mut bytes = vec![0; 1 + dtype.bytes_for(n * k).expect("whole blocks")];
    if needs_importance(dtype) {
        bytes[1..].copy_from_slice(&random_weights(dtype, random, (n, k), 0.1));
    } else {
        let values: Vec<f32> = random.uniforms(n * k).iter().map(|v| 0.1 * v + 0.02).collect();
        quantize_rows(dtype, &values, k, &mut bytes[1..]).expect("a type of weights");
    }
    let mut unpacked = vec![0.0; n * k];
    dequantize_row(dtype, &bytes[1..], &mut unpacked).expect("a type of weights");
    (bytes, unpacked)
}

/// `out = epilogue(x * w^T)` with panels if the format has them, else with row dots.
fn multiply(
    cpu: &Cpu,
    out: MatMut<'_>,
    x: &ActivationBuffer,
    (case, bytes): (&Case, &[u8]),
    epilogue: Epilogue<'_>,
) {
    let Case { dtype, n, k, .. } = *case;
    let panels = PackedMatrix::zeroed(cpu.isa, dtype, n, k).expect("memory");
    let Some(mut w) = panels else {
        let w = QuantMatrix::new(dtype, n, k, bytes).expect("whole blocks");
        return gemv_blocks(cpu, out, x, w, epilogue);
    };
    w.pack(cpu, 0, bytes);
    matmul_packed(cpu, x, [Some(PackedMatmul { out, w: &w, rows: 0..n, epilogue })]);
}

fn check(case: &Case, tiers: &[Isa], threads: &ThreadTeam) {
    let Case { m, n, k, .. } = *case;
    let random = &mut Lcg::new((m * 1_000_000 + n * 1000 + k) as u64);
    let (bytes, w) = weights(case, random);
    // A non-zero mean tests mins and offsets; rows differ in scale.
    let x: Vec<f32> = (0..m * k).map(|i| random.uniform() * (1 + i / k) as f32 + 0.3).collect();
    let bias = random.uniforms(n);
    for &isa in tiers {
        let cpu = Cpu { isa, threads: threads.clone() };
        let mut activations = ActivationBuffer::new();
        activations.quantize(&cpu, MatRef::packed(&x, m, k));
        let epilogue = Epilogue { bias: Some(&bias), ..Epilogue::default() };
        let y = product(case, &cpu, &activations, &bytes[1..], epilogue);
        check_product(case, isa, &y, (&x, &activations), (&w, &bias));
        // Kernels of many rows have other tiles and the same sums, but for AMX, which rounds to bf16.
        let has_panels = PackedMatrix::zeroed(isa, case.dtype, n, k).expect("memory").is_some();
        if has_panels && isa.name() != "amx" {
            let mut prepared = ActivationBuffer::new();
            prepared.prepare(&cpu, MatRef::packed(&x, m, k));
            let tiled = product(case, &cpu, &prepared, &bytes[1..], epilogue);
            assert_eq!(tiled, y, "{} {m}x{n}x{k} on {isa}: tiles of rows", case.dtype);
        }
    }
}

/// Outputs `[m, n]` with gaps between rows, which keep their values.
fn product(
    case: &Case,
    cpu: &Cpu,
    x: &ActivationBuffer,
    bytes: &[u8],
    epilogue: Epilogue<'_>,
) -> Vec<f32> {
    let Case { dtype, m, n, .. } = *case;
    let stride = n + 3;
    let mut y = vec![7.0; m * stride];
    multiply(cpu, MatMut::new(&mut y, m, n, stride), x, (case, bytes), epilogue);
    for (r, row) in y.chunks_exact(stride).enumerate() {
        let is_kept = row[n..].iter().all(|&v| v == 7.0);
        assert!(is_kept, "{dtype} on {}: wrote beyond row {r}", cpu.isa);
    }
    y.chunks_exact(stride).flat_map(|row| &row[..n]).copied().collect()
}

/// Compares outputs with sums of the activations as quantized, and with those of the activations as they were.
fn check_product(
    case: &Case,
    isa: Isa,
    y: &[f32],
    (x, activations): (&[f32], &ActivationBuffer),
    (w, bias): (&[f32], &[f32]),
) {
    let Case { dtype, m, n, k } = *case;
    let mut seen = vec![0.0; k];
    for r in 0..m {
        activations.dequantize_row(r, &mut seen);
        let x = &x[r * k..(r + 1) * k];
        for c in 0..n {
            let w = &w[c * k..(c + 1) * k];
            let w_max = w.iter().fold(0.0, |a: f32, v| a.max(v.abs()));
            let (mut of_seen, mut of_x, mut size, mut noise) = (0.0, 0.0, 1.0, 0.0);
            for block in (0..k).step_by(32) {
                let amax = x[block..block + 32].iter().fold(0.0, |a: f32, v| a.max(v.abs()));
                for i in block..block + 32 {
                    of_seen += f64::from(w[i]) * f64::from(seen[i]);
                    of_x += f64::from(w[i]) * f64::from(x[i]);
                    size += f64::from((w[i].abs() + w_max) * seen[i].abs());
                    // Rounding error of the q8 activations.
                    noise += f64::from(w[i].abs() * amax / 127.0) * 0.5;
                }
            }
            let got = f64::from(y[r * n + c]) - f64::from(bias[c]);
            let what = || format!("{dtype} {m}x{n}x{k} on {isa}, output ({r}, {c}): got {got}");
            let error = (got - of_seen).abs();
            assert!(error <= TOLERANCE * size, "{}, expected {of_seen}, error {error:e}", what());
            let error = (got - of_x).abs();
            assert!(error <= 1.001 * noise + TOLERANCE * size, "{}, f32 gives {of_x}", what());
        }
    }
}
