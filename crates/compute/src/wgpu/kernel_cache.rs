//! Compiled kernels from one run to the next, where a driver lets them be kept.
//!
//! ```text
//! saved = format | hash (8 bytes) | what wgpu gives
//! ```

use std::hash::{DefaultHasher, Hasher};

use super::{Adapter, Gpu};

/// How saved kernels begin.
const FORMAT: &[u8; 8] = b"kernels1";
/// Bytes before what wgpu gives.
const HEAD_BYTES: usize = FORMAT.len() + 8;

impl Adapter {
    /// A name for what [`Gpu::save_kernels`] gives, the same for adapters that can share it; none where nothing
    /// can be saved.
    #[must_use]
    pub fn kernel_cache_name(&self) -> Option<String> {
        ::wgpu::util::pipeline_cache_key(&self.raw.get_info())
    }
}

impl Gpu {
    /// Compiles from now on with the help of what [`save_kernels`](Self::save_kernels) once gave. Bytes of another
    /// driver or version, or that something happened to, are none. Only the first call counts.
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
            // SAFETY: bytes with the right hash are what `PipelineCache::get_data` gave in `save_kernels`; whether
            // this device and driver made them is checked by wgpu, which takes none of others.
            unsafe { device.create_pipeline_cache(&descriptor) }
        });
    }

    /// The kernels compiled so far, for [`restore_kernels`](Self::restore_kernels); none without a call of that, or
    /// where they cannot be saved.
    #[must_use]
    pub fn save_kernels(&self) -> Option<Vec<u8>> {
        let data = self.inner.kernel_cache.get()?.get_data()?;
        let mut saved = Vec::with_capacity(HEAD_BYTES + data.len());
        saved.extend_from_slice(FORMAT);
        saved.extend_from_slice(&hash(&data).to_le_bytes());
        saved.extend_from_slice(&data);
        Some(saved)
    }
}

/// What wgpu gave, if nothing happened to it.
fn payload(saved: &[u8]) -> Option<&[u8]> {
    let (head, data) = saved.split_at_checked(HEAD_BYTES)?;
    let expected = hash(data).to_le_bytes();
    head.strip_prefix(FORMAT).is_some_and(|found| found == expected).then_some(data)
}

/// Finds damage; another release of Rust may hash differently and finds none of the old files whole.
fn hash(data: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(data);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::{FORMAT, hash, payload};

    #[test]
    fn only_whole_files_are_taken() {
        let data = b"what a driver gave";
        let saved = [&FORMAT[..], &hash(data).to_le_bytes(), data].concat();
        assert_eq!(payload(&saved), Some(&data[..]));
        for i in 0..saved.len() {
            assert_eq!(payload(&saved[..i]), None);
            let mut damaged = saved.clone();
            damaged[i] ^= 4;
            assert_eq!(payload(&damaged), None, "byte {i}");
        }
    }
}
