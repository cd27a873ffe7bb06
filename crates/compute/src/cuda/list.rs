//! Launches of a step, and the graph that replays them.

use std::sync::atomic::Ordering;

use bytemuck::Pod;
use cudarc::driver::sys::{
    self, CUgraphExec, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue,
    CUlaunchConfig, CUstreamCaptureMode,
};

use super::call::check;
use super::event::Event;
use super::gpu::{Gpu, Kernel};
use crate::Result;

/// Shape of a launch.
#[derive(Debug, Clone, Copy)]
pub struct Launch {
    /// Blocks: x, y, z.
    pub grid: [usize; 3],
    /// Threads of a block.
    pub threads: usize,
    /// Dynamic shared memory in bytes.
    pub shared_bytes: usize,
}

#[derive(Debug)]
struct Command {
    kernel: Kernel,
    launch: Launch,
    /// First 8 bytes of the parameters.
    params: usize,
}

/// Recorded launches.
#[derive(Debug)]
pub struct CommandList {
    gpu: Gpu,
    commands: Vec<Command>,
    params: Vec<u64>,
    graph: Option<Graph>,
    /// Number of runs.
    runs: usize,
    error: Option<crate::Error>,
}

#[derive(Debug)]
struct Graph(CUgraphExec);

// SAFETY: a graph is launched and destroyed through `&mut CommandList` only.
unsafe impl Send for Graph {}
// SAFETY: shared references to a graph reach no call of the driver.
unsafe impl Sync for Graph {}

impl Drop for CommandList {
    fn drop(&mut self) {
        if let Some(Graph(graph)) = self.graph.take()
            && self.gpu.enter().is_ok()
        {
            // SAFETY: destroyed once; the driver keeps a graph that runs.
            let _ = unsafe { sys::cuGraphExecDestroy(graph) };
        }
    }
}

impl CommandList {
    /// An empty list.
    #[must_use]
    pub fn new(gpu: &Gpu) -> Self {
        let (commands, params) = (Vec::new(), Vec::new());
        Self { gpu: gpu.clone(), commands, params, graph: None, runs: 0, error: None }
    }

    /// The GPU.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Appends a launch of a kernel with one parameter, a structure. A kernel that could not be loaded is an error of
    /// [`run`](Self::run). Empty grids are left out.
    ///
    /// # Panics
    /// If the grid is too large.
    pub fn launch<P: Pod>(&mut self, kernel: Result<Kernel>, launch: Launch, params: &P) {
        let kernel = match kernel {
            Ok(kernel) => kernel,
            Err(error) => {
                self.error.get_or_insert(error);
                return;
            }
        };
        let [x, y, z] = launch.grid;
        if x * y * z == 0 {
            return;
        }
        assert!(x <= i32::MAX as usize && y < 65536 && z < 65536, "{}: grid", kernel.name);
        self.commands.push(Command { kernel, launch, params: self.params.len() });
        let first = self.params.len();
        self.params.resize(first + size_of::<P>().div_ceil(8), 0);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.params[first..]);
        bytes[..size_of::<P>()].copy_from_slice(bytemuck::bytes_of(params));
    }

    /// Enqueues the launches: one by one at first, then as a graph.
    ///
    /// # Errors
    /// If a kernel could not be loaded or the driver refuses.
    pub fn run(&mut self) -> Result<()> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        self.gpu.enter()?;
        self.runs += 1;
        let n = self.commands.len() as u64;
        self.gpu.shared().counters.launches.fetch_add(n, Ordering::Relaxed);
        if self.gpu.shared().profile.is_on() {
            return self.measure();
        }
        if self.runs == 1 || n == 0 {
            self.gpu.count(|counters| &counters.lists);
            return self.launch_all();
        }
        if self.graph.is_none() {
            self.graph = Some(self.capture()?);
        }
        self.gpu.count(|counters| &counters.graph_launches);
        let graph = self.graph.as_ref().map_or(std::ptr::null_mut(), |Graph(graph)| *graph);
        // SAFETY: the graph was made above; `Executable`s own it and the buffers that it uses.
        check(unsafe { sys::cuGraphLaunch(graph, self.gpu.stream()) })
    }

    fn launch_all(&self) -> Result<()> {
        let is_dependent = self.gpu.has_dependent_launch();
        // The first kernel follows a copy.
        let mut all = self.commands.iter().enumerate();
        all.try_for_each(|(i, command)| self.launch_one(command, is_dependent && i > 0))
    }

    /// Launches kernels one by one, each between two events.
    fn measure(&self) -> Result<()> {
        let gpu = &self.gpu;
        let events = (0..=self.commands.len()).map(|_| Event::with_time(gpu));
        let events = events.collect::<Result<Vec<_>>>()?;
        events[0].record()?;
        for (command, event) in self.commands.iter().zip(&events[1..]) {
            self.launch_one(command, false)?;
            event.record()?;
        }
        gpu.synchronize()?;
        for (Command { kernel, launch, .. }, pair) in self.commands.iter().zip(events.windows(2)) {
            let [x, y, z] = launch.grid;
            let name = format!("{} {} {x}x{y}x{z}", kernel.module, kernel.name);
            gpu.shared().profile.add(&name, 1e6 * f64::from(pair[1].ms_since(&pair[0])?));
        }
        Ok(())
    }

    fn launch_one(&self, command: &Command, is_dependent: bool) -> Result<()> {
        let Command { kernel, launch, params } = command;
        let mut attribute = CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let [x, y, z] = launch.grid.map(|n| n as u32);
        let n_attributes = u32::from(is_dependent);
        let config = CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.threads as u32,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: launch.shared_bytes as u32,
            hStream: self.gpu.stream(),
            attrs: &raw mut attribute,
            numAttrs: n_attributes,
        };
        let mut param = self.params[*params..].as_ptr().cast_mut().cast();
        // SAFETY: a kernel takes one structure, whose bytes were given with it.
        let result = unsafe {
            sys::cuLaunchKernelEx(
                &raw const config,
                kernel.raw,
                &raw mut param,
                std::ptr::null_mut(),
            )
        };
        check(result)
    }

    fn capture(&self) -> Result<Graph> {
        let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let stream = self.gpu.stream();
        // SAFETY: the stream is not captured yet, and the capture ends below.
        check(unsafe { sys::cuStreamBeginCapture_v2(stream, mode) })?;
        let launched = self.launch_all();
        // SAFETY: the capture that was begun above; the graph is destroyed once.
        unsafe {
            let ended = check(sys::cuStreamEndCapture(stream, &raw mut graph));
            launched.and(ended)?;
            let made = check(sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0));
            let _ = sys::cuGraphDestroy(graph);
            made?;
        }
        self.gpu.count(|counters| &counters.graphs);
        Ok(Graph(executable))
    }
}
