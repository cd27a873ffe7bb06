//! Reference implementation of every op of [`Backend`]: f64, naive loops.

use std::future::{Future, ready};

use stonechat_nn::{
    Activation, Attention, Backend, Embed, Epilogue, Error, Experts, GatedActivation, KvDType,
    KvRow, KvShape, MatmulOp, MatrixSource, PAGE_LEN, Read, Rope, RopePairs, Rotation, Routing,
    Rows, View,
};

/// The f64 oracle.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reference;

/// A device buffer in f64.
#[derive(Debug, Clone, Default)]
pub struct ReferenceBuffer(pub Vec<f64>);

/// A weight matrix `[N, K]`, dequantized.
#[derive(Debug, Clone)]
pub struct ReferenceMatrix {
    n: usize,
    k: usize,
    values: Vec<f64>,
}

/// Keys and values, `[n_layers, n_pages, PAGE_LEN, G, C]` each.
#[derive(Debug, Clone)]
pub struct ReferenceKv {
    shape: KvShape,
    keys: Vec<f64>,
    values: Vec<f64>,
}

impl ReferenceKv {
    /// Range of page `page` in `keys` and `values`, for each layer.
    fn page_ranges(&self, page: u32) -> impl Iterator<Item = std::ops::Range<usize>> {
        (0..self.shape.n_layers).map(move |layer| {
            let start = self.row(layer, KvRow { page, slot: 0 });
            start..start + PAGE_LEN * self.width()
        })
    }

    /// `G * C`.
    fn width(&self) -> usize {
        self.shape.n_kv_heads * self.shape.head_dim
    }

    /// Index of channel 0 of head 0 of a position.
    fn row(&self, layer: usize, at: KvRow) -> usize {
        ((layer * self.shape.n_pages + at.page as usize) * PAGE_LEN + at.slot as usize)
            * self.width()
    }
}

