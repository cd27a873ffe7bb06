//! Positions of a block's bytes in a panel.
//!
//! A GGML block is cut into 32-bit words, in its own byte order or the one a kernel reads them in, so that a panel is read
//! from first to last. Word `i` of the blocks of 16 rows is vector `i` of the panel's block. A scale that does not fill a
//! word with another field goes to a vector of scales, before the blocks that share it:
//!
//! ```text
//! q4_k, 144 bytes, 36 words:       lane =  row 0    row 1   ...  row 15
//!   block 0   vector 0                    | d d d d ... d (16 f16)   dmin dmin ... dmin (16 f16) |
//!             vector 1                    | scales   scales  ...   scales        |
//!             ...
//!             vector 35                   | qs[124..128]     ...   qs[124..128]  |
//!   block 1   vector 36 ...
//!
//! q8_0, 34 bytes, 8 words and an f16 scale, 2 blocks share a vector of scales:
//!   vector 0       d of block 0 (16 f16), d of block 1 (16 f16)
//!   vectors 1..9   quants of block 0
//!   vectors 9..17  quants of block 1
//!   vector 17      d of blocks 2 and 3 ...
//! ```

use stonechat_compute::DType;

use super::panel::{PANEL_ROWS, U32x16};
use crate::block::block_formats;

/// Bytes of the largest block.
pub(super) const MAX_BLOCK_BYTES: usize = 210;

/// Layout of the blocks of a format in vectors.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) dtype: DType,
    pub(super) block_bytes: usize,
    /// Offset in the block of the scale that goes to a vector of scales.
    scale_at: Option<usize>,
    /// Bytes of that scale: 2 for f16, 1 for E8M0.
    scale_bytes: usize,
    /// Runs `[from, to)` of a block's words in the order of the panel; empty for the block's own order.
    order: &'static [(usize, usize)],
    /// The vector of two 16-bit fields: the first ones of all rows come before the second ones.
    u16_pair: Option<usize>,
    /// The vector of the fifth bits of 32 values, reordered by [`fifth_bits_by_quad`].
    fifth_bits: Option<usize>,
    /// Whether signed bytes are stored offset by 128.
    is_signed: bool,
}

macro_rules! layouts {
    ([]
        panels {
            $($variant:ident: $Block:ident {
                fallback: $fallback:ident, panel: $panel:ty { $($layout:tt)* }, $($gpu:tt)*
            };)*
        }
        $($rest:tt)*
    ) => {
        &[$(Layout {
            $($layout)*,
            ..in_order(DType::$variant, size_of::<crate::block::$Block>())
        }),*]
    };
}

const LAYOUTS: &[Layout] = block_formats!(layouts []);

/// Scales (words 48 to 51), then for each quarter of 64 values 4 words of `qh` and twice 4 words of `ql`.
const Q6_K_ORDER: [(usize, usize); 13] = {
    let mut order = [(48, 52); 13];
    let mut i = 0;
    while i < 12 {
        let (half, part) = (i / 6, i / 3 % 2);
        let first = match i % 3 {
            0 => 32 + 8 * half,
            1 => 16 * half,
            _ => 16 * half + 8,
        };
        order[1 + i] = (first + 4 * part, first + 4 * part + 4);
        i += 1;
    }
    order
};

/// A layout with all words in the block's order.
const fn in_order(dtype: DType, block_bytes: usize) -> Layout {
    Layout {
        dtype,
        block_bytes,
        scale_at: None,
        scale_bytes: 2,
        order: &[],
        u16_pair: None,
        fifth_bits: None,
        is_signed: false,
    }
}

