//! Paged KV cache on the device.
//!
//! A page holds [`PAGE_LEN`] positions of all KV heads. A 32-bit word packs `E` adjacent channels of one position,
//! `E` = 1 (f32), 2 (f16) or 4 (int8); no two positions share a word, so rows can be written in any order:
//!
//! ```text
//! page   = head 0 | head 1 | … | head G-1
//! head   = keys   [W][PAGE_LEN]     word w of position p at w * PAGE_LEN + p, W = ceil(C / E)
//!          values [PAGE_LEN][W]     word w of position p at p * W + w
//!          scales [B][PAGE_LEN]     int8 only: f16 scales of key (low) and value (high), B = ceil(C / 32)
//! ```
//!
//! [`read_page`] and [`write_page`] convert from and to the CPU's page layout, so that saved pages fit both.

use super::kernel::{GpuRows, kernel_source};
use crate::op::{KvDType, KvLayout, PAGE_LEN};
use crate::wgpu::Access::{self, Read, Write};
use crate::wgpu::{
    Bind, CopyRange, Gpu, GpuBuffer, HostCopies, KernelParams, Recorder, Source, Variant, WORKGROUP,
};
use crate::{Error, Result, kernel_params};
use crate::{check_below, check_eq};

/// Pages of one layer.
#[derive(Debug)]
pub struct GpuKvPool {
    pub(super) layout: KvLayout,
    n_pages: usize,
    pub(super) buffer: GpuBuffer,
}

/// Sizes of the page layout in words.
#[derive(Debug, Clone, Copy)]
pub(super) struct KvWords {
    /// Key or value of one head and position: `W`.
    pub(super) row: usize,
    /// Keys, values and scales of one head.
    pub(super) head: usize,
    /// All heads.
    pub(super) page: usize,
}

/// Channels in a word: `E`.
pub(super) fn elements_per_word(dtype: KvDType) -> usize {
    match dtype {
        KvDType::F32 => 1,
        KvDType::F16 => 2,
        KvDType::Q8_0 => 4,
    }
}

/// WGSL that packs and unpacks words of a dtype.
pub(super) fn kv_reader(dtype: KvDType) -> &'static str {
    match dtype {
        KvDType::F32 => include_str!("kv_f32.wgsl"),
        KvDType::F16 => include_str!("kv_f16.wgsl"),
        KvDType::Q8_0 => include_str!("kv_q8_0.wgsl"),
    }
}

pub(super) fn dtype_name(dtype: KvDType) -> &'static str {
    match dtype {
        KvDType::F32 => "f32",
        KvDType::F16 => "f16",
        KvDType::Q8_0 => "q8_0",
    }
}

impl KvWords {
    pub(super) fn new(layout: KvLayout) -> Self {
        let row = layout.head_dim.div_ceil(elements_per_word(layout.dtype));
        let head = PAGE_LEN * (2 * row + layout.n_blocks());
        Self { row, head, page: layout.n_kv_heads * head }
    }
}

impl GpuKvPool {
    /// Allocates `n_pages` pages of zeros.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::BufferTooLarge`].
    pub fn new(gpu: &Gpu, layout: KvLayout, n_pages: usize) -> Result<Self> {
        let bytes = KvWords::new(layout).page.saturating_mul(4).saturating_mul(n_pages);
        Ok(Self { layout, n_pages, buffer: GpuBuffer::new(gpu, bytes)? })
    }

    /// Layout of a page.
    #[must_use]
    pub fn layout(&self) -> KvLayout {
        self.layout
    }
}

kernel_params! {
    struct KvWriteParams {
        rows: u32,
        n_kv_heads: u32,
        head_dim: u32,
        row_words: u32,
        head_words: u32,
        page_words: u32,
        k_offset: u32,
        k_stride: u32,
        v_offset: u32,
        v_stride: u32,
        /// First word of the (page, slot) pairs in the data.
        slots: u32,
        /// Calls of `store` for a head: words of a row, or q8 blocks.
        stores_per_head: u32,
    }
}

