use std::ops::Range;

use stonechat_compute::cpu::{Epilogue, MatMut, MatRef};
use stonechat_compute::op::GatedActivation;
use stonechat_compute::{Cpu, DType, Isa, ThreadTeam};

use super::{PackedMatmul, PackedMatrix, PackedRows, gated_packed, matmul_packed};
use crate::{ActivationBuffer, dequantize_row, quantize_rows};

pub(super) const DTYPES: [DType; 13] = [
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Iq4Nl,
    DType::Mxfp4,
    DType::Q2K,
    DType::Q3K,
    DType::Q4K,
    DType::Q5K,
    DType::Q6K,
    DType::Iq4Xs,
];

pub(super) fn random(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    std::iter::repeat_with(next).take(n).collect()
}

pub(super) fn packed(cpu: &Cpu, dtype: DType, n: usize, k: usize) -> (PackedMatrix, Vec<f32>) {
    let mut bytes = vec![0; dtype.bytes_for(n * k).unwrap()];
    quantize_rows(dtype, &random(n * k, 7), k, &mut bytes).unwrap();
    let mut values = vec![0.0; n * k];
    dequantize_row(dtype, &bytes, &mut values).unwrap();
    let mut matrix = PackedMatrix::zeroed(cpu.isa, dtype, n, k).unwrap().unwrap();
    // In two pieces, as a file that is read in pieces.
    let first = n / 2 / 16 * 16;
    let (head, tail) = bytes.split_at(first * matrix.row_bytes());
    matrix.pack(cpu, 0, head);
    matrix.pack(cpu, first, tail);
    (matrix, values)
}

fn multiply(
    cpu: &Cpu,
    out: MatMut<'_>,
    x: &ActivationBuffer,
    (w, rows): (&PackedMatrix, Range<usize>),
    bias: Option<&[f32]>,
) {
    let epilogue = Epilogue { bias, ..Epilogue::default() };
    matmul_packed(cpu, x, [Some(PackedMatmul { out, w, rows, epilogue })]);
}

#[test]
fn packing_loses_nothing() {
    let cpu = Cpu::new(2).unwrap();
    for dtype in DTYPES {
        let (n, k) = (37, 512);
        let (matrix, values) = packed(&cpu, dtype, n, k);
        let mut row = vec![0.0; k];
        for (i, expected) in values.chunks_exact(k).enumerate() {
            matrix.dequantize_row(cpu.isa, i, &mut row);
            assert_eq!(row, expected, "{dtype}, row {i}");
        }
    }
}

#[test]
fn products_equal_f64_sums() {
    for isa in Isa::available() {
        products_on(&Cpu { isa, threads: ThreadTeam::new(2).unwrap() });
    }
}

fn products_on(cpu: &Cpu) {
    for dtype in DTYPES {
        // Rows that do not fill the last panel, and K that no format of 256 values has.
        let ks: &[usize] = if dtype.block_len() == 32 { &[32, 96, 288] } else { &[256, 768] };
        for &k in ks {
            let n = 53;
            let (matrix, values) = packed(cpu, dtype, n, k);
            for m in [1, 2, 3, 7, 8, 21] {
                for rows in [0..n, 16..32, 5..50, 3..9] {
                    check(cpu, &matrix, &values, m, rows);
                }
            }
        }
    }
}

/// A row's results are the same bits for any number of rows, except with AMX, whose GEMM rounds to bf16.
#[test]
fn a_row_does_not_depend_on_those_beside_it() {
    for isa in Isa::available().into_iter().filter(|isa| isa.name() != "amx") {
        let cpu = Cpu { isa, threads: ThreadTeam::new(2).unwrap() };
        for dtype in DTYPES {
            let (m, n, k) = (23, 85, 1536);
            let (w, _) = packed(&cpu, dtype, n, k);
            let values = random(m * k, 3);
            let product = |first: usize, rows: usize| {
                let mut x = ActivationBuffer::new();
                x.prepare(&cpu, MatRef::packed(&values[first * k..], rows, k));
                let mut out = vec![f32::NAN; rows * n];
                multiply(&cpu, MatMut::packed(&mut out, rows, n), &x, (&w, 0..n), None);
                out
            };
            let all = product(0, m);
            for (row, among) in all.chunks_exact(n).enumerate() {
                assert_eq!(product(row, 1), among, "{dtype}, row {row} on {isa}");
            }
        }
    }
}

