//! The f64 oracle without fusion.

use stonechat_compute::DType;
use stonechat_nn::op::Weight;
use stonechat_nn::{
    Capabilities, Counts, Device, DeviceApi, Error, Executable, HostTask, LoadStats, MatrixSource,
    Program,
};

use crate::Reference;

/// The f64 oracle as a device that fuses no ops: it runs programs as they were recorded.
#[derive(Debug)]
pub struct Unfused(Device);

impl Unfused {
    /// The device.
    #[must_use]
    pub fn device() -> Device {
        Device::new(Self(Reference.into()))
    }
}

impl DeviceApi for Unfused {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn describe(&self) -> String {
        format!("{} without fusion", self.0.describe())
    }

    fn load_stats(&self) -> LoadStats {
        self.0.load_stats()
    }

    fn total_memory_bytes(&self) -> Option<u64> {
        self.0.total_memory_bytes()
    }

    fn stored_dtype(&self, dtype: DType) -> DType {
        self.0.stored_dtype(dtype)
    }

    fn divide(&self, n: usize) -> Result<Vec<Device>, Error> {
        Ok(self.0.divide(n)?.into_iter().map(|device| Device::new(Self(device))).collect())
    }

    fn run_on_host(&self, tasks: &mut [HostTask<'_>]) {
        self.0.run_on_host(tasks);
    }

    fn load_matrix(&self, source: MatrixSource<'_>) -> Result<Weight, Error> {
        self.0.load_matrix(source)
    }

    fn load_values(&self, values: &[f32]) -> Result<Weight, Error> {
        self.0.load_values(values)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::none()
    }

    fn compile_fused(&self, program: &Program, max: &Counts) -> Result<Box<dyn Executable>, Error> {
        self.0.compile_fused(program, max)
    }
}
