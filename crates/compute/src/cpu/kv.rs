//! Paged KV cache of one layer (as vLLM's blocks): a pool of pages, and writes to their slots.
//!
//! The layout of a page is that of [`KvLayout`]; for pages with 8-bit elements see [`q8_0`].

mod q8_0;

use std::marker::PhantomData;
use std::ops::Range;

use bytemuck::Pod;
use half::f16;

pub(crate) use self::q8_0::Q8Head;
use super::matrix::MatRef;
use crate::aligned::AlignedVec;
use crate::check_eq;
use crate::error::{Error, Result};
use crate::op::{KvDType, KvLayout, KvRow, PAGE_LEN};
use crate::simd::{Kernel, Simd, prefetch, prefetch_span, transposed};
use crate::{Cpu, Parts};

/// Pool of `n_pages` pages of one layer.
#[derive(Debug)]
pub struct KvPool {
    layout: KvLayout,
    n_pages: usize,
    memory: AlignedVec,
}

/// Elements of one head of a page: keys, then values.
#[derive(Debug, Clone, Copy)]
pub(crate) enum KvHead<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Q8(Q8Head<'a>),
}

impl KvPool {
    /// Allocates `n_pages` pages of zeros.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the system has no memory for them.
    pub fn new(layout: KvLayout, n_pages: usize) -> Result<Self> {
        let bytes = n_pages.saturating_mul(layout.page_bytes());
        let memory =
            AlignedVec::try_zeroed(bytes.div_ceil(4)).ok_or(Error::OutOfMemory { bytes })?;
        Ok(Self { layout, n_pages, memory })
    }

    /// Bytes of a page, in native byte order.
    ///
    /// # Panics
    /// If there is no such page.
    #[must_use]
    pub fn page(&self, page: u32) -> &[u8] {
        let len = self.layout.page_bytes();
        &bytemuck::cast_slice(&self.memory)[page as usize * len..][..len]
    }

    /// Bytes of a page, to overwrite with a page of the same layout.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn page_mut(&mut self, page: u32) -> &mut [u8] {
        let len = self.layout.page_bytes();
        &mut bytemuck::cast_slice_mut(&mut self.memory)[page as usize * len..][..len]
    }

    /// Shape of the pages.
    #[must_use]
    pub fn layout(&self) -> KvLayout {
        self.layout
    }

    /// Number of pages.
    #[must_use]
    pub fn n_pages(&self) -> usize {
        self.n_pages
    }

    /// Bytes of all pages.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.n_pages * self.layout.page_bytes()
    }

    /// Stores key `k[t]` and value `v[t]`, both `[T, G*C]`, at slot `rows[t]`. Fastest for adjacent rows in adjacent slots
    /// of a page.
    ///
    /// # Panics
    /// If the shapes do not fit or a row is outside the pool.
    #[track_caller]
    pub fn write(&mut self, cpu: &Cpu, k: MatRef<'_>, v: MatRef<'_>, rows: &[KvRow]) {
        let (k, v) = (k.checked(), v.checked());
        let width = self.layout.n_kv_heads * self.layout.head_dim;
        check_eq!((k.rows, k.cols), (rows.len(), width), "kv write: shape of the keys");
        check_eq!((v.rows, v.cols), (rows.len(), width), "kv write: shape of the values");
        for row in rows {
            let inside = (row.page as usize) < self.n_pages && (row.slot as usize) < PAGE_LEN;
            assert!(inside, "kv write: {row:?} is outside of {} pages", self.n_pages);
        }
        let layout = self.layout;
        let memory = Parts::new(bytemuck::cast_slice_mut(&mut self.memory));
        let write_head = |g: usize| {
            // SAFETY: `memory` was made for this call, which runs one task per head.
            let pages = unsafe { HeadPages::new(memory, layout, g) };
            let channels = g * layout.head_dim..(g + 1) * layout.head_dim;
            let head = HeadWriter { pages, k, v, rows, channels };
            match layout.dtype {
                KvDType::F32 => cpu.isa.dispatch(StoreHead::<f32>(head, PhantomData)),
                KvDType::F16 => cpu.isa.dispatch(StoreHead::<f16>(head, PhantomData)),
                KvDType::Q8_0 => head.quantize(),
            }
        };
        if rows.len() < MAX_RUN {
            (0..layout.n_kv_heads).for_each(write_head);
        } else {
            cpu.threads.run(layout.n_kv_heads, write_head);
        }
    }

    /// Copies page `src` to page `dst`.
    ///
    /// # Panics
    /// If either is outside the pool.
    #[track_caller]
    pub fn copy_page(&mut self, src: u32, dst: u32) {
        let (src, dst, n) = (src as usize, dst as usize, self.n_pages);
        assert!(src < n && dst < n, "kv copy: expected pages below {n}, got {src} to {dst}");
        let bytes = self.layout.page_bytes();
        let memory: &mut [u8] = bytemuck::cast_slice_mut(&mut self.memory);
        memory.copy_within(src * bytes..(src + 1) * bytes, dst * bytes);
    }

    /// Head `head` of page `page`.
    #[inline]
    pub(crate) fn head(&self, page: u32, head: usize) -> KvHead<'_> {
        let len = self.layout.head_bytes();
        let bytes = &self.page(page)[head * len..][..len];
        match self.layout.dtype {
            KvDType::F32 => KvHead::F32(bytemuck::cast_slice(bytes)),
            KvDType::F16 => KvHead::F16(bytemuck::cast_slice(bytes)),
            KvDType::Q8_0 => KvHead::Q8(Q8Head::new(self.layout, bytes)),
        }
    }
}

