// Parameters of attention.
#pragma once
#include "kv.cuh"

struct AttentionParams {
    const float *q;
    Output out;
    Kv kv;
    const float *slopes, *sinks;
    const u32 *words;   // Step inputs; page tables are indices into it.
    const u32 *items;   // Decode: row, page table, start, end. Prefill: first row, rows, page table, end.
    const u32 *ranges;  // Prefill: start, end of each row.
    float *partials;    // Decode: [row, head, split, D + 2]: output, running maximum, running sum.
    u32 *counts;        // Decode: [item, block of heads]: finished blocks; zeros before and after.
    u32 n_heads, group, heads_per_block, n_head_blocks, q_stride, n_splits;
    float scale, soft_cap; // soft_cap 0: none.
};
