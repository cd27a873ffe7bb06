//! Pipeline cache saved between runs, where the driver supports it.
//!
//! ```text
//! saved = "kernels2" | CRC-32 of data (u32, little endian) | data of wgpu's PipelineCache
//! ```

use super::{Adapter, Gpu};

/// Magic bytes.
const MAGIC: &[u8; 8] = b"kernels2";
/// Bytes of magic and checksum.
const HEADER_BYTES: usize = MAGIC.len() + size_of::<u32>();

impl Adapter {
    /// Name for the file of [`Gpu::save_kernels`], equal for adapters that can share it; `None` without a pipeline cache.
    #[must_use]
    pub fn kernel_cache_name(&self) -> Option<String> {
        ::wgpu::util::pipeline_cache_key(&self.raw.get_info())
    }
}

impl Gpu {
    /// Opens the pipeline cache with bytes of [`save_kernels`](Self::save_kernels). Damaged bytes, or those of another
    /// driver or version, are ignored. Only the first call has an effect.
    pub fn restore_kernels(&self, saved: Option<&[u8]>) {
        let device = &self.inner.device;
        if !device.features().contains(::wgpu::Features::PIPELINE_CACHE) {
            return;
        }
        let descriptor = ::wgpu::PipelineCacheDescriptor {
            label: None,
            data: saved.and_then(payload),
            fallback: true,
        };
        self.inner.kernel_cache.get_or_init(|| {
            // SAFETY: bytes with a matching checksum come from `PipelineCache::get_data` in `save_kernels`; wgpu rejects
            // those of another device or driver.
            unsafe { device.create_pipeline_cache(&descriptor) }
        });
    }

    /// Data of the pipeline cache, for [`restore_kernels`](Self::restore_kernels); `None` if that was not called before
    /// or the driver has no pipeline cache.
    #[must_use]
    pub fn save_kernels(&self) -> Option<Vec<u8>> {
        let data = self.inner.kernel_cache.get()?.get_data()?;
        let mut saved = Vec::with_capacity(HEADER_BYTES + data.len());
        saved.extend_from_slice(MAGIC);
        saved.extend_from_slice(&crc32fast::hash(&data).to_le_bytes());
        saved.extend_from_slice(&data);
        Some(saved)
    }
}

/// Data after the header, if magic and checksum match.
fn payload(saved: &[u8]) -> Option<&[u8]> {
    let (header, data) = saved.split_at_checked(HEADER_BYTES)?;
    let expected = crc32fast::hash(data).to_le_bytes();
    header.strip_prefix(MAGIC).is_some_and(|found| found == expected).then_some(data)
}

#[cfg(test)]
mod tests {
    use super::{MAGIC, payload};

    #[test]
    fn only_whole_files_are_taken() {
        let data = b"what a driver gave";
        let saved = [&MAGIC[..], &crc32fast::hash(data).to_le_bytes(), data].concat();
        assert_eq!(payload(&saved), Some(&data[..]));
        for i in 0..saved.len() {
            assert_eq!(payload(&saved[..i]), None);
            let mut damaged = saved.clone();
            damaged[i] ^= 4;
            assert_eq!(payload(&damaged), None, "byte {i}");
        }
    }
}
