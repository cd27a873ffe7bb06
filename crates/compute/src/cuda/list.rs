//! Launches of a step, and the graph that replays them.

use std::ops::Range;
use std::sync::atomic::Ordering;

use bytemuck::Pod;
use cudarc::driver::sys::{
    self, CUgraph, CUgraphExec, CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue,
    CUlaunchConfig, CUstream, CUstreamCaptureMode,
};

use super::call::check;
use super::event::Event;
use super::gpu::{Gpu, Kernel};
use crate::{Error, Result};

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

/// Execution of a list.
#[derive(Debug)]
enum Mode {
    /// Launches one by one.
    Launches,
    /// Launches one by one, with an event before each and after the last.
    Measured(Vec<Event>),
    Graph,
}

/// Recorded launches.
#[derive(Debug)]
pub struct CommandList {
    gpu: Gpu,
    commands: Vec<Command>,
    params: Vec<u64>,
    /// Bounds of parts, see [`start`](Self::start). Each collective command is a part by itself.
    cuts: Vec<usize>,
    graph: Option<Graph>,
    /// Mode of the run that was started.
    mode: Mode,
    /// Number of runs.
    runs: usize,
    error: Option<Error>,
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
        Self {
            gpu: gpu.clone(),
            commands: Vec::new(),
            params: Vec::new(),
            cuts: Vec::new(),
            graph: None,
            mode: Mode::Launches,
            runs: 0,
            error: None,
        }
    }

    /// The GPU.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Number of launches.
    #[must_use]
    pub fn n_launches(&self) -> usize {
        self.commands.len()
    }

    /// The first launch that cannot run.
    ///
    /// # Errors
    /// If a kernel could not be loaded, or a launch is larger than it or the device allows.
    pub fn check(&self) -> Result<()> {
        self.error.clone().map_or(Ok(()), Err)
    }

    /// Appends a launch of a kernel with one parameter, a struct. A kernel that could not be loaded is an error of
    /// [`check`](Self::check) and [`run`](Self::run), and so is a launch that the device does not allow. Empty grids are left out.
    pub fn launch<P: Pod>(&mut self, kernel: Result<Kernel>, launch: Launch, params: &P) {
        let kernel = match kernel {
            Ok(kernel) => kernel,
            Err(error) => {
                self.error.get_or_insert(error);
                return;
            }
        };
        if let Err(error) = check_launch(&kernel, &launch) {
            self.error.get_or_insert(error);
            return;
        }
        if launch.grid.contains(&0) {
            return;
        }
        self.commands.push(Command { kernel, launch, params: self.params.len() });
        let first = self.params.len();
        self.params.resize(first + size_of::<P>().div_ceil(8), 0);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.params[first..]);
        bytes[..size_of::<P>()].copy_from_slice(bytemuck::bytes_of(params));
    }

    /// [`launch`](Self::launch) of a kernel that waits for the same kernel on other ranks.
    pub(super) fn launch_collective<P: Pod>(
        &mut self,
        kernel: Result<Kernel>,
        launch: Launch,
        params: &P,
    ) {
        self.cuts.push(self.commands.len());
        self.launch(kernel, launch, params);
        self.cuts.push(self.commands.len());
    }

    /// Enqueues the launches: one by one at first, then as a graph.
    ///
    /// # Errors
    /// If a kernel could not be loaded or the driver refuses.
    pub fn run(&mut self) -> Result<()> {
        Self::run_in_turn(&mut [self])
    }

    /// Enqueues the lists of several ranks, one part of each in turn. So no work that host or driver wait for is enqueued after a
    /// collective kernel whose peers are not enqueued yet.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_in_turn(lists: &mut [&mut Self]) -> Result<()> {
        let mut n_parts = 0;
        for list in &mut *lists {
            n_parts = n_parts.max(list.start()?);
        }
        for part in 0..n_parts {
            lists.iter().try_for_each(|list| list.run_part(part))?;
        }
        lists.iter_mut().try_for_each(|list| list.finish())
    }

    /// Starts a run; returns the number of its parts.
    fn start(&mut self) -> Result<usize> {
        self.check()?;
        if self.gpu.is_planned() {
            return Ok(0);
        }
        self.gpu.enter()?;
        self.runs += 1;
        let n = self.commands.len();
        self.gpu.shared().counters.launches.fetch_add(n as u64, Ordering::Relaxed);
        self.mode = if self.gpu.shared().profile.is_on() {
            let events = (0..=n).map(|_| Event::with_time(&self.gpu));
            Mode::Measured(events.collect::<Result<_>>()?)
        } else if self.runs == 1 || n == 0 {
            self.gpu.count(|counters| &counters.lists);
            Mode::Launches
        } else {
            if self.graph.is_none() {
                self.graph = Some(self.capture()?);
            }
            self.gpu.count(|counters| &counters.graph_launches);
            Mode::Graph
        };
        Ok(if matches!(self.mode, Mode::Graph) { 1 } else { self.cuts.len() + 1 })
    }

    /// Enqueues a part; nothing past the last part.
    fn run_part(&self, part: usize) -> Result<()> {
        self.gpu.enter()?;
        if let (Mode::Graph, Some(Graph(graph))) = (&self.mode, &self.graph) {
            if part > 0 {
                return Ok(());
            }
            // SAFETY: `capture` made the graph; `Executable`s own it and the buffers that it uses.
            return check(unsafe { sys::cuGraphLaunch(*graph, self.gpu.stream()) });
        }
        let end = |part: usize| self.cuts.get(part).copied().unwrap_or(self.commands.len());
        let commands = part.checked_sub(1).map_or(0, end)..end(part);
        match &self.mode {
            Mode::Measured(events) => {
                if part == 0 {
                    events[0].record()?;
                }
                commands.into_iter().try_for_each(|i| {
                    self.launch_one(&self.commands[i], false)?;
                    events[i + 1].record()
                })
            }
            _ => self.launch_range(commands),
        }
    }

    /// Ends a run whose parts are enqueued. Waits for it if kernels are measured.
    fn finish(&mut self) -> Result<()> {
        let Mode::Measured(events) = std::mem::replace(&mut self.mode, Mode::Launches) else {
            return Ok(());
        };
        self.gpu.synchronize()?;
        for (Command { kernel, launch, .. }, pair) in self.commands.iter().zip(events.windows(2)) {
            let [x, y, z] = launch.grid;
            let name = format!("{} {} {x}x{y}x{z}", kernel.module, kernel.name);
            let ms = f64::from(pair[1].ms_since(&pair[0])?);
            self.gpu.shared().profile.add(&name, 1e6 * ms);
        }
        Ok(())
    }

    /// Launches commands one by one.
    fn launch_range(&self, commands: Range<usize>) -> Result<()> {
        let is_dependent = self.gpu.has_dependent_launch();
        // The first kernel follows a copy.
        commands
            .into_iter()
            .try_for_each(|i| self.launch_one(&self.commands[i], is_dependent && i > 0))
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
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        let stream = self.gpu.stream();
        // SAFETY: the stream is not captured yet, and `end_capture` ends the capture.
        check(unsafe { sys::cuStreamBeginCapture_v2(stream, mode) })?;
        let launched = self.launch_range(0..self.commands.len());
        let graph = Graph(end_capture(&StreamCapture(stream), launched)?);
        self.gpu.count(|counters| &counters.graphs);
        // The first launch does not wait for memory while another rank waits for it.
        // SAFETY: the graph and the stream live.
        check(unsafe { sys::cuGraphUpload(graph.0, stream) })?;
        Ok(graph)
    }
}

