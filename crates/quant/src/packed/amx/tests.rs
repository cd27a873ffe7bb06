use std::ops::Range;

use half::bf16;
use stonechat_compute::cpu::{Epilogue, MatMut, MatRef};
use stonechat_compute::simd::{Avx512Vnni, Tile, TileSums, Token};
use stonechat_compute::{Cpu, DType};

use super::TileUnit;
use crate::activation::ActivationBuffer;
use crate::block::block_formats;
use crate::packed::PackedMatrix;
use crate::packed::kernels::format_arms;
use crate::packed::panel::PANEL_ROWS;
use crate::packed::task::PanelTask;
use crate::packed::tests::{DTYPES, packed, random};

/// The instructions in plain code.
struct Portable;

impl TileUnit for Portable {
    fn accumulate(&self, sums: &mut TileSums, inputs: [&[Tile]; 2], weights: &[[Tile; 2]]) {
        for (i, sums) in sums.0.iter_mut().enumerate() {
            for (j, sum) in sums.iter_mut().enumerate() {
                for (x, w) in inputs[i / 16].iter().zip(weights) {
                    for k in 0..32 {
                        let x = bf16::from_bits(x.0[i % 16][k]).to_f32();
                        let w = bf16::from_bits(w[j / 16].0[k / 2][j % 16 * 2 + k % 2]).to_f32();
                        *sum += x * w;
                    }
                }
            }
        }
    }
}

/// The portable unit with weights unpacked by the vector code.
#[test]
fn tiles_give_the_products_of_rounded_values() {
    let Some(s) = Avx512Vnni::try_new() else {
        println!("skipped: tiles_give_the_products_of_rounded_values: no AVX-512 VNNI");
        return;
    };
    let cpu = Cpu::new(2).unwrap();
    for dtype in DTYPES {
        let ks: &[usize] = if dtype.block_len() == 32 { &[32, 96, 608] } else { &[256, 768] };
        for &k in ks {
            let n = 53;
            let (matrix, values) = packed(&cpu, dtype, n, k);
            for (m, rows) in [(1, 0..n), (17, 0..n), (40, 16..32), (70, 5..50), (33, 3..9)] {
                check(&cpu, s, &matrix, &values, m, rows);
            }
        }
    }
}

fn check(cpu: &Cpu, s: Avx512Vnni, w: &PackedMatrix, values: &[f32], m: usize, rows: Range<usize>) {
    let (n, k) = (rows.len(), w.k);
    let x = random(m * k, 3);
    let mut inputs = ActivationBuffer::new();
    inputs.convert_to_bf16_tiles(cpu, MatRef::packed(&x, m, k));
    let bias = random(n, 5);
    let mut out = vec![f32::NAN; m * n];
    let epilogue = Epilogue { bias: Some(&bias), ..Epilogue::default() };
    let out_rows = MatMut::packed(&mut out, m, n).shared();
    let panels = rows.start / PANEL_ROWS..rows.end.div_ceil(PANEL_ROWS);
    let (w, dtype) = (w.panels(), w.dtype());
    let task = PanelTask { w, x: &inputs, panels, rows: rows.clone(), out: out_rows, epilogue };
    block_formats!(format_arms[dtype, F => task.amx_gemm::<_, F>(s, &Portable)]);
    for i in 0..m {
        for (j, row) in rows.clone().enumerate() {
            let products = (0..k).map(|k_| {
                let x = bf16::from_f32(x[i * k + k_]).to_f64();
                let product = x * f64::from(values[row * k + k_]);
                (product, product.abs())
            });
            let (sum, magnitude) = products.fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
            let expected = sum + f64::from(bias[j]);
            let got = f64::from(out[i * n + j]);
            // Weights are rounded to 8 bits of mantissa.
            let limit = magnitude / 256.0 + 1e-5;
            assert!(
                (got - expected).abs() <= limit,
                "{dtype} {m}x{n}x{k}, [{i}, {j}]: {got} for {expected}"
            );
        }
    }
}
