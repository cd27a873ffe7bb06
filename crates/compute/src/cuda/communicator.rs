//! Communicator of a group of GPUs: memory that every rank writes, in the layout of `all_reduce.cu`.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cudarc::driver::sys::{self, CUresult};

use super::buffer::{Buffer, Pinned};
use super::call::{check, text};
use super::device::CudaDevice;
use super::gpu::Gpu;
use crate::{Error, Result};

/// Maximum ranks of a group.
pub const MAX_RANKS: usize = 8;
/// Maximum blocks of a collective kernel of a rank.
pub(super) const MAX_BLOCKS: usize = 128;
/// LL packets, of two values each, that a rank receives from another one in a kernel.
pub(super) const PACKETS: usize = 65536;
/// Bytes of the state, of addresses and flags.
const STATE_BYTES: usize = 256 + (32 + 4) * MAX_RANKS * MAX_BLOCKS;
/// Offset of the word that is 1 if ranks share a GPU.
const SHARES_GPU: usize = 12;

/// Memory of the ranks of a group. Every rank writes to that of all others.
///
/// Collective kernels of a group run in the same order on every rank: the host enqueues steps on all ranks under one lock.
#[derive(Debug)]
pub struct Communicator {
    ranks: Vec<RankMemory>,
    /// Whether a GPU has two ranks of this group.
    has_shared_gpu: bool,
    /// Whether a GPU has another rank, of this group or of another one.
    shares_gpu: AtomicBool,
}

/// Communicators of this process.
static COMMUNICATORS: Mutex<Vec<Weak<Communicator>>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct RankMemory {
    gpu: Gpu,
    memory: Buffer,
    /// Word that kernels set on a timeout.
    fault: Pinned,
}

/// A rank of a group.
#[derive(Debug, Clone)]
pub struct Rank {
    communicator: Arc<Communicator>,
    index: usize,
}

impl Communicator {
    /// Allocates the memory and lets every GPU write it. A GPU may occur several times.
    ///
    /// # Errors
    /// [`Error::NoPeerAccess`], [`Error::OutOfMemory`], or if the driver refuses.
    ///
    /// # Panics
    /// If there are more than [`MAX_RANKS`].
    pub(super) fn new(gpus: &[Gpu]) -> Result<Arc<Self>> {
        assert!((1..=MAX_RANKS).contains(&gpus.len()), "{} ranks", gpus.len());
        let is_same = |a: &Gpu, b: &Gpu| a.device().index == b.device().index;
        for gpu in gpus {
            for other in gpus.iter().filter(|other| !is_same(other, gpu)) {
                gpu.enable_peer(other)?;
            }
        }
        let bytes = STATE_BYTES + 2 * 16 * gpus.len() * PACKETS;
        let rank = |gpu: &Gpu| {
            let (memory, fault) = (Buffer::new(gpu, bytes)?, Pinned::new(gpu, size_of::<u32>())?);
            Ok(RankMemory { gpu: gpu.clone(), memory, fault })
        };
        let ranks = gpus.iter().map(rank).collect::<Result<_>>()?;
        let is_repeated = |i: usize| gpus[..i].iter().any(|gpu| is_same(gpu, &gpus[i]));
        let has_shared_gpu = (0..gpus.len()).any(is_repeated);
        let shares_gpu = AtomicBool::new(false);
        let communicator = Arc::new(Self { ranks, has_shared_gpu, shares_gpu });
        communicator.register()?;
        Ok(communicator)
    }

    /// Adds the group to [`COMMUNICATORS`]. Groups with a common GPU use no dependent launch after a collective kernel: the blocks of the
    /// next kernel would take the place of those that a rank of the other group waits for.
    fn register(self: &Arc<Self>) -> Result<()> {
        let index = |rank: &RankMemory| rank.gpu.device().index;
        let mut groups = COMMUNICATORS.lock().unwrap_or_else(PoisonError::into_inner);
        groups.retain(|group| group.strong_count() > 0);
        for group in groups.iter().filter_map(Weak::upgrade) {
            let has = |rank: &RankMemory| self.ranks.iter().any(|own| index(own) == index(rank));
            if group.ranks.iter().any(has) {
                group.share_gpu()?;
                self.share_gpu()?;
            }
        }
        if self.has_shared_gpu {
            self.share_gpu()?;
        }
        groups.push(Arc::downgrade(self));
        Ok(())
    }

