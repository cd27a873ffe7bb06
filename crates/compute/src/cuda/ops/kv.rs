//! Paged KV cache on the device, in the layout of `kv.cuh`. [`read_page`] and [`write_page`] convert from and to the CPU's
//! layout, so that saved pages fit both.

use bytemuck::{Pod, Zeroable};

use super::launch;
use crate::cpu::{KvDType, KvLayout, PAGE_LEN};
use crate::cuda::{Buffer, CommandList, CopyRange, Gpu, HostCopies};
use crate::{Error, Result};

/// Channels of a q8 block. Heads are padded to whole blocks.
const BLOCK_LEN: usize = 32;

/// Pages of one layer.
#[derive(Debug)]
pub struct Pool {
    layout: KvLayout,
    n_pages: usize,
    buffer: Buffer,
}

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct KvParams {
    pages: u64,
    page_bytes: u64,
    head_bytes: u64,
    n_heads: u32,
    head_dim: u32,
    padded_dim: u32,
    dtype: u32,
}

/// Width of a head in pages.
#[must_use]
pub fn padded_dim(head_dim: usize) -> usize {
    match head_dim {
        0..=128 => head_dim.next_multiple_of(BLOCK_LEN).max(64),
        _ => 256,
    }
}

/// Bytes of a head in a page.
fn head_bytes(layout: KvLayout) -> usize {
    let padded = padded_dim(layout.head_dim);
    let scales = match layout.dtype {
        KvDType::Q8_0 => 4 * PAGE_LEN * (padded / BLOCK_LEN),
        _ => 0,
    };
    2 * PAGE_LEN * padded * layout.element_bytes() + scales
}

