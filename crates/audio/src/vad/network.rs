//! Silero VAD v6 for 16 kHz.
//!
//! A step sees 64 samples of context and 512 new ones, reflected by 64 at the end: 4 frames of a
//! short-time Fourier transform. Four convolutions over those frames leave one vector, an LSTM
//! carries it from step to step, and a sigmoid of its state is the probability. Everything but the
//! LSTM's recurrence is computed for many steps at once.
//!
//! Own inference: ONNX Runtime, which the reference uses, is C++.
//! Source: the graph `silero_vad_v6.onnx` of faster-whisper 1.2.1; `test-data/golden/vad.py` makes
//! `silero_vad_v6.bin` of it and documents its layout.

use std::f64::consts::TAU;
use std::fmt;
use std::sync::Arc;

use realfft::num_complex::Complex;
use realfft::{RealFftPlanner, RealToComplex};
use stonechat_compute::Cpu;
use stonechat_compute::cpu::{DenseWeight, Epilogue, Lstm, MatMut, MatRef, matmul};

use super::STEP;

static WEIGHTS: &[u8] = include_bytes!("silero_vad_v6.bin");

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

const N_WEIGHTS: usize = CHANNELS[0] * (3 * N_BINS + 1)
    + CHANNELS[1] * (3 * CHANNELS[0] + 1)
    + CHANNELS[2] * (3 * CHANNELS[1] + 1)
    + CHANNELS[3] * (CHANNELS[2] + 1)
    + GATES * (CHANNELS[3] + 1 + HIDDEN)
    + HIDDEN
    + 1;
const _: () = assert!(WEIGHTS.len() == 4 * N_WEIGHTS, "the weights are those of this network");

/// `y = w · x + bias`, `w` `[N, K]`.
struct Layer {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

/// Weights, plan and buffers.
pub(super) struct Network {
    cpu: Cpu,
    convolutions: [Layer; 4],
    lstm_input: Layer,
    lstm_hidden: Lstm,
    output: Layer,
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
pub(super) struct Buffers {
    /// Steps that fit.
    batch: usize,
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
    /// `[batch, GATES]`.
    gates: Vec<f32>,
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").field("cpu", &self.cpu).finish_non_exhaustive()
    }
}

impl Network {
    pub(super) fn new(cpu: Cpu) -> Self {
        let mut values = WEIGHTS.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
        let mut take = |n: usize| values.by_ref().take(n).collect::<Vec<f32>>();
        let mut layer = |n: usize, k: usize| Layer { weight: take(n * k), bias: take(n) };
        let convolutions = [
            layer(CHANNELS[0], 3 * N_BINS),
            layer(CHANNELS[1], 3 * CHANNELS[0]),
            layer(CHANNELS[2], 3 * CHANNELS[1]),
            layer(CHANNELS[3], CHANNELS[2]),
        ];
        let lstm_input = layer(GATES, CHANNELS[3]);
        let lstm_hidden = Lstm::new(HIDDEN, &take(GATES * HIDDEN));
        let output = Layer { weight: take(HIDDEN), bias: take(1) };
        let hann = |i: usize| 0.5 - 0.5 * (TAU * i as f64 / N_FFT as f64).cos();
        Self {
            cpu,
            convolutions,
            lstm_input,
            lstm_hidden,
            output,
            window: (0..N_FFT).map(|i| hann(i) as f32).collect(),
            fft: RealFftPlanner::new().plan_fft_forward(N_FFT),
        }
    }

    /// Buffers for `batch` steps at once.
    fn buffers(&self, batch: usize) -> Buffers {
        Buffers {
            batch,
            frame: self.fft.make_input_vec(),
            spectrum: self.fft.make_output_vec(),
            scratch: self.fft.make_scratch_vec(),
            magnitudes: vec![0.0; batch * ROWS_IN * N_BINS],
            x1: vec![0.0; batch * ROWS_1 * CHANNELS[0]],
            x2: vec![0.0; batch * ROWS_2 * CHANNELS[1]],
            x3: vec![0.0; batch * CHANNELS[2]],
            x4: vec![0.0; batch * CHANNELS[3]],
            gates: vec![0.0; batch * GATES],
        }
    }

    /// The probability of each step of `samples`, the last of which reaches past the end.
    pub(super) fn run(&self, samples: &[f32]) -> Vec<f32> {
        let n_steps = samples.len() / STEP + 1;
        let (mut state, mut buffers) = (LstmState::ZERO, self.buffers(BATCH));
        let mut probabilities = Vec::with_capacity(n_steps);
        self.steps((samples, 0), n_steps, (&mut state, &mut buffers), &mut probabilities);
        probabilities
    }

    /// Appends the probabilities of `n_steps` steps, the first of which begins at sample `first`.
    fn steps(
        &self,
        (samples, first): (&[f32], usize),
        n_steps: usize,
        (state, buffers): (&mut LstmState, &mut Buffers),
        probabilities: &mut Vec<f32>,
    ) {
        for done in (0..n_steps).step_by(buffers.batch) {
            let n = buffers.batch.min(n_steps - done);
            self.transform(samples, first + done * STEP, n, buffers);
            self.encode(n, buffers);
            for gates in buffers.gates[..n * GATES].chunks_exact_mut(GATES) {
                let LstmState { hidden, cell } = state;
                self.lstm_hidden.step(self.cpu.isa, gates, hidden, cell);
                let weighted = hidden.iter().zip(&self.output.weight);
                let sum: f32 = weighted.map(|(h, w)| h.max(0.0) * w).sum();
                probabilities.push(sigmoid(sum + self.output.bias[0]));
            }
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

    /// The convolutions and the LSTM's product with its input, for `n` steps.
    fn encode(&self, n: usize, buffers: &mut Buffers) {
        let Buffers { magnitudes, x1, x2, x3, x4, gates, .. } = buffers;
        let [c1, c2, c3, c4] = CHANNELS;
        let layer = |layer: &Layer, x: MatRef<'_>, out: MatMut<'_>| {
            let epilogue = Epilogue { bias: Some(&layer.bias), ..Epilogue::default() };
            matmul(&self.cpu, out, x, DenseWeight::F32(&layer.weight), epilogue);
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
            pending: vec![0.0; CONTEXT],
            probabilities: Vec::new(),
        }
    }

    /// Appends `samples` to `stream`; the probabilities of the steps that they complete.
    pub(super) fn push<'a>(&self, stream: &'a mut Stream, samples: &[f32]) -> &'a [f32] {
        let Stream { lstm, buffers, pending, probabilities } = stream;
        pending.extend_from_slice(samples);
        let n_steps = (pending.len() - CONTEXT) / STEP;
        probabilities.clear();
        self.steps((pending, CONTEXT), n_steps, (lstm, buffers), probabilities);
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
