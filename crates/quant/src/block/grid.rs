//! Codebooks (grids) of the IQ formats, and the blocks that index them.
//!
//! A format of 2 or 3 bits stores 8 or 4 magnitudes at a time as an index into a codebook, and their signs as bits.
//! The entries are GGML's, in `codes`.

mod codes;

/// An entry of 8 magnitudes.
pub(super) type Eight = [u8; 8];
/// An entry of 4 magnitudes.
pub(super) type Four = [u8; 4];

/// `8 * (v + 1)` for the values `v` of -1, 0, 1; `IQ1_S` and `IQ1_M` add a delta.
pub(super) static IQ1_S: [Eight; 2048] = expand(&codes::IQ1_S, &[0, 8, 16]);
pub(super) static IQ2_XXS: [Eight; 256] = expand(&codes::IQ2_XXS, &[8, 25, 43]);
pub(super) static IQ2_XS: [Eight; 512] = expand(&codes::IQ2_XS, &[8, 25, 43]);
pub(super) static IQ2_S: [Eight; 1024] = expand(&codes::IQ2_S, &[8, 25, 43]);
pub(super) static IQ3_XXS: [Four; 256] = expand(&codes::IQ3_XXS, &[4, 12, 20, 28, 36, 44, 52, 62]);
pub(super) static IQ3_S: [Four; 512] = expand(&codes::IQ3_S, &[1, 3, 5, 7, 9, 11, 13, 15]);

const fn expand<const N: usize, const LEN: usize>(
    codes: &[u16; N],
    magnitudes: &[u8],
) -> [[u8; LEN]; N] {
    let bits = if LEN == 8 { 2 } else { 3 };
    let mut entries = [[0; LEN]; N];
    let mut i = 0;
    while i < N {
        let mut j = 0;
        while j < LEN {
            let index = codes[i] >> (bits * j) & ((1 << bits) - 1);
            entries[i][j] = magnitudes[index as usize];
            j += 1;
        }
        i += 1;
    }
    entries
}

/// Signs of 8 elements from 7 stored bits: the number of negative ones is even.
static EVEN_SIGNS: [u8; 128] = {
    let mut signs = [0; 128];
    let mut i = 0;
    while i < 128 {
        signs[i] = i as u8 | (i.count_ones() as u8 & 1) << 7;
        i += 1;
    }
    signs
};

/// Signs of 8 elements from the low 7 bits of `bits`.
#[inline(always)]
pub(super) fn even_signs(bits: u32) -> u8 {
    EVEN_SIGNS[(bits & 127) as usize]
}

/// Signs of 32 elements from the low 28 bits of `word`.
#[inline(always)]
pub(super) fn four_even_signs(word: u32) -> u32 {
    let byte = |l: u32| even_signs(word >> (7 * l));
    u32::from_le_bytes([byte(0), byte(1), byte(2), byte(3)])
}

/// `d * (0.5 + s) * factor` of 4-bit scales, two in a byte, the low one first.
#[inline(always)]
pub(super) fn half_step_scales(d: f32, factor: f32, packed: &[u8; 8]) -> [f32; 16] {
    let mut scales = [0.0; 16];
    for g in 0..16 {
        scales[g] = d * (0.5 + f32::from(packed[g / 2] >> (g % 2 * 4) & 15)) * factor;
    }
    scales
}