const WRITE: &[Access] = &[Read, Read, Read, Write];

/// Appends `store`, which writes a word (f32, f16) or a block of 32 channels (int8) of a key and a value.
pub(super) fn with_store(source: Source, dtype: KvDType) -> Source {
    let source = source.file(include_str!("f16_bits.wgsl"));
    match dtype {
        KvDType::Q8_0 => source.file(include_str!("kv_store_q8_0.wgsl")),
        _ => source.file(kv_reader(dtype)).file(include_str!("kv_store.wgsl")),
    }
}

fn write_source(dtype: KvDType, variant: Variant) -> Source {
    let name = format!("kv_write-{}-{}", dtype_name(dtype), variant.name());
    let source = kernel_source(name, KvWriteParams::LAYOUT, WRITE, variant, WORKGROUP);
    with_store(source.file(include_str!("kv_write.wgsl")), dtype)
}

const COPY: &[Access] = &[Read, Write];

fn copy_source(variant: Variant) -> Source {
    let name = format!("kv_copy_pages-{}", variant.name());
    kernel_source(name, KvCopyPagesParams::LAYOUT, COPY, variant, WORKGROUP)
        .file(include_str!("kv_copy_pages.wgsl"))
}

pub(super) fn sources(variant: Variant) -> Vec<Source> {
    let types = [KvDType::F32, KvDType::F16, KvDType::Q8_0];
    let writes = types.into_iter().map(|dtype| write_source(dtype, variant));
    writes.chain([copy_source(variant)]).collect()
}

/// Checks the arguments of a KV write; returns the sizes of the layout and the calls of `store` for a head.
#[track_caller]
pub(super) fn check_write(pool: &GpuKvPool, k: GpuRows<'_>, v: GpuRows<'_>) -> (KvWords, usize) {
    let layout = pool.layout;
    let width = layout.n_kv_heads * layout.head_dim;
    check_eq!((k.cols, v.cols), (width, width), "kv write: columns of keys and values");
    check_eq!(v.rows, k.rows, "kv write: rows of the values");
    let words = KvWords::new(layout);
    let stores_per_head = match layout.dtype {
        KvDType::Q8_0 => layout.n_blocks(),
        _ => words.row,
    };
    (words, stores_per_head)
}

/// Writes keys and values, `[T, G*C]`, to pages and slots that are inputs of the step: pairs from word `slots` on.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn write(list: &mut Recorder, pool: &GpuKvPool, k: GpuRows<'_>, v: GpuRows<'_>, slots: usize) {
    let (k, v, layout) = (k.checked(), v.checked(), pool.layout);
    let (words, stores_per_head) = check_write(pool, k, v);
    let key = [elements_per_word(layout.dtype) as u32, 0, 0, 0];
    let variant = list.gpu().variant();
    let kernel = list.gpu().kernel(("kv_write", key), || write_source(layout.dtype, variant));
    let params = KvWriteParams {
        rows: k.rows as u32,
        n_kv_heads: layout.n_kv_heads as u32,
        head_dim: layout.head_dim as u32,
        row_words: words.row as u32,
        head_words: words.head as u32,
        page_words: words.page as u32,
        k_offset: k.offset as u32,
        k_stride: k.stride as u32,
        v_offset: v.offset as u32,
        v_stride: v.stride as u32,
        slots: slots as u32,
        stores_per_head: stores_per_head as u32,
    };
    // Tiles of 4 rows and 8 stores, 32 invocations each.
    let tiles = k.rows.div_ceil(4) * layout.n_kv_heads * stores_per_head.div_ceil(8);
    let groups = (32 * tiles).div_ceil(WORKGROUP as usize);
    let binds = [Bind::Step, k.buffer.into(), v.buffer.into(), Bind::Buffer(&pool.buffer)];
    list.dispatch_linear(&kernel, &params, binds, groups);
}

