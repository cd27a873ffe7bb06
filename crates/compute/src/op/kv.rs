//! Paged KV cache: element types, geometry of pages and pools, slots of a step.
//!
//! A page holds [`PAGE_LEN`] positions. For every KV head it holds the keys transposed, so that
//! scores of adjacent positions are a vector, then the values:
//!
//! ```text
//! page  = head 0 | head 1 | … | head G-1
//! head  = keys   [C][PAGE_LEN]          key c of position p at c * PAGE_LEN + p
//!         values [PAGE_LEN][C']         value c of position p at p * C' + c
//! C'    = C rounded up to a multiple of 16; the added columns are zero
//! ```
//!
//! [`KvDType::Q8_0`] has one-byte elements in the same places, then the f16 scales of the keys and those of the values, each
//! `[B][PAGE_LEN]` with `B = ceil(C / 32)`.
//!
//! Other devices may order the elements in their own way. Pages that leave a device have this layout.

#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod head_places;

use std::fmt;

#[cfg(all(test, any(feature = "wgpu", feature = "cuda")))]
pub(crate) use head_places::PageElement;

/// Positions in a page.
pub const PAGE_LEN: usize = 64;
/// Alignment of `C'` in elements: lanes of the widest vector.
const VALUE_ALIGN: usize = 16;
/// Channels of a q8 block, which share a scale.
pub(crate) const Q8_BLOCK_LEN: usize = 32;

/// Element type of cached keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvDType {
    /// 4 bytes.
    F32,
    /// 2 bytes; values are rounded to nearest even and widened in registers.
    F16,
    /// One byte, and an f16 scale for every 32 channels of a position; the last scale of a head
    /// whose width is no multiple of 32 serves fewer channels.
    Q8_0,
}

/// Shape of one layer's page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayout {
    /// KV heads `G`.
    pub n_kv_heads: usize,
    /// Width of a head `C`.
    pub head_dim: usize,
    /// Element type.
    pub dtype: KvDType,
}

impl KvLayout {
    /// `C'`: elements from the values of one position to those of the next.
    pub(crate) fn value_stride(self) -> usize {
        self.head_dim.next_multiple_of(VALUE_ALIGN)
    }

    /// Elements of one head in a page.
    pub(crate) fn head_len(self) -> usize {
        PAGE_LEN * (self.head_dim + self.value_stride())
    }

    /// q8 blocks of a position in one head; 0 for types without scales.
    pub(crate) fn n_blocks(self) -> usize {
        match self.dtype {
            KvDType::F32 | KvDType::F16 => 0,
            KvDType::Q8_0 => self.head_dim.div_ceil(Q8_BLOCK_LEN),
        }
    }

    /// Scales of one head in a page, for keys and values together.
    pub(crate) fn n_scales(self) -> usize {
        2 * PAGE_LEN * self.n_blocks()
    }

    /// Bytes of one head in a page.
    pub(crate) fn head_bytes(self) -> usize {
        match self.dtype {
            KvDType::F32 => 4 * self.head_len(),
            KvDType::F16 => 2 * self.head_len(),
            KvDType::Q8_0 => self.head_len() + 2 * self.n_scales(),
        }
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_bytes(self) -> usize {
        self.n_kv_heads * self.head_bytes()
    }
}

/// Slot of one position (vLLM's slot mapping).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvRow {
    /// Page of the pool.
    pub page: u32,
    /// Position in the page.
    pub slot: u32,
}

/// KV pool of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PoolId(pub usize);

/// Geometry of a KV pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Number of layers. A page id stands for one page in each layer.
    pub n_layers: usize,
    /// Pages per layer.
    pub n_pages: usize,
    /// KV heads `G`.
    pub n_kv_heads: usize,
    /// Width of a head `C`.
    pub head_dim: usize,
    /// Element type.
    pub dtype: KvDType,
}

impl KvShape {
    /// Bytes of the whole pool.
    #[must_use]
    pub fn bytes(self) -> u64 {
        let Self { n_layers, n_pages, .. } = self;
        self.layout().page_bytes() as u64 * n_pages as u64 * n_layers as u64
    }

    /// Geometry of a page.
    #[must_use]
    pub fn layout(self) -> KvLayout {
        let Self { n_kv_heads, head_dim, dtype, .. } = self;
        KvLayout { n_kv_heads, head_dim, dtype }
    }
}

/// A list of pages and slots in a step: where an op writes keys and values.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotTable {
    index: usize,
    name: &'static str,
}

impl SlotTable {
    /// Lists of a step.
    pub const N: usize = 3;
    /// `[T]`: slots of the tokens.
    pub const TOKENS: Self = Self::new(0, "Tokens");

    /// List `index` of a step, `index < N`, and its name in the text of a program.
    ///
    /// # Panics
    /// If `index` is not below [`N`](Self::N).
    #[must_use]
    pub const fn new(index: usize, name: &'static str) -> Self {
        assert!(index < Self::N, "expected an index below SlotTable::N");
        Self { index, name }
    }

    /// Index in a step.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index
    }
}

impl fmt::Debug for SlotTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Arguments of [`Op::KvWrite`](super::Op::KvWrite).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvWriteArgs {
    /// The pool.
    pub pool: PoolId,
    /// Layer of the pool.
    pub layer: usize,
    /// Pages and slots of the rows.
    pub slots: SlotTable,
}
