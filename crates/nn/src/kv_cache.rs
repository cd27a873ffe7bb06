//! Paged KV cache: fixed-size pages, reference counts, copy-on-write (`PagedAttention`, Kwon et al. 2023).
//!
//! ```text
//! sequences (page list, len)          pool: one page = PAGE_LEN positions, in every layer
//!
//! a  [0, 1, 2]  len 2*PAGE_LEN+9      page       0   1   2   3   4   5
//! b  [0, 1, 3]  len 2*PAGE_LEN+20     ref count  2   2   1   1   0   0
//!     '--' shared                     free pages [5, 4], a stack
//!
//! page table of a batch: 0 1 2 | 0 1 3        (a QueryRow holds first_page, n_pages, kv_start, kv_len)
//!
//! position p of a sequence: page pages[p / PAGE_LEN], slot p % PAGE_LEN
//!
//! fork(a, c)          c gets a's pages and length; their ref counts + 1; no data is copied
//! reserve(c, n)       pages of the next n positions: a shared one is replaced by a new page, with its data
//!                     copied if it is partly filled (copy-on-write); missing ones come from the free pages
//! truncate(c, len)    drops pages beyond len; ref count - 1; pages with 0 are free again
//! ```
//!
//! Beam search, parallel sampling, prompt caching and rollback all use these three operations. The cache does not
//! allocate after its construction.

use crate::{Backend, Error, KvRow, KvShape};

pub use stonechat_compute::cpu::PAGE_LEN;

/// Page list and length of one sequence.
#[derive(Debug, Default)]
pub struct Sequence {
    pages: Vec<u32>,
    len: usize,
}

impl Sequence {
    /// An empty sequence that can grow to `n_ctx` positions without allocating.
    #[must_use]
    pub fn with_capacity(n_ctx: usize) -> Self {
        Self { pages: Vec::with_capacity(n_ctx.div_ceil(PAGE_LEN)), len: 0 }
    }

    /// Number of cached positions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Page ids by position / [`PAGE_LEN`]; they cover at least [`len`](Self::len) positions.
    #[must_use]
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Page and slot of position `pos`.
    ///
    /// # Panics
    /// If no page was reserved for `pos`.
    #[must_use]
    pub fn slot(&self, pos: usize) -> KvRow {
        KvRow { page: self.pages[pos / PAGE_LEN], slot: (pos % PAGE_LEN) as u32 }
    }

    /// Appends `n` positions to the length, after the pass that wrote them.
    ///
    /// # Panics
    /// If they are not reserved.
    pub fn advance(&mut self, n: usize) {
        assert!(self.len + n <= self.pages.len() * PAGE_LEN, "positions were not reserved");
        self.len += n;
    }
}

/// KV pages on a device, with their reference counts.
#[derive(Debug)]
pub struct KvCache<B: Backend> {
    pool: B::Kv,
    shape: KvShape,
    /// Number of sequences that hold each page, `[n_pages]`.
    ref_counts: Vec<u32>,
    /// Stack of the pages whose reference count is 0.
    free_pages: Vec<u32>,
}

impl<B: Backend> KvCache<B> {
    /// Allocates the pool; all pages are free.
    ///
    /// # Errors
    /// If the device has no memory for it, or no attention kernel for the shape.
    pub fn new(backend: &B, shape: KvShape) -> Result<Self, Error> {
        let n_pages = shape.n_pages as u32;
        Ok(Self {
            pool: backend.kv(shape)?,
            shape,
            ref_counts: vec![0; shape.n_pages],
            free_pages: (0..n_pages).rev().collect(),
        })
    }

    /// Device memory of the pages, for [`Backend::attention`].
    #[must_use]
    pub fn pool(&self) -> &B::Kv {
        &self.pool
    }

    /// Device memory of the pages, for [`Backend::kv_write`].
    #[must_use]
    pub fn pool_mut(&mut self) -> &mut B::Kv {
        &mut self.pool
    }

    /// Geometry of the pool.
    #[must_use]
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Number of free pages.
    #[must_use]
    pub fn free_pages(&self) -> usize {
        self.free_pages.len()
    }

