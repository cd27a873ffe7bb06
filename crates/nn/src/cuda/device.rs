//! An NVIDIA GPU as a device.

use std::sync::{Arc, Mutex, PoisonError};

use stonechat_compute::cuda::{ARCHIVE, Buffer, Counters, CudaDevice, Gpu, Uploads};
use stonechat_compute::op::{Weight, WeightInfo, WeightLayout};
use stonechat_compute::{DType, LogMelTables};
use stonechat_quant::cuda::CudaMatrix;

use super::capabilities::capabilities;
use super::executable::CudaExecutable;
use super::log_mel::CudaLogMel;
use super::weights::{CudaWeight, NAME, allocation_error};
use crate::device::{DeviceApi, Executable, HostTask, LogMelKernel};
use crate::fuse::Capabilities;
use crate::gpu::Conversions;
use crate::host_threads::HostThreads;
use crate::program::{Counts, Program};
use crate::{Error, MatrixSource, OpTime};

/// Rows that fill 132 multiprocessors, see `docs/notes/cuda.md`: two windows of audio. With four, activations exceed the L2 cache.
pub(super) const SATURATING_BATCH: usize = 3000;
/// Bytes of an upload at first.
const UPLOAD_BYTES: usize = 16 << 20;

/// An open NVIDIA GPU. Clones share it.
#[derive(Debug, Clone)]
pub struct Cuda {
    pub(super) gpu: Gpu,
    pub(super) capabilities: Arc<Capabilities>,
    /// Memory of uploads, from the first weight on.
    uploads: Arc<Mutex<Option<Uploads>>>,
    conversions: Arc<Conversions>,
    host_threads: HostThreads,
}

impl Cuda {
    /// Opens a device.
    ///
    /// # Errors
    /// If the driver refuses, or the device is too old for the kernels.
    pub fn open(device: &CudaDevice) -> Result<Self, Error> {
        Self::with_gpu(Gpu::open(device)?)
    }

    /// Opens a device, with or without dependent launches.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(device: &CudaDevice, dependent_launch: bool) -> Result<Self, Error> {
        Self::with_gpu(Gpu::open_with(device, dependent_launch)?)
    }

    fn with_gpu(gpu: Gpu) -> Result<Self, Error> {
        // Every model reads rows. What the driver cannot load is an error here, where another device can still be chosen.
        gpu.load_module(&ARCHIVE, "rows")?;
        Ok(Self {
            capabilities: Arc::new(capabilities(&gpu)),
            gpu,
            uploads: Arc::default(),
            conversions: Arc::default(),
            host_threads: HostThreads::default(),
        })
    }

    /// Architecture of the kernels that a device runs; `None` if it is too old.
    #[must_use]
    pub fn kernels(device: &CudaDevice) -> Option<&'static str> {
        device.target(&ARCHIVE).map(|target| target.name)
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