    /// Tells the kernels that ranks share a GPU.
    fn share_gpu(&self) -> Result<()> {
        self.shares_gpu.store(true, Ordering::Release);
        let word = 1u32.to_ne_bytes();
        self.ranks.iter().try_for_each(|rank| rank.gpu.upload(&rank.memory, SHARES_GPU, &word))
    }

    /// A rank.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub fn rank(self: &Arc<Self>, index: usize) -> Rank {
        assert!(index < self.ranks.len(), "rank {index} of {}", self.ranks.len());
        Rank { communicator: Arc::clone(self), index }
    }

    /// Whether a collective kernel has timed out. Valid once its work is done.
    #[must_use]
    pub fn has_timed_out(&self) -> bool {
        self.ranks.iter().any(|rank| rank.fault_word().load(Ordering::Acquire) != 0)
    }

    /// Waits for all ranks and clears the memory, so that later steps can run. The caller enqueues no step meanwhile.
    ///
    /// # Errors
    /// [`Error::Device`] if a rank failed or timed out.
    pub fn reset(&self) -> Result<()> {
        self.ranks.iter().try_for_each(|rank| rank.gpu.synchronize())?;
        let late = self.ranks.iter().filter(|rank| rank.fault_word().load(Ordering::Acquire) != 0);
        let late: Vec<String> = late.map(|rank| rank.gpu.device().index.to_string()).collect();
        self.clear()?;
        if late.is_empty() {
            return Ok(());
        }
        let message = format!("cuda:{} waited 2 s for the values of another rank", late.join(","));
        Err(Error::Device { message })
    }

    /// Clears the memory of all ranks. No work may use it.
    fn clear(&self) -> Result<()> {
        for RankMemory { gpu, memory, .. } in &self.ranks {
            gpu.enter()?;
            // SAFETY: the range is the whole buffer, which no enqueued work uses.
            check(unsafe {
                sys::cuMemsetD8Async(memory.address(), 0, memory.bytes(), gpu.stream())
            })?;
        }
        if self.shares_gpu.load(Ordering::Acquire) {
            self.share_gpu()?;
        }
        self.ranks.iter().try_for_each(|rank| rank.gpu.synchronize())?;
        self.ranks.iter().for_each(|rank| rank.fault_word().store(0, Ordering::Release));
        Ok(())
    }
}

impl RankMemory {
    fn fault_word(&self) -> &AtomicU32 {
        let start = self.fault.as_slice().as_ptr().cast_mut().cast();
        // SAFETY: a word of pinned memory, aligned to pages; device and host access it atomically while `self` lives.
        unsafe { AtomicU32::from_ptr(start) }
    }
}

impl Rank {
    /// Number of the rank.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Number of ranks.
    #[must_use]
    pub fn n_ranks(&self) -> usize {
        self.communicator.ranks.len()
    }

    /// Whether a GPU has two ranks of the group.
    pub(super) fn shares_gpu(&self) -> bool {
        self.communicator.has_shared_gpu
    }

    /// Addresses of the memory of all ranks; 0 past the last rank.
    pub(super) fn memory(&self) -> [u64; MAX_RANKS] {
        let mut addresses = [0; MAX_RANKS];
        for (to, rank) in addresses.iter_mut().zip(&self.communicator.ranks) {
            *to = rank.memory.address();
        }
        addresses
    }

    /// Address of the error word in host memory.
    pub(super) fn fault(&self) -> u64 {
        self.communicator.ranks[self.index].fault.as_slice().as_ptr().addr() as u64
    }
}

impl CudaDevice {
    /// Whether kernels on this GPU can access the memory of another one.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn can_access(&self, other: &Self) -> Result<bool> {
        let mut can = 0;
        // SAFETY: devices of the driver, which is initialized; writes the answer.
        check(unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, self.raw, other.raw) })?;
        Ok(can != 0)
    }
}

impl Gpu {
    /// Lets kernels on this GPU access the memory of `other`.
    fn enable_peer(&self, other: &Self) -> Result<()> {
        let refused = |reason: String| {
            let [from, to] = [self, other].map(|gpu| {
                let CudaDevice { index, name, .. } = gpu.device();
                format!("cuda:{index} ({name})")
            });
            Error::NoPeerAccess { from, to, reason }
        };
        if !self.device().can_access(other.device())? {
            return Err(refused("the driver reports no peer access between them".to_owned()));
        }
        self.enter()?;
        // SAFETY: both contexts live.
        match unsafe { sys::cuCtxEnablePeerAccess(other.context(), 0) } {
            CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            error => Err(refused(text(error))),
        }
    }
}