impl Layout {
    pub(super) fn of(dtype: DType) -> Option<&'static Self> {
        LAYOUTS.iter().find(|layout| layout.dtype == dtype)
    }

    /// Vectors of a block, without a vector of scales.
    pub(super) const fn block_vectors(&self) -> usize {
        (self.block_bytes - if self.scale_at.is_some() { self.scale_bytes } else { 0 }) / 4
    }

    /// Vectors of a panel.
    pub(super) const fn panel_len(&self, n_blocks: usize) -> usize {
        let offset = self.block_offset(n_blocks.saturating_sub(1));
        if n_blocks == 0 { 0 } else { offset.vectors + self.block_vectors() }
    }

    /// Blocks that share a vector of scales, 0 if there is none.
    const fn blocks_per_scale_vector(&self) -> usize {
        if self.scale_at.is_some() { 4 / self.scale_bytes } else { 0 }
    }

    const fn block_offset(&self, index: usize) -> BlockOffset {
        BlockOffset::new(self.block_vectors(), self.blocks_per_scale_vector(), index)
    }

    /// Offset in a block of its first word.
    const fn words_start(&self) -> usize {
        if matches!(self.scale_at, Some(0)) { self.scale_bytes } else { 0 }
    }

    /// Offset in a block of the word in vector `vector`.
    const fn word_offset(&self, vector: usize) -> usize {
        let (mut word, mut i) = (vector, 0);
        while i < self.order.len() {
            let (from, to) = self.order[i];
            if word < to - from {
                word += from;
                break;
            }
            word -= to - from;
            i += 1;
        }
        4 * word + self.words_start()
    }

    /// Packs the first 16 rows of `rows`, fewer at the end of a matrix, into a panel of zeros.
    pub(super) fn pack_panel(&self, rows: &[u8], n_blocks: usize, panel: &mut [U32x16]) {
        let (block_vectors, sign_flip) = (self.block_vectors(), self.sign_flip());
        let all = [(0, block_vectors)];
        let runs = if self.order.is_empty() { &all } else { self.order };
        let rows = rows.chunks_exact(n_blocks * self.block_bytes).take(PANEL_ROWS);
        for (lane, row) in rows.enumerate() {
            let mut offset = self.block_offset(0);
            for block in row.chunks_exact(self.block_bytes) {
                if let Some(at) = self.scale_at {
                    let scales = bytemuck::bytes_of_mut(&mut panel[offset.scales]);
                    let to =
                        &mut scales[(offset.nth_scale * PANEL_ROWS + lane) * self.scale_bytes..];
                    to[..self.scale_bytes].copy_from_slice(&block[at..][..self.scale_bytes]);
                }
                let (words, _) = block[self.words_start()..].as_chunks();
                let mut at = offset.vectors;
                for &(from, end) in runs {
                    let to = &mut panel[at..at + end - from];
                    for (to, word) in to.iter_mut().zip(&words[from..end]) {
                        to.0[lane] = u32::from_le_bytes(*word) ^ sign_flip;
                    }
                    at += end - from;
                }
                offset = offset.next(block_vectors, self.blocks_per_scale_vector());
            }
        }
        for i in 0..n_blocks {
            let block = &mut panel[self.block_offset(i).vectors..][..block_vectors];
            if let Some(pair) = self.u16_pair {
                block[pair] = deinterleave_u16(block[pair]);
            }
            if let Some(bits) = self.fifth_bits {
                block[bits].0 = block[bits].0.map(fifth_bits_by_quad);
            }
        }
    }

    /// Restores the bytes of block `block` of row `lane` of a panel.
    pub(super) fn unpack_block(
        &self,
        panel: &[U32x16],
        (lane, block): (usize, usize),
        out: &mut [u8],
    ) {
        let offset = self.block_offset(block);
        if let Some(at) = self.scale_at {
            let scales = bytemuck::bytes_of(&panel[offset.scales]);
            let from = &scales[(offset.nth_scale * PANEL_ROWS + lane) * self.scale_bytes..];
            out[at..][..self.scale_bytes].copy_from_slice(&from[..self.scale_bytes]);
        }
        let vectors = &panel[offset.vectors..][..self.block_vectors()];
        for (i, vector) in vectors.iter().enumerate() {
            let word = if self.u16_pair == Some(i) {
                let [first, second] = bytemuck::cast_ref::<U32x16, [[u16; PANEL_ROWS]; 2]>(vector);
                u32::from(first[lane]) | u32::from(second[lane]) << 16
            } else if self.fifth_bits == Some(i) {
                fifth_bits_by_value(vector.0[lane])
            } else {
                vector.0[lane] ^ self.sign_flip()
            };
            out[self.word_offset(i)..][..4].copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Mask that offsets four signed bytes by 128.
    const fn sign_flip(&self) -> u32 {
        if self.is_signed { 0x8080_8080 } else { 0 }
    }
}

/// Position of a block in a panel, in vectors.
#[derive(Debug, Clone, Copy)]
pub(super) struct BlockOffset {
    /// First vector of the block.
    pub(super) vectors: usize,
    /// Vector of the block's scale, before the vectors of all blocks that share it; any vector if scales are in the blocks.
    pub(super) scales: usize,
    /// Position of its scales in that vector.
    pub(super) nth_scale: usize,
}

impl BlockOffset {
    /// Position of block `index`, for blocks of `block_vectors` vectors of which `sharing` have a vector of scales in
    /// common; 0 if there is none.
    #[inline(always)]
    pub(super) const fn new(block_vectors: usize, sharing: usize, index: usize) -> Self {
        if sharing == 0 {
            let vectors = index * block_vectors;
            return Self { vectors, scales: vectors, nth_scale: 0 };
        }
        let nth_scale = index % sharing;
        let scales = (index - nth_scale) * block_vectors + index / sharing;
        Self { vectors: scales + 1 + nth_scale * block_vectors, scales, nth_scale }
    }

    /// Position of the next block, without a division.
    fn next(self, block_vectors: usize, sharing: usize) -> Self {
        let vectors = self.vectors + block_vectors;
        match sharing {
            0 => Self { vectors, scales: vectors, nth_scale: 0 },
            _ if self.nth_scale + 1 < sharing => {
                Self { vectors, nth_scale: self.nth_scale + 1, ..self }
            }
            _ => Self { vectors: vectors + 1, scales: vectors, nth_scale: 0 },
        }
    }
}

/// The low 16 bits of all lanes, then the high ones.
fn deinterleave_u16(x: U32x16) -> U32x16 {
    bytemuck::cast([x.0.map(|lane| lane as u16), x.0.map(|lane| (lane >> 16) as u16)])
}

/// Moves bit `4 g + b` to bit `g` of byte `b`: a shift and a mask then give the fifth bits of quad `g`.
fn fifth_bits_by_quad(bits: u32) -> u32 {
    (0..4).fold(0, |quads, b| {
        // Gathers every fourth bit into a byte.
        let x = bits >> b & 0x1111_1111;
        let x = (x | x >> 3) & 0x0303_0303;
        let x = (x | x >> 6) & 0x000f_000f;
        quads | ((x | x >> 12) & 0xff) << (8 * b)
    })
}

/// The inverse of [`fifth_bits_by_quad`].
fn fifth_bits_by_value(quads: u32) -> u32 {
    (0..4).fold(0, |bits, b| {
        let x = quads >> (8 * b) & 0xff;
        let x = (x | x << 12) & 0x000f_000f;
        let x = (x | x << 6) & 0x0303_0303;
        bits | ((x | x << 3) & 0x1111_1111) << b
    })
}
