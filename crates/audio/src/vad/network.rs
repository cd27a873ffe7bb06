//! Silero VAD v6 for 16 kHz.
//!
//! A step sees 64 samples of context and 512 new ones, reflected by 64 at the end: 4 frames of a
//! short-time Fourier transform. Four convolutions over those frames leave one vector, an LSTM
//! carries it from step to step, and a sigmoid of its state is the probability. Everything but the
//! LSTM's recurrence is computed for many steps at once, by all threads, while one runs the recurrence.
//!
//! Own inference: ONNX Runtime, which the reference uses, is C++.
//! Source: the graph `silero_vad_v6.onnx` of faster-whisper 1.2.1; `test-data/golden/vad.py` makes
//! `silero_vad_v6.bin` of it and documents its layout.

use std::f64::consts::TAU;
use std::sync::{Arc, Mutex, PoisonError};
use std::{fmt, iter};

use realfft::num_complex::Complex;
use realfft::{RealFftPlanner, RealToComplex};
use stonechat_compute::Cpu;
use stonechat_compute::cpu::{DensePanels, Epilogue, Lstm, MatMut, MatRef, matmul_panels};

use super::{STEP, weights};
use crate::Error;

/// Samples of the previous step at the start of each step's input.
const CONTEXT: usize = 64;
/// Samples reflected at the end of a step.
const REFLECTED: usize = 64;
const N_FFT: usize = 256;
const HOP: usize = 128;
const N_BINS: usize = N_FFT / 2 + 1;
/// Frames of one step.
const FRAMES: usize = (CONTEXT + STEP + REFLECTED - N_FFT) / HOP + 1;
/// Channels after each convolution.
const CHANNELS: [usize; 4] = [128, 64, 64, 128];
/// Width of the LSTM.
const HIDDEN: usize = 128;
const GATES: usize = 4 * HIDDEN;
/// Steps computed together.
const BATCH: usize = 256;

// Frames of a step with the zero padding of each convolution. The second and third have stride 2;
// the fourth has kernel size 1.
const ROWS_IN: usize = FRAMES + 2;
const ROWS_1: usize = FRAMES + 1;
const ROWS_2: usize = FRAMES / 2 + 1;

/// Number of weights.
pub(super) const N_WEIGHTS: usize = CHANNELS[0] * (3 * N_BINS + 1)
    + CHANNELS[1] * (3 * CHANNELS[0] + 1)
    + CHANNELS[2] * (3 * CHANNELS[1] + 1)
    + CHANNELS[3] * (CHANNELS[2] + 1)
    + GATES * (CHANNELS[3] + 1 + HIDDEN)
    + HIDDEN
    + 1;

/// `y = w · x + bias`, `w` `[N, K]`.
struct Layer {
    weight: DensePanels,
    bias: Vec<f32>,
}

/// Weights, plan and buffers.
pub(super) struct Network {
    cpu: Cpu,
    convolutions: [Layer; 4],
    lstm_input: Layer,
    lstm_hidden: Lstm,
    /// Weights and bias of the probability.
    output: (Vec<f32>, f32),
    window: Vec<f32>,
    fft: Arc<dyn RealToComplex<f32>>,
}

/// State of the LSTM between steps.
#[derive(Debug, Clone)]
pub(super) struct LstmState {
    hidden: [f32; HIDDEN],
    cell: [f32; HIDDEN],
}

impl LstmState {
    /// The state before the first step.
    pub(super) const ZERO: Self = Self { hidden: [0.0; HIDDEN], cell: [0.0; HIDDEN] };
}

/// Activations of a batch of steps; padding stays zero.
struct Buffers {
    frame: Vec<f32>,
    spectrum: Vec<Complex<f32>>,
    scratch: Vec<Complex<f32>>,
    /// `[batch, ROWS_IN, N_BINS]`.
    magnitudes: Vec<f32>,
    /// `[batch, ROWS_1, CHANNELS[0]]`.
    x1: Vec<f32>,
    /// `[batch, ROWS_2, CHANNELS[1]]`.
    x2: Vec<f32>,
    /// `[batch, CHANNELS[2]]`.
    x3: Vec<f32>,
    /// `[batch, CHANNELS[3]]`.
    x4: Vec<f32>,
}

/// A task of a thread.
enum Work<'a> {
    /// Products of the LSTM with the inputs of a batch of steps, the first of which begins at a sample.
    Encode(usize, &'a mut Buffers, &'a mut [f32]),
    /// The LSTM's recurrence over the products of the group before.
    Recur(&'a mut LstmState, &'a mut [f32], &'a mut Vec<f32>),
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("cpu", &self.cpu).finish_non_exhaustive()
    }
}

