//! Compiled kernels of a GPU in a file, so that the next run need not compile them.

use std::io::Write;
use std::path::{Path, PathBuf};

use stonechat_compute::wgpu::Gpu;
use stonechat_formats::AtomicFile;

/// The kernels of an open GPU, which are saved when this is dropped.
///
/// A file that cannot be read, is damaged or of another driver is made anew; one that cannot be written is left out.
#[derive(Debug)]
pub struct KernelCache {
    gpu: Gpu,
    path: PathBuf,
    /// What the file held.
    saved: Option<Vec<u8>>,
}

impl KernelCache {
    /// Gives `gpu`, which has not compiled anything yet, what an earlier run left in `stonechat/kernels` of the
    /// platform's cache folder. None where there is no such folder or the driver keeps its kernels to itself.
    #[must_use]
    pub fn open(gpu: &Gpu) -> Option<Self> {
        Self::at(&dirs::cache_dir()?.join("stonechat").join("kernels"), gpu)
    }

    /// As [`open`](Self::open), in `folder`.
    #[must_use]
    pub fn at(folder: &Path, gpu: &Gpu) -> Option<Self> {
        let path = folder.join(gpu.adapter().kernel_cache_name()?);
        let saved = std::fs::read(&path).ok();
        gpu.restore_kernels(saved.as_deref());
        Some(Self { gpu: gpu.clone(), path, saved })
    }

    /// Writes the file, if there is anything new.
    fn save(&self) -> Result<(), stonechat_formats::Error> {
        let Some(data) = self.gpu.save_kernels().filter(|data| self.saved.as_ref() != Some(data))
        else {
            return Ok(());
        };
        let io = |source| stonechat_formats::Error::Io {
            action: "write",
            path: self.path.clone(),
            source,
        };
        std::fs::create_dir_all(self.path.parent().unwrap_or(Path::new("."))).map_err(io)?;
        let mut file = AtomicFile::create(&self.path)?;
        file.write_all(&data).map_err(io)?;
        file.commit()
    }
}

impl Drop for KernelCache {
    fn drop(&mut self) {
        // The next run compiles what could not be saved.
        let _ = self.save();
    }
}

#[cfg(test)]
mod tests {
    use pollster::block_on;
    use stonechat_compute::wgpu::ops::{GpuRows, copy};
    use stonechat_compute::wgpu::{GpuBuffer, adapters};

    use super::{Gpu, KernelCache};

    /// A device with a kernel compiled by the help of `folder`.
    fn use_a_kernel(folder: &std::path::Path) -> bool {
        let all = block_on(adapters());
        let Some(adapter) = all.iter().find(|adapter| adapter.kernel_cache_name().is_some()) else {
            println!(
                "SKIPPED kernels_are_kept_from_run_to_run: no adapter lets its kernels be kept"
            );
            return false;
        };
        let gpu = block_on(Gpu::open(adapter, None)).unwrap();
        let cache = KernelCache::at(folder, &gpu);
        assert!(cache.is_some());
        let [from, to] = [GpuBuffer::new(&gpu, 64), GpuBuffer::new(&gpu, 64)].map(Result::unwrap);
        gpu.write(&from, 0, &[7; 16]);
        copy::copy(&gpu, &to, 0, 16, GpuRows::packed(&from, 1, 16));
        let mut bytes = [0; 64];
        block_on(gpu.read(&to, 0, &mut bytes)).unwrap();
        assert!(bytes.chunks(4).all(|word| word == 7u32.to_le_bytes()), "{bytes:?}");
        true
    }

    #[test]
    fn kernels_are_kept_from_run_to_run() {
        let folder = std::env::temp_dir().join(format!("stonechat-kernels-{}", std::process::id()));
        if !use_a_kernel(&folder) {
            return;
        }
        let files: Vec<_> =
            std::fs::read_dir(&folder).unwrap().map(|f| f.unwrap().path()).collect();
        let [file] = &files[..] else { panic!("one file, got {files:?}") };
        let whole = std::fs::read(file).unwrap();
        let gpu_made = |bytes: &[u8]| bytes.len() > 16 && bytes.starts_with(b"kernels1");
        assert!(gpu_made(&whole), "{} bytes", whole.len());
        // Damaged, cut off or of something else: made anew.
        for bytes in [&whole[..whole.len() / 2], b"something else", b""] {
            std::fs::write(file, bytes).unwrap();
            use_a_kernel(&folder);
            assert!(gpu_made(&std::fs::read(file).unwrap()));
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
