//! Weights as handles that do not depend on the device.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::DType;

/// Weights on a device: a matrix or values, in the device's own type. Clones share them.
#[derive(Clone)]
pub struct Weight {
    info: WeightInfo,
    data: Arc<dyn Any + Send + Sync>,
}

/// Type and shape of a [`Weight`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightInfo {
    /// Type of the stored values in the file; f32 for values made by the host.
    pub dtype: DType,
    /// Output features `N` of a matrix; 1 for values.
    pub rows: usize,
    /// Input features `K` of a matrix; number of values.
    pub cols: usize,
    /// Order in memory.
    pub layout: WeightLayout,
}

/// Order of weights in the memory of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightLayout {
    /// Rows one after the other, as in the file.
    Rows,
    /// Repacked for the device's kernels.
    Packed,
    /// Repacked, and split into buffers of this many rows.
    Slices(usize),
}

impl WeightInfo {
    /// `n` values made by the host.
    #[must_use]
    pub const fn values(n: usize) -> Self {
        Self { dtype: DType::F32, rows: 1, cols: n, layout: WeightLayout::Rows }
    }
}

impl Weight {
    /// Weights of a device.
    #[must_use]
    pub fn new(info: WeightInfo, data: Arc<dyn Any + Send + Sync>) -> Self {
        Self { info, data }
    }

    /// Type and shape.
    #[must_use]
    pub fn info(&self) -> WeightInfo {
        self.info
    }

    /// The device's own type; `None` if the weights are of another device.
    #[must_use]
    pub fn data<T: Any>(&self) -> Option<&T> {
        self.data.downcast_ref()
    }

    /// Whether both are the same weights in memory.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.data, &other.data)
    }
}

impl fmt::Debug for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WeightInfo { dtype, rows, cols, .. } = self.info;
        write!(f, "{dtype}[{rows}, {cols}]")
    }
}
