//! Ops in the order of a model's layer. A backend may fuse consecutive ops; the outputs must stay those of the single
//! ops.

use stonechat_compute::DType;
use stonechat_nn::{
    Activation, Attention, Backend, Epilogue, GatedActivation, GatedMlp, KvDType, KvRow, KvShape,
    Linear, MatmulOp, PAGE_LEN, Precision, QueryRow, Rope, RopePairs, Rotation, Rows, View,
};

use super::{Case, F32, INT8, download, rope_angles, upload, weights};
use crate::{Lcg, Reference};

const HEAD_DIM: usize = 32;
const N_HEADS: usize = 4;
const N_KV_HEADS: usize = 2;
/// Width of the residual stream, `d_model`.
const D: usize = N_HEADS * HEAD_DIM;

/// A layer on `rows` tokens.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) rows: usize,
    /// Intermediate width of the MLP, a multiple of 256.
    pub(super) d_ff: usize,
    pub(super) dtype: DType,
    /// QK norm before the rotary embedding.
    pub(super) has_norms: bool,
}

fn matmul<'a, B: Backend>(out: &'a mut B::Buffer, w: &'a B::Matrix) -> MatmulOp<'a, B> {
    let epilogue = Epilogue { bias: None, activation: Activation::None, accumulate: false };
    MatmulOp { out, w, epilogue, consumer: None }
}

impl Layer {
    pub(super) fn check<B: Backend>(&self, backends: &[B]) {
        let case = Case { rows: self.rows, cols: D, seed: 11 };
        // The errors of consecutive matmuls add up, within the tolerance of one.
        let tolerance = if self.dtype.is_quantized() { INT8 } else { F32 };
        let check = |name: &str, oracle: Vec<f32>, got: &dyn Fn(&B) -> Vec<f32>| {
            let name = format!("{name} of {self:?}");
            case.check(&name, tolerance, backends, |_, backend| got(backend), &oracle);
        };
        for shift in [0, 1] {
            let name = format!("attention with positions of the keys from row {shift}");
            check(&name, self.attention(&Reference, shift), &|b| self.attention(b, shift));
        }
        for has_bias in [false, true] {
            let name = if has_bias { "gated MLP with biases" } else { "gated MLP" };
            check(name, self.gated(&Reference, has_bias), &|b| self.gated(b, has_bias));
        }
        check("plain MLP", self.plain(&Reference), &|b| self.plain(b));
        check("RMS norm and matmuls", self.normed(&Reference), &|b| self.normed(b));
    }

    /// RMS norm and matmuls of its output: three, one, and one that accumulates into the input of the norm.
    fn normed<B: Backend>(&self, backend: &B) -> Vec<f32> {
        // Longer than what one workgroup of a GPU norms in a pass.
        const K: usize = 2304;
        let Self { rows: t, dtype, .. } = *self;
        let mut random = Lcg::new(5 + t as u64);
        let mut x = upload(backend, &random.normals(t * K, 1.0));
        let norm = upload(backend, &random.normals(K, 1.0));
        let mut h = upload(backend, &vec![f32::NAN; t * K]);
        let widths = [48, 32, 40];
        // Mixed quantization, as in Q4_K_M files: one matrix of another type, in the middle or last.
        let other = if dtype.is_quantized() { DType::Q6K } else { dtype };
        let mixed = if t == 3 { [dtype, other, dtype] } else { [dtype, dtype, other] };
        let mut matrix = |(n, dtype)| weights(backend, &mut random, dtype, n, K);
        let w = [(48, mixed[0]), (32, mixed[1]), (40, mixed[2])].map(&mut matrix);
        let to_stream = weights(backend, &mut random, dtype, K, K);
        let mut outs = widths.map(|n| upload(backend, &vec![f32::NAN; t * n]));
        let mut results = Vec::new();
        for n_ops in [3, 1] {
            backend.rms_norm(&mut h, View::packed(&x, t, K), &norm, 1e-6, false);
            let [a, b, c] = &mut outs;
            let input = View::packed(&h, t, K);
            if n_ops == 3 {
                let ops = [matmul(a, &w[0]), matmul(b, &w[1]), matmul(c, &w[2])];
                backend.matmul(input, ops);
            } else {
                backend.matmul(input, [matmul(a, &w[0])]);
            }
            for (out, n) in outs.iter().zip(widths).take(n_ops) {
                results.extend(download(backend, out, t * n));
            }
            results.extend(download(backend, &h, t * K));
        }
        backend.rms_norm(&mut h, View::packed(&x, t, K), &norm, 1e-6, false);
        let mut added = matmul(&mut x, &to_stream);
        added.epilogue.accumulate = true;
        backend.matmul(View::packed(&h, t, K), [added]);
        results.extend(download(backend, &x, t * K));
        results
    }

