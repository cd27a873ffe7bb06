//! Paged KV cache on the device, in the layout of `kv.cuh`. [`read_page`] and [`write_page`] convert from and to the CPU's
//! layout, so that saved pages fit both.

use bytemuck::{Pod, Zeroable};

use super::launch;
use crate::cpu::{KvDType, KvLayout, PAGE_LEN, PageElement};
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

fn element_bytes(dtype: KvDType) -> usize {
    match dtype {
        KvDType::F32 => 4,
        KvDType::F16 => 2,
        KvDType::Q8_0 => 1,
    }
}

/// Bytes of a head in a page.
fn head_bytes(layout: KvLayout) -> usize {
    let padded = padded_dim(layout.head_dim);
    let scales = match layout.dtype {
        KvDType::Q8_0 => 4 * PAGE_LEN * (padded / BLOCK_LEN),
        _ => 0,
    };
    2 * PAGE_LEN * padded * element_bytes(layout.dtype) + scales
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
/// [`KvPool::page`](crate::cpu::KvPool::page).
///
/// # Errors
/// If the device fails.
///
/// # Panics
/// If there is no such page.
pub fn read_page(gpu: &Gpu, layers: &[Pool], page: u32, out: &mut Vec<u8>) -> Result<()> {
    let mut ranges = Vec::with_capacity(layers.len());
    for pool in layers {
        assert!((page as usize) < pool.n_pages, "kv read: page {page} of {}", pool.n_pages);
        let len = pool.page_bytes();
        ranges.push(CopyRange { src: &pool.buffer, offset: len * page as usize, len });
    }
    let mut copies = HostCopies::new(gpu, ranges.iter().map(|range| range.len).sum())?;
    copies.enqueue(gpu, &ranges)?;
    let mut device = copies.wait(gpu)?.to_vec();
    let mut rest = &mut device[..];
    for pool in layers {
        let (bytes, others) = rest.split_at_mut(pool.page_bytes());
        let start = out.len();
        out.resize(start + pool.layout.page_bytes(), 0);
        convert_page(pool.layout, bytes, &mut out[start..], Direction::ToHost);
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
    let (mut device, mut host) = (vec![0; pool.page_bytes()], bytes.to_vec());
    convert_page(pool.layout, &mut device, &mut host, Direction::ToDevice);
    gpu.upload(&pool.buffer, pool.page_bytes() * page as usize, &device)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToHost,
    ToDevice,
}

/// Copies every element of a page between the layouts of device and host.
fn convert_page(layout: KvLayout, device: &mut [u8], host: &mut [u8], direction: Direction) {
    let (size, padded) = (element_bytes(layout.dtype), padded_dim(layout.head_dim));
    let n_blocks = padded / BLOCK_LEN;
    let at_device = |head: usize, p: usize, element: PageElement| {
        let scales = 2 * PAGE_LEN * padded * size;
        head * head_bytes(layout)
            + match element {
                PageElement::Key(c) => size * (p * padded + c),
                PageElement::Value(c) => size * (PAGE_LEN * (padded + c) + p),
                PageElement::KeyScale(b) => scales + 2 * (p * n_blocks + b),
                PageElement::ValueScale(b) => scales + 2 * PAGE_LEN * (n_blocks + b) + 2 * p,
            }
    };
    layout.convert(at_device, |at_device, at_host, size| {
        let (device, host) = (&mut device[at_device..][..size], &mut host[at_host..][..size]);
        match direction {
            Direction::ToHost => host.copy_from_slice(device),
            Direction::ToDevice => device.copy_from_slice(host),
        }
    });
}
