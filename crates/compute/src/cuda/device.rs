//! The NVIDIA GPUs of this machine.

use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute};

use super::ARCHIVE;
use super::archive::{Archive, Target};
use super::call::check;
use super::limits::Limits;
use crate::{Error, Result, config};

/// Oldest supported driver, as its CUDA version: branch 525, the first to load cubins of CUDA 12.
const MIN_DRIVER: u32 = 12_000;

/// The loaded driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Driver {
    /// Newest CUDA version that it supports, `1000 * major + 10 * minor`.
    pub cuda_version: u32,
}

impl Driver {
    /// Loads the driver, once.
    ///
    /// # Errors
    /// [`Error::NoCuda`] if there is none, or it is too old.
    pub fn load() -> Result<Self> {
        static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();
        DRIVER.get_or_init(Self::load_once).clone()
    }

    fn load_once() -> Result<Self> {
        let no_cuda = |reason: String| Error::NoCuda { reason };
        // SAFETY: loads the driver's library, whose initializers have no preconditions.
        if !unsafe { sys::is_culib_present() } {
            return Err(no_cuda("no NVIDIA driver".to_owned()));
        }
        let mut version = 0;
        // SAFETY: the library was found; the function writes the version.
        check(unsafe { sys::cuDriverGetVersion(&raw mut version) })?;
        let cuda_version = u32::try_from(version).unwrap_or(0);
        if cuda_version < MIN_DRIVER {
            return Err(no_cuda(format!(
                "the NVIDIA driver is of CUDA {}.{}, expected 12.0 (driver 525) or newer",
                cuda_version / 1000,
                cuda_version % 1000 / 10
            )));
        }
        // SAFETY: the first call of the driver.
        check(unsafe { sys::cuInit(0) }).map_err(|error| no_cuda(error.to_string()))?;
        Ok(Self { cuda_version })
    }
}

/// A GPU that can be opened, see [`Gpu::open`](super::Gpu::open).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaDevice {
    /// Position in the list, the `N` of `cuda:N`.
    pub index: usize,
    /// Name as the driver reports it.
    pub name: String,
    /// Compute capability: major, minor.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub n_multiprocessors: u32,
    /// Memory in bytes.
    pub total_memory_bytes: u64,
    /// Limits of launches: lower than the device's own with `STONECHAT_CUDA_ARCH`.
    pub limits: Limits,
    /// Newest CUDA version of the driver.
    pub driver: Driver,
    pub(super) raw: CUdevice,
}

impl CudaDevice {
    /// Whether it runs kernels with wgmma: Hopper.
    #[must_use]
    pub fn has_warpgroups(&self) -> bool {
        self.limits.has_warpgroups
    }

    /// The code of an archive that it runs; `None` if it is too old.
    #[must_use]
    pub fn target(&self, archive: &Archive) -> Option<Target> {
        if self.limits.capability == self.capability {
            archive.target(self.capability)
        } else {
            archive.limited_target(self.capability, self.limits.capability)
        }
    }

    /// A planned device: no hardware, launches are only checked.
    pub(super) fn planned(limits: Limits) -> Self {
        Self {
            index: 0,
            name: format!("a planned device {}.{}", limits.capability.0, limits.capability.1),
            capability: limits.capability,
            n_multiprocessors: 100,
            total_memory_bytes: 0,
            limits,
            driver: Driver { cuda_version: 13_000 },
            raw: 0,
        }
    }

    fn new(index: usize, driver: Driver) -> Result<Self> {
        let ordinal = i32::try_from(index).expect("fewer devices than that");
        let mut raw = 0;
        // SAFETY: the driver is initialized, as below; the functions write what they are asked for.
        check(unsafe { sys::cuDeviceGet(&raw mut raw, ordinal) })?;
        let mut name = [0u8; 256];
        // SAFETY: writes at most the length of `name`, with a NUL.
        check(unsafe { sys::cuDeviceGetName(name.as_mut_ptr().cast(), 256, raw) })?;
        let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        let mut total = 0;
        // SAFETY: writes the size.
        check(unsafe { sys::cuDeviceTotalMem_v2(&raw mut total, raw) })?;
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: writes the value.
            check(unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, raw) })?;
            Ok::<_, Error>(value as u32)
        };
        use CUdevice_attribute as A;
        let capability = (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let size = |number| attribute(number).map(|value| value as usize);
        let own = Limits {
            block_shared_bytes: size(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            shared_bytes: size(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
            registers: size(A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK)?,
            block_threads: size(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            threads: size(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
            ..Limits::of(capability)
        };
        let limits = Limits::of_variable()?.map_or(own, |lower| own.lowered(lower));
        Ok(Self {
            index,
            name: String::from_utf8_lossy(&name[..len]).into_owned(),
            capability,
            n_multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            total_memory_bytes: total as u64,
            limits,
            driver,
            raw,
        })
    }

    /// Whether its kernels support programmatic dependent launch.
    #[must_use]
    pub fn has_dependent_launch(&self) -> bool {
        let waits = self.target(&ARCHIVE).is_some_and(|target| target.capability.0 >= 9);
        waits && self.driver.cuda_version >= 12_030
    }

    /// As [`has_dependent_launch`](Self::has_dependent_launch), unless `STONECHAT_CUDA_PDL=0`.
    ///
    /// # Errors
    /// [`Error::Config`] for another value than 0 or 1.
    pub fn uses_dependent_launch(&self) -> Result<bool> {
        let name = "STONECHAT_CUDA_PDL";
        match config::variable(name).as_deref() {
            Some("0") => Ok(false),
            Some("1") | None => Ok(self.has_dependent_launch()),
            Some(got) => {
                let (expected, got) = ("0 or 1".to_owned(), got.to_owned());
                Err(Error::Config { name, expected, got })
            }
        }
    }
}

/// The GPUs of this machine.
///
/// # Errors
/// [`Error::NoCuda`] without a usable driver.
pub fn devices() -> Result<Vec<CudaDevice>> {
    let driver = Driver::load()?;
    let mut n = 0;
    // SAFETY: writes the number.
    check(unsafe { sys::cuDeviceGetCount(&raw mut n) })?;
    (0..n as usize).map(|index| CudaDevice::new(index, driver)).collect()
}
