// Parameters of attention.
#pragma once
#include "kv.cuh"

struct AttentionParams {
    const float *q;
    Output out;
    Kv kv;
    const float *slopes, *sinks;
    const u32 *words;   // Inputs of the step; tables of pages are indexes of it.
    const u32 *items;   // Decode: row, table, start, end. Prefill: first row, rows, table, end.
    const u32 *ranges;  // Prefill: start, end of each row.
    float *partials;    // Decode: [row, head, split, D + 2]: weighted values, largest score, sum.
    u32 *counts;        // Decode: [item, block of heads]: zeros, left as zeros.
    u32 n_heads, group, heads_per_block, n_head_blocks, q_stride, n_splits;
    float scale, soft_cap; // soft_cap 0: none.
};
