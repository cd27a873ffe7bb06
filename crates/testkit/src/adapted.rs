//! Devices with the kernels of another one, but other capabilities or errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use stonechat_compute::{DType, LogMelTables};
use stonechat_nn::op::{PoolId, Port, Weight};
use stonechat_nn::{
    BoxFuture, Capabilities, CheckedStep, Counts, Device, DeviceApi, Error, Executable, HostTask,
    InputLimits, LoadStats, LogMelKernel, MatrixSource, PortRange, Program,
};

use crate::{Reference, ReferenceLogMel};

/// A device with kernels of another one.
#[derive(Debug)]
pub struct Adapted {
    device: Device,
    fuses: bool,
    /// Maximum steps in flight seen so far (outputs enqueued, not read), if the device runs ahead.
    max_in_flight: Option<Arc<AtomicUsize>>,
    log_mel: Option<LogMelOutcome>,
    /// Bytes of memory: all, and free ones.
    memory: Option<(u64, u64)>,
}

/// Result of the log-mel kernel of [`Adapted::with_log_mel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogMelOutcome {
    /// Result of [`ReferenceLogMel`].
    Reference,
    /// An error.
    Failure,
}

impl Adapted {
    /// The f64 oracle as a device that fuses no ops: it runs programs as they were recorded.
    #[must_use]
    pub fn unfused() -> Device {
        let device = Reference.into();
        Device::new(Self { device, fuses: false, max_in_flight: None, log_mel: None, memory: None })
    }

    /// `device` as one that runs steps while the host goes on. `max_in_flight` is raised to the most steps in flight.
    #[must_use]
    pub fn running_ahead(device: impl Into<Device>, max_in_flight: &Arc<AtomicUsize>) -> Device {
        let max_in_flight = Some(Arc::clone(max_in_flight));
        Device::new(Self {
            device: device.into(),
            fuses: true,
            max_in_flight,
            log_mel: None,
            memory: None,
        })
    }

    /// `device` as one with a log-mel kernel.
    #[must_use]
    pub fn with_log_mel(device: impl Into<Device>, outcome: LogMelOutcome) -> Device {
        let (device, log_mel) = (device.into(), Some(outcome));
        Device::new(Self { device, fuses: true, max_in_flight: None, log_mel, memory: None })
    }

    /// `device` as one of `total` bytes of memory, `free` of them unused.
    #[must_use]
    pub fn with_memory(device: impl Into<Device>, total: u64, free: u64) -> Device {
        let (device, memory) = (device.into(), Some((total, free)));
        Device::new(Self { device, fuses: true, max_in_flight: None, log_mel: None, memory })
    }
}

impl DeviceApi for Adapted {
    fn name(&self) -> &'static str {
        self.device.name()
    }

    fn describe(&self) -> String {
        format!("{}, adapted", self.device.describe())
    }

    fn load_stats(&self) -> LoadStats {
        self.device.load_stats()
    }

    fn total_memory_bytes(&self) -> Option<u64> {
        self.memory.map(|(total, _)| total).or_else(|| self.device.total_memory_bytes())
    }

    fn free_memory_bytes(&self) -> Option<u64> {
        self.memory.map(|(_, free)| free).or_else(|| self.device.free_memory_bytes())
    }

    fn stored_dtype(&self, dtype: DType) -> DType {
        self.device.stored_dtype(dtype)
    }

    fn parts(&self, n: usize) -> Result<Option<Vec<Device>>, Error> {
        let &Self { fuses, log_mel, .. } = self;
        let adapted = |device| {
            let max_in_flight = self.max_in_flight.clone();
            Device::new(Self { device, fuses, max_in_flight, log_mel, memory: self.memory })
        };
        Ok(self.device.parts(n)?.map(|parts| parts.into_iter().map(adapted).collect()))
    }

    fn run_on_host(&self, tasks: &mut [HostTask<'_>]) {
        self.device.run_on_host(tasks);
    }

    fn load_matrix(&self, source: MatrixSource<'_>) -> Result<Weight, Error> {
        self.device.load_matrix(source)
    }

    fn load_values(&self, values: &[f32]) -> Result<Weight, Error> {
        self.device.load_values(values)
    }

    fn load_log_mel(
        &self,
        tables: &LogMelTables<'_>,
    ) -> Result<Option<Box<dyn LogMelKernel>>, Error> {
        let kernel = |outcome| -> Box<dyn LogMelKernel> {
            match outcome {
                LogMelOutcome::Reference => Box::new(ReferenceLogMel::new(tables)),
                LogMelOutcome::Failure => Box::new(FailingLogMel),
            }
        };
        Ok(self.log_mel.map(kernel))
    }

    fn capabilities(&self) -> Capabilities {
        if self.fuses { self.device.capabilities() } else { Capabilities::none() }
    }

    fn compile_fused(&self, program: &Program, max: &Counts) -> Result<Box<dyn Executable>, Error> {
        let executable = self.device.compile_fused(program, max)?;
        Ok(match &self.max_in_flight {
            Some(max) => {
                Box::new(RunningAhead { executable, n_in_flight: 0, max: Arc::clone(max) })
            }
            None => executable,
        })
    }
}

/// A kernel that fails.
#[derive(Debug)]
struct FailingLogMel;

impl LogMelKernel for FailingLogMel {
    fn log_powers(&self, _: &[f32], _: &mut [f32]) -> Result<f32, Error> {
        Err(stonechat_compute::Error::Device { message: "a fault".to_owned() }.into())
    }
}

/// An executable whose steps may be read after later ones ran.
#[derive(Debug)]
struct RunningAhead {
    executable: Box<dyn Executable>,
    n_in_flight: usize,
    max: Arc<AtomicUsize>,
}

impl Executable for RunningAhead {
    fn warm_up(&mut self, run: &mut dyn FnMut(&mut dyn Executable)) -> Result<(), Error> {
        self.executable.warm_up(run)
    }

    fn import(&mut self, port: Port, values: &[f32]) {
        self.executable.import(port, values);
    }

    fn async_scheduling(&self) -> bool {
        true
    }

    fn limits(&self) -> &InputLimits {
        self.executable.limits()
    }

    fn run_checked(&mut self, step: CheckedStep<'_>) {
        self.executable.run_checked(step);
    }

    fn fetch(&mut self, ranges: &[PortRange], is_last: bool) {
        self.executable.fetch(ranges, is_last);
        self.n_in_flight += usize::from(is_last);
        self.max.fetch_max(self.n_in_flight, Ordering::Relaxed);
    }

    fn collect_now(&mut self, values: &mut Vec<f32>) -> Option<Result<(), Error>> {
        let result = self.executable.collect_now(values);
        self.n_in_flight -= usize::from(result.is_some());
        result
    }

    fn collect<'a>(&'a mut self, values: &'a mut Vec<f32>) -> BoxFuture<'a, Result<(), Error>> {
        self.n_in_flight -= 1;
        self.executable.collect(values)
    }

    fn read_page<'a>(
        &'a mut self,
        pool: PoolId,
        page: u32,
        out: &'a mut Vec<u8>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.executable.read_page(pool, page, out)
    }

    fn page_bytes(&self, pool: PoolId) -> usize {
        self.executable.page_bytes(pool)
    }

    fn write_checked_page(&mut self, pool: PoolId, page: u32, bytes: &[u8]) -> Result<(), Error> {
        self.executable.write_checked_page(pool, page, bytes)
    }
}
