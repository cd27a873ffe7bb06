//! GPUs of a group, by their indexes.

use std::str::FromStr;

/// NVIDIA GPUs that compute each layer together, by their indexes in `stonechat devices`; written `0,1`. A repeated index is
/// two ranks on one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuRanks {
    /// Indexes, zero-padded.
    indexes: [u8; Self::MAX],
    n: usize,
}

impl GpuRanks {
    /// Maximum number of GPUs.
    pub const MAX: usize = 8;

    /// The indexes, at least two.
    pub fn indexes(&self) -> impl Iterator<Item = usize> {
        self.indexes[..self.n].iter().map(|&index| index.into())
    }
}

impl FromStr for GpuRanks {
    /// The text is no list of 2 to 8 numbers.
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut ranks = Self { indexes: [0; Self::MAX], n: 0 };
        for index in text.split(',') {
            *ranks.indexes.get_mut(ranks.n).ok_or(())? = index.parse().map_err(|_| ())?;
            ranks.n += 1;
        }
        if ranks.n < 2 { Err(()) } else { Ok(ranks) }
    }
}