impl DeviceApi for Cuda {
    fn name(&self) -> &'static str {
        NAME
    }

    fn describe(&self) -> String {
        let device = self.gpu.device();
        let kernels = Self::kernels(device).unwrap_or("no");
        let mut text = format!("cuda {}, {kernels} kernels", device.name);
        if !self.gpu.has_dependent_launch() {
            text += ", no dependent launch";
        }
        text + &self.conversions.to_string()
    }

    fn total_memory_bytes(&self) -> Option<u64> {
        Some(self.gpu.device().total_memory_bytes)
    }

    fn free_memory_bytes(&self) -> Option<u64> {
        self.gpu.free_memory_bytes().ok()
    }

    fn stored_dtype(&self, dtype: DType) -> DType {
        CudaMatrix::device_dtype(dtype)
    }

    fn saturating_batch(&self) -> usize {
        SATURATING_BATCH
    }

    fn run_on_host(&self, tasks: &mut [HostTask<'_>]) {
        self.host_threads.run(tasks);
    }

    fn load_matrix(&self, source: MatrixSource<'_>) -> Result<Weight, Error> {
        source.check(NAME)?;
        let MatrixSource { rows, cols, dtype, bytes, .. } = source;
        self.conversions.count(dtype, self.stored_dtype(dtype));
        let mut uploads = self.uploads.lock().unwrap_or_else(PoisonError::into_inner);
        let uploads = match &mut *uploads {
            Some(uploads) => uploads,
            none => none.insert(Uploads::new(&self.gpu, UPLOAD_BYTES).map_err(allocation_error)?),
        };
        let matrix = CudaMatrix::load(&self.gpu, uploads, dtype, (rows, cols), bytes);
        let matrix = matrix.map_err(allocation_error)?;
        let info = WeightInfo { dtype, rows, cols, layout: WeightLayout::Packed };
        Ok(Weight::new(info, Arc::new(CudaWeight::Matrix(matrix))))
    }

    fn load_values(&self, values: &[f32]) -> Result<Weight, Error> {
        let buffer = Buffer::new(&self.gpu, size_of_val(values)).map_err(allocation_error)?;
        self.gpu.upload(&buffer, 0, bytemuck::cast_slice(values))?;
        Ok(Weight::new(WeightInfo::values(values.len()), Arc::new(CudaWeight::Values(buffer))))
    }

    fn load_log_mel(
        &self,
        tables: &LogMelTables<'_>,
    ) -> Result<Option<Box<dyn LogMelKernel>>, Error> {
        let kernel = CudaLogMel::new(&self.gpu, tables).map_err(allocation_error)?;
        Ok(kernel.map(|kernel| Box::new(kernel) as _))
    }

    fn start_profile(&self) -> bool {
        self.gpu.start_profile();
        true
    }

    fn take_profile(&self) -> Vec<OpTime> {
        self.gpu.take_profile().into_iter().map(OpTime::from).collect()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::clone(&self.capabilities)
    }

    fn compile_fused(&self, program: &Program, max: &Counts) -> Result<Box<dyn Executable>, Error> {
        Ok(Box::new(CudaExecutable::new(self, program, max, None)?))
    }
}

#[cfg(test)]
mod tests {
    use stonechat_compute::cuda::{Gpu, Limits};
    use stonechat_compute::op::{Count, MatmulArgs, Op, Port, Rows};
    use stonechat_compute::{DType, SharedBytes};

    use super::Cuda;
    use crate::{Activation, Counts, Device, Error, MatrixSource, Recorder, SegmentName, Step};

    /// A program of one product of imported rows.
    fn product(device: &Device, rows: usize) -> Result<(), Error> {
        let cols = 256;
        let bytes = SharedBytes::from(vec![0u8; 2 * cols * cols]);
        let (name, dtype) = ("weights", DType::F16);
        let source = MatrixSource { name, rows: cols, cols, dtype, bytes: &bytes };
        let weight = device.load_matrix(source)?;
        let mut ops = Recorder::new();
        ops.segment(SegmentName::Body, Rows::of(Count::Tokens));
        let x = ops.import(Port::value(0), Rows::of(Count::Tokens), cols);
        let args = MatmulArgs { weight, bias: None, activation: Activation::None };
        let y = ops.op(Op::Matmul(args), &[x]);
        ops.output(Port::value(1), y);
        let mut counts = Counts::default();
        counts[Count::Tokens] = rows;
        let mut executable = device.compile(&ops.finish(), &counts)?;
        let step = Step { segments: &[SegmentName::Body], counts, ..Step::default() };
        executable.warm_up(&mut |executable| executable.run(&step))
    }

    #[test]
    fn warm_up_reports_a_kernel_that_cannot_be_loaded() {
        let hopper = Limits::of((9, 0));
        let device = |limits| Device::from(Cuda::with_gpu(Gpu::planned(limits)).expect("a plan"));
        for rows in [1, 300] {
            product(&device(hopper), rows).expect("kernels that fit");
        }
        // Blocks of many rows take more than half of the shared memory.
        let half = Limits { block_shared_bytes: hopper.block_shared_bytes / 2, ..hopper };
        product(&device(half), 1).expect("kernels of few rows fit");
        let error = product(&device(half), 300).expect_err("no kernel of many rows").to_string();
        assert!(error.contains("wgmma") && error.contains("shared memory"), "{error}");
    }
}
