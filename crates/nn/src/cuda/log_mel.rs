//! Log-mel spectrograms of speech recognition: the signal in pieces, through pinned memory.
//!
//! ```text
//! piece i    : copy to pinned memory, to the device; kernel; copy to pinned memory    on a stream
//! piece i - 1: copy from pinned memory to the result                                  meanwhile
//! ```

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use stonechat_compute::cuda::ops::log_mel::{
    HOP, LogMelBuffers, N_FFT, log_mel, n_maxima, n_samples,
};
use stonechat_compute::cuda::{Buffer, CommandList, CopyRange, Gpu, HostCopies, Uploads};
use stonechat_compute::{LogMelTables, Result};

use crate::Error;
use crate::device::LogMelKernel;

/// Frames of a piece, a minute: 7 MB of device memory, 14 MB of pinned memory.
const PIECE_FRAMES: usize = 6000;

/// The kernel with its memory.
#[derive(Debug)]
pub(super) struct CudaLogMel(Mutex<Pieces>);

#[derive(Debug)]
struct Pieces {
    /// The GPU with another stream: threads that compute spectrograms neither wait for steps nor enqueue between their launches.
    gpu: Gpu,
    tables: LogMelBuffers,
    samples: Uploads,
    /// Values of a piece, then its maxima.
    powers: Buffer,
    /// Results of the pieces of even and odd index.
    copies: [HostCopies; 2],
}

impl CudaLogMel {
    /// Loads tables and kernel; `None` if the kernel has another window or hop.
    pub(super) fn new(gpu: &Gpu, tables: &LogMelTables<'_>) -> Result<Option<Self>> {
        let gpu = Gpu::open_with(gpu.device(), false)?;
        let Some(tables) = LogMelBuffers::new(&gpu, tables)? else { return Ok(None) };
        let bytes = 4 * (PIECE_FRAMES * tables.n_mels() + n_maxima(PIECE_FRAMES));
        let mut pieces = Pieces {
            samples: Uploads::new(&gpu, 4 * n_samples(PIECE_FRAMES))?,
            powers: Buffer::new(&gpu, bytes)?,
            copies: [HostCopies::new(&gpu, bytes)?, HostCopies::new(&gpu, bytes)?],
            tables,
            gpu,
        };
        // The kernel is loaded before the first recording.
        let mut frame = vec![0.0; pieces.tables.n_mels()];
        pieces.log_powers(&[0.0; N_FFT], &mut frame)?;
        Ok(Some(Self(Mutex::new(pieces))))
    }
}

impl LogMelKernel for CudaLogMel {
    fn log_powers(&self, samples: &[f32], out: &mut [f32]) -> std::result::Result<f32, Error> {
        let mut pieces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let result = pieces.log_powers(samples, out);
        if result.is_err() {
            // Copies of earlier pieces end before their memory is used again.
            let _ = pieces.gpu.synchronize();
        }
        Ok(result?)
    }
}

impl Pieces {
    fn log_powers(&mut self, samples: &[f32], out: &mut [f32]) -> Result<f32> {
        let n_mels = self.tables.n_mels();
        let n_frames = out.len() / n_mels;
        let mut largest = f32::NEG_INFINITY;
        // The piece whose results are not read yet.
        let mut last: Option<(usize, Range<usize>)> = None;
        for (i, start) in (0..n_frames).step_by(PIECE_FRAMES).enumerate() {
            let frames = start..n_frames.min(start + PIECE_FRAMES);
            self.enqueue(i, &samples[start * HOP..][..n_samples(frames.len())], frames.len())?;
            if let Some((i, frames)) = last.replace((i, frames)) {
                largest = largest.max(self.collect(i, frames, out)?);
            }
        }
        if let Some((i, frames)) = last {
            largest = largest.max(self.collect(i, frames, out)?);
        }
        Ok(largest)
    }

    /// Enqueues the copies and the kernel of piece `i`.
    fn enqueue(&mut self, i: usize, samples: &[f32], n_frames: usize) -> Result<()> {
        let Self { gpu, tables, samples: uploads, powers, copies } = self;
        let samples = uploads.send(bytemuck::cast_slice(samples))?;
        let n_bytes = 4 * n_frames * tables.n_mels();
        let mut list = CommandList::new(gpu);
        let out = (powers.address(), powers.address() + n_bytes as u64);
        log_mel(&mut list, tables, out, samples, n_frames);
        list.run()?;
        let copies = &mut copies[i % 2];
        copies.clear();
        let len = n_bytes + 4 * n_maxima(n_frames);
        copies.enqueue(gpu, &[CopyRange { src: powers, offset: 0, len }])
    }

    /// Waits for piece `i` and copies the values of its frames to those of all; returns the largest one.
    fn collect(&mut self, i: usize, frames: Range<usize>, out: &mut [f32]) -> Result<f32> {
        let n_mels = self.tables.n_mels();
        let out = &mut out[frames.start * n_mels..frames.end * n_mels];
        let values: &[f32] = bytemuck::cast_slice(self.copies[i % 2].wait(&self.gpu)?);
        let (values, maxima) = values.split_at(out.len());
        out.copy_from_slice(values);
        Ok(maxima.iter().copied().fold(f32::NEG_INFINITY, f32::max))
    }
}
