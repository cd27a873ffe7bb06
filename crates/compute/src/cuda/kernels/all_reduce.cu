// Sums and gathers over the ranks of a group, in one process. Each rank has memory that all ranks write and it alone reads:
//
//   state    epoch | arrived blocks | failed | shares_gpu           256 bytes
//   flags    [2 phases][MAX_RANKS][BLOCKS] epochs                   two-phase: data of a sender's block has arrived
//   lines    [2 parities][ranks][LINES] (value, epoch, value, epoch)  one-shot: data that carry their own flag
//   chunks   [2 parities][CHUNK_FLOATS]                             two-phase: partial sums of the own chunk, by sender
//   sums     [2 parities][CHUNK_FLOATS]                             two-phase: sums of all chunks
//
// One-shot (up to 512 KB): every rank stores its values to all others, polls its own lines, sums in ascending order of ranks. A
// 16-byte store is written as two halves of 8 bytes, each with the epoch, so that a reader needs no fence and no clearing (NCCL's
// LL protocol). Two-phase (more): rank q sums chunk q of all ranks, then stores the sum to all others; flags are released behind
// the data.
//
// Epoch e counts the collective kernels of a rank, the same on all ranks. It selects the buffer e % 2. A rank writes buffer
// e % 2 of a peer in epoch e, after it received what the peer sent in epoch e - 1, which follows the end of the peer's epoch
// e - 2, the last reader of that buffer. Hence two buffers and no barrier.
//
// Block b of a rank waits for block b of the others alone, which needs no whole grid on the device. Ranks, of one group or of two,
// may share a GPU: the next kernel starts behind this one then, since its blocks would take the place of those of another rank.
// A wait ends after 2 s with an error flag for the host; all later waits end at once, until the host clears the memory.
#include "common.cuh"

#define MAX_RANKS 8
#define BLOCKS 32
#define LINES 65536u
#define CHUNK_FLOATS (2u * 1024 * 1024 + 4 * MAX_RANKS)
#define TIMEOUT_NS 2000000000ull

struct State {
    u32 epoch, arrived, failed, shares_gpu;
};

struct Group {
    u64 memory[MAX_RANKS]; // Of each rank.
    u32 *fault;            // Of the host.
    u32 rank, n_ranks;
};

// ---- Memory of a rank

DEVICE State *state_of(u64 memory) { return (State *)memory; }

DEVICE u32 *flag_of(u64 memory, u32 phase, u32 sender, u32 block) {
    return (u32 *)(memory + 256) + (phase * MAX_RANKS + sender) * BLOCKS + block;
}

DEVICE u64 lines_start(u64 memory) { return memory + 256 + 4 * 2 * MAX_RANKS * BLOCKS; }

DEVICE uint4 *lines_of(const Group &g, u32 rank, u32 parity, u32 sender) {
    return (uint4 *)lines_start(g.memory[rank]) + (size_t)(parity * g.n_ranks + sender) * LINES;
}

DEVICE float4 *chunks_of(const Group &g, u32 rank, u32 parity) {
    u64 start = lines_start(g.memory[rank]) + 2 * sizeof(uint4) * (u64)g.n_ranks * LINES;
    return (float4 *)start + (size_t)parity * (CHUNK_FLOATS / 4);
}

DEVICE float4 *sums_of(const Group &g, u32 rank, u32 parity) { return chunks_of(g, rank, parity + 2); }

// ---- Loads and stores that other GPUs see

DEVICE uint4 load_line(const uint4 *p) {
    uint4 x;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(p) : "memory");
    return x;
}

DEVICE void store_line(uint4 *p, float a, float b, u32 epoch) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(__float_as_uint(a)), "r"(epoch),
        "r"(__float_as_uint(b)), "r"(epoch) : "memory");
}

DEVICE float4 load_received(const float4 *p) {
    float4 x;
    asm volatile("ld.volatile.global.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(p) : "memory");
    return x;
}

DEVICE void release(u32 *flag, u32 epoch) { asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(epoch) : "memory"); }

DEVICE u32 acquire(const u32 *flag) {
    u32 x;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(flag) : "memory");
    return x;
}

DEVICE u64 time_ns() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

