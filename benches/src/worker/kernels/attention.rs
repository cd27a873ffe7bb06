//! Attention over paged keys and values: prompts, Whisper's encoder, and single tokens.

use anyhow::Result;
use stonechat_benches::protocol::{PeakKind, Unit};
use stonechat_nn::op::{
    AttentionArgs, Count, KvShape, KvWriteArgs, PoolId, RowTable, Rows, SlotTable,
};
use stonechat_nn::{
    AttentionRows, Cpu, Device, KvDType, KvRow, PAGE_LEN, Pages, Precision, QueryRow, SegmentName,
    Sequence, Step,
};

use super::{Case, Ops, Repeated, STREAM_BYTES, step};

/// Heads of a model and the positions that are attended to.
#[derive(Debug, Clone, Copy)]
struct Shape {
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    n_ctx: usize,
}

/// Qwen 2.5 1.5B.
const TEXT: Shape = Shape { n_heads: 12, n_kv_heads: 2, head_dim: 128, n_ctx: 512 };
/// Llama 3 8B, with a long text.
const LONG: Shape = Shape { n_heads: 32, n_kv_heads: 8, head_dim: 128, n_ctx: 4096 };
/// Whisper base.
const ENCODER: Shape = Shape { n_heads: 8, n_kv_heads: 8, head_dim: 64, n_ctx: 1500 };

pub(super) fn cases() -> Vec<Case> {
    let kinds = [(KvDType::F16, "f16"), (KvDType::Q8_0, "q8_0")];
    let mut cases = vec![
        many("attention prompt", TEXT, true, (KvDType::F16, "f16")),
        many("attention prompt", TEXT, true, (KvDType::Q8_0, "q8_0")),
        many("attention encoder", ENCODER, false, (KvDType::F16, "f16")),
    ];
    for kind in kinds {
        cases.push(token("attention token", LONG, 1, kind));
    }
    cases.push(token("attention cross token", ENCODER, 1, (KvDType::F16, "f16")));
    cases.push(token("attention cross beams", ENCODER, 5, (KvDType::F16, "f16")));
    cases.push(write(TEXT, (KvDType::F16, "f16")));
    cases.push(write(TEXT, (KvDType::Q8_0, "q8_0")));
    cases
}

fn label(name: &str, shape: Shape, kind: &str) -> String {
    let Shape { n_heads, n_kv_heads, head_dim, n_ctx } = shape;
    format!("{name} {kind} {n_ctx} of {n_heads}/{n_kv_heads}x{head_dim}")
}

/// Attention or a KV write of `t` tokens, with a pool of pages.
struct Paged {
    ops: Ops,
    pool: PoolId,
    sequence: Sequence,
}

impl Paged {
    fn new(shape: Shape, t: usize, n_layers: usize, dtype: KvDType) -> Result<Self> {
        let Shape { n_kv_heads, head_dim, n_ctx, .. } = shape;
        let n_pages = n_ctx.div_ceil(PAGE_LEN);
        let mut ops = Ops::new(t);
        let shape = KvShape { n_layers, n_pages, n_kv_heads, head_dim, dtype };
        let pool = ops.recorder.pool(shape);
        let mut sequence = Sequence::with_capacity(n_ctx);
        Pages::new(n_pages).extend(&mut sequence, n_ctx)?;
        Ok(Self { ops, pool, sequence })
    }

    /// Records attention in each layer.
    fn attend(&mut self, shape: Shape, n_layers: usize) {
        let q = self.ops.tokens(shape.n_heads * shape.head_dim);
        for layer in 0..n_layers {
            let args = AttentionArgs {
                pool: self.pool,
                layer,
                n_heads: shape.n_heads,
                scale: 1.0 / (shape.head_dim as f32).sqrt(),
                soft_cap: None,
                slopes: None,
                sinks: None,
                rows: RowTable::FULL,
                precision: Precision::F32,
            };
            let y = self.ops.recorder.attention(q, args);
            self.ops.output(y);
        }
    }

