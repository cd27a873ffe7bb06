//! Page accounting of the paged KV cache: reference counts and copy-on-write (`PagedAttention`, Kwon et al. 2023).
//!
//! Host memory only: the keys and values are in pools of the devices, whose pages
//! have the same numbers on every device of a model.
//!
//! ```text
//! sequences (page list, len)          pool: one page = PAGE_LEN positions, in every layer
//!
//! a  [0, 1, 2]  len 2*PAGE_LEN+9      page       0   1   2   3   4   5
//! b  [0, 1, 3]  len 2*PAGE_LEN+20     ref count  2   2   1   1   0   0
//!     '--' shared                     free pages [5, 4], a stack
//!
//! position p of a sequence: page pages[p / PAGE_LEN], slot p % PAGE_LEN
//!
//! fork(a, c)          c gets a's pages and length; their ref counts + 1; no data is copied
//! extend(c, n)        a partly filled shared page is replaced by a new one, to which the caller copies it
//!                     (copy-on-write); further pages come from the free ones. The replaced page keeps its reference
//!                     until commit(), so that undo() can put it back
//! truncate(c, len)    drops pages beyond len; ref count - 1; pages with 0 are free again
//! detach(a, len)      a list of a's first pages without a sequence; their ref counts + 1
//! attach(list, c)     c gets the pages of a list, as in a fork
//! ```
//!
//! Beam search, parallel sampling, prompt caching and rollback use these operations. A sequence has no pages beyond its
//! length.

use crate::{KvRow, PAGE_LEN};

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

    /// Number of positions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no position.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Page ids by position / [`PAGE_LEN`].
    #[must_use]
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Page and slot of position `pos`.
    ///
    /// # Panics
    /// If `pos` has no page.
    #[must_use]
    pub fn slot(&self, pos: usize) -> KvRow {
        KvRow { page: self.pages[pos / PAGE_LEN], slot: (pos % PAGE_LEN) as u32 }
    }
}

/// A counted reference to one page. It is given back with [`Pages::release`]: a dropped one keeps its page in use for as
/// long as the pool exists.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a page stays in use until it is released"]
pub struct PageRef(u32);

impl PageRef {
    /// Number of the page.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.0
    }
}

/// Copy of a page, to run on every device before its target is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageCopy {
    /// Page to copy.
    pub from: u32,
    /// Page to overwrite.
    pub to: u32,
}

/// More pages are needed than are free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("KV cache is full: {needed} pages of {PAGE_LEN} positions are needed, {free} are free")]
pub struct KvFull {
    /// Pages needed.
    pub needed: usize,
    /// Pages free.
    pub free: usize,
}

/// Reference counts of the pages of a pool.
#[derive(Debug)]
pub struct Pages {
    /// Number of references to each page, `[n_pages]`.
    ref_counts: Vec<u32>,
    /// Stack of the pages whose reference count is 0.
    free: Vec<u32>,
    /// Pages that [`extend`](Self::extend) has replaced since the last [`commit`](Self::commit), one entry a reference,
    /// with the length of the sequence.
    replaced: Vec<(u32, usize)>,
}

impl Pages {
    /// `n` free pages.
    ///
    /// # Panics
    /// If `n` does not fit 32 bits.
    #[must_use]
    pub fn new(n: usize) -> Self {
        let end = u32::try_from(n).expect("page numbers have 32 bits");
        Self { ref_counts: vec![0; n], free: (0..end).rev().collect(), replaced: Vec::new() }
    }

    /// Number of pages.
    #[must_use]
    pub fn n_pages(&self) -> usize {
        self.ref_counts.len()
    }

    /// Number of free pages.
    #[must_use]
    pub fn n_free(&self) -> usize {
        self.free.len()
    }

    /// Number of references to page `id`, without those of replaced pages.
    ///
    /// # Panics
    /// If there is no such page.
    #[must_use]
    pub fn ref_count(&self, id: u32) -> u32 {
        self.ref_count_beyond(id, usize::MAX)
    }