// ---- One collective kernel

struct Turn {
    volatile State *state;
    volatile u32 *fault;
    u64 started; // Of the first wait, 0 before it.
    u32 epoch, polls;

    DEVICE void begin(const Group &g) {
        state = state_of(g.memory[g.rank]);
        if (!state->shares_gpu) launch_dependents();
        wait_for_inputs();
        fault = g.fault;
        started = 0, polls = 0;
        epoch = state->epoch + 1;
        // Memory that was never written has epoch 0; the parity goes on.
        if (epoch == 0) epoch = 2;
    }

    DEVICE u32 parity() const { return epoch & 1; }

    // Called after each failed poll: whether to give up.
    DEVICE bool gives_up() {
        if (++polls % 64 != 0) return false;
        if (state->failed) return true;
        u64 now = time_ns();
        if (started == 0) started = now;
        if (now - started < TIMEOUT_NS) return false;
        state->failed = 1;
        *fault = 1;
        return true;
    }

    // The two values of a line, zeros if it does not arrive.
    DEVICE float2 receive(const uint4 *line) {
        while (true) {
            uint4 x = load_line(line);
            if (x.y == epoch && x.w == epoch) return make_float2(__uint_as_float(x.x), __uint_as_float(x.z));
            if (gives_up()) return make_float2(0.f, 0.f);
        }
    }

    // Two-phase: tells the other ranks that this block has stored its data.
    DEVICE void signal(const Group &g, u32 phase) {
        __syncthreads();
        if (threadIdx.x < g.n_ranks && threadIdx.x != g.rank)
            release(flag_of(g.memory[threadIdx.x], phase, g.rank, blockIdx.x), epoch);
    }

    // Two-phase: waits for the data of the same block of the other ranks.
    DEVICE void wait(const Group &g, u32 phase) {
        if (threadIdx.x < g.n_ranks && threadIdx.x != g.rank) {
            const u32 *flag = flag_of(g.memory[g.rank], phase, threadIdx.x, blockIdx.x);
            while (acquire(flag) != epoch && !gives_up()) {}
        }
        __syncthreads();
    }

    // The last block to arrive counts the kernel: all have read the epoch.
    DEVICE void end() {
        __syncthreads();
        if (threadIdx.x != 0) return;
        if (atomicAdd((u32 *)&state->arrived, 1) + 1 < gridDim.x) return;
        state->arrived = 0;
        state->epoch = epoch;
    }
};

struct ReduceParams {
    Group group;
    const float *x;
    float *out;
    u32 n, accumulate;
};

// One-shot, n <= 2 LINES: out (+)= sum of x over ranks. A thread takes pairs of values.
KERNEL(512) all_reduce_lines(const __grid_constant__ ReduceParams p) {
    const Group &g = p.group;
    Turn turn;
    turn.begin(g);
    u32 first = blockIdx.x * 512 + threadIdx.x, step = gridDim.x * 512, pairs = p.n / 2 + p.n % 2, parity = turn.parity();
    auto own = [&](u32 i) { return make_float2(p.x[2 * i], 2 * i + 1 < p.n ? p.x[2 * i + 1] : 0.f); };
    for (u32 i = first; i < pairs; i += step) {
        float2 x = own(i);
        for (u32 k = 1; k < g.n_ranks; k++) {
            u32 to = g.rank + k < g.n_ranks ? g.rank + k : g.rank + k - g.n_ranks;
            store_line(lines_of(g, to, parity, g.rank) + i, x.x, x.y, turn.epoch);
        }
    }
    for (u32 i = first; i < pairs; i += step) {
        float2 sum = make_float2(0.f, 0.f);
        for (u32 q = 0; q < g.n_ranks; q++) {
            float2 x = q == g.rank ? own(i) : turn.receive(lines_of(g, g.rank, parity, q) + i);
            sum = q == 0 ? x : make_float2(sum.x + x.x, sum.y + x.y);
        }
        float *out = p.out + 2 * i;
        out[0] = p.accumulate ? out[0] + sum.x : sum.x;
        if (2 * i + 1 < p.n) out[1] = p.accumulate ? out[1] + sum.y : sum.y;
    }
    turn.end();
}