/// Maximum positions of a run, whose keys are converted before they are stored.
const MAX_RUN: usize = 16;
/// Channels of a head that are converted at once.
const STRIP: usize = 64;
/// Side of the square of positions and channels that is transposed in registers.
const TRANSPOSE_LEN: usize = 8;

/// Element type of pages without scales.
trait KvElement: Pod + Default {
    /// Converts f32 values, rounding to nearest even.
    fn narrow<S: Simd>(s: S, to: &mut [Self], from: &[f32]);

    /// Transposes a square of elements.
    fn transpose<S: Simd>(
        s: S,
        rows: [[Self; TRANSPOSE_LEN]; TRANSPOSE_LEN],
    ) -> [[Self; TRANSPOSE_LEN]; TRANSPOSE_LEN];
}

impl KvElement for f32 {
    #[inline(always)]
    fn narrow<S: Simd>(_: S, to: &mut [Self], from: &[f32]) {
        to.copy_from_slice(from);
    }

    #[inline(always)]
    fn transpose<S: Simd>(
        _: S,
        rows: [[Self; TRANSPOSE_LEN]; TRANSPOSE_LEN],
    ) -> [[Self; TRANSPOSE_LEN]; TRANSPOSE_LEN] {
        transposed(rows)
    }
}

impl KvElement for f16 {
    #[inline(always)]
    fn narrow<S: Simd>(s: S, to: &mut [Self], from: &[f32]) {
        s.narrow_f16(to, from);
    }

    #[inline(always)]
    fn transpose<S: Simd>(
        s: S,
        rows: [[Self; TRANSPOSE_LEN]; TRANSPOSE_LEN],
    ) -> [[Self; TRANSPOSE_LEN]; TRANSPOSE_LEN] {
        bytemuck::cast(s.transpose_u16(bytemuck::cast(rows)))
    }
}

/// One KV head in every page of a pool, for the task that writes it.
struct HeadPages<'a> {
    memory: Parts<'a, u8>,
    layout: KvLayout,
    kv_head: usize,
}

impl<'a> HeadPages<'a> {
    /// # Safety
    /// While the result is alive, for every page of `memory`:
    /// - no other reference to the bytes of head `kv_head` is alive;
    /// - no other `HeadPages` of `kv_head` is used.
    unsafe fn new(memory: Parts<'a, u8>, layout: KvLayout, kv_head: usize) -> Self {
        Self { memory, layout, kv_head }
    }

    #[inline(always)]
    fn start(&self, page: u32) -> usize {
        page as usize * self.layout.page_bytes() + self.kv_head * self.layout.head_bytes()
    }

    /// The head's bytes in `page`; the borrow of `self` keeps two of them from being alive at once.
    ///
    /// # Panics
    /// If there is no such page.
    #[inline(always)]
    fn get_mut(&mut self, page: u32) -> &mut [u8] {
        let start = self.start(page);
        // SAFETY: no other reference exists outside of `self` by the contract of `new`, and the result borrows `self`.
        unsafe { self.memory.part(start..start + self.layout.head_bytes()) }
    }

