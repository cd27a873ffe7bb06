//! The GPU in a binary without one.

use stonechat::Device;

/// Device of a caller that asks for the GPU.
pub(crate) const DEVICE: Option<Device> = None;
