//! An open GPU: context, stream, kernels, faults.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::CString;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cudarc::driver::sys::{
    self, CUcontext, CUfunction, CUfunction_attribute, CUmodule, CUresult, CUstream, CUstream_flags,
};

use super::archive::{Archive, Target};
use super::call::check;
use super::code;
use super::counters::{AtomicCounters, Counters};
use super::device::CudaDevice;
use super::limits::Limits;
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
    /// Next free address of a device without hardware, see [`Gpu::planned`].
    plan: Option<AtomicU64>,
    modules: Mutex<HashMap<ModuleKey, Module>>,
    /// Unpacked archives, by address.
    archives: Mutex<HashMap<usize, HashMap<String, Vec<u8>>>>,
    fault: Mutex<Option<String>>,
    pub(super) counters: AtomicCounters,
    pub(super) profile: Profile,
}

/// Crate and name of a module.
type ModuleKey = (&'static str, &'static str);

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
        if self.plan.is_some() {
            return;
        }
        // SAFETY: the last user of the stream, the modules and the context; errors of a failed context change nothing.
        unsafe {
            if sys::cuCtxSetCurrent(self.context) == CUresult::CUDA_SUCCESS {
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
    /// Maximum dynamic shared memory of its launches, as set so far.
    pub(super) shared_bytes: usize,
    /// Maximum threads of a block.
    pub(super) max_threads: usize,
}

// SAFETY: as for `Shared`. Kernels live as long as the GPU.
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
        Ok(Self::with_handles(device.clone(), (context, stream), dependent_launch, None))
    }

    /// A device of these limits without hardware: launches are recorded and checked against the limits and the compiled kernels,
    /// copies leave memory as it is, and nothing runs. No driver is needed.
    #[must_use]
    pub fn planned(limits: Limits) -> Self {
        let handles = (std::ptr::null_mut(), std::ptr::null_mut());
        // Addresses like those of the driver.
        let plan = AtomicU64::new(1 << 32);
        Self::with_handles(CudaDevice::planned(limits), handles, true, Some(plan))
    }

    fn with_handles(
        device: CudaDevice,
        (context, stream): (CUcontext, CUstream),
        dependent_launch: bool,
        plan: Option<AtomicU64>,
    ) -> Self {
        Self(Arc::new(Shared {
            has_dependent_launch: dependent_launch && device.has_dependent_launch(),
            device,
            context,
            stream,
            plan,
            modules: Mutex::default(),
            archives: Mutex::default(),
            fault: Mutex::default(),
            counters: AtomicCounters::default(),
            profile: Profile::default(),
        }))
    }

    /// Whether the device has no hardware, see [`planned`](Self::planned).
    pub(super) fn is_planned(&self) -> bool {
        self.0.plan.is_some()
    }

    /// Allocates addresses of a planned device; `None` for others.
    pub(super) fn planned_address(&self, bytes: usize) -> Option<u64> {
        Some(self.0.plan.as_ref()?.fetch_add(bytes as u64, Ordering::Relaxed))
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &CudaDevice {
        &self.0.device
    }

    /// Whether kernels use programmatic dependent launch.
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

    /// Makes the context current in the calling thread.
    pub(super) fn enter(&self) -> Result<()> {
        if self.is_planned() {
            return Ok(());
        }
        // SAFETY: the context lives as long as `self`.
        check(unsafe { sys::cuCtxSetCurrent(self.0.context) })
    }

    /// Free device memory in bytes.
    ///
    /// # Errors
    /// If the device failed.
    pub fn free_memory_bytes(&self) -> Result<u64> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        if !self.is_planned() {
            // SAFETY: writes both sizes.
            check(unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) })?;
        }
        Ok(free as u64)
    }

    /// Turns on kernel timing.
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
        if self.is_planned() {
            return Ok(());
        }
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
            format!("{name}: expected compute capability 7.5 or newer, got {major}.{minor}")
        };
        self.0.device.target(archive).ok_or_else(|| Error::NoCuda { reason: reason() })
    }

    /// Loads a module, if it is not loaded yet: a driver may be too old for the code, or lack its compiler.
    ///
    /// # Errors
    /// If the driver refuses the code, or there is no such module.
    pub fn load_module(&self, archive: &'static Archive, module: &'static str) -> Result<()> {
        let mut modules = self.0.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Entry::Vacant(entry) = modules.entry((archive.package, module)) {
            entry.insert(self.load(archive, module)?);
        }
        Ok(())
    }

    /// A kernel of a module, which is loaded first if it is not yet. `shared_bytes`: dynamic shared memory of its launches.
    ///
    /// # Errors
    /// If the driver refuses the code, there is no such module or kernel, or blocks of the device have less shared memory.
    pub fn kernel(
        &self,
        archive: &'static Archive,
        module: &'static str,
        name: &'static str,
        shared_bytes: usize,
    ) -> Result<Kernel> {
        let limit = self.0.device.limits.block_shared_bytes;
        if shared_bytes > limit {
            return Err(too_much_shared_memory(module, name, shared_bytes, limit));
        }
        let mut modules = self.0.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let loaded = match modules.entry((archive.package, module)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(self.load(archive, module)?),
        };
        let known = loaded.kernels.get(name).copied();
        if let Some(kernel) = known.filter(|kernel| kernel.shared_bytes >= shared_bytes) {
            return Ok(kernel);
        }
        let mut kernel = match known {
            Some(kernel) => kernel,
            None if self.is_planned() => self.planned_kernel(archive, module, name)?,
            None => self.function(loaded.raw, module, name)?,
        };
        if shared_bytes > kernel.shared_bytes {
            self.raise_shared_bytes(archive, &mut kernel, shared_bytes)?;
        }
        loaded.kernels.insert(name, kernel);
        Ok(kernel)
    }

    /// Calls `read` with the code of a module.
    fn with_code<R>(
        &self,
        archive: &'static Archive,
        module: &str,
        read: impl FnOnce(&[u8], Target) -> Result<R>,
    ) -> Result<R> {
        let target = self.target(archive)?;
        let mut archives = self.0.archives.lock().unwrap_or_else(PoisonError::into_inner);
        let modules = match archives.entry(std::ptr::from_ref(archive).addr()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(archive.modules(target)?),
        };
        let missing = || no_code(format!("no module `{module}` for {}", target.name));
        read(modules.get(module).ok_or_else(missing)?, target)
    }

    /// Loads a module.
    fn load(&self, archive: &'static Archive, module: &'static str) -> Result<Module> {
        self.enter()?;
        let raw = if self.is_planned() {
            self.with_code(archive, module, |_, _| Ok(std::ptr::null_mut()))?
        } else {
            self.load_once(archive, module, |code| {
                let mut raw = std::ptr::null_mut();
                // SAFETY: a cubin, or PTX with a NUL.
                check(unsafe { sys::cuModuleLoadData(&raw mut raw, code.as_ptr().cast()) })?;
                Ok(raw)
            })?
        };
        self.count(|counters| &counters.modules);
        Ok(Module { raw, kernels: HashMap::new() })
    }

    /// Passes the code of a module to `load`, and drops the code if that succeeds: after a failure the next call finds it again.
    fn load_once(
        &self,
        archive: &'static Archive,
        module: &str,
        load: impl FnOnce(&[u8]) -> Result<CUmodule>,
    ) -> Result<CUmodule> {
        let raw = self.with_code(archive, module, |code, _| load(code))?;
        let mut archives = self.0.archives.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(modules) = archives.get_mut(&std::ptr::from_ref(archive).addr()) {
            modules.remove(module);
        }
        Ok(raw)
    }

    fn function(
        &self,
        raw_module: CUmodule,
        module: &'static str,
        name: &'static str,
    ) -> Result<Kernel> {
        self.enter()?;
        let text = CString::new(name).expect("a name");
        let mut raw = std::ptr::null_mut();
        // SAFETY: the module is loaded; the name ends with a NUL.
        match unsafe { sys::cuModuleGetFunction(&raw mut raw, raw_module, text.as_ptr()) } {
            CUresult::CUDA_ERROR_NOT_FOUND => {
                return Err(no_code(format!("no kernel `{name}` in `{module}`")));
            }
            found => check(found)?,
        }
        let max_threads = self.0.device.limits.block_threads;
        Ok(Kernel { raw, module, name, shared_bytes: 0, max_threads })
    }

    /// A kernel of a planned device, read from its code.
    fn planned_kernel(
        &self,
        archive: &'static Archive,
        module: &'static str,
        name: &'static str,
    ) -> Result<Kernel> {
        let found = self.with_code(archive, module, |code, target| {
            let found = code::kernel(code, name, target.capability);
            let missing =
                || no_code(format!("no kernel `{name}` in `{module}` of {}", target.name));
            found.ok_or_else(missing)
        })?;
        let raw = std::ptr::null_mut();
        Ok(Kernel { raw, module, name, shared_bytes: 0, max_threads: found.max_threads })
    }

    /// Lets launches of a kernel have more dynamic shared memory.
    fn raise_shared_bytes(
        &self,
        archive: &'static Archive,
        kernel: &mut Kernel,
        shared_bytes: usize,
    ) -> Result<()> {
        if self.is_planned() {
            let Kernel { module, name, .. } = *kernel;
            let of_kernel = self.with_code(archive, module, |code, target| {
                let found = code::kernel(code, name, target.capability);
                Ok(found.map_or(0, |found| found.shared_bytes))
            })?;
            let limit = self.0.device.limits.block_shared_bytes.saturating_sub(of_kernel);
            if shared_bytes > limit {
                return Err(too_much_shared_memory(module, name, shared_bytes, limit));
            }
        } else {
            self.enter()?;
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: a loaded function.
            check(unsafe { sys::cuFuncSetAttribute(kernel.raw, attribute, shared_bytes as i32) })?;
        }
        kernel.shared_bytes = shared_bytes;
        Ok(())
    }
}