    /// MLP without a gate: up, GELU, down.
    fn plain<B: Backend>(&self, backend: &B) -> Vec<f32> {
        let Self { rows: t, d_ff, dtype, .. } = *self;
        let mut random = Lcg::new(3 + t as u64);
        let x = upload(backend, &random.normals(t * D, 1.0));
        let bias = upload(backend, &random.normals(d_ff, 1.0));
        let w_up = weights(backend, &mut random, dtype, d_ff, D);
        let w_down = weights(backend, &mut random, dtype, D, d_ff);
        let mut hidden = upload(backend, &vec![f32::NAN; t * d_ff]);
        let mut stream = upload(backend, &vec![f32::NAN; t * D]);
        let mut results = Vec::new();
        for has_consumer in [false, false, true, true] {
            let mut up = matmul(&mut hidden, &w_up);
            up.consumer = has_consumer.then_some(&w_down);
            up.epilogue.bias = Some(&bias);
            up.epilogue.activation = Activation::Gelu;
            backend.matmul(View::packed(&x, t, D), [up]);
            let down = [matmul(&mut stream, &w_down)];
            backend.matmul(View::packed(&hidden, t, d_ff), down);
            results.extend(download(backend, &stream, t * D));
            if !has_consumer {
                results.extend(download(backend, &hidden, t * d_ff));
            }
        }
        results
    }

    fn gated<B: Backend>(&self, backend: &B, has_bias: bool) -> Vec<f32> {
        let Self { rows: t, d_ff, dtype, .. } = *self;
        let mut random = Lcg::new(t as u64);
        let x = upload(backend, &random.normals(t * D, 1.0));
        let norm = upload(backend, &random.normals(D, 1.0));
        let [w_gate, w_up, w_down] = [(d_ff, D), (d_ff, D), (D, d_ff)].map(|(n, k)| {
            let weight = weights(backend, &mut random, dtype, n, k);
            Linear { weight, bias: has_bias.then(|| upload(backend, &random.normals(n, 1.0))) }
        });
        let [mut h, mut stream] = [0, 1].map(|_| upload(backend, &vec![f32::NAN; t * D]));
        let [mut gate, mut up, mut hidden] =
            [0; 3].map(|_| upload(backend, &vec![f32::NAN; t * d_ff]));
        let mut results = Vec::new();
        // Twice: a backend may adapt its kernels to the first pass.
        for accumulate in [false, true] {
            backend.rms_norm(&mut h, View::packed(&x, t, D), &norm, 1e-6, false);
            let mlp = GatedMlp {
                gate: &w_gate,
                up: &w_up,
                down: &w_down,
                activation: GatedActivation::Silu,
                d_ff,
                accumulate,
                scratch: [&mut gate, &mut up, &mut hidden],
            };
            backend.gated_mlp(&mut stream, View::packed(&h, t, D), mlp);
            results.extend(download(backend, &stream, t * D));
        }
        results
    }