    /// Number of references to page `id`, without those of replaced pages of sequences of at most `len` positions: an
    /// undo finds their positions if the page is written from `len` on.
    fn ref_count_beyond(&self, id: u32, len: usize) -> u32 {
        let is_gone = |&&(page, replaced_len): &&(u32, usize)| page == id && replaced_len <= len;
        self.ref_counts[id as usize] - self.replaced.iter().filter(is_gone).count() as u32
    }

    /// Number of free pages that the next `n` positions of `sequence` take.
    #[must_use]
    pub fn n_needed(&self, sequence: &Sequence, n: usize) -> usize {
        if n == 0 {
            return 0;
        }
        let n_pages = (sequence.len + n).div_ceil(PAGE_LEN);
        n_pages - sequence.pages.len() + usize::from(self.shared_last(sequence).is_some())
    }

    /// The last page of `sequence` if it has room for further positions and is shared.
    fn shared_last(&self, sequence: &Sequence) -> Option<u32> {
        let is_partial = !sequence.len.is_multiple_of(PAGE_LEN);
        let is_shared = |&page: &u32| self.ref_count_beyond(page, sequence.len) > 1;
        sequence.pages.last().copied().filter(|page| is_partial && is_shared(page))
    }

    /// Appends `n` positions. If the last page was shared and partly filled, it is replaced by a new page; the result is
    /// the copy to run.
    ///
    /// # Errors
    /// [`KvFull`] if there are not enough free pages; nothing has changed then.
    pub fn extend(
        &mut self,
        sequence: &mut Sequence,
        n: usize,
    ) -> Result<Option<PageCopy>, KvFull> {
        let (needed, free) = (self.n_needed(sequence, n), self.free.len());
        if needed > free {
            return Err(KvFull { needed, free });
        }
        let shared = self.shared_last(sequence).filter(|_| n > 0);
        let copy = shared.map(|from| {
            let to = self.alloc();
            sequence.pages.pop();
            sequence.pages.push(to);
            self.replaced.push((from, sequence.len));
            PageCopy { from, to }
        });
        sequence.len += n;
        while sequence.pages.len() < sequence.len.div_ceil(PAGE_LEN) {
            let page = self.alloc();
            sequence.pages.push(page);
        }
        Ok(copy)
    }

    /// Makes all extensions permanent: releases the replaced pages.
    pub fn commit(&mut self) {
        while let Some((page, _)) = self.replaced.pop() {
            self.unref(page);
        }
    }

    /// Undoes the last [`extend`](Self::extend) that was neither undone nor committed: truncates its `sequence` to `len`;
    /// `has_copy` tells whether it had a copy to run.
    pub(crate) fn undo(&mut self, sequence: &mut Sequence, len: usize, has_copy: bool) {
        self.truncate(sequence, len);
        if has_copy {
            let copy = sequence.pages.pop().expect("`extend` replaced the last page");
            self.unref(copy);
            sequence.pages.extend(self.replaced.pop().map(|(page, _)| page));
        }
    }

    /// Makes `to` a fork of `from` that shares its pages; the pages of `to` are released first.
    pub fn fork(&mut self, from: &Sequence, to: &mut Sequence) {
        self.truncate(to, 0);
        self.append(from.pages.iter().copied(), to);
        to.len = from.len;
    }

    /// Truncates the sequence to `len` positions and frees pages without another reference.
    pub fn truncate(&mut self, sequence: &mut Sequence, len: usize) {
        let len = len.min(sequence.len);
        // Reverse order: the stack of free pages then returns them in the order of their first allocation.
        for page in sequence.pages.drain(len.div_ceil(PAGE_LEN)..).rev() {
            self.unref(page);
        }
        sequence.len = len;
    }

    /// References page `index` of `sequence` once more.
    ///
    /// # Panics
    /// If the sequence has no such page.
    pub fn detach(&mut self, sequence: &Sequence, index: usize) -> PageRef {
        let page = sequence.pages[index];
        self.ref_counts[page as usize] += 1;
        PageRef(page)
    }

