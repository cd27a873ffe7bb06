//! GPUs of a backend: found, listed, opened.

use std::fmt::Debug;
use std::sync::Arc;

use stonechat_nn::BoxFuture;

use super::name::Device;
use crate::Error;

/// GPU memory that stays free of weights: for kernels, uploads and other programs.
pub(super) const RESERVED_BYTES: u64 = 512 << 20;

/// API of GPUs. A backend implements it in a file of its own and has a row in `registry`. A browser finds and opens its GPUs
/// in promises.
pub(super) trait GpuApi: Sync {
    /// First discrete GPU with kernels and `needed` bytes of memory; the reason if there is none.
    fn discrete(&self, needed: u64) -> BoxFuture<'_, Result<Arc<dyn FoundGpu>, String>>;

    /// Best GPU with kernels, integrated ones included; the reason if there is none.
    fn best(&self) -> BoxFuture<'_, Result<Arc<dyn FoundGpu>, String>>;

    /// GPUs that the indexes of `device` name; the best GPU if it has no index.
    fn named(&self, device: Device) -> BoxFuture<'_, Result<Arc<dyn FoundGpu>, Error>>;

    /// GPUs of this machine; the reason if none can be listed.
    fn list(&self) -> BoxFuture<'_, Result<Vec<GpuInfo>, String>>;
}

/// Chosen GPU, or group of GPUs, that is not open.
pub(super) trait FoundGpu: Debug + Send + Sync {
    /// Device of this index.
    fn device(&self) -> Device;

    /// Name and properties.
    fn describe(&self) -> String;

    /// Name.
    fn name(&self) -> &str;

    /// Bytes that no program uses; all bytes if only the total is known.
    fn memory_bytes(&self) -> Option<u64>;

    /// Opens the GPU.
    fn open(&self) -> BoxFuture<'_, Result<OpenGpu, Error>>;
}

/// Open GPU.
pub(super) struct OpenGpu {
    pub(super) device: stonechat_nn::Device,
    /// Cache file of its compiled kernels.
    pub(super) kernels: Option<Arc<dyn KernelFile>>,
}

/// File of compiled kernels; also saved when it is dropped.
pub(super) trait KernelFile: Debug + Send + Sync {
    /// Writes the kernels compiled so far. Errors are ignored.
    fn save(&self);
}

/// GPU of `stonechat devices`.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GpuInfo {
    /// Index in [`Device`].
    pub index: usize,
    /// Name.
    pub name: String,
    /// Generation or API and driver, as a list.
    pub identity: String,
    /// Memory and features of its kernels, as a list.
    pub features: String,
    /// All properties as an object.
    pub json: serde_json::Value,
}
