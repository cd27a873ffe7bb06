//! Places of the elements of a page, for its conversion from and to the layout of a device.

use super::{KvDType, KvLayout, PAGE_LEN};

/// Element of a page.
#[cfg(test)]
#[derive(Debug, Clone, Copy)]
pub(crate) enum PageElement {
    /// Channel of a key.
    Key(usize),
    /// Channel of a value.
    Value(usize),
    /// q8 block of a key.
    KeyScale(usize),
    /// q8 block of a value.
    ValueScale(usize),
}

/// Byte offsets and sizes of a head in a page: keys `[head_dim, PAGE_LEN]`, values `[PAGE_LEN, value_stride]`; q8 pages also have
/// f16 scales of both, `[n_blocks, PAGE_LEN]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadPlaces {
    /// Bytes of a head.
    pub(crate) bytes: usize,
    /// Offset of the values.
    pub(crate) values: usize,
    /// Bytes from the values of one position to the next.
    pub(crate) value_stride: usize,
    /// Offset of the scales of the keys.
    pub(crate) key_scales: usize,
    /// Offset of the scales of the values.
    pub(crate) value_scales: usize,
}

impl KvLayout {
    /// Byte offsets and sizes of a head.
    pub(crate) fn head_places(self) -> HeadPlaces {
        let size = self.element_bytes();
        let key_scales = size * self.head_len();
        HeadPlaces {
            bytes: self.head_bytes(),
            values: size * self.head_dim * PAGE_LEN,
            value_stride: size * self.value_stride(),
            key_scales,
            value_scales: key_scales + 2 * self.n_blocks() * PAGE_LEN,
        }
    }

    /// Bytes of a key or value.
    pub(crate) fn element_bytes(self) -> usize {
        match self.dtype {
            KvDType::F32 => 4,
            KvDType::F16 => 2,
            KvDType::Q8_0 => 1,
        }
    }

    /// Calls `visit` with the bytes of every element of a page, on a device and in this layout, and its size. `at_device(head,
    /// position, element)`: the byte of an element on the device.
    #[cfg(test)]
    pub(crate) fn visit_elements(
        self,
        at_device: impl Fn(usize, usize, PageElement) -> usize,
        mut visit: impl FnMut(usize, usize, usize),
    ) {
        let Self { n_kv_heads, head_dim, .. } = self;
        let (size, n_blocks) = (self.element_bytes(), self.n_blocks());
        for (g, p) in (0..n_kv_heads).flat_map(|g| (0..PAGE_LEN).map(move |p| (g, p))) {
            let head = g * self.head_bytes();
            for c in 0..head_dim {
                let key = head + size * (c * PAGE_LEN + p);
                visit(at_device(g, p, PageElement::Key(c)), key, size);
                let value = head + size * (head_dim * PAGE_LEN + p * self.value_stride() + c);
                visit(at_device(g, p, PageElement::Value(c)), value, size);
            }
            for b in 0..n_blocks {
                let key = head + self.head_len() + 2 * (b * PAGE_LEN + p);
                visit(at_device(g, p, PageElement::KeyScale(b)), key, 2);
                let value = key + 2 * n_blocks * PAGE_LEN;
                visit(at_device(g, p, PageElement::ValueScale(b)), value, 2);
            }
        }
    }
}