    /// Makes `pages` the pages of `sequence`, with its first `len` positions; the old pages are released first.
    ///
    /// # Panics
    /// If `pages` are not the pages of `len` positions.
    pub fn attach<'a>(
        &mut self,
        pages: impl IntoIterator<Item = &'a PageRef>,
        len: usize,
        sequence: &mut Sequence,
    ) {
        self.truncate(sequence, 0);
        self.append(pages.into_iter().map(PageRef::id), sequence);
        assert_eq!(sequence.pages.len(), len.div_ceil(PAGE_LEN), "pages of {len} positions");
        sequence.len = len;
    }

    /// Gives a reference back; without another one the page is free again.
    pub fn release(&mut self, page: PageRef) {
        self.unref(page.0);
    }

    fn append(&mut self, pages: impl Iterator<Item = u32>, sequence: &mut Sequence) {
        for page in pages {
            self.ref_counts[page as usize] += 1;
            sequence.pages.push(page);
        }
    }

    fn unref(&mut self, page: u32) {
        let count = &mut self.ref_counts[page as usize];
        *count -= 1;
        if *count == 0 {
            self.free.push(page);
        }
    }

    fn alloc(&mut self) -> u32 {
        let page = self.free.pop().expect("`extend` counted the free pages");
        self.ref_counts[page as usize] = 1;
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fork_shares_until_the_first_write() {
        let mut pages = Pages::new(4);
        let (mut a, mut b) = (Sequence::default(), Sequence::default());
        assert_eq!(pages.extend(&mut a, PAGE_LEN + 3), Ok(None));
        pages.fork(&a, &mut b);
        assert_eq!((a.pages(), a.len()), (b.pages(), b.len()));
        assert_eq!(pages.n_free(), 2);
        let copy = pages.extend(&mut b, 1).unwrap();
        assert_eq!(copy, Some(PageCopy { from: a.pages()[1], to: b.pages()[1] }));
        assert_eq!(a.pages()[0], b.pages()[0], "a full shared page stays shared");
        assert_ne!(a.pages()[1], b.pages()[1], "a partly filled one is copied");
        // Alone again with its last page, `a` needs no copy, even in the same step.
        assert_eq!(pages.extend(&mut a, 1), Ok(None));
        pages.commit();
        pages.truncate(&mut a, 0);
        pages.truncate(&mut b, 0);
        assert_eq!(pages.n_free(), 4);
    }

    #[test]
    fn nothing_is_appended_without_a_copy() {
        let mut pages = Pages::new(3);
        let (mut a, mut b) = (Sequence::default(), Sequence::default());
        pages.extend(&mut a, 3).unwrap();
        pages.fork(&a, &mut b);
        assert_eq!(pages.extend(&mut b, 0), Ok(None));
        assert_eq!((b.pages(), pages.n_free()), (a.pages(), 2));
    }

    #[test]
    fn a_fork_at_the_end_of_a_page_needs_no_copy() {
        let mut pages = Pages::new(4);
        let (mut a, mut b) = (Sequence::default(), Sequence::default());
        pages.extend(&mut a, PAGE_LEN).unwrap();
        pages.fork(&a, &mut b);
        assert_eq!(pages.n_needed(&b, 1), 1);
        assert_eq!(pages.extend(&mut b, 1), Ok(None));
        assert_eq!((b.pages().len(), pages.n_free()), (2, 2));
    }

    #[test]
    fn a_full_pool_leaves_the_sequence_unchanged() {
        let mut pages = Pages::new(3);
        let (mut a, mut b) = (Sequence::default(), Sequence::default());
        pages.extend(&mut a, PAGE_LEN + 1).unwrap();
        let full = KvFull { needed: 2, free: 1 };
        assert_eq!(pages.extend(&mut a, 2 * PAGE_LEN), Err(full));
        assert_eq!((a.len(), a.pages().len()), (PAGE_LEN + 1, 2));
        assert_eq!(
            full.to_string(),
            "KV cache is full: 2 pages of 64 positions are needed, 1 are free"
        );
        // The copy of a shared page counts.
        pages.fork(&a, &mut b);
        assert_eq!(pages.extend(&mut b, PAGE_LEN), Err(full));
        assert!(pages.extend(&mut b, PAGE_LEN - 1).is_ok());
    }

    #[test]
    fn truncation_frees_whole_pages() {
        let mut pages = Pages::new(3);
        let mut a = Sequence::default();
        pages.extend(&mut a, 2 * PAGE_LEN + 1).unwrap();
        let old = a.pages().to_vec();
        pages.truncate(&mut a, PAGE_LEN);
        assert_eq!((a.len(), a.pages(), pages.n_free()), (PAGE_LEN, &old[..1], 2));
        assert_eq!(a.slot(PAGE_LEN - 1), KvRow { page: old[0], slot: PAGE_LEN as u32 - 1 });
        pages.truncate(&mut a, 5 * PAGE_LEN);
        assert_eq!(a.len(), PAGE_LEN, "a truncation does not extend");
        pages.extend(&mut a, PAGE_LEN + 1).unwrap();
        assert_eq!(a.pages(), old, "pages are reused in the order of their allocation");
    }

    #[test]
    fn an_undone_extension_leaves_no_trace() {
        let mut pages = Pages::new(6);
        let (mut a, mut b) = (Sequence::default(), Sequence::default());
        pages.extend(&mut a, PAGE_LEN + 3).unwrap();
        pages.fork(&a, &mut b);
        let before = format!("{pages:?} {a:?} {b:?}");
        assert!(pages.extend(&mut b, 2 * PAGE_LEN).unwrap().is_some());
        pages.undo(&mut b, PAGE_LEN + 3, true);
        assert_eq!(format!("{pages:?} {a:?} {b:?}"), before);
    }

    #[test]
    fn detached_pages_outlive_their_sequence() {
        let mut pages = Pages::new(4);
        let (mut a, mut b) = (Sequence::default(), Sequence::default());
        pages.extend(&mut a, 2 * PAGE_LEN).unwrap();
        let prefix: Vec<PageRef> = (0..2).map(|index| pages.detach(&a, index)).collect();
        pages.truncate(&mut a, 0);
        assert_eq!(pages.n_free(), 2);
        // Part of the second page: the next position goes to a copy of it.
        pages.attach(&prefix, PAGE_LEN + 7, &mut b);
        assert_eq!((b.len(), b.pages()[1]), (PAGE_LEN + 7, prefix[1].id()));
        let copy = pages.extend(&mut b, 1).unwrap();
        assert_eq!(copy.map(|copy| copy.from), Some(prefix[1].id()));
        pages.commit();
        assert_eq!([0, 1].map(|index| pages.ref_count(prefix[index].id())), [2, 1]);
        prefix.into_iter().for_each(|page| pages.release(page));
        assert_eq!(pages.n_free(), 2);
        pages.truncate(&mut b, 0);
        assert_eq!(pages.n_free(), 4);
    }

    #[test]
    fn a_shorter_sequence_does_not_write_where_an_undo_reads() {
        let mut pages = Pages::new(4);
        let (mut long, mut short) = (Sequence::default(), Sequence::default());
        pages.extend(&mut long, 9).unwrap();
        pages.fork(&long, &mut short);
        pages.truncate(&mut short, 2);
        assert!(pages.extend(&mut long, 1).unwrap().is_some());
        // An undo gives `long` its page back, in which `short` would have overwritten position 2.
        assert!(pages.extend(&mut short, 1).unwrap().is_some());
        pages.undo(&mut short, 2, true);
        pages.undo(&mut long, 9, true);
        // In the other order the positions from 9 on are written, which `short` never had.
        assert!(pages.extend(&mut short, 1).unwrap().is_some());
        assert_eq!(pages.extend(&mut long, 1), Ok(None));
    }

    #[test]
    fn an_empty_sequence_has_room_for_its_context() {
        let mut pages = Pages::new(5);
        assert_eq!((pages.n_pages(), pages.n_free()), (5, 5));
        let mut a = Sequence::with_capacity(2 * PAGE_LEN + 1);
        assert!(a.is_empty() && a.pages.capacity() >= 3);
        pages.extend(&mut a, 2).unwrap();
        assert!(!a.is_empty());
        assert_eq!((pages.n_pages(), pages.n_free()), (5, 4));
    }
}
