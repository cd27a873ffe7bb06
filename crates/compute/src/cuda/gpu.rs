//! An open GPU: context, stream, kernels, faults.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::CString;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cudarc::driver::sys::{
    self, CUcontext, CUfunction, CUfunction_attribute, CUmodule, CUstream, CUstream_flags,
};

use super::archive::{Archive, Target};
use super::call::check;
use super::counters::{AtomicCounters, Counters};
use super::device::CudaDevice;
use crate::kernel_times::{KernelTime, Profile};
use crate::{Error, Result};

/// An open GPU. Clones share it.
#[derive(Clone)]
pub struct Gpu(Arc<Shared>);

pub(super) struct Shared {
    device: CudaDevice,
    context: CUcontext,
    stream: CUstream,
    has_dependent_launch: bool,
    modules: Mutex<HashMap<&'static str, Module>>,
    /// Unpacked archives, by address.
    archives: Mutex<HashMap<usize, HashMap<String, Vec<u8>>>>,
    fault: Mutex<Option<String>>,
    pub(super) counters: AtomicCounters,
    pub(super) profile: Profile,
}

struct Module {
    raw: CUmodule,
    kernels: HashMap<&'static str, Kernel>,
}

// SAFETY: handles of the driver may be used by any thread that makes the context current.
unsafe impl Send for Shared {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Shared {}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Gpu").field(&self.0.device).finish()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the last user of the stream, the modules and the context; errors of a failed context change nothing.
        unsafe {
            if sys::cuCtxSetCurrent(self.context) == sys::CUresult::CUDA_SUCCESS {
                let _ = sys::cuStreamSynchronize(self.stream);
                let modules = self.modules.get_mut().unwrap_or_else(PoisonError::into_inner);
                for module in modules.values() {
                    let _ = sys::cuModuleUnload(module.raw);
                }
                let _ = sys::cuStreamDestroy_v2(self.stream);
            }
            let _ = sys::cuDevicePrimaryCtxRelease_v2(self.device.raw);
        }
    }
}

/// A kernel.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    pub(super) raw: CUfunction,
    /// Module and name, for profiles.
    pub(super) module: &'static str,
    pub(super) name: &'static str,
}

// SAFETY: as of `Shared`. Kernels live as long as the GPU.
unsafe impl Send for Kernel {}
// SAFETY: a handle without state of its own.
unsafe impl Sync for Kernel {}