kernel_params! {
    struct KvCopyPagesParams {
        words: u32,
        n: u32,
        /// First word of the (from, to) pairs in the data.
        pairs: u32,
    }
}

/// Copies `n` pages to others, pairs of pages that are inputs of the step, from word `pairs` on. No page is in two pairs,
/// once to be read and once to be written. A pair of equal pages is no copy.
pub fn copy_pages(list: &mut Recorder, pool: &GpuKvPool, (pairs, n): (usize, usize)) {
    let words = KvWords::new(pool.layout).page;
    let params = KvCopyPagesParams { words: words as u32, n: n as u32, pairs: pairs as u32 };
    let variant = list.gpu().variant();
    let kernel = list.gpu().kernel(("kv_copy_pages", [0; 4]), || copy_source(variant));
    let groups = (n * words).div_ceil(WORKGROUP as usize);
    list.dispatch_linear(&kernel, &params, [Bind::Step, Bind::Buffer(&pool.buffer)], groups);
}

/// Reads a page and appends its bytes to `out`, in the layout of [`KvLayout`].
///
/// # Errors
/// If the device fails.
///
/// # Panics
/// If there is no such page.
pub async fn read_page(gpu: &Gpu, pool: &GpuKvPool, page: u32, out: &mut Vec<u8>) -> Result<()> {
    check_below!(page as usize, pool.n_pages, "kv read: page");
    let words = KvWords::new(pool.layout);
    let len = 4 * words.page;
    let range = CopyRange { src: &pool.buffer, offset: len * page as usize, len };
    let (mut copies, mut device) = (HostCopies::default(), Vec::with_capacity(len));
    gpu.submit_with_copies(None, &[range], &mut copies)?;
    gpu.map(&mut copies);
    gpu.read(copies, |bytes| device.extend_from_slice(bytes)).await?;
    let start = out.len();
    out.resize(start + pool.layout.page_bytes(), 0);
    convert_page::<true>(pool.layout, &mut device, &mut out[start..]);
    Ok(())
}

/// Overwrites a page with bytes of [`read_page`].
///
/// # Errors
/// [`Error::Device`] if there are not as many bytes as in a page.
///
/// # Panics
/// If there is no such page.
pub fn write_page(gpu: &Gpu, pool: &GpuKvPool, page: u32, bytes: &[u8]) -> Result<()> {
    check_below!(page as usize, pool.n_pages, "kv write: page");
    if bytes.len() != pool.layout.page_bytes() {
        let message = format!("a page has {} bytes, got {}", pool.layout.page_bytes(), bytes.len());
        return Err(Error::Device { message });
    }
    let words = KvWords::new(pool.layout);
    let mut device = vec![0u32; words.page];
    let mut host = bytes.to_vec();
    convert_page::<false>(pool.layout, bytemuck::cast_slice_mut(&mut device), &mut host);
    gpu.write(&pool.buffer, words.page * page as usize, &device);
    Ok(())
}

/// Copies a page between the layouts of device and host.
fn convert_page<const TO_HOST: bool>(layout: KvLayout, device: &mut [u8], host: &mut [u8]) {
    let (words, of_host) = (KvWords::new(layout), layout.head_places());
    let size = 4 / elements_per_word(layout.dtype);
    let (rows, row_bytes) = (4 * words.row * PAGE_LEN, size * layout.head_dim);
    let heads = device.chunks_exact_mut(4 * words.head).zip(host.chunks_exact_mut(of_host.bytes));
    for (device, host) in heads {
        let (keys, rest) = device.split_at_mut(rows);
        let (values, scales) = rest.split_at_mut(rows);
        let channels = host.chunks_exact_mut(PAGE_LEN * size).take(layout.head_dim);
        for (c, channel) in channels.enumerate() {
            let word = 4 * PAGE_LEN * (c * size / 4);
            let words = &mut keys[word..][..4 * PAGE_LEN];
            let first = c * size % 4;
            match size {
                1 => copy_elements::<1, TO_HOST>(words, first, channel),
                2 => copy_elements::<2, TO_HOST>(words, first, channel),
                _ => copy_elements::<4, TO_HOST>(words, first, channel),
            }
        }
        for (p, values) in values.chunks_exact_mut(4 * words.row).enumerate() {
            let value = &mut host[of_host.values + p * of_host.value_stride..][..row_bytes];
            copy::<TO_HOST>(&mut values[..row_bytes], value);
        }
        for (block, words) in scales.chunks_exact_mut(4 * PAGE_LEN).enumerate() {
            for (first, places) in [(0, of_host.key_scales), (2, of_host.value_scales)] {
                let scales = &mut host[places + 2 * PAGE_LEN * block..][..2 * PAGE_LEN];
                copy_elements::<2, TO_HOST>(words, first, scales);
            }
        }
    }
}

