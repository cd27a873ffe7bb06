//! Programs of cases: recorded once for a device, run fused and unfused, compared with the oracle.

use std::cell::RefCell;

use pollster::block_on;
use stonechat_compute::{DType, SharedBytes};
use stonechat_nn::op::{Count, MatmulArgs, Op, Port, RowTable, Rows, SlotTable, Tensor, Weight};
use stonechat_nn::{
    Activation, AttentionRows, CapabilityKind, Counts, Device, Error, Executable, KvRow,
    LogitFilter, MatrixSource, PageCopy, PortRange, Program, QueryRow, Recorder, Segment,
    SegmentName, StateRun, Step, fuse,
};

use super::{EXACT, Tolerance, Tolerances};
use crate::{Lcg, random_weights};

/// Slots of rows that are no tokens of the step.
pub(super) const OTHER_SLOTS: SlotTable = SlotTable::new(2, "Other");

/// Devices of a run of the suite.
#[derive(Debug, Clone, Copy)]
pub(super) struct Suite<'a> {
    pub(super) devices: &'a [Device],
    pub(super) oracle: &'a Device,
    pub(super) tolerances: Tolerances,
    /// Takes the results that are not waited for.
    pub(super) deferred: Option<&'a PendingSteps>,
}

/// Results that are still on their devices: in a browser nothing may block until they have arrived.
#[derive(Debug, Default)]
pub struct PendingSteps {
    all: RefCell<Vec<Pending>>,
}

/// Results of steps of a case that are fetched, oldest first.
#[derive(Debug)]
struct Pending {
    executable: Box<dyn Executable>,
    /// Name of the case, and of each step.
    name: String,
    steps: &'static [&'static str],
    expected: Vec<f32>,
    tolerance: Tolerance,
}

impl PendingSteps {
    /// Waits for all results and compares them. Returns their number.
    ///
    /// # Panics
    /// At the first value out of tolerance, and if a device failed.
    pub async fn compare(self) -> usize {
        let mut n = 0;
        let mut values = Vec::new();
        for mut pending in self.all.into_inner() {
            for step in pending.steps {
                let result = pending.executable.collect(&mut values).await;
                result.unwrap_or_else(|error| panic!("{}, {step} step: {error}", pending.name));
                let describe = || format!("{}, {step} step", pending.name);
                compare(&values, &pending.expected, pending.tolerance, describe);
                n += 1;
            }
        }
        n
    }

    /// Adds one step, whose results `executable` has fetched.
    pub(super) fn add(&self, name: String, executable: Box<dyn Executable>, expected: Vec<f32>) {
        let steps: &[&str] = &["only"];
        let pending = Pending { executable, name, steps, expected, tolerance: EXACT };
        self.all.borrow_mut().push(pending);
    }
}

/// Names of the steps of a case, which have equal results.
const STEPS: &[&str] = &["first", "repeated"];

/// Tables of a step.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) counts: Counts,
    pub(super) tokens: Vec<u32>,
    pub(super) positions: Vec<u32>,
    pub(super) output_rows: Vec<usize>,
    pub(super) logit_filters: Vec<LogitFilter>,
    pub(super) suppressed: Vec<u32>,
    pub(super) k: usize,
    /// Copied after the keys and values of [`SegmentName::CrossKv`] are written.
    pub(super) copies: Vec<PageCopy>,
    /// By [`SlotTable`].
    pub(super) slots: [Vec<KvRow>; SlotTable::N],
    /// Rows of [`RowTable::FULL`].
    pub(super) rows: Vec<QueryRow>,
    pub(super) page_table: Vec<u32>,
    /// Runs of the step of [`SegmentName::CrossKv`] and of that of [`SegmentName::Body`].
    pub(super) states: [Vec<StateRun>; 2],
}

/// Host inputs and outputs of a step.
#[derive(Debug, Default)]
struct HostData {
    tables: Tables,
    imports: Vec<(Port, Vec<f32>)>,
    /// Ports and their numbers of values.
    outputs: Vec<(Port, usize)>,
}

/// Program of a case on a device, with the inputs of its step.
#[derive(Debug)]
pub(super) struct Recording<'a> {
    device: &'a Device,
    data: HostData,
    pub(super) random: Lcg,
    pub(super) ops: Recorder,
}