/// Calls of the driver that end a capture.
trait Capture {
    /// Ends the capture; the graph may be null after an error.
    fn end(&self) -> (CUgraph, Result<()>);

    fn instantiate(&self, graph: CUgraph) -> Result<CUgraphExec>;

    fn destroy(&self, graph: CUgraph);
}

/// A stream that is captured.
struct StreamCapture(CUstream);

impl Capture for StreamCapture {
    fn end(&self) -> (CUgraph, Result<()>) {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is captured; writes the graph.
        let ended = check(unsafe { sys::cuStreamEndCapture(self.0, &raw mut graph) });
        (graph, ended)
    }

    fn instantiate(&self, graph: CUgraph) -> Result<CUgraphExec> {
        let mut executable = std::ptr::null_mut();
        // SAFETY: a captured graph; writes the handle.
        check(unsafe { sys::cuGraphInstantiateWithFlags(&raw mut executable, graph, 0) })?;
        Ok(executable)
    }

    fn destroy(&self, graph: CUgraph) {
        // SAFETY: `end_capture` destroys a graph once.
        let _ = unsafe { sys::cuGraphDestroy(graph) };
    }
}

/// Ends a capture, also after a launch that failed, and instantiates its graph. The captured graph is destroyed in any case.
fn end_capture(capture: &impl Capture, launched: Result<()>) -> Result<CUgraphExec> {
    let (graph, ended) = capture.end();
    let made = launched.and(ended).and_then(|()| capture.instantiate(graph));
    if !graph.is_null() {
        capture.destroy(graph);
    }
    made
}