// Two-phase, n <= 2 Mi: out (+)= sum of x over ranks. Both have room for whole vectors.
KERNEL(512) all_reduce_chunks(const __grid_constant__ ReduceParams p) {
    const Group &g = p.group;
    Turn turn;
    turn.begin(g);
    if (p.n > 0) {
        u32 n = (p.n + 3) / 4, chunk = (n + g.n_ranks - 1) / g.n_ranks, parity = turn.parity();
        u32 first = blockIdx.x * 512 + threadIdx.x, step = gridDim.x * 512;
        const float4 *x = (const float4 *)p.x;
        float4 *out = (float4 *)p.out;
        for (u32 k = 1; k < g.n_ranks; k++) {
            u32 to = (g.rank + k) % g.n_ranks, at = to * chunk;
            float4 *chunks = chunks_of(g, to, parity) + (size_t)g.rank * chunk;
            for (u32 i = first; i < chunk && at + i < n; i += step) chunks[i] = x[at + i];
        }
        turn.signal(g, 0);
        turn.wait(g, 0);
        const float4 *chunks = chunks_of(g, g.rank, parity);
        for (u32 i = first, at = g.rank * chunk; i < chunk && at + i < n; i += step) {
            float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
            for (u32 q = 0; q < g.n_ranks; q++) {
                float4 term = q == g.rank ? x[at + i] : load_received(chunks + (size_t)q * chunk + i);
                sum = q == 0 ? term : add4(sum, term);
            }
            if (p.accumulate) sum = add4(out[at + i], sum);
            out[at + i] = sum;
            for (u32 k = 1; k < g.n_ranks; k++) sums_of(g, (g.rank + k) % g.n_ranks, parity)[at + i] = sum;
        }
        turn.signal(g, 1);
        turn.wait(g, 1);
        const float4 *sums = sums_of(g, g.rank, parity);
        for (u32 q = 0; q < g.n_ranks; q++) {
            if (q == g.rank) continue;
            for (u32 i = first, at = q * chunk; i < chunk && at + i < n; i += step) out[at + i] = load_received(sums + at + i);
        }
    }
    turn.end();
}

struct GatherParams {
    Group group;
    const float *x; // [rows, columns of the rank]
    float *out;     // [rows, all columns]
    u32 first_col[MAX_RANKS + 1];
    u32 n_rows, first, n_pairs; // From value `first` of each rank on; n_pairs <= LINES.
};

// One-shot: columns of all ranks side by side. Ranks with fewer values than others send zeros, which nobody stores.
KERNEL(512) all_gather_lines(const __grid_constant__ GatherParams p) {
    const Group &g = p.group;
    Turn turn;
    turn.begin(g);
    u32 first = blockIdx.x * 512 + threadIdx.x, step = gridDim.x * 512, parity = turn.parity(), all = p.first_col[g.n_ranks];
    auto own = [&](u32 i) {
        u32 n = p.n_rows * (p.first_col[g.rank + 1] - p.first_col[g.rank]), at = p.first + 2 * i;
        return make_float2(at < n ? p.x[at] : 0.f, at + 1 < n ? p.x[at + 1] : 0.f);
    };
    for (u32 i = first; i < p.n_pairs; i += step) {
        float2 x = own(i);
        for (u32 k = 1; k < g.n_ranks; k++) {
            u32 to = g.rank + k < g.n_ranks ? g.rank + k : g.rank + k - g.n_ranks;
            store_line(lines_of(g, to, parity, g.rank) + i, x.x, x.y, turn.epoch);
        }
    }
    for (u32 q = 0; q < g.n_ranks; q++) {
        u32 cols = p.first_col[q + 1] - p.first_col[q], n = p.n_rows * cols;
        for (u32 i = first; i < p.n_pairs; i += step) {
            float2 x = q == g.rank ? own(i) : turn.receive(lines_of(g, g.rank, parity, q) + i);
            for (u32 at = p.first + 2 * i, k = 0; k < 2 && at < n; k++, at++)
                p.out[(size_t)(at / cols) * all + p.first_col[q] + at % cols] = k == 0 ? x.x : x.y;
        }
    }
    turn.end();
}
