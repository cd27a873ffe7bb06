//! The CPU as a device.

use std::sync::{Arc, Mutex, PoisonError};

use stonechat_compute::op::{Weight, WeightInfo, WeightLayout};
use stonechat_compute::{AlignedVec, DType, Isa, ThreadTeam};

use super::capabilities::capabilities;
use super::executable::CpuExecutable;
use super::host::Host;
use super::weights::{CpuWeight, Repack, load, matmul_kernel};
use crate::device::{Device, DeviceApi, Executable, HostTask, OpTime};
use crate::fuse::Capabilities;
use crate::program::{Counts, Program};
use crate::tasks::for_each;
use crate::{Error, LoadStats, MatrixSource};

/// An instruction set and a thread team.
#[derive(Debug, Clone)]
pub struct Cpu {
    host: Host,
    repack: Repack,
    /// Shared by clones and by the parts of [`Device::divide`].
    load_stats: Arc<Mutex<LoadStats>>,
}

impl Cpu {
    /// The best instruction set of this machine and `n_threads` threads (0: one per core).
    ///
    /// # Errors
    /// If `STONECHAT_ISA` names no instruction set or threads cannot be started.
    pub fn new(n_threads: usize) -> Result<Self, Error> {
        Ok(Self::with_device(stonechat_compute::Cpu::new(n_threads)?))
    }

    /// The given instruction set and thread team.
    #[must_use]
    pub fn with_device(device: stonechat_compute::Cpu) -> Self {
        Self { host: Host::new(device), repack: Repack::default(), load_stats: Arc::default() }
    }

    /// A CPU for another model on the same threads: steps of both take time slices. Those of a CPU in the background let a step that
    /// waits go first after some milliseconds, others run as a whole.
    #[must_use]
    pub fn for_another_model(&self, is_background: bool) -> Self {
        let host = Host { is_background, ..self.host.clone() };
        Self { host, load_stats: Arc::default(), ..self.clone() }
    }

    /// Sets whether weights are repacked when they are loaded.
    #[must_use]
    pub fn with_repack(self, repack: Repack) -> Self {
        Self { repack, ..self }
    }

    /// Enables or disables the profile of this backend and its later clones. Timing costs an op about a microsecond.
    #[must_use]
    pub fn with_profile(self, is_on: bool) -> Self {
        let profile = is_on.then(Arc::default);
        Self { host: Host { profile, ..self.host }, ..self }
    }

    /// Name of the matmul kernel for `rows` rows of activations and `w`, for benchmarks.
    ///
    /// # Panics
    /// If `w` is no matrix of the CPU.
    #[must_use]
    pub fn matmul_kernel(&self, w: &Weight, rows: usize) -> String {
        matmul_kernel(self.isa(), w, rows)
    }

    /// The instruction set in use.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.host.device.isa
    }

    /// The instruction set and the threads.
    #[must_use]
    pub fn device(&self) -> &stonechat_compute::Cpu {
        &self.host.device
    }
}

impl DeviceApi for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn describe(&self) -> String {
        let (isa, n_threads) = (self.host.device.isa.name(), self.host.device.threads.n_threads());
        let layout = match self.repack {
            Repack::On => "",
            Repack::Off => ", weights as stored",
        };
        format!("cpu {isa}, {n_threads} threads{layout}")
    }

    fn load_stats(&self) -> LoadStats {
        *self.load_stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn total_memory_bytes(&self) -> Option<u64> {
        None
    }

    fn stored_dtype(&self, dtype: DType) -> DType {
        dtype
    }

    /// Whether it was opened [with a profile](Self::with_profile).
    fn start_profile(&self) -> bool {
        self.host.profile.is_some()
    }

    fn take_profile(&self) -> Vec<OpTime> {
        self.host.profile.as_ref().map_or_else(Vec::new, |profile| profile.take())
    }

    fn parts(&self, n: usize) -> Result<Option<Vec<Device>>, Error> {
        let n_threads = self.host.device.threads.n_threads();
        let n = n.clamp(1, n_threads);
        let share = |i: usize| n_threads * (i + 1) / n - n_threads * i / n;
        let divided = |i: usize| {
            let threads = ThreadTeam::new(share(i))?;
            let device = stonechat_compute::Cpu { isa: self.host.device.isa, threads };
            let host = Host { device, time_slices: Arc::default(), ..self.host.clone() };
            Ok(Device::new(Self { host, ..self.clone() }))
        };
        (0..n).map(divided).collect::<Result<_, _>>().map(Some)
    }

    fn foreground(&self) -> Option<Device> {
        Some(Device::new(self.for_another_model(false)))
    }

    fn run_on_host(&self, tasks: &mut [HostTask<'_>]) {
        for_each(&self.host.device.threads, tasks.len(), tasks.iter_mut(), |task| task());
    }

    fn load_matrix(&self, source: MatrixSource<'_>) -> Result<Weight, Error> {
        let MatrixSource { rows, cols, dtype, .. } = source;
        let matrix = load(&self.host.device, self.repack, &self.load_stats, source)?;
        let layout = if matrix.is_packed() { WeightLayout::Packed } else { WeightLayout::Rows };
        let info = WeightInfo { dtype, rows, cols, layout };
        Ok(Weight::new(info, Arc::new(CpuWeight::Matrix(matrix))))
    }

    fn load_values(&self, values: &[f32]) -> Result<Weight, Error> {
        let bytes = size_of_val(values);
        let out_of_memory = Error::OutOfMemory { bytes, backend: "cpu" };
        let mut copy = AlignedVec::try_zeroed(values.len()).ok_or(out_of_memory)?;
        copy.copy_from_slice(values);
        Ok(Weight::new(WeightInfo::values(values.len()), Arc::new(CpuWeight::Values(copy))))
    }

    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    fn compile_fused(&self, program: &Program, max: &Counts) -> Result<Box<dyn Executable>, Error> {
        Ok(Box::new(CpuExecutable::new(&self.host, program, max)?))
    }
}