/// Checks a launch against its kernel and the limits of grids.
fn check_launch(kernel: &Kernel, launch: &Launch) -> Result<()> {
    let &Launch { grid: [x, y, z], threads, shared_bytes } = launch;
    let is_grid = x <= i32::MAX as usize && y < 65536 && z < 65536;
    if is_grid && threads <= kernel.max_threads && shared_bytes <= kernel.shared_bytes {
        return Ok(());
    }
    let Kernel { name, module, shared_bytes: most, max_threads, .. } = kernel;
    let message = format!(
        "kernel `{name}` of `{module}`: expected a grid within {}x65535x65535, at most {max_threads} threads and {most} bytes of \
         shared memory per block, got {x}x{y}x{z}, {threads} and {shared_bytes}",
        i32::MAX
    );
    Err(Error::Device { message })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use cudarc::driver::sys::{CUgraph, CUgraphExec};

    use super::{Capture, end_capture};
    use crate::{Error, Result};

    /// A capture without a driver, which counts the graphs that live.
    struct FakeCapture {
        ended: Result<()>,
        instantiated: Result<()>,
        n_graphs: Cell<i32>,
    }

    impl Capture for FakeCapture {
        fn end(&self) -> (CUgraph, Result<()>) {
            self.n_graphs.set(self.n_graphs.get() + 1);
            (std::ptr::dangling_mut(), self.ended.clone())
        }

        fn instantiate(&self, _: CUgraph) -> Result<CUgraphExec> {
            self.instantiated.clone().map(|()| std::ptr::dangling_mut())
        }

        fn destroy(&self, _: CUgraph) {
            self.n_graphs.set(self.n_graphs.get() - 1);
        }
    }

    #[test]
    fn captured_graphs_are_destroyed_whether_they_run_or_not() {
        let failed = || Err(Error::Device { message: "refused".to_owned() });
        for (launched, ended, instantiated) in [
            (Ok(()), Ok(()), Ok(())),
            (failed(), Ok(()), Ok(())),
            (Ok(()), failed(), Ok(())),
            (Ok(()), Ok(()), failed()),
        ] {
            let is_whole = [&launched, &ended, &instantiated].iter().all(|result| result.is_ok());
            let capture = FakeCapture { ended, instantiated, n_graphs: Cell::new(0) };
            assert_eq!(end_capture(&capture, launched).is_ok(), is_whole);
            assert_eq!(capture.n_graphs.get(), 0, "graphs that live on");
        }
    }
}
