//! Panels: 16 rows of weights side by side.

use bytemuck::{Pod, Zeroable};

/// Rows of a panel.
pub(super) const PANEL_ROWS: usize = 16;

/// 32 bits of each row of a panel: a cache line.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct U32x16(pub(super) [u32; PANEL_ROWS]);

/// All panels of a matrix.
#[derive(Clone, Copy, Debug)]
pub(super) struct Panels<'a> {
    /// Vectors of the panels, one panel after the other.
    pub(super) vectors: &'a [U32x16],
    /// Number of panels.
    pub(super) len: usize,
    /// Vectors of a panel.
    pub(super) panel_len: usize,
    pub(super) blocks_per_row: usize,
}

impl<'a> Panels<'a> {
    /// Vectors of panel `index`.
    pub(super) fn panel(&self, index: usize) -> &'a [U32x16] {
        &self.vectors[index * self.panel_len..][..self.panel_len]
    }
}
