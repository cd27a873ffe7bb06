//! Random bytes that are valid blocks: the codes stay as drawn, the scales are set so that values
//! spread around 0 with a standard deviation of about [`SPREAD`].
//!
//! Layouts are those of `stonechat_quant::block`. The scales of formats with symmetric codes get a
//! random sign, because their codes reach one step further down than up.

use anyhow::{Result, bail};
use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;
use stonechat_formats::DType;

/// The standard deviation of the values, that of common initializations.
const SPREAD: f32 = 0.02;

/// Bytes that one thread makes at a time from one stream.
const CHUNK_BYTES: usize = 1 << 16;

/// Values of half precision that are converted at a time.
const HALVES: usize = 256;

/// Turns random bytes into valid ones, in place.
type Mend = fn(&mut [u8]);

/// The stream of the tensor `index` in a file of this seed.
pub(super) fn stream(seed: u64, index: usize) -> u64 {
    Random(seed ^ (index as u64).rotate_left(32)).next()
}

/// Whether [`fill`] knows the type.
pub(super) fn can_fill(dtype: DType) -> bool {
    mend_of(dtype).is_some()
}

/// Fills `bytes`, whole blocks of `dtype`, with random weights on all threads.
pub(super) fn fill(dtype: DType, bytes: &mut [u8], stream: u64) -> Result<()> {
    let Some((unit_bytes, mend)) = mend_of(dtype) else {
        bail!("no random weights of type {dtype}");
    };
    let chunk_bytes = CHUNK_BYTES / unit_bytes * unit_bytes;
    bytes.par_chunks_mut(chunk_bytes).enumerate().for_each(|(index, chunk)| {
        Random(self::stream(stream, index)).fill(chunk);
        chunk.chunks_mut(unit_bytes).for_each(mend);
    });
    Ok(())
}

/// `SplitMix64` (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut::<8>();
        for word in words {
            *word = self.next().to_le_bytes();
        }
        let last = self.next().to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// Function that mends bytes of a type, and their number at a time.
fn mend_of(dtype: DType) -> Option<(usize, Mend)> {
    let block = |mend: Mend| Some((dtype.block_bytes(), mend));
    match dtype {
        DType::F32 => block(mend_f32),
        DType::F16 => Some((2 * HALVES, mend_f16)),
        DType::BF16 => block(mend_bf16),
        DType::Q4_0 => block(|b| set_signed_scale(b, 0, 4.61)),
        DType::Q4_1 => block(|b| set_scale_min(b, [0, 2], 4.61, -7.5)),
        DType::Q5_0 => block(|b| set_signed_scale(b, 0, 9.23)),
        DType::Q5_1 => block(|b| set_scale_min(b, [0, 2], 9.23, -15.5)),
        DType::Q8_0 => block(mend_q8_0),
        DType::Q2K => block(mend_q2_k),
        // Scales of 6 bits around 32, codes of 3 bits around 4.
        DType::Q3K => block(|b| set_signed_scale(b, 108, 18.5 * 2.29)),
        DType::Q4K => block(|b| mend_affine_k(b, 4.61, 7.5)),
        DType::Q5K => block(|b| mend_affine_k(b, 9.23, 15.5)),
        DType::Q6K => block(mend_q6_k),
        // The table's values reach from -127 to 113.
        DType::Iq4Nl => block(|b| set_signed_scale(b, 0, 68.6)),
        // The exponent 120 makes the table's ±6 to ±0.07.
        DType::Mxfp4 => block(|b| b[0] = 120),
        _ => None,
    }
}

/// `bytes` as a number from -1 to 1.
fn unit(bytes: [u8; 4]) -> f32 {
    i32::from_le_bytes(bytes) as f32 / 2f32.powi(31)
}

/// Uniform values of the spread.
fn uniform(bytes: [u8; 4]) -> f32 {
    unit(bytes) * SPREAD * 3f32.sqrt()
}

fn mend_f32(value: &mut [u8]) {
    if let Ok(bytes) = <[u8; 4]>::try_from(&*value) {
        value.copy_from_slice(&uniform(bytes).to_le_bytes());
    }
}

fn mend_bf16(value: &mut [u8]) {
    let bits = uniform([0, 0, value[0], value[1]]).to_bits();
    value.copy_from_slice(&((bits >> 16) as u16).to_le_bytes());
}

fn mend_f16(values: &mut [u8]) {
    let pairs = values.as_chunks_mut::<2>().0;
    let mut wide = [0.0; HALVES];
    for (wide, pair) in wide.iter_mut().zip(&*pairs) {
        *wide = uniform([0, 0, pair[0], pair[1]]);
    }
    let mut narrow = [f16::ZERO; HALVES];
    narrow.convert_from_f32_slice(&wide);
    for (pair, narrow) in pairs.iter_mut().zip(narrow) {
        *pair = narrow.to_le_bytes();
    }
}

fn set(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32_const(value).to_le_bytes());
}

/// Sets the scale at `at` so that codes which spread by `codes` give the spread; its sign is random.
fn set_signed_scale(block: &mut [u8], at: usize, codes: f32) {
    let sign = block[at + 1] & 0x80;
    set(block, at, SPREAD / codes);
    block[at + 1] |= sign;
}

/// Sets scale and min, so that codes which spread by `codes` around `-min` do so around 0.
fn set_scale_min(block: &mut [u8], [scale_at, min_at]: [usize; 2], codes: f32, min: f32) {
    set(block, scale_at, SPREAD / codes);
    set(block, min_at, SPREAD / codes * min);
}

fn mend_q8_0(block: &mut [u8]) {
    set_signed_scale(block, 0, 73.9);
    // No quantizer makes -128, and not every integer kernel takes it.
    block[2..].iter_mut().filter(|code| **code == 0x80).for_each(|code| *code = 0x81);
}

/// Scales of 4 bits from 8 to 15, mins the same.
fn mend_q2_k(block: &mut [u8]) {
    block[..16].iter_mut().for_each(|pair| *pair = (*pair & 7 | 8) * 0x11);
    set_scale_min(block, [80, 82], 11.73 * 1.118, 1.5);
}

/// `Q4_K` and `Q5_K`: scales of 6 bits from 16 to 31, mins the same.
fn mend_affine_k(block: &mut [u8], codes: f32, middle: f32) {
    for group in 0..4 {
        let (low, high) = (block[4 + group] & 15 | 16, block[8 + group] & 15 | 16);
        let first = low | (high >> 4) << 6;
        (block[4 + group], block[8 + group]) = (first, first);
        block[12 + group] = (high & 15) * 0x11;
    }
    set_scale_min(block, [0, 2], 23.95 * codes, middle);
}

/// Scales of 8 bits from 8 to 15 with a random sign.
fn mend_q6_k(block: &mut [u8]) {
    for scale in &mut block[192..208] {
        let size = (*scale & 7 | 8).cast_signed();
        *scale = if *scale & 0x80 == 0 { size } else { -size }.cast_unsigned();
    }
    set(block, 208, SPREAD / (11.73 * 18.47));
}