impl Pool {
    /// Allocates `n_pages` pages of zeros.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(gpu: &Gpu, layout: KvLayout, n_pages: usize) -> Result<Self> {
        let bytes = (layout.n_kv_heads * head_bytes(layout)).saturating_mul(n_pages);
        Ok(Self { layout, n_pages, buffer: Buffer::new(gpu, bytes)? })
    }

    /// Layout of a page.
    #[must_use]
    pub fn layout(&self) -> KvLayout {
        self.layout
    }

    fn page_bytes(&self) -> usize {
        self.layout.n_kv_heads * head_bytes(self.layout)
    }

    pub(crate) fn params(&self) -> KvParams {
        KvParams {
            pages: self.buffer.address(),
            page_bytes: self.page_bytes() as u64,
            head_bytes: head_bytes(self.layout) as u64,
            n_heads: self.layout.n_kv_heads as u32,
            head_dim: self.layout.head_dim as u32,
            padded_dim: padded_dim(self.layout.head_dim) as u32,
            dtype: self.layout.dtype as u32,
        }
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct CopyPagesParams {
    kv: KvParams,
    pairs: u64,
    n: u32,
    unused: u32,
}

/// Copies `n` pages to others: pairs of pages at address `pairs`. No page is in two pairs, once to be read and once to be
/// written. A pair of equal pages is no copy.
pub fn copy_pages(list: &mut CommandList, pool: &Pool, (pairs, n): (u64, usize)) {
    let params = CopyPagesParams { kv: pool.params(), pairs, n: n as u32, unused: 0 };
    let blocks = pool.page_bytes().div_ceil(16 * 256).min(64);
    launch(list, ("rope", "copy_pages"), [blocks, n, 1], 256, &params);
}

/// Reads a page of every layer in one round trip and appends the bytes to `out`, in the layout of
/// [`KvPool::page`](crate::cpu::KvPool::page). `copies`: memory, whose contents are dropped.
///
/// # Errors
/// If the device fails.
///
/// # Panics
/// If there is no such page.
pub fn read_page(
    gpu: &Gpu,
    copies: &mut HostCopies,
    layers: &[Pool],
    page: u32,
    out: &mut Vec<u8>,
) -> Result<()> {
    let mut ranges = Vec::with_capacity(layers.len());
    for pool in layers {
        assert!((page as usize) < pool.n_pages, "kv read: page {page} of {}", pool.n_pages);
        let len = pool.page_bytes();
        ranges.push(CopyRange { src: &pool.buffer, offset: len * page as usize, len });
    }
    copies.clear();
    copies.enqueue(gpu, &ranges)?;
    let mut rest = copies.wait(gpu)?;
    for pool in layers {
        let (device, others) = rest.split_at(pool.page_bytes());
        let start = out.len();
        out.resize(start + pool.layout.page_bytes(), 0);
        for head in heads(pool.layout) {
            head.to_host(device, &mut out[start..]);
        }
        rest = others;
    }
    Ok(())
}

/// Overwrites a page with bytes of [`read_page`].
///
/// # Errors
/// [`Error::Device`] if there are not as many bytes as in a page.
///
/// # Panics
/// If there is no such page.
pub fn write_page(gpu: &Gpu, pool: &Pool, page: u32, bytes: &[u8]) -> Result<()> {
    assert!((page as usize) < pool.n_pages, "kv write: page {page} of {}", pool.n_pages);
    if bytes.len() != pool.layout.page_bytes() {
        let message = format!("a page has {} bytes, got {}", pool.layout.page_bytes(), bytes.len());
        return Err(Error::Device { message });
    }
    let mut device = vec![0; pool.page_bytes()];
    for head in heads(pool.layout) {
        head.to_device(bytes, &mut device);
    }
    gpu.upload(&pool.buffer, pool.page_bytes() * page as usize, &device)
}

/// A head of a page in both layouts, whose keys, values and scales of keys are transposes of each other.
#[derive(Debug, Clone, Copy)]
struct Head {
    parts: [Matrix; 3],
    /// Scales of values: first byte on the device and on the host, bytes.
    value_scales: (usize, usize, usize),
}

/// A matrix `[rows, cols]` of the device, which is `[cols, rows]` on the host: first byte and bytes of a row of both.
#[derive(Debug, Clone, Copy)]
struct Matrix {
    size: usize,
    rows: usize,
    cols: usize,
    device: (usize, usize),
    host: (usize, usize),
}

/// Heads of a page.
fn heads(layout: KvLayout) -> impl Iterator<Item = Head> {
    let (size, padded) = (layout.element_bytes(), padded_dim(layout.head_dim));
    let (head_dim, of_host) = (layout.head_dim, layout.head_places());
    let n_blocks = if of_host.n_blocks > 0 { padded / BLOCK_LEN } else { 0 };
    let scales = 2 * PAGE_LEN * padded * size;
    (0..layout.n_kv_heads).map(move |head| {
        let (device, host) = (head * head_bytes(layout), head * of_host.bytes);
        let keys = Matrix {
            size,
            rows: PAGE_LEN,
            cols: head_dim,
            device: (device, padded * size),
            host: (host, PAGE_LEN * size),
        };
        let values = Matrix {
            size,
            rows: head_dim,
            cols: PAGE_LEN,
            device: (device + PAGE_LEN * padded * size, PAGE_LEN * size),
            host: (host + of_host.values, of_host.value_stride),
        };
        let key_scales = Matrix {
            size: 2,
            rows: PAGE_LEN,
            cols: of_host.n_blocks,
            device: (device + scales, 2 * n_blocks),
            host: (host + of_host.key_scales, 2 * PAGE_LEN),
        };
        let value_scales = (
            device + scales + 2 * PAGE_LEN * n_blocks,
            host + of_host.value_scales,
            2 * PAGE_LEN * of_host.n_blocks,
        );
        Head { parts: [keys, values, key_scales], value_scales }
    })
}

impl Head {
    fn to_host(self, device: &[u8], host: &mut [u8]) {
        self.parts.iter().for_each(|part| part.to_host(device, host));
        let (from, to, len) = self.value_scales;
        host[to..][..len].copy_from_slice(&device[from..][..len]);
    }

    fn to_device(self, host: &[u8], device: &mut [u8]) {
        self.parts.iter().for_each(|part| part.to_device(host, device));
        let (to, from, len) = self.value_scales;
        device[to..][..len].copy_from_slice(&host[from..][..len]);
    }
}

impl Matrix {
    fn to_host(self, device: &[u8], host: &mut [u8]) {
        let Self { size, rows, cols, device: from, host: to } = self;
        transpose(size, [rows, cols], (device, from), (host, to));
    }

    fn to_device(self, host: &[u8], device: &mut [u8]) {
        let Self { size, rows, cols, device: to, host: from } = self;
        transpose(size, [cols, rows], (host, from), (device, to));
    }
}

/// Writes a matrix `[rows, cols]` as `[cols, rows]`. Of each: first byte, bytes of a row.
fn transpose(
    size: usize,
    shape: [usize; 2],
    from: (&[u8], (usize, usize)),
    to: (&mut [u8], (usize, usize)),
) {
    match size {
        1 => transpose_elements::<1>(shape, from, to),
        2 => transpose_elements::<2>(shape, from, to),
        _ => transpose_elements::<4>(shape, from, to),
    }
}

fn transpose_elements<const SIZE: usize>(
    [rows, cols]: [usize; 2],
    (from, (from_start, from_stride)): (&[u8], (usize, usize)),
    (to, (to_start, to_stride)): (&mut [u8], (usize, usize)),
) {
    // Rows whose elements of a column are read from the cache for the next columns.
    const TILE: usize = 16;
    for first in (0..rows).step_by(TILE) {
        let n = TILE.min(rows - first);
        let lines: [&[[u8; SIZE]]; TILE] = std::array::from_fn(|i| {
            let start = from_start + (first + i.min(n - 1)) * from_stride;
            from[start..][..cols * SIZE].as_chunks().0
        });
        for col in 0..cols {
            let start = to_start + col * to_stride + first * SIZE;
            let to = to[start..][..n * SIZE].as_chunks_mut::<SIZE>().0;
            for (to, line) in to.iter_mut().zip(&lines) {
                *to = line[col];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK_LEN, head_bytes, heads, padded_dim};
    use crate::cpu::{KvDType, KvLayout, PAGE_LEN, PageElement};

    /// First byte of an element on the device, as `kv.cuh` has it.
    fn at_device(layout: KvLayout, head: usize, p: usize, element: PageElement) -> usize {
        let (size, padded) = (layout.element_bytes(), padded_dim(layout.head_dim));
        let (n_blocks, scales) = (padded / BLOCK_LEN, 2 * PAGE_LEN * padded * size);
        head * head_bytes(layout)
            + match element {
                PageElement::Key(c) => size * (p * padded + c),
                PageElement::Value(c) => size * (PAGE_LEN * (padded + c) + p),
                PageElement::KeyScale(b) => scales + 2 * (p * n_blocks + b),
                PageElement::ValueScale(b) => scales + 2 * PAGE_LEN * (n_blocks + b) + 2 * p,
            }
    }

    #[test]
    fn every_element_has_its_place_in_both_layouts() {
        for dtype in [KvDType::F32, KvDType::F16, KvDType::Q8_0] {
            for head_dim in [32, 40, 64, 80, 128, 256] {
                let layout = KvLayout { n_kv_heads: 3, head_dim, dtype };
                let device: Vec<u8> =
                    (0..3 * head_bytes(layout)).map(|i| (i * 31 / 7) as u8).collect();
                let (mut host, mut expected) =
                    (vec![0; layout.page_bytes()], vec![0; layout.page_bytes()]);
                let mut back = vec![0; device.len()];
                heads(layout).for_each(|head| head.to_host(&device, &mut host));
                let place = |head: usize, p: usize, element: PageElement| {
                    at_device(layout, head, p, element)
                };
                layout.convert(place, |at_device, at_host, size| {
                    expected[at_host..][..size].copy_from_slice(&device[at_device..][..size]);
                });
                assert!(host == expected, "{dtype:?}, {head_dim} channels to the host");
                heads(layout).for_each(|head| head.to_device(&host, &mut back));
                layout.convert(place, |at, _, size| {
                    let is_equal = back[at..][..size] == device[at..][..size];
                    assert!(is_equal, "{dtype:?}, {head_dim} channels to the device");
                });
            }
        }
    }
}
