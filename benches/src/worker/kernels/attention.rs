//! Attention over paged keys and values: prompts, Whisper's encoder, and single tokens.

use anyhow::Result;
use stonechat_benches::protocol::{PeakKind, Unit};
use stonechat_nn::{
    Attention, Backend, Cpu, KvDType, KvRow, KvShape, PAGE_LEN, Pages, Precision, QueryRow,
    Sequence, View,
};

use super::{Case, Repeated, STREAM_BYTES, filled};

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

/// Pages of keys and values.
type Kv = <Cpu as Backend>::Kv;

/// Filled pages of `n_layers` layers, and the sequence that has them.
fn filled_pages(
    backend: &Cpu,
    shape: Shape,
    n_layers: usize,
    dtype: KvDType,
) -> Result<(Kv, Sequence)> {
    let Shape { n_kv_heads, head_dim, n_ctx, .. } = shape;
    let n_pages = n_ctx.div_ceil(PAGE_LEN);
    let mut kv = backend.kv(KvShape { n_layers, n_pages, n_kv_heads, head_dim, dtype })?;
    let mut sequence = Sequence::with_capacity(n_ctx);
    Pages::new(n_pages).extend(&mut sequence, n_ctx)?;
    let width = n_kv_heads * head_dim;
    let values = filled(backend, n_ctx * width)?;
    let slots: Vec<KvRow> = (0..n_ctx).map(|pos| sequence.slot(pos)).collect();
    for layer in 0..n_layers {
        let values = View::packed(&values, n_ctx, width);
        backend.kv_write(&mut kv, layer, values, values, &slots);
    }
    Ok((kv, sequence))
}

fn attend<'a>(
    shape: Shape,
    q: View<'a, Cpu>,
    (kv, layer): (&'a Kv, usize),
    rows: &'a [QueryRow],
    page_table: &'a [u32],
) -> Attention<'a, Cpu> {
    Attention {
        q,
        kv,
        layer,
        n_heads: shape.n_heads,
        scale: 1.0 / (shape.head_dim as f32).sqrt(),
        soft_cap: None,
        slopes: None,
        sinks: None,
        rows,
        page_table,
        precision: Precision::F32,
    }
}

/// As many queries as positions: each sees those before it (`causal`), or all.
fn many(name: &str, shape: Shape, causal: bool, (dtype, kind): (KvDType, &str)) -> Case {
    Case {
        name: label(name, shape, kind),
        quick: causal && dtype == KvDType::F16,
        open: Box::new(move |backend| {
            let (kv, sequence) = filled_pages(backend, shape, 1, dtype)?;
            let (t, width) = (shape.n_ctx, shape.n_heads * shape.head_dim);
            let n_pages = sequence.pages().len() as u32;
            let rows: Vec<QueryRow> = (1..=t as u32)
                .map(|seen| QueryRow {
                    first_page: 0,
                    n_pages,
                    kv_start: 0,
                    kv_len: if causal { seen } else { t as u32 },
                })
                .collect();
            let pairs: f64 = rows.iter().map(|row| f64::from(row.kv_len)).sum();
            let (q, mut out) = (filled(backend, t * width)?, backend.alloc(t * width)?);
            let device = backend.clone();
            let run = move || {
                let q = View::packed(&q, t, width);
                device.attention(&mut out, attend(shape, q, (&kv, 0), &rows, sequence.pages()));
            };
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
        open: Box::new(move |backend| {
            let values = shape.n_ctx * shape.n_kv_heads * shape.head_dim;
            // An f16, or an 8-bit integer and its part of a scale for every 32.
            let bytes_per_value = if dtype == KvDType::Q8_0 { 1.0 + 2.0 / 32.0 } else { 2.0 };
            let bytes = 2.0 * values as f64 * bytes_per_value;
            let n_layers = (STREAM_BYTES as f64 / bytes).ceil() as usize;
            let (kv, sequence) = filled_pages(backend, shape, n_layers, dtype)?;
            let width = shape.n_heads * shape.head_dim;
            let row = QueryRow {
                first_page: 0,
                n_pages: sequence.pages().len() as u32,
                kv_start: 0,
                kv_len: shape.n_ctx as u32,
            };
            let rows = vec![row; t];
            let (q, mut out) = (filled(backend, t * width)?, backend.alloc(t * width)?);
            let device = backend.clone();
            let mut layer = 0;
            let run = move || {
                let q = View::packed(&q, t, width);
                let args = attend(shape, q, (&kv, layer), &rows, sequence.pages());
                device.attention(&mut out, args);
                layer = (layer + 1) % n_layers;
            };
            Ok(Repeated::new((bytes, Unit::Bytes), run).bounded(PeakKind::Read))
        }),
    }
}

/// Storing a prompt's keys and values.
fn write(shape: Shape, (dtype, kind): (KvDType, &str)) -> Case {
    Case {
        name: label("kv write", shape, kind),
        quick: false,
        open: Box::new(move |backend| {
            let (mut kv, sequence) = filled_pages(backend, shape, 1, dtype)?;
            let (t, width) = (shape.n_ctx, shape.n_kv_heads * shape.head_dim);
            let slots: Vec<KvRow> = (0..t).map(|pos| sequence.slot(pos)).collect();
            let values = filled(backend, t * width)?;
            let device = backend.clone();
            let run = move || {
                let values = View::packed(&values, t, width);
                device.kv_write(&mut kv, 0, values, values, &slots);
            };
            Ok(Repeated::new(((2 * 4 * t * width) as f64, Unit::Bytes), run))
        }),
    }
}