#[test]
fn products_side_by_side_are_those_alone() {
    for isa in Isa::available() {
        let cpu = Cpu { isa, threads: ThreadTeam::new(3).unwrap() };
        let (k, widths, dtypes) =
            (512, [70, 16, 0, 33], [DType::Q4K, DType::Q6K, DType::Q8_0, DType::Q5K]);
        let weights = [0, 1, 2, 3].map(|i| packed(&cpu, dtypes[i], 80, k).0);
        for m in [0, 1, 9, 40] {
            let values = random(m * k, 3);
            let mut x = ActivationBuffer::new();
            x.prepare(&cpu, MatRef::packed(&values, m, k));
            let mut alone = widths.map(|n| vec![f32::NAN; m * n]);
            for (i, out) in alone.iter_mut().enumerate() {
                let rows = 7..7 + widths[i];
                multiply(&cpu, MatMut::packed(out, m, widths[i]), &x, (&weights[i], rows), None);
            }
            let mut together = widths.map(|n| vec![f32::NAN; m * n]);
            let mut i = 0;
            let products = together.each_mut().map(|out| {
                let (w, rows) = (&weights[i], 7..7 + widths[i]);
                let out = MatMut::packed(out, m, widths[i]);
                i += 1;
                Some(PackedMatmul { out, w, rows, epilogue: Epilogue::default() })
            });
            matmul_packed(&cpu, &x, products);
            assert_eq!(alone, together, "{m} rows on {isa}");
        }
    }
}

/// `gated_packed` gives the activations that quantizing the separate products gives.
#[test]
fn gated_products_become_the_activations_that_rounding_them_makes() {
    for isa in Isa::available() {
        let cpu = Cpu { isa, threads: ThreadTeam::new(2).unwrap() };
        for (dtype, other) in [(DType::Q4_1, DType::Q8_0), (DType::Q4K, DType::Q6K)] {
            for m in [1, 5, 16, 17, 50] {
                gated_rows(&cpu, [dtype, other], m);
            }
        }
    }
}

fn gated_rows(cpu: &Cpu, dtypes: [DType; 2], m: usize) {
    let (k, n) = (256, 608);
    let activation = GatedActivation::Silu;
    let ([gate, up], down) = (dtypes.map(|dtype| packed(cpu, dtype, 700, k).0), DType::Q8_0);
    let (down, _) = packed(cpu, down, 21, n);
    let bias = random(n, 9);
    let values = random(m * k, 3);
    let mut x = ActivationBuffer::new();
    x.prepare(cpu, MatRef::packed(&values, m, k));
    let result = |hidden: &ActivationBuffer| {
        let mut out = vec![f32::NAN; m * down.n];
        let shape = MatMut::packed(&mut out, m, down.n);
        multiply(cpu, shape, hidden, (&down, 0..down.n), None);
        out
    };

    let mut hidden = ActivationBuffer::new();
    let rows = PackedRows { w: &gate, rows: 16..16 + n, bias: None };
    let others = PackedRows { w: &up, rows: 64..64 + n, bias: Some(&bias) };
    gated_packed(cpu, &mut hidden, &x, [rows, others], activation);
    let got = result(&hidden);

    let product = |w, rows, bias| {
        let mut out = vec![f32::NAN; m * n];
        multiply(cpu, MatMut::packed(&mut out, m, n), &x, (w, rows), bias);
        out
    };
    let (gate, up) = (product(&gate, 16..16 + n, None), product(&up, 64..64 + n, Some(&bias[..])));
    let mut between = vec![f32::NAN; m * n];
    activation.combine(cpu.isa, &mut between, &gate, &up);
    hidden.prepare(cpu, MatRef::packed(&between, m, n));
    assert_eq!(got, result(&hidden), "{dtypes:?}, {m} rows on {}", cpu.isa);
}

fn check(cpu: &Cpu, w: &PackedMatrix, values: &[f32], m: usize, rows: Range<usize>) {
    let (n, k, dtype) = (rows.len(), w.k, w.dtype());
    let x = random(m * k, 3);
    let mut activations = ActivationBuffer::new();
    activations.quantize(cpu, MatRef::packed(&x, m, k));
    let bias = random(n, 5);
    let mut out = vec![0.0; m * n];
    let shape = MatMut::packed(&mut out, m, n);
    multiply(cpu, shape, &activations, (w, rows.clone()), Some(&bias));
    let mut x = vec![0.0; k];
    for i in 0..m {
        activations.dequantize_row(i, &mut x);
        for (j, row) in rows.clone().enumerate() {
            let products = x.iter().zip(&values[row * k..]).map(|(&x, &w)| {
                let product = f64::from(x) * f64::from(w);
                (product, product.abs())
            });
            let (sum, magnitude) = products.fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
            let expected = sum + f64::from(bias[j]);
            let got = f64::from(out[i * n + j]);
            // Codes with an offset or a min cancel: the terms are a few times as large as the values.
            let limit = 1e-6 * magnitude + 1e-5;
            assert!(
                (got - expected).abs() <= limit,
                "{dtype} {m}x{n}x{k} on {}, [{i}, {j}]: {got} for {expected}",
                cpu.isa
            );
        }
    }
}

#[test]
fn a_matrix_without_memory_is_an_error() {
    for isa in Isa::available() {
        let n = 1 << 54;
        let error = PackedMatrix::zeroed(isa, DType::Q8_0, n, 32).expect_err("no memory");
        assert!(matches!(error, stonechat_compute::Error::OutOfMemory { .. }), "{error}");
    }
}
