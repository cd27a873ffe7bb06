//! Where the bytes of a block go in a panel.

use stonechat_compute::DType;

use super::{PANEL_ROWS, Words};

/// Bytes of the largest block.
pub(super) const MAX_BLOCK_BYTES: usize = 210;

/// How a format's blocks become words.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) dtype: DType,
    pub(super) block_bytes: usize,
    /// Offset of a factor that does not pair with another to a word.
    factor_at: Option<usize>,
    /// Bytes of that factor: two of an f16 or one of an exponent.
    factor_bytes: usize,
    /// Runs of a block's words, from and to, in the order of the panel, if that differs: a kernel reads words from
    /// first to last, which processors foresee.
    order: &'static [(usize, usize)],
    /// The panel's word that is two f16 or 16-bit integers: in the panel, the first ones of all rows come before the second ones.
    pair: Option<usize>,
    /// The panel's word that has a fifth bit of each of 32 values, rearranged by [`bits_by_group`].
    bits: Option<usize>,
    /// Whether signed bytes become unsigned ones, 128 larger.
    is_signed: bool,
}

const LAYOUTS: [Layout; 13] = [
    Layout { factor_at: Some(0), ..plain(DType::Q4_0, 18) },
    Layout { pair: Some(0), ..plain(DType::Q4_1, 20) },
    Layout { factor_at: Some(0), bits: Some(0), ..plain(DType::Q5_0, 22) },
    Layout { pair: Some(0), bits: Some(1), ..plain(DType::Q5_1, 24) },
    Layout { factor_at: Some(0), is_signed: true, ..plain(DType::Q8_0, 34) },
    Layout { factor_at: Some(0), ..plain(DType::Iq4Nl, 18) },
    Layout { factor_at: Some(0), factor_bytes: 1, ..plain(DType::Mxfp4, 17) },
    Layout { order: &[(20, 21), (0, 20)], pair: Some(0), ..plain(DType::Q2K, 84) },
    Layout { factor_at: Some(108), order: &[(24, 27), (0, 24)], ..plain(DType::Q3K, 110) },
    Layout { pair: Some(0), ..plain(DType::Q4K, 144) },
    Layout { pair: Some(0), ..plain(DType::Q5K, 176) },
    Layout { factor_at: Some(208), order: &Q6_K_ORDER, ..plain(DType::Q6K, MAX_BLOCK_BYTES) },
    Layout { pair: Some(0), ..plain(DType::Iq4Xs, 136) },
];

/// Whether the format has panels.
#[cfg(target_arch = "x86_64")]
pub(crate) const fn has_panels(dtype: DType) -> bool {
    let mut i = 0;
    while i < LAYOUTS.len() {
        if LAYOUTS[i].dtype as u32 == dtype as u32 {
            return true;
        }
        i += 1;
    }
    false
}

/// Scales, then of each half of four units the words of two bits and of nibbles that belong together.
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

/// Whose words stay as they are.
const fn plain(dtype: DType, block_bytes: usize) -> Layout {
    Layout {
        dtype,
        block_bytes,
        factor_at: None,
        factor_bytes: 2,
        order: &[],
        pair: None,
        bits: None,
        is_signed: false,
    }
}

