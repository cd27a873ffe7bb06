//! A GPU as a device.

use std::sync::Arc;
use std::time::Duration;

use stonechat_compute::DType;
use stonechat_compute::op::{Weight, WeightInfo, WeightLayout};
use stonechat_compute::wgpu::{Adapter, Counters, Gpu, GpuBuffer, Variant};
use stonechat_quant::wgpu::GpuMatrix;

use super::capabilities::capabilities;
use super::executable::GpuExecutable;
use super::weights::{GpuWeight, NAME, allocation_error};
use crate::device::{DeviceApi, Executable, HostTask};
use crate::fuse::Capabilities;
use crate::gpu::Conversions;
use crate::host_threads::HostThreads;
use crate::program::{Counts, Program};
use crate::{BoxFuture, Error, LoadStats, MatrixSource, OpTime};

/// An open GPU. Clones share it.
#[derive(Debug, Clone)]
pub struct Wgpu {
    gpu: Gpu,
    capabilities: Arc<Capabilities>,
    conversions: Arc<Conversions>,
    host_threads: HostThreads,
}

impl Wgpu {
    /// Opens an adapter; `variant` forces a kernel variant and turns cooperative matrices off.
    ///
    /// # Errors
    /// If the driver refuses, or the adapter lacks what `variant` needs.
    pub async fn open(adapter: &Adapter, variant: Option<Variant>) -> Result<Self, Error> {
        let gpu = Gpu::open(adapter, variant).await?;
        Ok(Self {
            capabilities: Arc::new(capabilities(&gpu)),
            gpu,
            conversions: Arc::default(),
            host_threads: HostThreads::default(),
        })
    }

    /// The open device.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Counters of the device.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.gpu.counters()
    }
}

impl DeviceApi for Wgpu {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> String {
        let adapter = self.gpu.adapter();
        let mut text = format!(
            "wgpu {} ({}), {} kernels",
            adapter.name,
            adapter.api,
            self.gpu.variant().name()
        );
        if let Some(matrices) = self.gpu.matrices() {
            text += &format!(", cooperative matrices of {0}x{0}", matrices.side);
        }
        text + &self.conversions.to_string()
    }

    fn load_stats(&self) -> LoadStats {
        let Counters { pipelines, compiling_us, .. } = self.counters();
        let compile_time = Duration::from_micros(compiling_us);
        LoadStats { compiled_kernels: pipelines, compile_time, ..LoadStats::default() }
    }

    fn total_memory_bytes(&self) -> Option<u64> {
        self.gpu.adapter().total_memory_bytes
    }

    fn stored_dtype(&self, dtype: DType) -> DType {
        GpuMatrix::device_dtype(dtype)
    }

    fn run_on_host(&self, tasks: &mut [HostTask<'_>]) {
        self.host_threads.run(tasks);
    }

    fn load_matrix(&self, source: MatrixSource<'_>) -> Result<Weight, Error> {
        source.check(NAME)?;
        let MatrixSource { rows, cols, dtype, bytes, .. } = source;
        self.conversions.count(dtype, self.stored_dtype(dtype));
        let matrix = GpuMatrix::load(&self.gpu, dtype, (rows, cols), bytes);
        let matrix = matrix.map_err(allocation_error)?;
        let layout = matrix.slice_rows().map_or(WeightLayout::Packed, WeightLayout::Slices);
        let info = WeightInfo { dtype, rows, cols, layout };
        Ok(Weight::new(info, Arc::new(GpuWeight::Matrix(matrix))))
    }

    fn load_values(&self, values: &[f32]) -> Result<Weight, Error> {
        let buffer = GpuBuffer::new(&self.gpu, size_of_val(values)).map_err(allocation_error)?;
        self.gpu.upload(&buffer, 0, bytemuck::cast_slice(values))?;
        Ok(Weight::new(WeightInfo::values(values.len()), Arc::new(GpuWeight::Values(buffer))))
    }

    fn check_allocations(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(self.gpu.check_allocations().await?) })
    }

    fn start_profile(&self) -> bool {
        self.gpu.start_profile()
    }

    fn take_profile(&self) -> Vec<OpTime> {
        self.gpu.take_profile().into_iter().map(OpTime::from).collect()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::clone(&self.capabilities)
    }

    fn compile_fused(&self, program: &Program, max: &Counts) -> Result<Box<dyn Executable>, Error> {
        Ok(Box::new(GpuExecutable::new(&self.gpu, &self.capabilities, program, max)?))
    }
}
