//! Tests of the entry points by dtype.

use stonechat_compute::{DType, Isa};

use super::{
    dequantize_row, dequantize_rows, fitting_dtype, is_float, needs_importance, quantize_rows,
};
use crate::error::Error;

fn wave(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * 0.37).sin() * 2.0 + (i as f32 * 0.011).cos()).collect()
}

#[test]
fn quantizing_stays_within_the_format_s_step() {
    // Largest error allowed, as a fraction of the row's range.
    let cases = [
        (DType::F32, 0.0),
        (DType::F16, 1e-3),
        (DType::BF16, 1e-2),
        (DType::Q8_0, 0.005),
        (DType::Q8_1, 0.005),
        (DType::Q8K, 0.005),
        (DType::Q6K, 0.02),
        (DType::Q5_0, 0.035),
        (DType::Q5_1, 0.02),
        (DType::Q5K, 0.025),
        (DType::Q4_0, 0.07),
        (DType::Q4_1, 0.04),
        (DType::Q4K, 0.045),
        (DType::Q3K, 0.12),
        (DType::Q2K, 0.25),
        (DType::Iq4Nl, 0.06),
        (DType::Iq4Xs, 0.06),
        (DType::Mxfp4, 0.1),
        (DType::Nvfp4, 0.1),
        (DType::Tq1_0, 0.26),
        (DType::Tq2_0, 0.26),
    ];
    let x = wave(1024);
    let range = 6.0;
    for (dtype, fraction) in cases {
        let mut bytes = vec![0; dtype.bytes_for(x.len()).unwrap()];
        quantize_rows(dtype, &x, 512, &mut bytes).unwrap();
        let mut y = vec![0.0; x.len()];
        dequantize_row(dtype, &bytes, &mut y).unwrap();
        let worst = x.iter().zip(&y).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst <= fraction * range, "{dtype}: error {worst}");
        assert!(fraction == 0.0 || worst > 0.0, "{dtype}: {worst} is no rounding error");
    }
}

#[test]
fn bytes_need_no_alignment() {
    let x = wave(512);
    for &dtype in DType::ALL.iter().filter(|&&dtype| is_float(dtype)) {
        let n_bytes = dtype.bytes_for(x.len()).unwrap();
        let mut bytes = vec![0; n_bytes + 3];
        if needs_importance(dtype) {
            // Any bytes are a block; these leave the top bit of every f16 exponent clear.
            (0..n_bytes).for_each(|i| bytes[i] = (i * 37 % 251) as u8 & 0xbf);
        } else {
            quantize_rows(dtype, &x, 512, &mut bytes[..n_bytes]).unwrap();
        }
        let mut expected = vec![0.0; x.len()];
        dequantize_row(dtype, &bytes[..n_bytes], &mut expected).unwrap();
        for shift in 1..4 {
            bytes.copy_within(shift - 1..shift - 1 + n_bytes, shift);
            for isa in Isa::available() {
                let mut y = vec![0.0; x.len()];
                let unaligned = &bytes[shift..shift + n_bytes];
                dequantize_rows(isa, dtype, unaligned, &mut y).unwrap();
                assert_eq!(y, expected, "{dtype} at {shift} on {isa}");
            }
        }
    }
}

#[test]
fn code_books_are_read_only() {
    let got = quantize_rows(DType::Iq2Xs, &[0.0; 256], 256, &mut [0; 74]).unwrap_err();
    assert!(got.to_string().contains("iq2_xs: it needs an importance matrix"), "{got}");
}

#[test]
fn wrong_lengths_and_types_are_errors() {
    let mut out = [0u8; 144];
    let got = quantize_rows(DType::Q4K, &[0.0; 384], 384, &mut out);
    assert_eq!(got, Err(Error::RowLen { dtype: DType::Q4K, block_len: 256, k: 384 }));
    let got = quantize_rows(DType::Q4K, &[0.0; 512], 256, &mut out);
    let expected = Error::Len { dtype: DType::Q4K, what: "bytes", expected: 288, got: 144 };
    assert_eq!(got, Err(expected));
    let got = quantize_rows(DType::F32, &[0.0; 5], 2, &mut out);
    let expected = Error::Len { dtype: DType::F32, what: "source values", expected: 6, got: 5 };
    assert_eq!(got, Err(expected));
    let got = dequantize_row(DType::I32, &[0; 8], &mut [0.0; 2]);
    assert!(matches!(got, Err(Error::Unsupported { dtype: DType::I32, .. })), "{got:?}");
    let got = dequantize_row(DType::Q8_0, &[0; 35], &mut [0.0; 32]);
    assert!(matches!(got, Err(Error::Len { expected: 34, got: 35, .. })), "{got:?}");
}

#[test]
fn rows_that_a_type_does_not_divide_get_llama_cpps_substitute() {
    for (dtype, row_len, expected) in [
        (DType::Q4K, 512, DType::Q4K),
        (DType::Q4K, 384, DType::Q5_0),
        (DType::Q2K, 96, DType::Q4_0),
        (DType::Iq4Xs, 96, DType::Iq4Nl),
        (DType::Q6K, 384, DType::Q8_0),
        (DType::Q6K, 100, DType::F16),
        (DType::Q8_0, 100, DType::F16),
    ] {
        assert_eq!(fitting_dtype(dtype, row_len), expected, "{dtype} in rows of {row_len}");
    }
}