    /// Prefetches the keys of a slot: one cache line per channel, on each of which a store would otherwise miss.
    #[inline(always)]
    fn prefetch_keys<T>(&self, row: KvRow) {
        let keys = self.memory.address(self.start(row.page)).cast::<T>();
        for channel in 0..self.layout.head_dim {
            prefetch(keys.wrapping_add(channel * PAGE_LEN + row.slot as usize));
        }
    }
}

/// Write of one KV head: channels `channels` of the rows of `k` and `v`, and the pages they go to.
struct HeadWriter<'a> {
    pages: HeadPages<'a>,
    k: MatRef<'a>,
    v: MatRef<'a>,
    rows: &'a [KvRow],
    channels: Range<usize>,
}

impl HeadWriter<'_> {
    /// Quantizes the rows to q8 blocks and stores them.
    fn quantize(self) {
        let Self { mut pages, k, v, rows, channels } = self;
        for (t, row) in rows.iter().enumerate() {
            let (k, v) = (&k.row(t)[channels.clone()], &v.row(t)[channels.clone()]);
            q8_0::write(pages.layout, pages.get_mut(row.page), row.slot as usize, k, v);
        }
    }
}

/// Stores a head as elements of type `T`, run by run; a run is adjacent rows in adjacent slots of one page.
///
/// ```text
/// for each run of n <= MAX_RUN rows from `slot` on:
///   prefetch the slots and the rows of the next run
///   for each STRIP of channels:
///     strips[n][STRIP] = rows of k, converted to T
///     keys[channel][slot..slot + n] = columns of strips, by squares of TRANSPOSE_LEN
///   values[slot + i][..] = rows of v, converted to T
/// ```
struct StoreHead<'a, T>(HeadWriter<'a>, PhantomData<T>);

impl<T: KvElement> Kernel for StoreHead<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let HeadWriter { mut pages, k, v, rows, channels } = self.0;
        let layout = pages.layout;
        let c = layout.head_dim;
        let mut strips = [[T::default(); STRIP]; MAX_RUN];
        let mut t = 0;
        if let Some(&row) = rows.first() {
            pages.prefetch_keys::<T>(row);
        }
        while t < rows.len() {
            let first = rows[t];
            let limit = MAX_RUN.min(rows.len() - t);
            let continues =
                |i: usize| rows[t + i] == KvRow { page: first.page, slot: first.slot + i as u32 };
            let n = (1..limit).find(|&i| !continues(i)).unwrap_or(limit);
            if let Some(&row) = rows.get(t + n) {
                pages.prefetch_keys::<T>(row);
            }
            let head: &mut [T] = bytemuck::cast_slice_mut(pages.get_mut(first.page));
            let (keys, values) = head.split_at_mut(c * PAGE_LEN);
            let slot = first.slot as usize;
            // Rows of the next run lie too far apart for the hardware prefetcher.
            let prefetch_row = |x: MatRef<'_>, i: usize| {
                if t + n + i < x.rows {
                    let values = &x.row(t + n + i)[channels.clone()];
                    prefetch_span(values.as_ptr(), values.len());
                }
            };
            for from in (0..c).step_by(STRIP) {
                let len = STRIP.min(c - from);
                for (i, strip) in strips[..n].iter_mut().enumerate() {
                    if from == 0 {
                        prefetch_row(k, i);
                    }
                    T::narrow(s, &mut strip[..len], &k.row(t + i)[channels.clone()][from..][..len]);
                }
                let keys = &mut keys[from * PAGE_LEN..][..len * PAGE_LEN];
                store_columns(s, keys, slot, &strips[..n]);
            }
            for i in 0..n {
                prefetch_row(v, i);
                let row = &mut values[(slot + i) * layout.value_stride()..][..c];
                T::narrow(s, row, &v.row(t + i)[channels.clone()]);
            }
            t += n;
        }
    }
}