    /// Compiles the program; fills all pages. The function runs a step with these query rows.
    fn runner(
        mut self,
        cpu: &Cpu,
        (shape, n_layers): (Shape, usize),
        rows: Vec<QueryRow>,
    ) -> Result<impl FnMut() + Send + use<>> {
        let Shape { n_kv_heads, head_dim, n_ctx, .. } = shape;
        let window = Rows { count: Count::Windows, each: n_ctx };
        self.ops.recorder.segment(SegmentName::CrossKv, window);
        let values = self.ops.import(window, n_kv_heads * head_dim);
        for layer in 0..n_layers {
            let args = KvWriteArgs { pool: self.pool, layer, slots: SlotTable::TOKENS };
            self.ops.recorder.kv_write(args, values, values);
        }
        let (mut executable, counts) = self.ops.compile(&Device::from(cpu.clone()))?;
        let slots: Vec<KvRow> = (0..n_ctx).map(|pos| self.sequence.slot(pos)).collect();
        let mut fill = Step { segments: &[SegmentName::CrossKv], ..step(counts) };
        fill.slots[SlotTable::TOKENS.index()] = &slots;
        executable.run(&fill);
        Ok(move || {
            let mut step = step(counts);
            let page_table = self.sequence.pages();
            step.rows[RowTable::FULL.index()] = AttentionRows { rows: &rows, page_table };
            executable.run(&step);
        })
    }
}

/// As many queries as positions: each sees those before it (`causal`), or all.
fn many(name: &str, shape: Shape, causal: bool, (dtype, kind): (KvDType, &str)) -> Case {
    Case {
        name: label(name, shape, kind),
        quick: causal && dtype == KvDType::F16,
        open: Box::new(move |cpu| {
            let (t, width) = (shape.n_ctx, shape.n_heads * shape.head_dim);
            let mut paged = Paged::new(shape, t, 1, dtype)?;
            paged.attend(shape, 1);
            let n_pages = paged.sequence.pages().len() as u32;
            let rows: Vec<QueryRow> = (1..=t as u32)
                .map(|seen| QueryRow {
                    first_page: 0,
                    n_pages,
                    kv_start: 0,
                    kv_len: if causal { seen } else { t as u32 },
                })
                .collect();
            let pairs: f64 = rows.iter().map(|row| f64::from(row.kv_len)).sum();
            let run = paged.runner(cpu, (shape, 1), rows)?;
            let flops = 4.0 * pairs * width as f64;
            Ok(Repeated::new((flops, Unit::Flops), run).bounded(PeakKind::F32))
        }),
    }
}

/// `t` queries over all positions, of a new layer each time, so that no cache holds the keys.
fn token(name: &str, shape: Shape, t: usize, (dtype, kind): (KvDType, &str)) -> Case {
    Case {
        name: label(name, shape, kind),
        quick: shape.n_ctx == LONG.n_ctx && dtype == KvDType::F16,
        open: Box::new(move |cpu| {
            let values = shape.n_ctx * shape.n_kv_heads * shape.head_dim;
            // An f16, or an 8-bit integer and its part of a scale for every 32.
            let bytes_per_value = if dtype == KvDType::Q8_0 { 1.0 + 2.0 / 32.0 } else { 2.0 };
            let bytes = 2.0 * values as f64 * bytes_per_value;
            let n_layers = (STREAM_BYTES as f64 / bytes).ceil() as usize;
            let mut paged = Paged::new(shape, t, n_layers, dtype)?;
            paged.attend(shape, n_layers);
            let row = QueryRow {
                first_page: 0,
                n_pages: paged.sequence.pages().len() as u32,
                kv_start: 0,
                kv_len: shape.n_ctx as u32,
            };
            let run = paged.runner(cpu, (shape, n_layers), vec![row; t])?;
            let repeated = Repeated::new((bytes, Unit::Bytes), run).of_calls(n_layers);
            Ok(repeated.bounded(PeakKind::Read))
        }),
    }
}

/// Storing a prompt's keys and values.
fn write(shape: Shape, (dtype, kind): (KvDType, &str)) -> Case {
    Case {
        name: label("kv write", shape, kind),
        quick: false,
        open: Box::new(move |cpu| {
            let (t, width) = (shape.n_ctx, shape.n_kv_heads * shape.head_dim);
            let Paged { mut ops, pool, sequence } = Paged::new(shape, t, 1, dtype)?;
            let values = ops.tokens(width);
            let args = KvWriteArgs { pool, layer: 0, slots: SlotTable::TOKENS };
            ops.recorder.kv_write(args, values, values);
            let (mut executable, counts) = ops.compile(&Device::from(cpu.clone()))?;
            let slots: Vec<KvRow> = (0..t).map(|pos| sequence.slot(pos)).collect();
            let run = move || {
                let mut step = step(counts);
                step.slots[SlotTable::TOKENS.index()] = &slots;
                executable.run(&step);
            };
            Ok(Repeated::new(((2 * 4 * t * width) as f64, Unit::Bytes), run))
        }),
    }
}