impl Suite<'_> {
    /// Compares a program of one segment, which `record` records, on `n_tokens` tokens.
    #[track_caller]
    pub(super) fn check(
        &self,
        name: &str,
        tolerance: Tolerance,
        (n_tokens, seed): (usize, u64),
        record: impl Fn(&mut Recording<'_>),
    ) {
        self.check_program(name, tolerance, (n_tokens, seed), |case| {
            case.ops.segment(SegmentName::Body, Rows::of(Count::Tokens));
            record(case);
        });
    }

    /// Compares a program of [`SegmentName::Body`] and, in a step before, [`SegmentName::CrossKv`].
    #[track_caller]
    pub(super) fn check_program(
        &self,
        name: &str,
        tolerance: Tolerance,
        (n_tokens, seed): (usize, u64),
        record: impl Fn(&mut Recording<'_>),
    ) {
        let recorded = |device| {
            let mut case = Recording::new(device, n_tokens, seed);
            record(&mut case);
            (case.ops.finish(), case.data)
        };
        let (program, data) = recorded(self.oracle);
        let max = &data.tables.counts;
        let unfused = self.oracle.compile_fused(&program, max);
        // A GPU as the oracle has kernels of converted operands alone.
        let mut oracle = unfused
            .or_else(|_| self.oracle.compile(&program, max))
            .expect("a device that runs any program");
        data.run(&mut *oracle, None);
        let expected = data.read(&mut *oracle, false);
        for device in self.devices {
            let (program, data) = recorded(device);
            for (way, mut executable) in executables(device, &program, &data.tables.counts) {
                // NaN in all values that depend on imports: a result that is not written fails the case.
                data.run(&mut *executable, Some(f32::NAN));
                let name = || format!("{}: {name}, {way}", device.describe());
                for (i, step) in STEPS.iter().enumerate() {
                    data.run(&mut *executable, None);
                    if self.deferred.is_some() {
                        data.fetch(&mut *executable);
                        continue;
                    }
                    let got = data.read(&mut *executable, i > 0);
                    let describe = || format!("{}, {step} step", name());
                    compare(&got, &expected, tolerance, describe);
                }
                if let Some(deferred) = self.deferred {
                    let (name, steps, expected) = (name(), STEPS, expected.clone());
                    let pending = Pending { executable, name, steps, expected, tolerance };
                    deferred.all.borrow_mut().push(pending);
                }
            }
        }
    }
}

#[track_caller]
pub(super) fn compare(
    got: &[f32],
    expected: &[f32],
    tolerance: Tolerance,
    describe: impl Fn() -> String,
) {
    let largest = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let limit = tolerance.absolute + tolerance.relative * largest;
    assert_eq!(got.len(), expected.len());
    for (i, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        // Infinities are equal, but have no difference.
        assert!(
            got == expected || (got - expected).abs() <= limit,
            "{}: value {i}: expected {expected} within {limit}, got {got}",
            describe()
        );
    }
}

/// The fused program and, if fusion changes it, the recorded one. Operands are still converted for a device that lacks
/// kernels without.
fn executables(
    device: &Device,
    program: &Program,
    max: &Counts,
) -> Vec<(&'static str, Box<dyn Executable>)> {
    let fused = fuse(program, &device.capabilities());
    let mut all = vec![("fused", device.compile(program, max).expect("a small program"))];
    let names = |segment: &Segment| {
        let mut names: Vec<_> = segment.nodes.iter().map(|node| node.op.name()).collect();
        names.sort_unstable();
        names
    };
    let is_changed = |variant: &Segment| {
        let recorded = program.segments.iter().find(|other| other.name == variant.name);
        recorded.is_none_or(|recorded| names(recorded) != names(variant))
    };
    if !fused.segments.iter().any(is_changed) {
        return all;
    }
    match device.compile_fused(program, max) {
        Err(Error::Unsupported { .. }) => {
            let mut single = device.capabilities();
            single.table.retain(|row| matches!(row.kind, CapabilityKind::Read(_)));
            let converted = fuse(program, &single);
            if converted.to_string() != fused.to_string() {
                let executable = device.compile_fused(&converted, max).expect("a small program");
                all.push(("converted", executable));
            }
        }
        executable => all.push(("unfused", executable.expect("a small program"))),
    }
    all
}

impl HostData {
    /// Runs the steps of the program, with `poison` in the place of all imported values.
    fn run(&self, executable: &mut dyn Executable, poison: Option<f32>) {
        for (port, values) in &self.imports {
            match poison {
                Some(value) => executable.import(*port, &vec![value; values.len()]),
                None => executable.import(*port, values),
            }
        }
        let Tables { counts, tokens, positions, output_rows, k, .. } = &self.tables;
        let Tables { logit_filters, suppressed, copies, slots, rows, page_table, .. } =
            &self.tables;
        let [first_states, states] = &self.tables.states;
        let mut step = Step {
            segments: &[SegmentName::CrossKv],
            counts: *counts,
            tokens,
            positions,
            output_rows,
            logit_filters,
            suppressed,
            k: *k,
            slots: slots.each_ref().map(|slots| &slots[..]),
            states: first_states,
            ..Step::default()
        };
        step.rows[RowTable::FULL.index()] = AttentionRows { rows, page_table };
        executable.run(&step);
        executable.run(&Step { segments: &[SegmentName::Body], copies, states, ..step });
    }

    fn fetch(&self, executable: &mut dyn Executable) {
        let ranges = self.outputs.iter().map(|&(port, len)| PortRange::first(port, len));
        executable.fetch(&ranges.collect::<Vec<_>>(), true);
    }

    /// All outputs, at once if the device needs no wait and `at_once` says so.
    fn read(&self, executable: &mut dyn Executable, at_once: bool) -> Vec<f32> {
        self.fetch(executable);
        let mut values = Vec::new();
        let result = if at_once { executable.collect_now(&mut values) } else { None };
        result
            .unwrap_or_else(|| block_on(executable.collect(&mut values)))
            .expect("readable values");
        values
    }
}

impl<'a> Recording<'a> {
    fn new(device: &'a Device, n_tokens: usize, seed: u64) -> Self {
        let mut data = HostData::default();
        data.tables.counts[Count::Tokens] = n_tokens;
        data.tables.counts[Count::Windows] = 1;
        Self { device, data, random: Lcg::new(seed), ops: Recorder::new() }
    }

    pub(super) fn tables(&mut self) -> &mut Tables {
        &mut self.data.tables
    }

    fn next_port(&self) -> Port {
        Port::value(self.data.imports.len() + self.data.outputs.len())
    }

    /// Loads values.
    pub(super) fn load(&self, values: &[f32]) -> Weight {
        self.device.load_values(values).expect("a few values")
    }

    /// Loads `len` random values of a standard deviation of `scale`.
    pub(super) fn values(&mut self, len: usize, scale: f32) -> Weight {
        let values = self.random.normals(len, scale);
        self.load(&values)
    }

    /// Loads a matrix.
    pub(super) fn matrix(&self, dtype: DType, [rows, cols]: [usize; 2], bytes: Vec<u8>) -> Weight {
        let bytes = SharedBytes::from(bytes);
        let source = MatrixSource { name: "test", rows, cols, dtype, bytes: &bytes };
        self.device.load_matrix(source).expect("a supported type")
    }

    /// Loads a random matrix.
    pub(super) fn weights(&mut self, dtype: DType, rows: usize, cols: usize) -> Weight {
        // Any alignment, as in files.
        let mut bytes = vec![0; (self.random.next_u32() % 2) as usize];
        let start = bytes.len();
        let scale = 1.0 / (cols as f32).sqrt();
        bytes.extend(random_weights(dtype, &mut self.random, (rows, cols), scale));
        let bytes = SharedBytes::from(bytes);
        let bytes = &bytes.slice(start..bytes.len());
        let source = MatrixSource { name: "test", rows, cols, dtype, bytes };
        self.device.load_matrix(source).expect("a supported type")
    }

    /// Imports values.
    pub(super) fn import(&mut self, values: Vec<f32>, rows: Rows, cols: usize) -> Tensor {
        assert_eq!(values.len(), self.data.tables.counts.rows(rows) * cols);
        let port = self.next_port();
        self.data.imports.push((port, values));
        self.ops.import(port, rows, cols)
    }

    /// Imports random values.
    pub(super) fn random_rows(&mut self, rows: Rows, cols: usize) -> Tensor {
        let values = self.random.normals(self.data.tables.counts.rows(rows) * cols, 1.0);
        self.import(values, rows, cols)
    }

    /// Imports a random row of each token.
    pub(super) fn packed(&mut self, cols: usize) -> Tensor {
        self.random_rows(Rows::of(Count::Tokens), cols)
    }

    /// Imports a random row of each token with NaN in the gaps between the rows.
    pub(super) fn strided(&mut self, cols: usize) -> Tensor {
        let n_tokens = self.data.tables.counts[Count::Tokens];
        let (first, stride) = (2, cols + 3);
        let mut values = vec![f32::NAN; n_tokens * stride];
        for row in values.chunks_exact_mut(stride) {
            row[first..first + cols].copy_from_slice(&self.random.normals(cols, 1.0));
        }
        self.import(values, Rows::of(Count::Tokens), stride).columns(first, cols)
    }

    /// Records a matmul.
    pub(super) fn matmul(
        &mut self,
        x: Tensor,
        weight: &Weight,
        (bias, activation): (Option<&Weight>, Activation),
    ) -> Tensor {
        let args = MatmulArgs { weight: weight.clone(), bias: bias.cloned(), activation };
        self.ops.op(Op::Matmul(args), &[x])
    }

    /// Records a matmul without bias and activation.
    pub(super) fn product(&mut self, x: Tensor, weight: &Weight) -> Tensor {
        self.matmul(x, weight, (None, Activation::None))
    }

    /// Compares all of a value.
    pub(super) fn output(&mut self, x: Tensor) {
        self.output_values(x, self.data.tables.counts.rows(x.rows) * x.cols);
    }

    /// Compares the first `len` values.
    pub(super) fn output_values(&mut self, x: Tensor, len: usize) {
        let port = self.next_port();
        self.ops.output(port, x);
        self.output_port(port, len);
    }

    /// Compares the first `len` values of a port.
    pub(super) fn output_port(&mut self, port: Port, len: usize) {
        self.data.outputs.push((port, len));
    }

    /// Compares a copy of a value, which a later op may overwrite.
    pub(super) fn export(&mut self, x: Tensor) {
        let port = self.next_port();
        self.ops.export(port, x);
        self.output_port(port, self.data.tables.counts.rows(x.rows) * x.cols);
    }
}