    /// Projections, `RoPE` (row `t` of the keys has the position of row `t + shift` of the queries), KV write, attention.
    fn attention<B: Backend>(&self, backend: &B, shift: usize) -> Vec<f32> {
        let Self { rows: t, dtype, .. } = *self;
        let mut random = Lcg::new(7 + t as u64);
        let kv_width = N_KV_HEADS * HEAD_DIM;
        let shape = KvShape {
            n_layers: 1,
            n_pages: 3,
            n_kv_heads: N_KV_HEADS,
            head_dim: HEAD_DIM,
            dtype: KvDType::F32,
        };
        let mut kv = backend.kv(shape).expect("a small pool");
        let first = 70;
        let slot =
            |pos: usize| KvRow { page: [2, 0, 1][pos / PAGE_LEN], slot: (pos % PAGE_LEN) as u32 };
        let both = upload(backend, &random.normals(first * 2 * kv_width, 1.0));
        let part =
            |i| View::new(&both, Rows::packed(first, 2 * kv_width).columns(i * kv_width, kv_width));
        let slots: Vec<_> = (0..first).map(slot).collect();
        backend.kv_write(&mut kv, 0, part(0), part(1), &slots);

        let x = upload(backend, &random.normals(t * D, 1.0));
        let [w_q, w_k, w_v] =
            [D, kv_width, kv_width].map(|n| weights(backend, &mut random, dtype, n, D));
        let bias = upload(backend, &random.normals(kv_width, 1.0));
        let mut q = upload(backend, &vec![f32::NAN; t * D]);
        let [mut k, mut v] = [0, 1].map(|_| upload(backend, &vec![f32::NAN; t * kv_width]));
        let mut with_bias = matmul(&mut k, &w_k);
        with_bias.epilogue.bias = Some(&bias);
        let ops = [matmul(&mut q, &w_q), with_bias, matmul(&mut v, &w_v)];
        backend.matmul(View::packed(&x, t, D), ops);
        let [q_norm, k_norm] = [0, 1].map(|_| upload(backend, &random.normals(HEAD_DIM, 1.0)));
        let n_rot = 24;
        let (table, positions) = rope_angles(backend, &mut random, t + shift, n_rot);
        let (q_positions, k_positions) = (&positions[..t], &positions[shift..]);
        for (x, width, norm, positions) in
            [(&mut q, D, &q_norm, q_positions), (&mut k, kv_width, &k_norm, k_positions)]
        {
            let norm = self.has_norms.then_some((norm, 1e-6));
            let pairs = RopePairs::Neox;
            let rotation = Some(Rotation { table: &table, positions, n_rot, pairs });
            backend.rope(x, Rows::packed(t, width), Rope { head_dim: HEAD_DIM, norm, rotation });
        }
        let slots: Vec<_> = (first..first + t).map(slot).collect();
        let views = [&k, &v].map(|buffer| View::packed(buffer, t, kv_width));
        backend.kv_write(&mut kv, 0, views[0], views[1], &slots);
        let rows: Vec<_> = (first..first + t)
            .map(|pos| QueryRow { first_page: 0, n_pages: 3, kv_start: 0, kv_len: pos as u32 + 1 })
            .collect();
        let w = weights(backend, &mut random, dtype, D, D);
        let [mut attended, mut stream] = [0, 1].map(|_| upload(backend, &vec![f32::NAN; t * D]));
        let mut results = Vec::new();
        for _ in 0..2 {
            let args = Attention {
                q: View::packed(&q, t, D),
                kv: &kv,
                layer: 0,
                n_heads: N_HEADS,
                scale: 1.0 / (HEAD_DIM as f32).sqrt(),
                soft_cap: None,
                slopes: None,
                sinks: None,
                rows: &rows,
                page_table: &[2, 0, 1],
                precision: Precision::F32,
            };
            backend.attention(&mut attended, args);
            backend.matmul(View::packed(&attended, t, D), [matmul(&mut stream, &w)]);
            results.extend(download(backend, &stream, t * D));
            results.extend(download(backend, &attended, t * D));
        }
        results.extend(download(backend, &q, t * D));
        results.extend(download(backend, &k, t * kv_width));
        results.extend(download(backend, &v, t * kv_width));
        results
    }
}
