//! Quantizes and dequantizes rows by dtype, dense types included.

use half::{bf16, f16};
use stonechat_compute::simd::NullaryFnOnce;
use stonechat_compute::{DType, Isa};

use crate::block::{Block, Half, QuantizeBlock, block_formats};
use crate::error::{Error, Result};

/// Evaluates `$block` with `$B` naming the block type of `$dtype`; other types take `$rest`.
macro_rules! match_block {
    ($dtype:expr, $B:ident => $block:expr, $($rest:tt)*) => {
        block_formats!(block_arms [$dtype, $B, $block, { $($rest)* }])
    };
}

macro_rules! block_arms {
    ([$dtype:expr, $B:ident, $block:expr, { $($rest:tt)* }]
        $($group:ident { $($variant:ident: $Block:ident $row:tt;)* })*
    ) => {
        match $dtype {
            $($(DType::$variant => { type $B = crate::block::$Block; $block })*)*
            $($rest)*
        }
    };
}

/// [`match_block`] without the formats that need an importance matrix.
macro_rules! match_quantizable {
    ($dtype:expr, $B:ident => $block:expr, $($rest:tt)*) => {
        block_formats!(quantizable_arms [$dtype, $B, $block, { $($rest)* }])
    };
}

macro_rules! quantizable_arms {
    ($args:tt
        panels { $($panels:tt)* }
        rows { $($rows:tt)* }
        codebooks $codebooks:tt
        activations { $($activations:tt)* }
    ) => {
        block_arms! { $args all { $($panels)* $($rows)* $($activations)* } }
    };
}

/// Whether [`dequantize_rows`] supports the type: f32, f16, bf16 and the block formats.
#[must_use]
pub fn is_float(dtype: DType) -> bool {
    dtype.is_quantized() || matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}

macro_rules! needs_importance {
    ([$dtype:expr] panels $panels:tt rows $rows:tt
        codebooks { $($variant:ident: $Block:ident $row:tt;)* } activations $activations:tt
    ) => {
        matches!($dtype, $(DType::$variant)|*)
    };
}

/// Whether the type needs an importance matrix, which [`quantize_rows`] does not support.
#[must_use]
pub fn needs_importance(dtype: DType) -> bool {
    block_formats!(needs_importance[dtype])
}

/// Types that [`quantize_rows`] supports and weights can have, floats first.
#[must_use]
pub fn quantizable() -> Vec<DType> {
    let is_weight = |dtype: &DType| is_float(*dtype) && !matches!(dtype, DType::Q8_1 | DType::Q8K);
    let all = DType::ALL.iter().copied().filter(is_weight).filter(|d| !needs_importance(*d));
    let (floats, blocks): (Vec<_>, Vec<_>) = all.partition(|dtype| !dtype.is_quantized());
    [floats, blocks].concat()
}

macro_rules! fallback {
    ([$dtype:expr]
        panels { $($panel:ident: $P:ident { fallback: $panel_fallback:ident, $($p:tt)* };)* }
        rows { $($row:ident: $R:ident { fallback: $row_fallback:ident };)* }
        codebooks $codebooks:tt activations $activations:tt
    ) => {
        match $dtype {
            $(DType::$panel => DType::$panel_fallback,)*
            $(DType::$row => DType::$row_fallback,)*
            _ => DType::F16,
        }
    };
}

/// `dtype`, or llama.cpp's fallback type if `row_len` is no multiple of its block length.
#[must_use]
pub fn fitting_dtype(dtype: DType, row_len: usize) -> DType {
    let fits = |dtype: &DType| row_len.is_multiple_of(dtype.block_len());
    let substitute = block_formats!(fallback[dtype]);
    [dtype, substitute].into_iter().find(fits).unwrap_or(DType::F16)
}

