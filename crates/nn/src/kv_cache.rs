//! Paged key/value cache: fixed-size pages, reference counts, copy-on-write.
//!
//! A [`Sequence`] is a list of pages plus a length. Forking shares every page; the first write to
//! a shared, partly filled page copies it. Beams, sampled candidates, a prefix cache and rollback
//! are all this one mechanism. The cache itself never allocates after it was made.

use crate::{Backend, Error, KvRow, KvShape};

pub use stonechat_compute::cpu::PAGE_LEN;

/// The pages of one run of tokens.
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

    /// Positions whose keys and values are stored.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Page ids in order; they cover at least [`len`](Self::len) positions.
    #[must_use]
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Where position `pos` is stored.
    ///
    /// # Panics
    /// If no page was reserved for `pos`.
    #[must_use]
    pub fn slot(&self, pos: usize) -> KvRow {
        KvRow { page: self.pages[pos / PAGE_LEN], slot: (pos % PAGE_LEN) as u32 }
    }

    /// Marks `n` more positions as stored, after the pass that wrote them.
    ///
    /// # Panics
    /// If they were not reserved.
    pub fn advance(&mut self, n: usize) {
        assert!(self.len + n <= self.pages.len() * PAGE_LEN, "positions were not reserved");
        self.len += n;
    }
}

/// A pool of pages on a device.
#[derive(Debug)]
pub struct KvCache<B: Backend> {
    pool: B::Kv,
    shape: KvShape,
    references: Vec<u32>,
    free: Vec<u32>,
}

impl<B: Backend> KvCache<B> {
    /// A pool with every page free.
    ///
    /// # Errors
    /// If the device has no room for it.
    pub fn new(backend: &B, shape: KvShape) -> Result<Self, Error> {
        let n_pages = shape.n_pages as u32;
        Ok(Self {
            pool: backend.kv(shape)?,
            shape,
            references: vec![0; shape.n_pages],
            free: (0..n_pages).rev().collect(),
        })
    }

    /// The device side, for [`Backend::attention`].
    #[must_use]
    pub fn pool(&self) -> &B::Kv {
        &self.pool
    }

    /// The device side, for [`Backend::kv_write`].
    #[must_use]
    pub fn pool_mut(&mut self) -> &mut B::Kv {
        &mut self.pool
    }

    /// Geometry of the pool.
    #[must_use]
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Pages that no sequence holds.
    #[must_use]
    pub fn free_pages(&self) -> usize {
        self.free.len()
    }

    /// Makes the next `n` positions of `sequence` writable: a shared last page is copied, missing
    /// pages are taken from the pool. On an error the sequence is as before.
    ///
    /// # Errors
    /// [`Error::KvFull`].
    pub fn reserve(&mut self, backend: &B, sequence: &mut Sequence, n: usize) -> Result<(), Error> {
        if n == 0 {
            return Ok(());
        }
        let first = sequence.len / PAGE_LEN;
        let wanted = (sequence.len + n).div_ceil(PAGE_LEN);
        let shared = |id: u32| self.references[id as usize] > 1;
        let copies = sequence.pages.iter().skip(first).filter(|&&id| shared(id)).count();
        if copies + wanted.saturating_sub(sequence.pages.len()) > self.free.len() {
            return Err(Error::KvFull { pages: self.shape.n_pages, page_len: PAGE_LEN });
        }
        for i in first..sequence.pages.len().min(wanted) {
            let old = sequence.pages[i];
            if self.references[old as usize] > 1 {
                let new = self.take();
                if i * PAGE_LEN < sequence.len {
                    backend.kv_copy_page(&mut self.pool, old, new);
                }
                self.references[old as usize] -= 1;
                sequence.pages[i] = new;
            }
        }
        while sequence.pages.len() < wanted {
            let page = self.take();
            sequence.pages.push(page);
        }
        Ok(())
    }

    /// Makes `to` a second holder of what `from` stores; what `to` held is released.
    pub fn fork(&mut self, from: &Sequence, to: &mut Sequence) {
        self.truncate(to, 0);
        let used = from.len.div_ceil(PAGE_LEN);
        for &page in &from.pages[..used] {
            self.references[page as usize] += 1;
            to.pages.push(page);
        }
        to.len = from.len;
    }

    /// Drops the positions from `len` on and returns pages that nobody else holds to the pool.
    pub fn truncate(&mut self, sequence: &mut Sequence, len: usize) {
        let len = len.min(sequence.len);
        // Backwards, so that the next pages are taken in the order in which these were.
        for page in sequence.pages.drain(len.div_ceil(PAGE_LEN)..).rev() {
            self.references[page as usize] -= 1;
            if self.references[page as usize] == 0 {
                self.free.push(page);
            }
        }
        sequence.len = len;
    }

    fn take(&mut self) -> u32 {
        let page = self.free.pop().expect("`reserve` counted the free pages");
        self.references[page as usize] = 1;
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
