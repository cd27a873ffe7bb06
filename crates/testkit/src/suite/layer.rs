//! Ops in the order of a model's layer, which devices fuse.

use stonechat_compute::DType;
use stonechat_nn::op::{
    AttentionArgs, Count, KvShape, KvWriteArgs, NormArgs, Op, PoolId, RopeArgs, Rotation, RowTable,
    Rows, SlotTable, Tensor, Weight,
};
use stonechat_nn::{
    Activation, GatedActivation, KvDType, KvRow, PAGE_LEN, Precision, QueryRow, RopePairs,
};

use super::recording::{OTHER_SLOTS, Recording, Suite};
use super::{F32, rope_table};

const HEAD_DIM: usize = 32;
const N_HEADS: usize = 4;
const N_KV_HEADS: usize = 2;
const KV_WIDTH: usize = N_KV_HEADS * HEAD_DIM;
/// Width of the residual stream, `d_model`.
const D: usize = N_HEADS * HEAD_DIM;
/// Positions before those of the layer's tokens.
const N_BEFORE: usize = 70;

/// A layer on `rows` tokens.
#[derive(Debug)]
struct Layer {
    rows: usize,
    /// Intermediate width of the MLP, a multiple of 256.
    d_ff: usize,
    dtype: DType,
    /// QK norm before the rotary embedding.
    has_norms: bool,
}

/// Runs every shape.
pub(super) fn check(suite: &Suite<'_>) {
    for rows in [1, 3, 8, 9, 40] {
        for (dtype, d_ff) in [(DType::F32, 256), (DType::Q8_0, 512), (DType::Q4_1, 256)] {
            Layer { rows, d_ff, dtype, has_norms: rows == 3 }.check(suite);
        }
    }
}

fn rms_norm(r: &mut Recording<'_>, x: Tensor, weight: &Weight) -> Tensor {
    let args = NormArgs { weight: weight.clone(), bias: None, eps: 1e-6 };
    r.ops.op(Op::RmsNorm(args), &[x])
}

/// Maximum rows of the matmul onto the input of a norm. Devices fuse that norm for one row.
const MAX_ROWS_TO_STREAM: usize = 3;

/// A residual stream that ops may overwrite, unlike an import.
fn stream(r: &mut Recording<'_>, cols: usize) -> Tensor {
    let (x, y) = (r.packed(cols), r.packed(cols));
    r.ops.add(x, y)
}

impl Layer {
    pub(super) fn check(&self, suite: &Suite<'_>) {
        // The errors of consecutive matmuls add up, within the tolerance of one.
        let tolerance = if self.dtype.is_quantized() { suite.tolerances.quantized } else { F32 };
        let check = |name: &str, seed, record: &dyn Fn(&mut Recording<'_>)| {
            let name = format!("{name} of {self:?}");
            suite.check(&name, tolerance, (self.rows, seed + self.rows as u64), record);
        };
        for has_own_tables in [false, true] {
            let of = if has_own_tables { "each of queries and keys" } else { "both" };
            let name = format!("attention with a RoPE table of {of}");
            check(&name, 7, &|r| self.attention(r, has_own_tables));
        }
        for has_bias in [false, true] {
            let name = if has_bias { "gated MLP with biases" } else { "gated MLP" };
            check(name, 0, &|r| self.gated(r, has_bias));
        }
        check("plain MLP", 3, &|r| self.plain(r));
        check("RMS norm and matmuls", 5, &|r| self.normed(r));
    }

    /// RMS norm and matmuls of its output: three, whether the output has another reader or not, one, and one whose residual
    /// is the input of the norm.
    fn normed(&self, r: &mut Recording<'_>) {
        // Longer than what one workgroup of a GPU norms in a pass.
        const K: usize = 2304;
        let Self { rows: t, dtype, .. } = *self;
        let x = stream(r, K);
        let norm = r.values(K, 1.0);
        // Mixed quantization, as in Q4_K_M files: one matrix of another type, in the middle or last.
        let other = if dtype.is_quantized() { DType::Q6K } else { dtype };
        let mixed = if t == 3 { [dtype, other, dtype] } else { [dtype, dtype, other] };
        let w = [(48, mixed[0]), (32, mixed[1]), (40, mixed[2])]
            .map(|(n, dtype)| r.weights(dtype, n, K));
        for (n_products, reads_h) in [(3, true), (1, true), (3, false)] {
            let h = rms_norm(r, x, &norm);
            for w in &w[..n_products] {
                let y = r.product(h, w);
                r.output(y);
            }
            if reads_h {
                r.output(h);
            }
        }
        // A matrix of one row a part, as the test of GPUs cuts it, takes many rows long.
        if t <= MAX_ROWS_TO_STREAM {
            let to_stream = r.weights(dtype, K, K);
            let h = rms_norm(r, x, &norm);
            let y = r.product(h, &to_stream);
            let sum = r.ops.add(x, y);
            r.output(sum);
        }
    }

