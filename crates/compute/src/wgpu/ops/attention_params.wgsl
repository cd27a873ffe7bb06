// Parameters and bindings of the attention kernels; see `AttentionParams` in attention.rs.

struct Params {
    n_heads: u32,
    // Query heads per KV head.
    group: u32,
    head_dim: u32,
    // Sizes of the page layout in words, see kv.rs.
    row_words: u32,
    head_words: u32,
    page_words: u32,
    q_offset: u32,
    q_stride: u32,
    // First word in `data`.
    rows: u32,
    // Bits HAS_*.
    flags: u32,
    scale: f32,
    soft_cap: f32,
    // First word in `data`.
    blocks: u32,
    heads_per_block: u32,
    n_splits: u32,
    per_split: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> data: array<u32>;
@group(0) @binding(2) var<storage, read> q: array<f32>;
// Binding 3: pages.
@group(0) @binding(4) var<storage, read> slopes: array<f32>;
@group(0) @binding(5) var<storage, read> sinks: array<f32>;
// The output; with splits one partial result a row, head and split: weighted sums of the values, running maximum,
// running sum.
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

// Score of invisible positions: below any score, and finite in sums.
const LOWEST: f32 = -3.0e38;