impl Gpu {
    /// Opens a device. `STONECHAT_CUDA_PDL=0` turns dependent launches off.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn open(device: &CudaDevice) -> Result<Self> {
        Self::open_with(device, device.uses_dependent_launch()?)
    }

    /// Opens a device, with or without dependent launches.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn open_with(device: &CudaDevice, dependent_launch: bool) -> Result<Self> {
        let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the driver is initialized, since it listed the device; the functions write handles.
        unsafe {
            check(sys::cuDevicePrimaryCtxRetain(&raw mut context, device.raw))?;
            let opened = check(sys::cuCtxSetCurrent(context))
                .and_then(|()| check(sys::cuStreamCreate(&raw mut stream, flags)));
            if let Err(error) = opened {
                let _ = sys::cuDevicePrimaryCtxRelease_v2(device.raw);
                return Err(error);
            }
        }
        Ok(Self(Arc::new(Shared {
            has_dependent_launch: dependent_launch && device.has_dependent_launch(),
            device: device.clone(),
            context,
            stream,
            modules: Mutex::default(),
            archives: Mutex::default(),
            fault: Mutex::default(),
            counters: AtomicCounters::default(),
            profile: Profile::default(),
        })))
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        &self.0.device
    }

    /// Whether kernels start before the one before them has ended.
    #[must_use]
    pub fn has_dependent_launch(&self) -> bool {
        self.0.has_dependent_launch
    }

    /// Counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.0.counters.snapshot()
    }

    /// Adds the time from the start of a step to its submission.
    pub fn count_host_time(&self, time: Duration) {
        self.0.counters.host_us.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
    }

    pub(super) fn count(&self, counter: impl Fn(&AtomicCounters) -> &AtomicU64) {
        counter(&self.0.counters).fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.0
    }

    pub(super) fn stream(&self) -> CUstream {
        self.0.stream
    }

    pub(super) fn context(&self) -> CUcontext {
        self.0.context
    }

    /// Makes the context that of the calling thread.
    pub(super) fn enter(&self) -> Result<()> {
        // SAFETY: the context lives as long as `self`.
        check(unsafe { sys::cuCtxSetCurrent(self.0.context) })
    }

    /// Starts to measure kernels.
    pub fn start_profile(&self) {
        self.0.profile.set(true);
    }

    /// Takes the times since the last call, longest first.
    #[must_use]
    pub fn take_profile(&self) -> Vec<KernelTime> {
        self.0.profile.take()
    }

    /// Remembers an error of a step, for the next [`check`](Self::check).
    pub fn fault(&self, message: String) {
        let mut fault = self.0.fault.lock().unwrap_or_else(PoisonError::into_inner);
        fault.get_or_insert(message);
    }

    /// The first error since the last check, if there is one.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn check(&self) -> Result<()> {
        let fault = self.0.fault.lock().unwrap_or_else(PoisonError::into_inner).take();
        fault.map_or(Ok(()), |message| Err(Error::Device { message }))
    }

    /// Waits for all work.
    ///
    /// # Errors
    /// If the device failed.
    pub fn synchronize(&self) -> Result<()> {
        self.enter()?;
        // SAFETY: the stream lives as long as `self`.
        check(unsafe { sys::cuStreamSynchronize(self.0.stream) })
    }

    /// The code of an archive that the device runs.
    ///
    /// # Errors
    /// [`Error::NoCuda`] if there is none.
    pub fn target(&self, archive: &Archive) -> Result<Target> {
        let (major, minor) = self.0.device.capability;
        let reason = || {
            let name = &self.0.device.name;
            format!("{name} has compute capability {major}.{minor}, expected 7.5 or newer")
        };
        archive.target((major, minor)).ok_or_else(|| Error::NoCuda { reason: reason() })
    }

    /// A kernel of a module, which is loaded first if it is not yet. `shared_bytes`: dynamic shared memory of its launches.
    ///
    /// # Errors
    /// If the driver refuses the code.
    ///
    /// # Panics
    /// If there is no such module or kernel.
    pub fn kernel(
        &self,
        archive: &'static Archive,
        module: &'static str,
        name: &'static str,
        shared_bytes: usize,
    ) -> Result<Kernel> {
        let mut modules = self.0.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if !modules.contains_key(module) {
            self.enter()?;
            let mut archives = self.0.archives.lock().unwrap_or_else(PoisonError::into_inner);
            let target = self.target(archive)?;
            let address = std::ptr::from_ref(archive).addr();
            let archive = match archives.entry(address) {
                Entry::Occupied(entry) => entry.into_mut(),
                Entry::Vacant(entry) => entry.insert(archive.modules(target)?),
            };
            let code = archive.remove(module).unwrap_or_else(|| panic!("no module `{module}`"));
            let mut raw = std::ptr::null_mut();
            // SAFETY: a cubin, or PTX with a NUL.
            check(unsafe { sys::cuModuleLoadData(&raw mut raw, code.as_ptr().cast()) })?;
            self.count(|counters| &counters.modules);
            modules.insert(module, Module { raw, kernels: HashMap::new() });
        }
        let loaded = modules.get_mut(module).expect("a module");
        if let Some(kernel) = loaded.kernels.get(name) {
            return Ok(*kernel);
        }
        self.enter()?;
        let text = CString::new(name).expect("a name");
        let mut raw = std::ptr::null_mut();
        // SAFETY: the module is loaded; the name ends with a NUL.
        let found =
            check(unsafe { sys::cuModuleGetFunction(&raw mut raw, loaded.raw, text.as_ptr()) });
        assert!(found.is_ok(), "no kernel `{name}`: {found:?}");
        if shared_bytes > 48 << 10 {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: a loaded function.
            check(unsafe { sys::cuFuncSetAttribute(raw, attribute, shared_bytes as i32) })?;
        }
        let kernel = Kernel { raw, module, name };
        loaded.kernels.insert(name, kernel);
        Ok(kernel)
    }
}
