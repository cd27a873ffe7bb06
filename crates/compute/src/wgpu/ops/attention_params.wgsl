// What every attention kernel is given; see `Params` of attention.rs.

struct Params {
    n_heads: u32,
    group: u32,
    head_dim: u32,
    row_words: u32,
    head_words: u32,
    page_words: u32,
    q_offset: u32,
    q_stride: u32,
    rows: u32,
    page_table: u32,
    flags: u32,
    scale: f32,
    soft_cap: f32,
    blocks: u32,
    heads_per_block: u32,
    n_splits: u32,
    per_split: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> data: array<u32>;
@group(0) @binding(2) var<storage, read> q: array<f32>;
// Binding 3 are the pages.
@group(0) @binding(4) var<storage, read> slopes: array<f32>;
@group(0) @binding(5) var<storage, read> sinks: array<f32>;
// The result, or what each split has: sums of the channels, maximum, total.
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

// Lower than any score; a sum with it stays finite.
const LOWEST: f32 = -3.0e38;