impl Network {
    /// Unpacks the weights.
    pub(super) fn new(cpu: Cpu) -> Result<Self, Error> {
        let mut values =
            weights::get()?.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
        let mut take = |n: usize| values.by_ref().take(n).collect::<Vec<f32>>();
        let mut layer = |n: usize, k: usize| Layer {
            weight: DensePanels::new(cpu.isa, take(n * k), k),
            bias: take(n),
        };
        let convolutions = [
            layer(CHANNELS[0], 3 * N_BINS),
            layer(CHANNELS[1], 3 * CHANNELS[0]),
            layer(CHANNELS[2], 3 * CHANNELS[1]),
            layer(CHANNELS[3], CHANNELS[2]),
        ];
        let lstm_input = layer(GATES, CHANNELS[3]);
        let lstm_hidden = Lstm::new(HIDDEN, &take(GATES * HIDDEN));
        let output = (take(HIDDEN), take(1)[0]);
        let hann = |i: usize| 0.5 - 0.5 * (TAU * i as f64 / N_FFT as f64).cos();
        Ok(Self {
            cpu,
            convolutions,
            lstm_input,
            lstm_hidden,
            output,
            window: (0..N_FFT).map(|i| hann(i) as f32).collect(),
            fft: RealFftPlanner::new().plan_fft_forward(N_FFT),
        })
    }

    /// Buffers for `batch` steps at once.
    fn buffers(&self, batch: usize) -> Buffers {
        Buffers {
            frame: self.fft.make_input_vec(),
            spectrum: self.fft.make_output_vec(),
            scratch: self.fft.make_scratch_vec(),
            magnitudes: vec![0.0; batch * ROWS_IN * N_BINS],
            x1: vec![0.0; batch * ROWS_1 * CHANNELS[0]],
            x2: vec![0.0; batch * ROWS_2 * CHANNELS[1]],
            x3: vec![0.0; batch * CHANNELS[2]],
            x4: vec![0.0; batch * CHANNELS[3]],
        }
    }

    /// The probability of each step of `samples`, the last of which reaches past the end.
    ///
    /// ```text
    /// group of batches   encode 0 | encode 1 | encode 2 | ...
    /// LSTM                          recur 0  | recur 1  | recur 2
    /// ```
    pub(super) fn run(&self, samples: &[f32]) -> Vec<f32> {
        let n_steps = samples.len() / STEP + 1;
        let n_batches = (2 * self.cpu.threads.n_threads()).min(n_steps.div_ceil(BATCH));
        let mut buffers: Vec<_> = (0..n_batches).map(|_| self.buffers(BATCH)).collect();
        let group_steps = n_batches * BATCH;
        let mut gates = vec![0.0; n_steps.min(group_steps) * GATES];
        let mut gates_before = vec![0.0; gates.len()];
        let (mut n_before, mut state) = (0, LstmState::ZERO);
        let mut probabilities = Vec::with_capacity(n_steps);
        // One round more, for the LSTM of the last group.
        for first in (0..n_steps + group_steps).step_by(group_steps) {
            let n = group_steps.min(n_steps.saturating_sub(first));
            let before = &mut gates_before[..n_before * GATES];
            let recur = Work::Recur(&mut state, before, &mut probabilities);
            let batches = buffers.iter_mut().zip(gates[..n * GATES].chunks_mut(BATCH * GATES));
            let encode = batches.enumerate().map(|(i, (buffers, gates))| {
                Work::Encode((first + i * BATCH) * STEP, buffers, gates)
            });
            let work = Mutex::new(iter::once(recur).chain(encode));
            self.cpu.threads.run(1 + n.div_ceil(BATCH), |_| {
                let next = work.lock().unwrap_or_else(PoisonError::into_inner).next();
                match next.expect("a piece of work a task") {
                    Work::Recur(state, gates, probabilities) => {
                        self.recur(gates, state, probabilities);
                    }
                    Work::Encode(first, buffers, gates) => {
                        self.encode((samples, first), buffers, gates);
                    }
                }
            });
            std::mem::swap(&mut gates, &mut gates_before);
            n_before = n;
        }
        probabilities
    }

    /// Appends the probabilities of steps to `probabilities`, from the products `[n, GATES]` of their inputs.
    fn recur(&self, gates: &mut [f32], state: &mut LstmState, probabilities: &mut Vec<f32>) {
        for gates in gates.chunks_exact_mut(GATES) {
            let LstmState { hidden, cell } = state;
            self.lstm_hidden.step(self.cpu.isa, gates, hidden, cell);
            let (weights, bias) = &self.output;
            let weighted = hidden.iter().zip(weights);
            let sum: f32 = weighted.map(|(h, w)| h.max(0.0) * w).sum();
            probabilities.push(sigmoid(sum + bias));
        }
    }