/// Transposes `strips` = `[positions][STRIP]` into `keys` = `[channels][PAGE_LEN]`, from slot `slot` on.
#[inline(always)]
fn store_columns<T: KvElement, S: Simd>(s: S, keys: &mut [T], slot: usize, strips: &[[T; STRIP]]) {
    let (blocks, rest) = strips.as_chunks::<TRANSPOSE_LEN>();
    let n_columns = keys.len() / PAGE_LEN;
    // Loops over indices, since iterators are not inlined here and take as long as all the rest.
    for b in 0..blocks.len() {
        let slot = slot + b * TRANSPOSE_LEN;
        for first in (0..n_columns).step_by(TRANSPOSE_LEN) {
            let mut rows = [[T::default(); TRANSPOSE_LEN]; TRANSPOSE_LEN];
            for i in 0..TRANSPOSE_LEN {
                rows[i].copy_from_slice(&blocks[b][i][first..first + TRANSPOSE_LEN]);
            }
            let columns = T::transpose(s, rows);
            for j in 0..TRANSPOSE_LEN.min(n_columns - first) {
                let at = (first + j) * PAGE_LEN + slot;
                keys[at..at + TRANSPOSE_LEN].copy_from_slice(&columns[j]);
            }
        }
    }
    let slot = slot + blocks.len() * TRANSPOSE_LEN;
    for j in 0..n_columns {
        for i in 0..rest.len() {
            keys[j * PAGE_LEN + slot + i] = rest[i][j];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{KvHead, KvPool};
    use crate::Cpu;
    use crate::cpu::MatRef;
    use crate::cpu::test_data::random;
    use crate::op::{KvDType, KvLayout, KvRow, PAGE_LEN};

    fn key_and_value(pool: &KvPool, row: KvRow, g: usize, c: usize) -> (f32, f32) {
        let layout = pool.layout();
        let slot = row.slot as usize;
        let key = c * PAGE_LEN + slot;
        let value = layout.head_dim * PAGE_LEN + slot * layout.value_stride() + c;
        match pool.head(row.page, g) {
            KvHead::F32(h) => (h[key], h[value]),
            KvHead::F16(h) => (h[key].to_f32(), h[value].to_f32()),
            KvHead::Q8(h) => {
                let mut wide = vec![0.0; layout.head_len()];
                h.widen(&mut wide, slot..slot + 1);
                (wide[key], wide[value])
            }
        }
    }

    #[test]
    fn rows_land_where_the_layout_says() {
        for dtype in [KvDType::F32, KvDType::F16, KvDType::Q8_0] {
            for head_dim in [1, 8, 20, 64, 80] {
                let layout = KvLayout { n_kv_heads: 3, head_dim, dtype };
                let mut pool = KvPool::new(layout, 4).unwrap();
                assert_eq!(pool.bytes(), 4 * layout.page_bytes());
                let mut rows: Vec<KvRow> =
                    (50..PAGE_LEN as u32).map(|slot| KvRow { page: 2, slot }).collect();
                rows.extend((0..40).map(|slot| KvRow { page: 0, slot }));
                rows.extend([KvRow { page: 1, slot: 63 }, KvRow { page: 1, slot: 5 }]);
                let width = 3 * head_dim;
                let (k, v) = (random(rows.len() * width, 1), random(rows.len() * width, 2));
                let as_rows = |x| MatRef::packed(x, rows.len(), width);
                let cpu = Cpu::new(2).unwrap();
                pool.write(&cpu, as_rows(&k), as_rows(&v), &rows);
                pool.copy_page(0, 3);
                let tolerance = match dtype {
                    KvDType::F32 => 0.0,
                    KvDType::F16 => 5e-4,
                    KvDType::Q8_0 => 0.505 / 127.0,
                };
                for (t, &row) in rows.iter().enumerate() {
                    let copy = KvRow { page: 3, ..row };
                    for row in [row, if row.page == 0 { copy } else { row }] {
                        for i in 0..width {
                            let got = key_and_value(&pool, row, i / head_dim, i % head_dim);
                            assert!((got.0 - k[t * width + i]).abs() <= tolerance, "{row:?}");
                            assert!((got.1 - v[t * width + i]).abs() <= tolerance, "{row:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "outside of 1 pages")]
    fn a_row_outside_the_pool_is_refused() {
        let layout = KvLayout { n_kv_heads: 1, head_dim: 8, dtype: KvDType::F32 };
        let row = [0.0; 8];
        let row = MatRef::packed(&row, 1, 8);
        let cpu = Cpu::new(1).unwrap();
        KvPool::new(layout, 1).unwrap().write(&cpu, row, row, &[KvRow { page: 1, slot: 0 }]);
    }
}