/// Dequantizes whole blocks or elements, at any address, to exactly the values that the format defines, with the best
/// tier of the CPU.
///
/// # Errors
/// If the type holds no floats, or the lengths of `bytes` and `out` disagree.
pub fn dequantize_row(dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<()> {
    // A malformed `STONECHAT_ISA` is reported where a device is chosen; values are the same on every tier.
    let isa = Isa::best().unwrap_or_else(|_| Isa::lowest());
    dequantize_rows(isa, dtype, bytes, out)
}

/// [`dequantize_row`] on tier `isa`; the same values on every tier.
///
/// # Errors
/// If the type holds no floats, or the lengths of `bytes` and `out` disagree.
pub fn dequantize_rows(isa: Isa, dtype: DType, bytes: &[u8], out: &mut [f32]) -> Result<()> {
    check_lengths(dtype, out.len(), bytes.len())?;
    match_block!(dtype,
        B => {
            let blocks = bytemuck::cast_slice::<u8, B>(bytes);
            isa.vectorize(Dequantize { blocks, out: bytemuck::cast_slice_mut(out) });
        },
        DType::F32 => {
            let values = bytes.as_chunks().0;
            isa.vectorize(Widen { values, out, widen: |v| f32::from_le_bytes(v) });
        }
        DType::F16 => {
            let values = bytemuck::cast_slice::<u8, Half>(bytes);
            isa.vectorize(Widen { values, out, widen: |v: Half| v.to_f32() });
        }
        DType::BF16 => {
            let values = bytes.as_chunks().0;
            let widen = |v| f32::from_bits(u32::from(u16::from_le_bytes(v)) << 16);
            isa.vectorize(Widen { values, out, widen });
        }
        _ => return Err(unsupported("dequantize", dtype)),
    );
    Ok(())
}

/// Quantizes rows of `k` values to `out` as llama.cpp does without an importance matrix, bit for bit; f16 and bf16 round
/// to nearest, ties to even.
///
/// # Errors
/// If the type holds no floats or needs an importance matrix ([`needs_importance`]), `k` is no
/// multiple of its block length, `src` is no whole number of rows, or `out` has another length than the quantized rows.
pub fn quantize_rows(dtype: DType, src: &[f32], k: usize, out: &mut [u8]) -> Result<()> {
    let block_len = dtype.block_len();
    if k == 0 || !k.is_multiple_of(block_len) {
        return Err(Error::RowLen { dtype, block_len, k });
    }
    if !src.len().is_multiple_of(k) {
        let expected = src.len().next_multiple_of(k);
        return Err(Error::Len { dtype, what: "source values", expected, got: src.len() });
    }
    check_lengths(dtype, src.len(), out.len())?;
    match_quantizable!(dtype,
        B => {
            let values = bytemuck::cast_slice::<f32, <B as Block>::Values>(src);
            for (block, x) in bytemuck::cast_slice_mut::<u8, B>(out).iter_mut().zip(values) {
                *block = B::quantize(x);
            }
        },
        DType::F32 => narrow(src, out, f32::to_le_bytes),
        DType::F16 => narrow(src, out, |v| f16::from_f32(v).to_le_bytes()),
        DType::BF16 => narrow(src, out, |v| bf16::from_f32(v).to_le_bytes()),
        _ if needs_importance(dtype) => return Err(Error::NeedsImportance { dtype }),
        _ => return Err(unsupported("quantize", dtype)),
    );
    Ok(())
}

fn unsupported(op: &'static str, dtype: DType) -> Error {
    Error::Unsupported { op, expected: "f32, f16, bf16 and the block formats", dtype }
}

fn check_lengths(dtype: DType, n_values: usize, n_bytes: usize) -> Result<()> {
    let block_len = dtype.block_len();
    let Some(expected) = dtype.bytes_for(n_values) else {
        return Err(Error::RowLen { dtype, block_len, k: n_values });
    };
    if expected != n_bytes {
        return Err(Error::Len { dtype, what: "bytes", expected, got: n_bytes });
    }
    Ok(())
}

fn narrow<const N: usize>(src: &[f32], out: &mut [u8], pack: impl Fn(f32) -> [u8; N]) {
    for (bytes, &v) in out.as_chunks_mut().0.iter_mut().zip(src) {
        *bytes = pack(v);
    }
}

struct Dequantize<'a, B: Block> {
    blocks: &'a [B],
    out: &'a mut [B::Values],
}

impl<B: Block> NullaryFnOnce for Dequantize<'_, B> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { blocks, out } = self;
        let out = &mut out[..blocks.len()];
        for i in 0..blocks.len() {
            blocks[i].dequantize(&mut out[i]);
        }
    }
}

struct Widen<'a, T, F> {
    values: &'a [T],
    out: &'a mut [f32],
    widen: F,
}

impl<T: Copy, F: Fn(T) -> f32> NullaryFnOnce for Widen<'_, T, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { values, out, widen } = self;
        let out = &mut out[..values.len()];
        for i in 0..values.len() {
            out[i] = widen(values[i]);
        }
    }
}

#[cfg(test)]
mod tests;
