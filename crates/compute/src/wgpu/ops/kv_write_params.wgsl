// What both kernels that store keys and values are given; see kv.rs.

struct Params {
    rows: u32,
    n_kv_heads: u32,
    head_dim: u32,
    row_words: u32,
    head_words: u32,
    page_words: u32,
    k_offset: u32,
    k_stride: u32,
    v_offset: u32,
    v_stride: u32,
    slots: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> data: array<u32>;
@group(0) @binding(2) var<storage, read> keys: array<f32>;
@group(0) @binding(3) var<storage, read> values: array<f32>;
@group(0) @binding(4) var<storage, read_write> pool: array<u32>;