    /// MLP without a gate: up, GELU, down. Whether the intermediate activations have another reader or not.
    fn plain(&self, r: &mut Recording<'_>) {
        let Self { d_ff, dtype, .. } = *self;
        let x = r.packed(D);
        let bias = r.values(d_ff, 1.0);
        let w_up = r.weights(dtype, d_ff, D);
        let w_down = r.weights(dtype, D, d_ff);
        for reads_hidden in [true, false] {
            let hidden = r.matmul(x, &w_up, (Some(&bias), Activation::Gelu));
            let y = r.product(hidden, &w_down);
            r.output(y);
            if reads_hidden {
                r.output(hidden);
            }
        }
    }

    /// RMS norm and gated MLP: alone, onto the result of the first, onto the input of the norm.
    fn gated(&self, r: &mut Recording<'_>, has_bias: bool) {
        let Self { d_ff, dtype, .. } = *self;
        let x = stream(r, D);
        let norm = r.values(D, 1.0);
        let [gate, up, down] = [(d_ff, D), (d_ff, D), (D, d_ff)].map(|(n, k)| {
            let weight = r.weights(dtype, n, k);
            (weight, has_bias.then(|| r.values(n, 1.0)))
        });
        let mlp = |r: &mut Recording<'_>| {
            let h = rms_norm(r, x, &norm);
            let mut linear = |x, (w, bias): &(Weight, Option<Weight>)| {
                r.matmul(x, w, (bias.as_ref(), Activation::None))
            };
            let (gate, up) = (linear(h, &gate), linear(h, &up));
            let hidden = r.ops.gated(gate, up, GatedActivation::Silu);
            r.matmul(hidden, &down.0, (down.1.as_ref(), Activation::None))
        };
        let first = mlp(r);
        r.export(first);
        let second = mlp(r);
        let sum = r.ops.add(first, second);
        r.output(sum);
        let third = mlp(r);
        let sum = r.ops.add(x, third);
        r.output(sum);
    }

    /// Page and slot of a position.
    fn slot(pos: usize) -> KvRow {
        KvRow { page: [2, 0, 1][pos / PAGE_LEN], slot: (pos % PAGE_LEN) as u32 }
    }

    /// Writes the keys and values of the positions before the tokens.
    fn pool(r: &mut Recording<'_>) -> PoolId {
        let shape = KvShape {
            n_layers: 1,
            n_pages: 3,
            n_kv_heads: N_KV_HEADS,
            head_dim: HEAD_DIM,
            dtype: KvDType::F32,
        };
        let pool = r.ops.pool(shape);
        let rows = Rows { count: Count::Windows, each: N_BEFORE };
        let both = r.random_rows(rows, 2 * KV_WIDTH);
        let [k, v] = [0, KV_WIDTH].map(|first| both.columns(first, KV_WIDTH));
        let slots = OTHER_SLOTS;
        r.tables().slots[slots.index()] = (0..N_BEFORE).map(Self::slot).collect();
        r.ops.kv_write(KvWriteArgs { pool, layer: 0, slots }, k, v);
        pool
    }

    /// Projections, `RoPE`, KV write, attention, projection. Whether the attention's output has another reader or not.
    fn attention(&self, r: &mut Recording<'_>, has_own_tables: bool) {
        let Self { rows: t, dtype, .. } = *self;
        let pool = Self::pool(r);
        let x = r.packed(D);
        let [w_q, w_k, w_v] = [D, KV_WIDTH, KV_WIDTH].map(|n| r.weights(dtype, n, D));
        let bias = r.values(KV_WIDTH, 1.0);
        let q = r.product(x, &w_q);
        let k = r.matmul(x, &w_k, (Some(&bias), Activation::None));
        let v = r.product(x, &w_v);
        let n_rot = 24;
        let q_table = rope_table(r, t, n_rot);
        let k_table = if has_own_tables { rope_table(r, t, n_rot) } else { q_table.clone() };
        let [q, k] = [(q, q_table), (k, k_table)].map(|(x, table)| {
            let norm = r.values(HEAD_DIM, 1.0);
            let rotation = Some(Rotation { table, n_rot, pairs: RopePairs::Neox });
            let norm = self.has_norms.then_some((norm, 1e-6));
            r.ops.rope(x, RopeArgs { head_dim: HEAD_DIM, norm, rotation })
        });
        let slots = SlotTable::TOKENS;
        let positions = N_BEFORE..N_BEFORE + t;
        r.tables().slots[slots.index()] = positions.clone().map(Self::slot).collect();
        r.tables().page_table = vec![2, 0, 1];
        r.tables().rows = positions
            .map(|pos| QueryRow { first_page: 0, n_pages: 3, kv_start: 0, kv_len: pos as u32 + 1 })
            .collect();
        r.ops.kv_write(KvWriteArgs { pool, layer: 0, slots }, k, v);
        let w = r.weights(dtype, D, D);
        for reads_attended in [true, false] {
            let args = AttentionArgs {
                pool,
                layer: 0,
                n_heads: N_HEADS,
                scale: 1.0 / (HEAD_DIM as f32).sqrt(),
                soft_cap: None,
                slopes: None,
                sinks: None,
                rows: RowTable::FULL,
                precision: Precision::F32,
            };
            let attended = r.ops.attention(q, args);
            let y = r.product(attended, &w);
            r.output(y);
            if reads_attended {
                r.output(attended);
            }
        }
        [q, k, v].into_iter().for_each(|x| r.output(x));
    }
}