impl Layout {
    pub(super) fn of(dtype: DType) -> Option<&'static Self> {
        LAYOUTS.iter().find(|layout| layout.dtype == dtype)
    }

    /// Words of a block.
    pub(super) const fn n_words(&self) -> usize {
        (self.block_bytes - if self.factor_at.is_some() { self.factor_bytes } else { 0 }) / 4
    }

    /// Vectors of a panel.
    pub(super) const fn panel_len(&self, n_blocks: usize) -> usize {
        let place = self.place(n_blocks.saturating_sub(1));
        if n_blocks == 0 { 0 } else { place.words + self.n_words() }
    }

    /// Blocks whose lone factors share a vector, 0 if they have none.
    const fn sharing(&self) -> usize {
        if self.factor_at.is_some() { 4 / self.factor_bytes } else { 0 }
    }

    /// Where a block lies in a panel.
    const fn place(&self, index: usize) -> Place {
        Place::new(self.n_words(), self.sharing(), index)
    }

    /// Offset in a block of its words.
    const fn words_at(&self) -> usize {
        if matches!(self.factor_at, Some(0)) { self.factor_bytes } else { 0 }
    }

    /// Offset in a block of the panel's word `word`.
    const fn word_at(&self, word: usize) -> usize {
        let (mut word, mut i) = (word, 0);
        while i < self.order.len() {
            let (from, to) = self.order[i];
            if word < to - from {
                word += from;
                break;
            }
            word -= to - from;
            i += 1;
        }
        4 * word + self.words_at()
    }

    /// Fills a panel with the first 16 rows of `rows`, fewer at the end of a matrix.
    pub(super) fn pack_panel(&self, rows: &[u8], n_blocks: usize, panel: &mut [Words]) {
        let (n_words, flip) = (self.n_words(), self.flip());
        let all = [(0, n_words)];
        let runs = if self.order.is_empty() { &all } else { self.order };
        let rows = rows.chunks_exact(n_blocks * self.block_bytes).take(PANEL_ROWS);
        for (lane, row) in rows.enumerate() {
            let mut place = self.place(0);
            for block in row.chunks_exact(self.block_bytes) {
                if let Some(at) = self.factor_at {
                    let factors = bytemuck::bytes_of_mut(&mut panel[place.factors]);
                    let to = &mut factors[(place.nth * PANEL_ROWS + lane) * self.factor_bytes..];
                    to[..self.factor_bytes].copy_from_slice(&block[at..][..self.factor_bytes]);
                }
                let (words, _) = block[self.words_at()..].as_chunks();
                let mut at = place.words;
                for &(from, end) in runs {
                    let to = &mut panel[at..at + end - from];
                    for (to, word) in to.iter_mut().zip(&words[from..end]) {
                        to.0[lane] = u32::from_le_bytes(*word) ^ flip;
                    }
                    at += end - from;
                }
                place = place.next(n_words, self.sharing());
            }
        }
        for i in 0..n_blocks {
            let block = &mut panel[self.place(i).words..][..n_words];
            if let Some(pair) = self.pair {
                block[pair] = halves_apart(block[pair]);
            }
            if let Some(bits) = self.bits {
                block[bits].0 = block[bits].0.map(bits_by_group);
            }
        }
    }

    /// Puts block `block` of row `lane` of a panel together again.
    pub(super) fn unpack_block(
        &self,
        panel: &[Words],
        (lane, block): (usize, usize),
        out: &mut [u8],
    ) {
        let place = self.place(block);
        if let Some(at) = self.factor_at {
            let factors = bytemuck::bytes_of(&panel[place.factors]);
            let from = &factors[(place.nth * PANEL_ROWS + lane) * self.factor_bytes..];
            out[at..][..self.factor_bytes].copy_from_slice(&from[..self.factor_bytes]);
        }
        let words = &panel[place.words..][..self.n_words()];
        for (i, word) in words.iter().enumerate() {
            let value = if self.pair == Some(i) {
                let [first, second] = bytemuck::cast_ref::<Words, [[u16; PANEL_ROWS]; 2]>(word);
                u32::from(first[lane]) | u32::from(second[lane]) << 16
            } else if self.bits == Some(i) {
                bits_by_value(word.0[lane])
            } else {
                word.0[lane] ^ self.flip()
            };
            out[self.word_at(i)..][..4].copy_from_slice(&value.to_le_bytes());
        }
    }

    /// What is added to words.
    const fn flip(&self) -> u32 {
        if self.is_signed { 0x8080_8080 } else { 0 }
    }
}

/// Where a block lies in a panel, in vectors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// Its words.
    pub(super) words: usize,
    /// The vector with its lone factor, before the words of all blocks that share it; any if there is none.
    pub(super) factors: usize,
    /// Which of that vector's.
    pub(super) nth: usize,
}

impl Place {
    /// Of block `index` of blocks of `n_words` words, of which `sharing` have their lone factors in one vector; 0 if
    /// they have none.
    #[inline(always)]
    pub(super) const fn new(n_words: usize, sharing: usize, index: usize) -> Self {
        if sharing == 0 {
            let words = index * n_words;
            return Self { words, factors: words, nth: 0 };
        }
        let nth = index % sharing;
        let factors = (index - nth) * n_words + index / sharing;
        Self { words: factors + 1 + nth * n_words, factors, nth }
    }

    /// Of the block after this one, without a division.
    fn next(self, n_words: usize, sharing: usize) -> Self {
        let words = self.words + n_words;
        match sharing {
            0 => Self { words, factors: words, nth: 0 },
            _ if self.nth + 1 < sharing => Self { words, nth: self.nth + 1, ..self },
            _ => Self { words: words + 1, factors: words, nth: 0 },
        }
    }
}

/// The low halves of all words, then the high ones.
fn halves_apart(words: Words) -> Words {
    bytemuck::cast([words.0.map(|word| word as u16), words.0.map(|word| (word >> 16) as u16)])
}

/// Bit `4 g + b` becomes bit `g` of byte `b`: shifted, those of group `g` are a bit of its four codes.
fn bits_by_group(bits: u32) -> u32 {
    (0..4).fold(0, |groups, b| {
        // Every fourth bit, moved together.
        let x = bits >> b & 0x1111_1111;
        let x = (x | x >> 3) & 0x0303_0303;
        let x = (x | x >> 6) & 0x000f_000f;
        groups | ((x | x >> 12) & 0xff) << (8 * b)
    })
}

/// The inverse of [`bits_by_group`].
fn bits_by_value(groups: u32) -> u32 {
    (0..4).fold(0, |bits, b| {
        let x = groups >> (8 * b) & 0xff;
        let x = (x | x << 12) & 0x000f_000f;
        let x = (x | x << 6) & 0x0303_0303;
        bits | ((x | x << 3) & 0x1111_1111) << b
    })
}
