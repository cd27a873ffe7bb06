//! Random weights of any type.

use half::f16;
use stonechat_compute::DType;

use crate::Lcg;

/// Random weights `[n, k]` of standard deviation `scale`, quantized to `dtype`. Types whose quantization needs an
/// importance matrix get random blocks with scales of about that size instead.
///
/// # Panics
/// If `k` is not a multiple of the block length, or the type holds no floats.
#[must_use]
pub fn random_weights(
    dtype: DType,
    random: &mut Lcg,
    (n, k): (usize, usize),
    scale: f32,
) -> Vec<u8> {
    let values = random.normals(n * k, scale);
    let mut bytes = vec![0; dtype.bytes_for(n * k).expect("whole blocks")];
    if !stonechat_quant::needs_importance(dtype) {
        stonechat_quant::quantize_rows(dtype, &values, k, &mut bytes).expect("a type of weights");
        return bytes;
    }
    bytes.fill_with(|| (random.next_u32() >> 24) as u8);
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        // Codebook values times group scales multiply `d` by 8 to 128.
        let d = f16::from_f32(scale / 64.0 * (1.0 + random.uniform() / 2.0)).to_bits();
        if dtype == DType::Iq1M {
            for p in 0..4 {
                let byte = &mut block[49 + 2 * p];
                *byte = *byte & 15 | ((d >> (4 * p) & 15) << 4) as u8;
            }
        } else {
            block[..2].copy_from_slice(&d.to_le_bytes());
        }
    }
    bytes
}
