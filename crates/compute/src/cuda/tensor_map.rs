//! Matrices whose boxes kernels copy to shared memory.

use bytemuck::{Pod, Zeroable};
use cudarc::driver::sys::{
    self, CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
    CUtensorMapL2promotion, CUtensorMapSwizzle,
};

use super::call::check;
use super::gpu::Gpu;
use super::ops::OPERAND_COLUMNS;
use crate::{Error, Result};

/// A matrix of f16 in memory and the size of its boxes, in the encoding of the driver. A parameter of kernels at a multiple of 64
/// bytes.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub struct TensorMap([u64; 16]);

impl TensorMap {
    /// A matrix of `rows` times `columns` values at an address, packed, with boxes of `box_rows` rows and [`OPERAND_COLUMNS`] columns:
    /// rows of 128 bytes, whose 16-byte parts are exchanged by row % 8 in shared memory.
    ///
    /// # Errors
    /// If the driver refuses: an address or rows that are no multiple of 16 bytes, more than 256 rows a box.
    pub fn new(gpu: &Gpu, address: u64, shape: [usize; 2], box_rows: usize) -> Result<Self> {
        gpu.enter()?;
        let [rows, columns] = shape;
        if !gpu.device().limits.has_tensor_maps {
            let message = format!("{} has no tensor maps", gpu.device().name);
            return Err(Error::Device { message });
        }
        if gpu.is_planned() {
            return Ok(Self::zeroed());
        }
        let mut map = CUtensorMap { opaque: [0; 16] };
        // SAFETY: the driver reads arrays of two sizes, one stride, two box sizes and two steps, and writes the map.
        check(unsafe {
            sys::cuTensorMapEncodeTiled(
                &raw mut map,
                CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                2,
                address as *mut _,
                [columns as u64, rows as u64].as_ptr(),
                [2 * columns as u64].as_ptr(),
                [OPERAND_COLUMNS as u32, box_rows as u32].as_ptr(),
                [1u32, 1].as_ptr(),
                CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        })?;
        Ok(Self(map.opaque))
    }
}
