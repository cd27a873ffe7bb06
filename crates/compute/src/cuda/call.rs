//! Results of the driver's functions.

use std::ffi::CStr;

use cudarc::driver::sys::{self, CUresult};

use crate::{Error, Result};

/// Result of a call of the driver.
pub(super) fn check(result: CUresult) -> Result<()> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(Error::OutOfMemory { bytes: 0 }),
        error => Err(Error::Device { message: text(error) }),
    }
}

/// Name and description of an error.
pub(super) fn text(error: CUresult) -> String {
    let mut name = std::ptr::null();
    // SAFETY: the driver writes a pointer to a static string, or null.
    let has_name = unsafe { sys::cuGetErrorString(error, &raw mut name) } == CUresult::CUDA_SUCCESS;
    if !has_name || name.is_null() {
        return format!("CUDA error {}", error as u32);
    }
    // SAFETY: a static string of the driver.
    let name = unsafe { CStr::from_ptr(name) };
    format!("CUDA error {}: {}", error as u32, name.to_string_lossy())
}