/// Copies between the bytes from `first` on of each word and adjacent elements.
fn copy_elements<const SIZE: usize, const TO_HOST: bool>(
    words: &mut [u8],
    first: usize,
    elements: &mut [u8],
) {
    let (words, elements) = (words.as_chunks_mut::<4>().0, elements.as_chunks_mut::<SIZE>().0);
    for (word, element) in words.iter_mut().zip(elements) {
        copy::<TO_HOST>(&mut word[first..first + SIZE], element);
    }
}

fn copy<const TO_HOST: bool>(device: &mut [u8], host: &mut [u8]) {
    if TO_HOST { host.copy_from_slice(device) } else { device.copy_from_slice(host) }
}

#[cfg(test)]
mod tests {
    use super::{KvWords, convert_page, elements_per_word};
    use crate::op::PageElement;
    use crate::op::{KvDType, KvLayout, PAGE_LEN};

    /// First byte of an element on the device.
    fn at_device(layout: KvLayout, head: usize, p: usize, element: PageElement) -> usize {
        let (words, per_word) = (KvWords::new(layout), elements_per_word(layout.dtype));
        let byte = |c: usize, word: usize| 4 * word + c % per_word * (4 / per_word);
        let scales = |b: usize| 4 * ((2 * words.row + b) * PAGE_LEN + p);
        4 * head * words.head
            + match element {
                PageElement::Key(c) => byte(c, c / per_word * PAGE_LEN + p),
                PageElement::Value(c) => byte(c, (PAGE_LEN + p) * words.row + c / per_word),
                PageElement::KeyScale(b) => scales(b),
                PageElement::ValueScale(b) => scales(b) + 2,
            }
    }

    #[test]
    fn every_element_has_its_place_in_both_layouts() {
        for dtype in [KvDType::F32, KvDType::F16, KvDType::Q8_0] {
            for head_dim in [32, 40, 64, 80, 128, 256] {
                let layout = KvLayout { n_kv_heads: 3, head_dim, dtype };
                let n_bytes = 4 * KvWords::new(layout).page;
                let mut device: Vec<u8> = (0..n_bytes).map(|i| (i * 31 / 7) as u8).collect();
                let (mut host, mut expected) =
                    (vec![0; layout.page_bytes()], vec![0; layout.page_bytes()]);
                let mut back = vec![0; n_bytes];
                convert_page::<true>(layout, &mut device, &mut host);
                let place = |head: usize, p: usize, element: PageElement| {
                    at_device(layout, head, p, element)
                };
                layout.visit_elements(place, |at_device, at_host, size| {
                    expected[at_host..][..size].copy_from_slice(&device[at_device..][..size]);
                });
                assert!(host == expected, "{dtype:?}, {head_dim} channels to the host");
                convert_page::<false>(layout, &mut back, &mut host);
                layout.visit_elements(place, |at, _, size| {
                    let is_equal = back[at..][..size] == device[at..][..size];
                    assert!(is_equal, "{dtype:?}, {head_dim} channels to the device");
                });
            }
        }
    }
}
