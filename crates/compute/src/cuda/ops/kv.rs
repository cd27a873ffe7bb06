//! Paged KV cache on the device, in the layout of `kv.cuh`. [`PageCopies`] converts from and to the CPU's layout, so that saved
//! pages fit both.

use bytemuck::{Pod, Zeroable};

use super::launch;
use crate::Result;
use crate::cuda::{Buffer, CommandList, CopyRange, Gpu, HostCopies, TensorMap};
use crate::op::{KvDType, KvLayout, PAGE_LEN};

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
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
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

    /// Tensor maps of f16 keys and values. A box of keys has 64 positions and 64 channels, a box of values one head.
    pub(crate) fn boxes(&self, gpu: &Gpu) -> Result<[TensorMap; 2]> {
        let (padded, n_heads) =
            (padded_dim(self.layout.head_dim), self.n_pages * self.layout.n_kv_heads);
        let map = |columns: usize, box_rows: usize| {
            let rows = n_heads * 2 * PAGE_LEN * padded / columns;
            TensorMap::new(gpu, self.buffer.address(), [rows, columns], box_rows)
        };
        Ok([map(padded, PAGE_LEN)?, map(PAGE_LEN, padded)?])
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

/// Memory for a page of every layer, in the layout of [`KvLayout`], on the device and on its way to the
/// host.
#[derive(Debug)]
pub struct PageCopies {
    gpu: Gpu,
    device: Buffer,
    host: HostCopies,
}

impl PageCopies {
    /// Memory for pages of `layers`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn new(gpu: &Gpu, layers: &[Pool]) -> Result<Self> {
        let bytes = layers.iter().map(|pool| pool.layout.page_bytes()).sum();
        let (device, host) = (Buffer::new(gpu, bytes)?, HostCopies::new(gpu, bytes)?);
        Ok(Self { gpu: gpu.clone(), device, host })
    }

    /// Appends the bytes of a page of every layer to `out`, in one round trip.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn read(&mut self, layers: &[Pool], page: u32, out: &mut Vec<u8>) -> Result<()> {
        let len = self.convert(layers, page, Direction::ToHost)?;
        self.host.clear();
        self.host.enqueue(&self.gpu, &[CopyRange { src: &self.device, offset: 0, len }])?;
        out.extend_from_slice(self.host.wait(&self.gpu)?);
        Ok(())
    }

    /// Overwrites a page of every layer with `bytes`, which [`read`](Self::read) appended.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If there is no such page, or `bytes` is longer than the pages.
    pub fn write(&mut self, layers: &[Pool], page: u32, bytes: &[u8]) -> Result<()> {
        self.gpu.upload(&self.device, 0, bytes)?;
        self.convert(layers, page, Direction::ToDevice)?;
        Ok(())
    }

    /// Converts a page of every layer; returns the bytes of all in the layout of the host.
    fn convert(&mut self, layers: &[Pool], page: u32, direction: Direction) -> Result<usize> {
        let mut list = CommandList::new(&self.gpu);
        let mut host = self.device.address();
        for pool in layers {
            assert!((page as usize) < pool.n_pages, "kv: page {page} of {}", pool.n_pages);
            let device = pool.buffer.address() + u64::from(page) * pool.page_bytes() as u64;
            for plane in planes(pool.layout) {
                plane.copy(&mut list, pool.layout, (device, host), direction);
            }
            host += pool.layout.page_bytes() as u64;
        }
        list.run()?;
        Ok((host - self.device.address()) as usize)
    }
}

#[derive(Debug, Clone, Copy)]
enum Direction {
    ToHost,
    ToDevice,
}

/// Strides in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
struct Strides {
    head: u32,
    row: u32,
    col: u32,
}

/// Elements of a plane in a page: offset of the first one, strides.
#[derive(Debug, Clone, Copy)]
struct Region {
    first: usize,
    strides: Strides,
}

