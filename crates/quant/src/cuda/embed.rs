//! Embedding lookups in weight matrices.

use bytemuck::{Pod, Zeroable};
use stonechat_compute::cuda::{CommandList, Launch};
use stonechat_compute::op::{EmbedArgs, EmbedInputs};

use super::ARCHIVE;
use super::matrix::CudaMatrix;

/// Threads of a block of `dense_embed`.
const DENSE_THREADS: usize = 256;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct EmbedParams {
    table: u64,
    tokens: u64,
    top_k: u64,
    positions_table: u64,
    positions: u64,
    out: u64,
    n_chunks: u32,
    k_tiles: u32,
    cols: u32,
    scale: f32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct DenseEmbedParams {
    table: u64,
    tokens: u64,
    top_k: u64,
    positions_table: u64,
    positions: u64,
    out: u64,
    n_tokens: u32,
    cols: u32,
    scale: f32,
    unused: u32,
}

/// `scale * table[token] + positions[position]` of every token, packed at address `out`.
pub fn embed(
    list: &mut CommandList,
    out: u64,
    args: EmbedArgs<&CudaMatrix, u64>,
    inputs: EmbedInputs<u64, u64>,
) {
    let EmbedArgs { table, positions, scale } = args;
    let positions_table = positions.unwrap_or(0);
    let EmbedInputs { n_tokens, tokens, positions, top_k } = inputs;
    let top_k = top_k.unwrap_or(0);
    let cols = table.k as u32;
    let Some(format) = table.format() else {
        let params = DenseEmbedParams {
            table: table.buffer.address(),
            tokens,
            top_k,
            positions_table,
            positions,
            out,
            n_tokens: n_tokens as u32,
            cols,
            scale,
            unused: 0,
        };
        let kernel = list.gpu().kernel(&ARCHIVE, "dense", "dense_embed", 0);
        let grid = [n_tokens, table.k.div_ceil(DENSE_THREADS).min(16), 1];
        list.launch(kernel, Launch { grid, threads: DENSE_THREADS, shared_bytes: 0 }, &params);
        return;
    };
    let k_tiles = table.k_tiles();
    let params = EmbedParams {
        table: table.buffer.address(),
        tokens,
        top_k,
        positions_table,
        positions,
        out,
        n_chunks: k_tiles.div_ceil(format.chunk_tiles) as u32,
        k_tiles: k_tiles as u32,
        cols,
        scale,
    };
    let kernel = list.gpu().kernel(&ARCHIVE, format.module(), "embed", 0);
    let grid = [n_tokens, k_tiles.div_ceil(format.super_tile_len()), 1];
    list.launch(kernel, Launch { grid, threads: 32, shared_bytes: 0 }, &params);
}
