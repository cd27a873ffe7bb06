//! Programs on the CPU: one call of a kernel an op, over slots.

use std::future::ready;

use stonechat_compute::op::{PoolId, Port};

use super::host::Host;
use super::memory::Memory;
use super::node::{CpuNode, Scratch};
use crate::device::{Executable, HostFetches, PortRange};
use crate::inputs::{CheckedStep, InputLimits};
use crate::program::{Counts, Program, Segment};
use crate::tasks::for_each;
use crate::{BoxFuture, Error, PageCopy};

/// Values that one thread copies in a read: more than the logits of a token.
const READ_LEN: usize = 1 << 18;

/// A compiled program.
#[derive(Debug)]
pub(super) struct CpuExecutable {
    host: Host,
    /// Segments without their nodes, which are resolved.
    segments: Vec<(Segment, Vec<CpuNode>)>,
    memory: Memory,
    /// Pools of page copies.
    sequence_pools: Vec<PoolId>,
    scratch: Scratch,
    fetches: HostFetches,
    limits: InputLimits,
}

impl CpuExecutable {
    /// Allocates the memory of a fused program and resolves its ops.
    pub(super) fn new(host: &Host, program: &Program, max: &Counts) -> Result<Self, Error> {
        let memory = Memory::new(program, max)?;
        let mut scratch = Scratch::default();
        let mut segments = Vec::new();
        for segment in &program.segments {
            let nodes = segment.nodes.iter();
            let nodes = nodes.filter_map(|node| CpuNode::new(&memory, &mut scratch, node));
            let nodes = nodes.collect::<Result<_, _>>()?;
            segments.push((Segment { nodes: Vec::new(), ..*segment }, nodes));
        }
        Ok(Self {
            host: host.clone(),
            segments,
            memory,
            sequence_pools: program.sequence_pools(),
            scratch,
            fetches: HostFetches::default(),
            limits: InputLimits::new(program),
        })
    }
}

impl Executable for CpuExecutable {
    /// There are no kernels to compile.
    fn warm_up(&mut self, _: &mut dyn FnMut(&mut dyn Executable)) -> Result<(), Error> {
        Ok(())
    }

    fn import(&mut self, port: Port, values: &[f32]) {
        let slot = self.memory.whole(self.memory.program.import(port)).slot;
        self.memory.values[slot][..values.len()].copy_from_slice(values);
    }

    fn async_scheduling(&self) -> bool {
        false
    }

    fn limits(&self) -> &InputLimits {
        &self.limits
    }

    fn run_checked(&mut self, step: CheckedStep<'_>) {
        let Self { host, segments, memory, sequence_pools, scratch, .. } = self;
        let mut slice = host.time_slices.take();
        for pool in sequence_pools {
            for &PageCopy { from, to } in step.copies {
                memory.pools[pool.0].iter_mut().for_each(|layer| layer.copy_page(from, to));
            }
        }
        for (_, nodes) in segments.iter().filter(|(segment, _)| step.runs(segment)) {
            for node in nodes {
                node.run(host, memory, scratch, &step);
                if host.is_background {
                    slice.yield_slice();
                }
            }
        }
    }

    fn fetch(&mut self, ranges: &[PortRange], is_last: bool) {
        let mut out = self.fetches.fetch(ranges.iter().map(|range| range.len).sum(), is_last);
        for &PortRange { port, offset, len } in ranges.iter().filter(|range| range.len > 0) {
            let (part, rest) = out.split_at_mut(len);
            let values = &self.memory.values[self.memory.port(port)][offset..offset + len];
            // A single task runs on this thread.
            let parts = part.chunks_mut(READ_LEN).zip(values.chunks(READ_LEN));
            for_each(&self.host.device.threads, len.div_ceil(READ_LEN), parts, |(to, from)| {
                to.copy_from_slice(from);
            });
            out = rest;
        }
    }

    fn collect_now(&mut self, values: &mut Vec<f32>) -> Option<Result<(), Error>> {
        self.fetches.collect(values);
        Some(Ok(()))
    }

    fn read_page<'a>(
        &'a mut self,
        pool: PoolId,
        page: u32,
        out: &'a mut Vec<u8>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        self.memory.pools[pool.0].iter().for_each(|layer| out.extend_from_slice(layer.page(page)));
        Box::pin(ready(Ok(())))
    }

    fn write_checked_page(&mut self, pool: PoolId, page: u32, bytes: &[u8]) -> Result<(), Error> {
        let layers = &mut self.memory.pools[pool.0];
        let page_bytes = bytes.len() / layers.len();
        for (layer, bytes) in layers.iter_mut().zip(bytes.chunks_exact(page_bytes)) {
            layer.page_mut(page).copy_from_slice(bytes);
        }
        Ok(())
    }
}
