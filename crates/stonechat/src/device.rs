//! Device of a model: by name, or chosen. Programs that load models themselves open it here.
//!
//! | file | holds |
//! |---|---|
//! | `name`, `gpu_ranks`, `gpu_layers` | [`Device`], [`GpuRanks`], [`GpuLayers`]: what options name |
//! | `registry` | the table of GPU backends: parsing, listing, the order of [`Device::Auto`] |
//! | `gpu` | the traits of a backend |
//! | `cuda`, `wgpu` | the backends (features `cuda`, `wgpu`) |
//! | `choose` | [`ChosenDevice`]: choice, memory, fallbacks |
//! | `open` | [`OpenDevice`]: loading models |
//!
//! A new backend takes a variant of [`Device`], a file, a row in `registry` and a feature.

mod choose;
#[cfg(feature = "cuda")]
mod cuda;
mod gpu;
mod gpu_layers;
mod gpu_ranks;
mod name;
mod open;
mod registry;
#[cfg(test)]
mod tests;
#[cfg(feature = "wgpu")]
mod wgpu;

pub use choose::{ChosenDevice, DeviceNeeds};
pub use gpu::GpuInfo;
pub use gpu_layers::GpuLayers;
pub use gpu_ranks::GpuRanks;
pub use name::{Device, ParseError};
pub use open::OpenDevice;
#[cfg(not(target_arch = "wasm32"))]
pub use registry::list_gpus;
pub use registry::{GpuList, list_gpus_async};
