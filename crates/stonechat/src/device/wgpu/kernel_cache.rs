//! File cache of compiled GPU kernels (pipeline cache).

use std::io::Write;
use std::path::{Path, PathBuf};

use stonechat_compute::wgpu::Gpu;
use stonechat_formats::AtomicFile;

use super::super::gpu::KernelFile;

/// Cache of the compiled kernels of an open GPU; saved on drop.
///
/// Unreadable or damaged files and files of another driver are replaced. Write errors are ignored.
#[derive(Debug)]
pub(super) struct KernelCache {
    gpu: Gpu,
    path: PathBuf,
    /// Content of the file when it was opened.
    saved: Option<Vec<u8>>,
}

impl KernelCache {
    /// Restores the kernels of an earlier run into `gpu`, which has compiled none yet, from `stonechat/kernels` in the
    /// platform's cache folder. `None` without such a folder or if the driver does not export its kernels.
    pub(super) fn open(gpu: &Gpu) -> Option<Self> {
        Self::at(&dirs::cache_dir()?.join("stonechat").join("kernels"), gpu)
    }

    /// As [`open`](Self::open), from `folder`.
    fn at(folder: &Path, gpu: &Gpu) -> Option<Self> {
        let path = folder.join(gpu.adapter().kernel_cache_name()?);
        let saved = std::fs::read(&path).ok();
        gpu.restore_kernels(saved.as_deref());
        Some(Self { gpu: gpu.clone(), path, saved })
    }

    fn try_save(&self) -> Result<(), stonechat_formats::Error> {
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

impl KernelFile for KernelCache {
    /// Writes the file if it changed. Errors are ignored: without a file, the next run compiles again.
    fn save(&self) {
        let _ = self.try_save();
    }
}

impl Drop for KernelCache {
    fn drop(&mut self) {
        self.save();
    }
}

#[cfg(test)]
mod tests {
    use pollster::block_on;
    use stonechat_compute::wgpu::ops::{GpuRows, copy};
    use stonechat_compute::wgpu::{CopyRange, GpuBuffer, HostCopies, Recorder, adapters};

    use super::{Gpu, KernelCache};

    /// Opens a GPU with the cache in `folder` and runs a kernel.
    fn use_a_kernel(folder: &std::path::Path) -> bool {
        let all = block_on(adapters());
        let Some(adapter) = all.iter().find(|adapter| adapter.kernel_cache_name().is_some()) else {
            println!("SKIPPED kernels_are_cached_between_runs: no adapter exports its kernels");
            return false;
        };
        let gpu = block_on(Gpu::open(adapter, None)).unwrap();
        let cache = KernelCache::at(folder, &gpu);
        assert!(cache.is_some());
        let [from, to] = [GpuBuffer::new(&gpu, 64), GpuBuffer::new(&gpu, 64)].map(Result::unwrap);
        gpu.write(&from, 0, &[7; 16]);
        let mut recorder = Recorder::new(&gpu, 1).unwrap();
        copy::copy(&mut recorder, &to, 0, 16, GpuRows::packed(&from, 1, 16));
        let mut list = recorder.finish().unwrap().unwrap();
        let (mut copies, mut bytes) = (HostCopies::default(), Vec::new());
        let range = CopyRange { src: &to, offset: 0, len: 64 };
        gpu.submit_with_copies(Some(&mut list), &[range], &mut copies).unwrap();
        gpu.map(&mut copies);
        block_on(gpu.read(copies, |part| bytes.extend_from_slice(part))).unwrap();
        assert_eq!(bytes.len(), 64);
        assert!(bytes.chunks(4).all(|word| word == 7u32.to_le_bytes()), "{bytes:?}");
        true
    }

    #[test]
    fn kernels_are_cached_between_runs() {
        let folder = std::env::temp_dir().join(format!("stonechat-kernels-{}", std::process::id()));
        if !use_a_kernel(&folder) {
            return;
        }
        let files: Vec<_> =
            std::fs::read_dir(&folder).unwrap().map(|f| f.unwrap().path()).collect();
        let [file] = &files[..] else { panic!("one file, got {files:?}") };
        let whole = std::fs::read(file).unwrap();
        let is_valid = |bytes: &[u8]| bytes.len() > 16 && bytes.starts_with(b"kernels2");
        assert!(is_valid(&whole), "{} bytes", whole.len());
        // Truncated, foreign and empty files are replaced.
        for bytes in [&whole[..whole.len() / 2], b"something else", b""] {
            std::fs::write(file, bytes).unwrap();
            use_a_kernel(&folder);
            assert!(is_valid(&std::fs::read(file).unwrap()));
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