/// Error function; absolute error below 1e-13.
fn erf(x: f64) -> f64 {
    // Maclaurin series below 3, where it does not cancel; continued fraction of erfc above.
    let z = x.abs();
    let value = if z < 3.0 {
        let (mut term, mut sum) = (z, z);
        for n in 1..200 {
            term *= -z * z / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    } else {
        let fraction = (1..=60).rev().fold(0.0, |tail, n| f64::from(n) / 2.0 / (z + tail));
        1.0 - (-z * z).exp() / ((z + fraction) * std::f64::consts::PI.sqrt())
    };
    value.copysign(x)
}

/// Index range of each row.
fn indices(rows: Rows) -> impl Iterator<Item = std::ops::Range<usize>> {
    (0..rows.rows).map(move |r| {
        let start = rows.offset + r * rows.stride;
        start..start + rows.cols
    })
}

fn finish(out: &mut f64, sum: f64, n: usize, epilogue: &Epilogue<'_, Reference>) {
    let biased = sum + epilogue.bias.map_or(0.0, |bias| bias.0[n]);
    let active = match epilogue.activation {
        Activation::None => biased,
        Activation::Gelu => biased / 2.0 * (1.0 + erf(biased / 2f64.sqrt())),
        Activation::GeluTanh => gelu_tanh(biased),
    };
    *out = if epilogue.accumulate { *out + active } else { active };
}

fn gelu_tanh(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
    x / 2.0 * (1.0 + inner.tanh())
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn gated(gate: f64, up: f64, activation: GatedActivation) -> f64 {
    match activation {
        GatedActivation::Silu => gate * sigmoid(gate) * up,
        GatedActivation::GeluTanh => gelu_tanh(gate) * up,
        GatedActivation::ClampedSwiglu { alpha, limit } => {
            let limit = f64::from(limit);
            let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
            gate * sigmoid(f64::from(alpha) * gate) * (up + 1.0)
        }
    }
}

fn inverse_rms(row: &[f64], eps: f32) -> f64 {
    let mean = row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64;
    1.0 / (mean + f64::from(eps)).sqrt()
}

/// Top-k experts of a token with their routing weights.
fn route(logits: &[f64], n_used: usize, routing: Routing) -> Vec<(usize, f64)> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let max = logits[order[0]];
    let top_k = &order[..n_used];
    let total: f64 = match routing {
        Routing::Softmax => logits.iter().map(|l| (l - max).exp()).sum(),
        Routing::NormalizedTopK => top_k.iter().map(|&e| (logits[e] - max).exp()).sum(),
    };
    top_k.iter().map(|&e| (e, (logits[e] - max).exp() / total)).collect()
}

/// Keys or values of one position, rounded to the pool's element type.
fn round_kv(row: &[f64], shape: &KvShape) -> Vec<f64> {
    match shape.dtype {
        KvDType::F32 => row.to_vec(),
        KvDType::F16 => row.iter().map(|&v| f64::from(half::f16::from_f64(v).to_f32())).collect(),
        KvDType::Q8_0 => {
            row.chunks(shape.head_dim).flat_map(|head| head.chunks(32)).flat_map(round_q8).collect()
        }
    }
}

/// Rounds a block to `d * i8`, `d` an f16 scale. In f32, as backends compute it, so that ties are rounded alike.
fn round_q8(block: &[f64]) -> Vec<f64> {
    let block: Vec<f32> = block.iter().map(|&v| v as f32).collect();
    let max = block.iter().fold(0.0f32, |max, v| max.max(v.abs()));
    let scale = half::f16::from_f32(max / 127.0).to_f32();
    let integer = |v: f32| (v / scale).round_ties_even().clamp(-127.0, 127.0);
    block
        .into_iter()
        .map(|v| if scale == 0.0 { 0.0 } else { f64::from(integer(v)) * f64::from(scale) })
        .collect()
}

impl Backend for Reference {
    type Buffer = ReferenceBuffer;
    type Matrix = ReferenceMatrix;
    type Kv = ReferenceKv;

    const READS_AT_ONCE: bool = true;

    fn name(&self) -> &'static str {
        "reference"
    }

    fn describe(&self) -> String {
        "f64 loops".to_owned()
    }

    fn alloc(&self, len: usize) -> Result<ReferenceBuffer, Error> {
        Ok(ReferenceBuffer(vec![0.0; len]))
    }

    fn matrix(&self, source: MatrixSource<'_>) -> Result<ReferenceMatrix, Error> {
        let MatrixSource { name, rows, cols, dtype, bytes } = source;
        let mut values = vec![0.0; rows * cols];
        stonechat_quant::dequantize_row(dtype, bytes, &mut values).map_err(|_| {
            Error::UnsupportedWeight { name: name.to_owned(), dtype, backend: "reference" }
        })?;
        Ok(ReferenceMatrix {
            n: rows,
            k: cols,
            values: values.into_iter().map(f64::from).collect(),
        })
    }

    fn kv(&self, shape: KvShape) -> Result<ReferenceKv, Error> {
        let len = shape.n_layers * shape.n_pages * PAGE_LEN * shape.n_kv_heads * shape.head_dim;
        // NaN shows reads of unwritten positions.
        Ok(ReferenceKv { shape, keys: vec![f64::NAN; len], values: vec![f64::NAN; len] })
    }

    fn write(&self, dst: &mut ReferenceBuffer, offset: usize, values: &[f32]) {
        for (to, from) in dst.0[offset..].iter_mut().zip(values) {
            *to = f64::from(*from);
        }
    }

    fn read_all(&self, reads: &mut [Read<'_, Self>]) -> impl Future<Output = Result<(), Error>> {
        for Read { src, offset, out } in reads {
            for (to, from) in out.iter_mut().zip(&src.0[*offset..]) {
                *to = *from as f32;
            }
        }
        ready(Ok(()))
    }

    fn copy(&self, dst: &mut ReferenceBuffer, offset: usize, src: View<'_, Self>) {
        let mut at = offset;
        for row in indices(src.rows) {
            for i in row {
                dst.0[at] = src.buffer.0[i];
                at += 1;
            }
        }
    }

    fn add(&self, out: &mut ReferenceBuffer, x: View<'_, Self>) {
        for (to, i) in out.0.iter_mut().zip(indices(x.rows).flatten()) {
            *to += x.buffer.0[i];
        }
    }

    fn embed(&self, out: &mut ReferenceBuffer, table: &ReferenceMatrix, args: Embed<'_, Self>) {
        for (t, &token) in args.tokens.iter().enumerate() {
            for d in 0..table.k {
                let position = args
                    .positions
                    .map_or(0.0, |(values, pos)| values.0[pos[t] as usize * table.k + d]);
                out.0[t * table.k + d] =
                    f64::from(args.scale) * table.values[token as usize * table.k + d] + position;
            }
        }
    }

    fn layer_norm(
        &self,
        out: &mut ReferenceBuffer,
        x: View<'_, Self>,
        weight: &ReferenceBuffer,
        bias: Option<&ReferenceBuffer>,
        eps: f32,
    ) {
        let n = x.rows.cols;
        for (t, row) in indices(x.rows).enumerate() {
            let row = &x.buffer.0[row];
            let mean = row.iter().sum::<f64>() / n as f64;
            let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
            for d in 0..n {
                let normal = (row[d] - mean) / (variance + f64::from(eps)).sqrt();
                out.0[t * n + d] = normal * weight.0[d] + bias.map_or(0.0, |bias| bias.0[d]);
            }
        }
    }

    fn rms_norm(
        &self,
        out: &mut ReferenceBuffer,
        x: View<'_, Self>,
        weight: &ReferenceBuffer,
        eps: f32,
        accumulate: bool,
    ) {
        let n = x.rows.cols;
        for (t, row) in indices(x.rows).enumerate() {
            let row = &x.buffer.0[row];
            let scale = inverse_rms(row, eps);
            for d in 0..n {
                let old = if accumulate { out.0[t * n + d] } else { 0.0 };
                out.0[t * n + d] = old + row[d] * scale * weight.0[d];
            }
        }
    }

    fn rope(&self, x: &mut ReferenceBuffer, rows: Rows, args: Rope<'_, Self>) {
        for (t, row) in indices(rows).enumerate() {
            for head in x.0[row].chunks_exact_mut(args.head_dim) {
                if let Some((weight, eps)) = args.norm {
                    let scale = inverse_rms(head, eps);
                    head.iter_mut().zip(&weight.0).for_each(|(v, w)| *v *= scale * w);
                }
                if let Some(Rotation { table, positions, n_rot, pairs }) = args.rotation {
                    let angles = &table.0[positions[t] as usize * n_rot..][..n_rot];
                    let (cos, sin) = angles.split_at(n_rot / 2);
                    for i in 0..n_rot / 2 {
                        let (a, b) = match pairs {
                            RopePairs::Adjacent => (2 * i, 2 * i + 1),
                            RopePairs::Neox => (i, i + n_rot / 2),
                        };
                        let (u, v) = (head[a], head[b]);
                        head[a] = u * cos[i] - v * sin[i];
                        head[b] = u * sin[i] + v * cos[i];
                    }
                }
            }
        }
    }

    fn gated(
        &self,
        out: &mut ReferenceBuffer,
        gate: View<'_, Self>,
        up: View<'_, Self>,
        activation: GatedActivation,
    ) {
        let n = gate.rows.cols;
        for (t, (g, u)) in indices(gate.rows).zip(indices(up.rows)).enumerate() {
            for i in 0..n {
                let (g, u) = (gate.buffer.0[g.start + i], up.buffer.0[u.start + i]);
                out.0[t * n + i] = gated(g, u, activation);
            }
        }
    }

    fn moe(
        &self,
        out: &mut ReferenceBuffer,
        x: View<'_, Self>,
        logits: View<'_, Self>,
        experts: &Experts<'_, Self>,
    ) {
        let d = x.rows.cols;
        let f = experts.gate.n / experts.n_experts;
        let bias = |bias: Option<&ReferenceBuffer>, i: usize| bias.map_or(0.0, |b| b.0[i]);
        for (t, (x_row, l_row)) in indices(x.rows).zip(indices(logits.rows)).enumerate() {
            let x = &x.buffer.0[x_row];
            for (expert, weight) in route(&logits.buffer.0[l_row], experts.n_used, experts.routing)
            {
                let hidden: Vec<f64> = (expert * f..(expert + 1) * f)
                    .map(|n| {
                        let g = experts.gate.dot(n, x) + bias(experts.gate_bias, n);
                        let u = experts.up.dot(n, x) + bias(experts.up_bias, n);
                        gated(g, u, experts.activation)
                    })
                    .collect();
                for i in 0..d {
                    let n = expert * d + i;
                    out.0[t * d + i] +=
                        weight * (experts.down.dot(n, &hidden) + bias(experts.down_bias, n));
                }
            }
        }
    }

    fn matmul<const N: usize>(&self, x: View<'_, Self>, ops: [MatmulOp<'_, Self>; N]) {
        for MatmulOp { out, w, epilogue, consumer: _ } in ops {
            assert_eq!(x.rows.cols, w.k);
            for (t, row) in indices(x.rows).enumerate() {
                let row = &x.buffer.0[row];
                for n in 0..w.n {
                    let sum = w.dot(n, row);
                    finish(&mut out.0[t * w.n + n], sum, n, &epilogue);
                }
            }
        }
    }

    fn conv1d(
        &self,
        out: &mut ReferenceBuffer,
        x: View<'_, Self>,
        w: &ReferenceMatrix,
        stride: usize,
        epilogue: Epilogue<'_, Self>,
    ) {
        let (n_in, n_frames) = (x.rows.cols, x.rows.rows);
        assert_eq!(w.k, 3 * n_in);
        for t in 0..n_frames.div_ceil(stride) {
            for n in 0..w.n {
                let mut sum = 0.0;
                for tap in 0..3 {
                    let Some(frame) = (t * stride + tap).checked_sub(1) else { continue };
                    if frame < n_frames {
                        for i in 0..n_in {
                            sum += x.buffer.0[x.rows.offset + frame * x.rows.stride + i]
                                * w.values[n * w.k + tap * n_in + i];
                        }
                    }
                }
                finish(&mut out.0[t * w.n + n], sum, n, &epilogue);
            }
        }
    }

    fn top_k(&self, out: &mut ReferenceBuffer, x: View<'_, Self>, k: usize) {
        for (t, row) in indices(x.rows).enumerate() {
            let finite =
                |v: &f64| if v.is_nan() { f64::NEG_INFINITY } else { v.min(f32::MAX.into()) };
            let values: Vec<f64> = x.buffer.0[row].iter().map(finite).collect();
            let mut order: Vec<usize> = (0..values.len()).collect();
            // A stable sort keeps equal values in column order; -0 equals +0.
            order.sort_by(|&a, &b| values[b].partial_cmp(&values[a]).expect("numbers"));
            for (i, &column) in order[..k].iter().enumerate() {
                out.0[2 * k * t + i] = values[column];
                out.0[2 * k * t + k + i] = column as f64;
            }
        }
    }

    fn kv_write(
        &self,
        kv: &mut ReferenceKv,
        layer: usize,
        k: View<'_, Self>,
        v: View<'_, Self>,
        rows: &[KvRow],
    ) {
        let width = kv.width();
        for ((&at, k_row), v_row) in rows.iter().zip(indices(k.rows)).zip(indices(v.rows)) {
            let start = kv.row(layer, at);
            let row = start..start + width;
            kv.keys[row.clone()].copy_from_slice(&round_kv(&k.buffer.0[k_row], &kv.shape));
            kv.values[row].copy_from_slice(&round_kv(&v.buffer.0[v_row], &kv.shape));
        }
    }

    fn kv_copy_page(&self, kv: &mut ReferenceKv, src: u32, dst: u32) {
        for layer in 0..kv.shape.n_layers {
            let from = kv.row(layer, KvRow { page: src, slot: 0 });
            let to = kv.row(layer, KvRow { page: dst, slot: 0 });
            let len = PAGE_LEN * kv.width();
            kv.keys.copy_within(from..from + len, to);
            kv.values.copy_within(from..from + len, to);
        }
    }

    fn kv_read_page(
        &self,
        kv: &ReferenceKv,
        page: u32,
        out: &mut Vec<u8>,
    ) -> impl Future<Output = Result<(), Error>> {
        for range in kv.page_ranges(page) {
            out.extend_from_slice(bytemuck::cast_slice(&kv.keys[range.clone()]));
            out.extend_from_slice(bytemuck::cast_slice(&kv.values[range]));
        }
        ready(Ok(()))
    }

    fn kv_write_page(&self, kv: &mut ReferenceKv, page: u32, bytes: &[u8]) -> Result<(), Error> {
        let ranges: Vec<_> = kv.page_ranges(page).collect();
        let expected = ranges.iter().map(|range| range.len() * 16).sum();
        if bytes.len() != expected {
            return Err(Error::KvPage { expected, got: bytes.len() });
        }
        let values: Vec<f64> = bytemuck::pod_collect_to_vec(bytes);
        let mut rest = &values[..];
        for range in ranges {
            for side in [&mut kv.keys, &mut kv.values] {
                let (head, tail) = rest.split_at(range.len());
                side[range.clone()].copy_from_slice(head);
                rest = tail;
            }
        }
        Ok(())
    }

    fn attention(&self, out: &mut ReferenceBuffer, args: Attention<'_, Self>) {
        let Attention { q, kv, layer, n_heads, scale, rows, page_table, .. } = args;
        let head_dim = kv.shape.head_dim;
        let group = n_heads / kv.shape.n_kv_heads;
        for (t, (query, q_row)) in rows.iter().zip(indices(q.rows)).enumerate() {
            let pages = &page_table[query.first_page as usize..][..query.n_pages as usize];
            for head in 0..n_heads {
                let q = &q.buffer.0[q_row.start + head * head_dim..][..head_dim];
                let at = |pos: usize| {
                    let slot = KvRow { page: pages[pos / PAGE_LEN], slot: (pos % PAGE_LEN) as u32 };
                    kv.row(layer, slot) + head / group * head_dim
                };
                let visible = query.kv_start as usize..query.kv_len as usize;
                let scores: Vec<f64> = visible
                    .clone()
                    .map(|pos| {
                        let key = &kv.keys[at(pos)..][..head_dim];
                        let score =
                            f64::from(scale) * q.iter().zip(key).map(|(a, b)| a * b).sum::<f64>();
                        let capped = args
                            .soft_cap
                            .map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh());
                        let distance = pos as f64 - f64::from(query.kv_len - 1);
                        capped + args.slopes.map_or(0.0, |slopes| slopes.0[head] * distance)
                    })
                    .collect();
                let sink = args.sinks.map(|sinks| sinks.0[head]);
                let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = scores.iter().chain(&sink).map(|s| (s - max).exp()).sum();
                let sums = &mut out.0[(t * n_heads + head) * head_dim..][..head_dim];
                sums.fill(0.0);
                for (score, pos) in scores.iter().zip(visible) {
                    let weight = (score - max).exp() / total;
                    let value = &kv.values[at(pos)..][..head_dim];
                    sums.iter_mut().zip(value).for_each(|(sum, v)| *sum += weight * v);
                }
            }
        }
    }
}

impl ReferenceMatrix {
    fn dot(&self, row: usize, x: &[f64]) -> f64 {
        self.values[row * self.k..][..self.k].iter().zip(x).map(|(a, b)| a * b).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::erf;

    #[test]
    fn erf_matches_published_digits() {
        // Abramowitz & Stegun, table 7.1.
        for (x, expected) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_8),
            (1.0, 0.842_700_792_9),
            (2.0, 0.995_322_265_0),
            (-3.5, -0.999_999_257),
            (6.0, 1.0),
        ] {
            assert!((erf(x) - expected).abs() < 1e-9, "erf({x}) = {}", erf(x));
        }
    }
}
