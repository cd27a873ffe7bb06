//! The CPU as a device.
//!
//! | file | holds |
//! |---|---|
//! | `cpu/capabilities.rs` | ops and types that fusion may make |
//! | `cpu/executable.rs` | a compiled program: slots, pools, one kernel call an op |
//! | `cpu/products.rs` | products with weights of any storage |
//! | `cpu/logits.rs` | filter, top-k and log-sum-exp of rows of logits |
//! | `cpu/expert_mlp.rs` | gated MLPs of a mixture of experts, tokens grouped by expert |
//! | `cpu/weights.rs` | [`CpuMatrix`]: loading, repacking, row ranges |
//! | `cpu/profile.rs` | time per op |
//! | `cpu/turns.rs` | turns of programs on the same threads |

mod capabilities;
mod executable;
mod expert_mlp;
mod logits;
mod products;
mod profile;
mod turns;
mod weights;

use std::sync::{Arc, Mutex, PoisonError};

use stonechat_compute::op::{Weight, WeightInfo, WeightLayout};
use stonechat_compute::{AlignedVec, DType, Isa, ThreadTeam};

use self::capabilities::capabilities;
use self::executable::{CpuExecutable, CpuWeight};
pub use self::profile::OpTime;
use self::profile::Profile;
use self::turns::Turns;
pub use self::weights::Repack;
use crate::device::{Counts, Device, DeviceApi, Executable, HostTask};
use crate::fuse::Capabilities;
use crate::program::Program;
use crate::tasks::for_each;
use crate::{Error, LoadStats, MatrixSource};

/// An instruction set and a thread team.
#[derive(Debug, Clone)]
pub struct Cpu {
    device: stonechat_compute::Cpu,
    repack: Repack,
    /// Shared by clones and by the parts of [`DeviceApi::divide`].
    load_stats: Arc<Mutex<LoadStats>>,
    /// Time per op, if enabled.
    profile: Option<Arc<Profile>>,
    /// Shared by clones.
    turns: Arc<Turns>,
    /// Whether programs let others go first.
    is_background: bool,
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
        Self {
            device,
            repack: Repack::default(),
            load_stats: Arc::default(),
            profile: None,
            turns: Arc::default(),
            is_background: false,
        }
    }

    /// A CPU for another model on the same threads: steps of both take turns. Those of a CPU in the background let a step that
    /// waits go first after some milliseconds, others run as a whole.
    #[must_use]
    pub fn for_another_model(&self, is_background: bool) -> Self {
        Self { load_stats: Arc::default(), is_background, ..self.clone() }
    }

    /// Sets whether weights are repacked when they are loaded.
    #[must_use]
    pub fn with_repack(self, repack: Repack) -> Self {
        Self { repack, ..self }
    }

    /// The instruction set in use.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.device.isa
    }

    /// The instruction set and the threads.
    #[must_use]
    pub fn device(&self) -> &stonechat_compute::Cpu {
        &self.device
    }
}

impl From<Cpu> for Device {
    fn from(cpu: Cpu) -> Self {
        Self::new(cpu)
    }
}

impl DeviceApi for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn describe(&self) -> String {
        let (isa, n_threads) = (self.device.isa.name(), self.device.threads.n_threads());
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
        self.profile.is_some()
    }

    fn take_profile(&self) -> Vec<OpTime> {
        Self::take_profile(self)
    }

    fn divide(&self, n: usize) -> Result<Vec<Device>, Error> {
        let n_threads = self.device.threads.n_threads();
        let n = n.clamp(1, n_threads);
        let share = |i: usize| n_threads * (i + 1) / n - n_threads * i / n;
        let divided = |i: usize| {
            let threads = ThreadTeam::new(share(i))?;
            let device = stonechat_compute::Cpu { isa: self.device.isa, threads };
            Ok(Device::new(Self { device, turns: Arc::default(), ..self.clone() }))
        };
        (0..n).map(divided).collect()
    }

    fn run_on_host(&self, tasks: &mut [HostTask<'_>]) {
        for_each(&self.device.threads, tasks.len(), tasks.iter_mut(), |task| task());
    }

    fn load_matrix(&self, source: MatrixSource<'_>) -> Result<Weight, Error> {
        let MatrixSource { rows, cols, dtype, .. } = source;
        let matrix = self.load(source)?;
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
        Ok(Box::new(CpuExecutable::new(self, program, max)?))
    }
}