/// Keys, values or scales of all heads of a page: `[heads][n_rows][n_cols]`. Columns are adjacent on the host.
#[derive(Debug, Clone, Copy)]
struct Plane {
    element_bytes: usize,
    n_rows: usize,
    n_cols: usize,
    device: Region,
    host: Region,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct CopyElementsParams {
    from: u64,
    to: u64,
    from_strides: Strides,
    to_strides: Strides,
    n_rows: u32,
    n_cols: u32,
    element_bytes: u32,
    unused: u32,
}

/// Planes of a page, in the layouts of device and host.
fn planes(layout: KvLayout) -> impl Iterator<Item = Plane> {
    let (size, padded) = (layout.element_bytes(), padded_dim(layout.head_dim));
    let of_host = layout.head_places();
    let n_blocks = if layout.n_blocks() > 0 { padded / BLOCK_LEN } else { 0 };
    let (values, scales) = (PAGE_LEN * padded * size, 2 * PAGE_LEN * padded * size);
    let region = |head: usize, first: usize, row: usize, col: usize| Region {
        first,
        strides: Strides { head: head as u32, row: row as u32, col: col as u32 },
    };
    let device = |first, row, col| region(head_bytes(layout), first, row, col);
    let host = |first, row, col| region(of_host.bytes, first, row, col);
    let keys = Plane {
        element_bytes: size,
        n_rows: layout.head_dim,
        n_cols: PAGE_LEN,
        device: device(0, size, padded * size),
        host: host(0, PAGE_LEN * size, size),
    };
    let values = Plane {
        n_rows: PAGE_LEN,
        n_cols: layout.head_dim,
        device: device(values, size, PAGE_LEN * size),
        host: host(of_host.values, of_host.value_stride, size),
        ..keys
    };
    let key_scales = Plane {
        element_bytes: 2,
        n_rows: layout.n_blocks(),
        n_cols: PAGE_LEN,
        device: device(scales, 2, 2 * n_blocks),
        host: host(of_host.key_scales, 2 * PAGE_LEN, 2),
    };
    let value_scales = Plane {
        device: device(scales + 2 * PAGE_LEN * n_blocks, 2 * PAGE_LEN, 2),
        host: host(of_host.value_scales, 2 * PAGE_LEN, 2),
        ..key_scales
    };
    [keys, values, key_scales, value_scales].into_iter().filter(|plane| plane.n_rows > 0)
}

impl Plane {
    /// Copies the plane between two pages in device memory, one in the layout of the device, one in that of the host.
    fn copy(
        self,
        list: &mut CommandList,
        layout: KvLayout,
        (device, host): (u64, u64),
        direction: Direction,
    ) {
        let device = (device + self.device.first as u64, self.device.strides);
        let host = (host + self.host.first as u64, self.host.strides);
        let ((from, from_strides), (to, to_strides)) = match direction {
            Direction::ToHost => (device, host),
            Direction::ToDevice => (host, device),
        };
        let params = CopyElementsParams {
            from,
            to,
            from_strides,
            to_strides,
            n_rows: self.n_rows as u32,
            n_cols: self.n_cols as u32,
            element_bytes: self.element_bytes as u32,
            unused: 0,
        };
        let grid = [(self.n_rows * self.n_cols).div_ceil(256), layout.n_kv_heads, 1];
        launch(list, ("rope", "copy_elements"), grid, 256, &params);
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK_LEN, Plane, Region, head_bytes, padded_dim, planes};
    use crate::op::PageElement;
    use crate::op::{KvDType, KvLayout, PAGE_LEN};

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
                let mut offsets = Vec::new();
                for Plane { element_bytes, n_rows, n_cols, device, host } in planes(layout) {
                    let all = (0..3).flat_map(|head| {
                        (0..n_rows)
                            .flat_map(move |row| (0..n_cols).map(move |col| (head, row, col)))
                    });
                    offsets.extend(all.map(|(head, row, col)| {
                        let at = |Region { first, strides }: Region| {
                            let [by_head, by_row, by_col] =
                                [strides.head, strides.row, strides.col].map(|step| step as usize);
                            first + head * by_head + row * by_row + col * by_col
                        };
                        (at(device), at(host), element_bytes)
                    }));
                }
                let region = |head: usize, p: usize, element: PageElement| {
                    at_device(layout, head, p, element)
                };
                let mut expected = Vec::new();
                layout.visit_elements(region, |device, host, size| {
                    expected.push((device, host, size))
                });
                offsets.sort_unstable();
                expected.sort_unstable();
                assert!(offsets == expected, "{dtype:?}, {head_dim} channels");
            }
        }
    }
}