fn no_code(message: String) -> Error {
    Error::Device { message }
}

fn too_much_shared_memory(module: &str, name: &str, bytes: usize, limit: usize) -> Error {
    let message = format!(
        "kernel `{name}` of `{module}`: expected at most {limit} bytes of shared memory per block, got {bytes}"
    );
    Error::Device { message }
}

#[cfg(test)]
mod tests {
    use super::Gpu;
    use crate::Error;
    use crate::cuda::{ARCHIVE, Limits};

    #[test]
    fn a_module_that_fails_to_load_can_be_loaded_again() {
        let gpu = Gpu::planned(Limits::of((8, 0)));
        let refused = |code: &[u8]| {
            assert!(!code.is_empty());
            Err(Error::OutOfMemory { bytes: code.len() })
        };
        for _ in 0..2 {
            let result = gpu.load_once(&ARCHIVE, "rows", refused);
            assert!(matches!(result, Err(Error::OutOfMemory { .. })), "{result:?}");
        }
        let loaded = |code: &[u8]| {
            assert!(!code.is_empty());
            Ok(std::ptr::null_mut())
        };
        gpu.load_once(&ARCHIVE, "rows", loaded).expect("code is kept after a failure");
        // The code of a loaded module is dropped; that of others is not.
        let result = gpu.load_once(&ARCHIVE, "rows", loaded);
        assert!(matches!(result, Err(Error::Device { .. })), "{result:?}");
        gpu.load_once(&ARCHIVE, "moe", loaded).expect("code of another module");
    }
}