    /// Magnitudes of the frames of `n` steps, the first of which begins at sample `first`.
    fn transform(&self, samples: &[f32], first: usize, n: usize, buffers: &mut Buffers) {
        let Buffers { frame, spectrum, scratch, magnitudes, .. } = buffers;
        let mut signal = [0.0; CONTEXT + STEP + REFLECTED];
        for (i, rows) in magnitudes.chunks_exact_mut(ROWS_IN * N_BINS).take(n).enumerate() {
            let start = first + i * STEP;
            signal.fill(0.0);
            let from = start.saturating_sub(CONTEXT);
            let known = &samples[from..(start + STEP).min(samples.len())];
            let at = from + CONTEXT - start;
            signal[at..at + known.len()].copy_from_slice(known);
            for j in 0..REFLECTED {
                signal[CONTEXT + STEP + j] = signal[CONTEXT + STEP - 2 - j];
            }
            for (f, row) in rows.chunks_exact_mut(N_BINS).skip(1).take(FRAMES).enumerate() {
                for ((x, s), w) in frame.iter_mut().zip(&signal[f * HOP..]).zip(&self.window) {
                    *x = s * w;
                }
                let done = self.fft.process_with_scratch(frame, spectrum, scratch);
                debug_assert!(done.is_ok(), "the buffers come from the plan");
                for (magnitude, bin) in row.iter_mut().zip(&*spectrum) {
                    *magnitude = bin.norm_sqr().sqrt();
                }
            }
        }
    }

    /// The convolutions and the LSTM's product with its input, `[n, GATES]`, for `n` steps, the first of which begins at
    /// sample `first`.
    fn encode(&self, (samples, first): (&[f32], usize), buffers: &mut Buffers, gates: &mut [f32]) {
        let n = gates.len() / GATES;
        self.transform(samples, first, n, buffers);
        let Buffers { magnitudes, x1, x2, x3, x4, .. } = buffers;
        let [c1, c2, c3, c4] = CHANNELS;
        let layer = |layer: &Layer, x: MatRef<'_>, out: MatMut<'_>| {
            let epilogue = Epilogue { bias: Some(&layer.bias), ..Epilogue::default() };
            matmul_panels(&self.cpu, out, x, &layer.weight, epilogue);
        };
        let [first, second, third, fourth] = &self.convolutions;
        // A convolution is a product for each of a step's frames, with the rows of all steps.
        for f in 0..FRAMES {
            let x = MatRef::new(&magnitudes[f * N_BINS..], n, 3 * N_BINS, ROWS_IN * N_BINS);
            layer(first, x, MatMut::new(&mut x1[(f + 1) * c1..], n, c1, ROWS_1 * c1));
        }
        rectify(x1);
        for f in 0..FRAMES / 2 {
            let x = MatRef::new(&x1[2 * f * c1..], n, 3 * c1, ROWS_1 * c1);
            layer(second, x, MatMut::new(&mut x2[(f + 1) * c2..], n, c2, ROWS_2 * c2));
        }
        rectify(x2);
        layer(third, MatRef::packed(x2, n, 3 * c2), MatMut::packed(x3, n, c3));
        rectify(x3);
        layer(fourth, MatRef::packed(x3, n, c3), MatMut::packed(x4, n, c4));
        rectify(x4);
        layer(&self.lstm_input, MatRef::packed(x4, n, c4), MatMut::packed(gates, n, GATES));
    }
}

/// State of a stream of samples.
pub(super) struct Stream {
    lstm: LstmState,
    buffers: Buffers,
    gates: Vec<f32>,
    /// Context of the next step, `CONTEXT` samples, then its own samples so far.
    pending: Vec<f32>,
    probabilities: Vec<f32>,
}

impl Network {
    /// A stream before its first sample.
    pub(super) fn stream(&self) -> Stream {
        Stream {
            lstm: LstmState::ZERO,
            buffers: self.buffers(1),
            gates: vec![0.0; GATES],
            pending: vec![0.0; CONTEXT],
            probabilities: Vec::new(),
        }
    }

    /// Appends `samples` to `stream`; the probabilities of the steps that they complete.
    pub(super) fn push<'a>(&self, stream: &'a mut Stream, samples: &[f32]) -> &'a [f32] {
        let Stream { lstm, buffers, gates, pending, probabilities } = stream;
        pending.extend_from_slice(samples);
        let n_steps = (pending.len() - CONTEXT) / STEP;
        probabilities.clear();
        for step in 0..n_steps {
            self.encode((pending, CONTEXT + step * STEP), buffers, gates);
            self.recur(gates, lstm, probabilities);
        }
        pending.drain(..n_steps * STEP);
        probabilities
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn rectify(values: &mut [f32]) {
    for value in values {
        *value = value.max(0.0);
    }
}