    /// Reserves the next `n` positions of `sequence` for writing: replaces shared pages by copies and allocates missing
    /// ones. The sequence is unchanged on an error.
    ///
    /// # Errors
    /// [`Error::KvFull`] if there are not enough free pages.
    pub fn reserve(&mut self, backend: &B, sequence: &mut Sequence, n: usize) -> Result<(), Error> {
        if n == 0 {
            return Ok(());
        }
        let first = sequence.len / PAGE_LEN;
        let n_pages = (sequence.len + n).div_ceil(PAGE_LEN);
        let shared = |id: u32| self.ref_counts[id as usize] > 1;
        let copies = sequence.pages.iter().skip(first).filter(|&&id| shared(id)).count();
        if copies + n_pages.saturating_sub(sequence.pages.len()) > self.free_pages.len() {
            return Err(Error::KvFull { pages: self.shape.n_pages, page_len: PAGE_LEN });
        }
        for i in first..sequence.pages.len().min(n_pages) {
            let old = sequence.pages[i];
            if self.ref_counts[old as usize] > 1 {
                let new = self.alloc_page();
                if i * PAGE_LEN < sequence.len {
                    backend.kv_copy_page(&mut self.pool, old, new);
                }
                self.ref_counts[old as usize] -= 1;
                sequence.pages[i] = new;
            }
        }
        while sequence.pages.len() < n_pages {
            let page = self.alloc_page();
            sequence.pages.push(page);
        }
        Ok(())
    }

    /// Makes `to` a fork of `from` that shares its pages; the pages of `to` are released first.
    pub fn fork(&mut self, from: &Sequence, to: &mut Sequence) {
        self.truncate(to, 0);
        let used = from.len.div_ceil(PAGE_LEN);
        for &page in &from.pages[..used] {
            self.ref_counts[page as usize] += 1;
            to.pages.push(page);
        }
        to.len = from.len;
    }

    /// Truncates the sequence to `len` positions and frees pages that no other sequence holds.
    pub fn truncate(&mut self, sequence: &mut Sequence, len: usize) {
        let len = len.min(sequence.len);
        // In reverse: the stack then gives pages in the order in which these were allocated.
        for page in sequence.pages.drain(len.div_ceil(PAGE_LEN)..).rev() {
            self.ref_counts[page as usize] -= 1;
            if self.ref_counts[page as usize] == 0 {
                self.free_pages.push(page);
            }
        }
        sequence.len = len;
    }

    fn alloc_page(&mut self) -> u32 {
        let page = self.free_pages.pop().expect("`reserve` counted the free pages");
        self.ref_counts[page as usize] = 1;
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cpu, KvDType};

    fn cache(n_pages: usize) -> (Cpu, KvCache<Cpu>) {
        let cpu = Cpu::new(1).unwrap();
        let shape =
            KvShape { n_layers: 1, n_pages, n_kv_heads: 1, head_dim: 8, dtype: KvDType::F32 };
        let cache = KvCache::new(&cpu, shape).unwrap();
        (cpu, cache)
    }

    #[test]
    fn fork_shares_until_the_first_write() {
        let (cpu, mut cache) = cache(4);
        let (mut a, mut b) = (Sequence::default(), Sequence::default());
        cache.reserve(&cpu, &mut a, PAGE_LEN + 3).unwrap();
        a.advance(PAGE_LEN + 3);
        cache.fork(&a, &mut b);
        assert_eq!(a.pages(), b.pages());
        assert_eq!(cache.free_pages(), 2);
        cache.reserve(&cpu, &mut b, 1).unwrap();
        assert_eq!(a.pages()[0], b.pages()[0], "a full shared page stays shared");
        assert_ne!(a.pages()[1], b.pages()[1], "a partly filled one is copied");
        cache.truncate(&mut a, 0);
        cache.truncate(&mut b, 0);
        assert_eq!(cache.free_pages(), 4);
    }

    #[test]
    fn a_full_pool_leaves_the_sequence_unchanged() {
        let (cpu, mut cache) = cache(2);
        let mut a = Sequence::default();
        cache.reserve(&cpu, &mut a, 2 * PAGE_LEN).unwrap();
        a.advance(PAGE_LEN);
        assert!(matches!(cache.reserve(&cpu, &mut a, 2 * PAGE_LEN), Err(Error::KvFull { .. })));
        assert_eq!((a.len(), a.pages().len()), (PAGE_LEN, 2));
    }

    #[test]
    fn truncation_rolls_back_and_frees_whole_pages() {
        let (cpu, mut cache) = cache(3);
        let mut a = Sequence::default();
        cache.reserve(&cpu, &mut a, 2 * PAGE_LEN + 1).unwrap();
        a.advance(2 * PAGE_LEN + 1);
        cache.truncate(&mut a, PAGE_LEN);
        assert_eq!((a.len(), a.pages().len(), cache.free_pages()), (PAGE_LEN, 1, 2));
        assert_eq!(a.slot(PAGE_LEN - 1).slot as usize, PAGE_LEN - 1);
    }
}
