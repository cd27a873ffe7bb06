// Sums and gathers over the ranks of a group, in one process. Each rank has memory that all ranks write and it alone reads:
//
//   state    epoch | arrived blocks | failed | shares_gpu           256 bytes
//   places   [MAX_RANKS][BLOCKS] addresses and epoch                two-phase: a sender's block has started, its values are there
//   ends     [MAX_RANKS][BLOCKS] epochs                             two-phase: a sender's block has read and written its share
//   lines    [2 parities][ranks][LINES] (value, epoch, value, epoch)  one-shot: data that carry their own flag
//
// One-shot (up to 512 KB): every rank stores its values to all others, polls its own lines, sums in ascending order of ranks. A
// 16-byte store is written as two halves of 8 bytes, each with the epoch, so that a reader needs no fence and no clearing (NCCL's
// LL protocol).
//
// Two-phase (more): the values lie where kernels of the ranks read and write them, and a block does
//
//   send the addresses of x and out to the same block of all others, wait for theirs     all kernels before are done
//   sum = x of rank 0 + x of rank 1 + ..    for its share of the rank's chunk             loads from peers
//   out of all ranks = out + sum            of the rank itself, which has the residual    stores to peers
//   send the end to the same block of all others, wait for theirs                        x and out are free
//
// so that a link carries both phases at once, without a copy or a barrier between them.
//
// Epoch e counts the collective kernels of a rank, the same on all ranks. It selects the lines e % 2. A rank writes lines e % 2 of
// a peer in epoch e, after it received what the peer sent in epoch e - 1, which follows the end of the peer's epoch e - 2, the last
// reader of these lines. Hence two buffers and no barrier.
//
// Block b of a rank waits for block b of the others alone, which needs no whole grid on the device. Ranks, of one group or of two,
// may share a GPU: the next kernel starts behind this one then, since its blocks would take the place of those of another rank.
// A wait ends after 2 s with an error flag for the host; all later waits end at once, until the host clears the memory.
#include "row_norm.cuh"

#define MAX_RANKS 8
#define BLOCKS 128
#define LINES 65536u
#define TIMEOUT_NS 2000000000ull

struct State {
    u32 epoch, arrived, failed, shares_gpu;
};

struct Group {
    u64 memory[MAX_RANKS]; // Of each rank.
    u32 *fault;            // Of the host.
    u32 rank, n_ranks;
};

// Where a kernel of a rank has its values.
struct Place {
    u64 x, out, operand;
    u32 epoch, unused;
};

// ---- Memory of a rank

DEVICE State *state_of(u64 memory) { return (State *)memory; }

DEVICE Place *place_of(u64 memory, u32 sender, u32 block) { return (Place *)(memory + 256) + sender * BLOCKS + block; }

DEVICE u64 ends_start(u64 memory) { return memory + 256 + sizeof(Place) * MAX_RANKS * BLOCKS; }

DEVICE u32 *end_of(u64 memory, u32 sender, u32 block) { return (u32 *)ends_start(memory) + sender * BLOCKS + block; }

DEVICE uint4 *lines_of(const Group &g, u32 rank, u32 parity, u32 sender) {
    return (uint4 *)(ends_start(g.memory[rank]) + 4 * MAX_RANKS * BLOCKS) + (size_t)(parity * g.n_ranks + sender) * LINES;
}

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

    // Two-phase: exchanges addresses with the same block of the other ranks, all of whose earlier kernels are done then.
    DEVICE bool start_exchange(const Group &g, const Place &own, Place *places) {
        u32 q = threadIdx.x;
        bool is_other = q < g.n_ranks && q != g.rank, has_failed = false;
        if (is_other) {
            volatile Place *to = place_of(g.memory[q], g.rank, blockIdx.x);
            to->x = own.x, to->out = own.out, to->operand = own.operand;
            release((u32 *)&to->epoch, epoch);
        }
        __syncthreads();
        if (q == g.rank) places[q] = own;
        if (is_other) {
            volatile Place *from = place_of(g.memory[g.rank], q, blockIdx.x);
            while (!has_failed && acquire((u32 *)&from->epoch) != epoch) has_failed = gives_up();
            places[q].x = from->x, places[q].out = from->out, places[q].operand = from->operand;
        }
        return !__syncthreads_or(has_failed);
    }

    // Two-phase: waits until the same block of the other ranks has read and written its share.
    DEVICE void end_exchange(const Group &g) {
        __syncthreads();
        u32 q = threadIdx.x;
        bool is_other = q < g.n_ranks && q != g.rank;
        if (is_other) release(end_of(g.memory[q], g.rank, blockIdx.x), epoch);
        __syncthreads();
        if (is_other) {
            const u32 *flag = end_of(g.memory[g.rank], q, blockIdx.x);
            while (acquire(flag) != epoch && !gives_up()) {}
        }
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
    u32 chunk, unused; // Two-phase: values of a rank, a multiple of 4.
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

// Sum over the ranks of N vectors, `step` apart, in ascending order. Loads of two ranks are under way at once.
template <int N, typename Valid> DEVICE void sum_ranks(float4 (&sum)[N], const Group &g, const Place *places, size_t at, u32 step, Valid valid) {
#pragma unroll 1
    for (u32 q = 0; q < g.n_ranks; q += 2) {
        float4 x[2][N];
#pragma unroll
        for (u32 k = 0; k < 2; k++)
#pragma unroll
            for (int i = 0; i < N; i++)
                if (q + k < g.n_ranks && valid(i)) x[k][i] = ((const float4 *)places[q + k].x)[at + i * step];
#pragma unroll
        for (u32 k = 0; k < 2; k++)
#pragma unroll
            for (int i = 0; i < N; i++)
                if (q + k < g.n_ranks && valid(i)) sum[i] = q + k == 0 ? x[k][i] : add4(sum[i], x[k][i]);
    }
}

// Vectors that a thread sums at once.
#define VECTORS 2

// Two-phase: out (+)= sum of x over ranks. Both have room for whole vectors. Rank r reads `out` of its chunk alone.
KERNEL(512) all_reduce_chunks(const __grid_constant__ ReduceParams p) {
    const Group &g = p.group;
    __shared__ Place places[MAX_RANKS];
    Turn turn;
    turn.begin(g);
    // Launches that load the kernel wait for nobody.
    if (p.n > 0 && turn.start_exchange(g, {(u64)p.x, (u64)p.out, 0, 0, 0}, places)) {
        u32 first = g.rank * (p.chunk / 4), end = min(first + p.chunk / 4, (p.n + 3) / 4);
        for (u32 at = first + blockIdx.x * (512 * VECTORS) + threadIdx.x; at < end; at += gridDim.x * (512 * VECTORS)) {
            auto valid = [&](int i) { return at + i * 512 < end; };
            float4 residual[VECTORS], sum[VECTORS];
#pragma unroll
            for (int i = 0; i < VECTORS; i++)
                if (p.accumulate && valid(i)) residual[i] = ((const float4 *)p.out)[at + i * 512];
            sum_ranks(sum, g, places, at, 512, valid);
#pragma unroll
            for (int i = 0; i < VECTORS; i++)
                if (p.accumulate && valid(i)) sum[i] = add4(residual[i], sum[i]);
#pragma unroll 1
            for (u32 k = 0; k < g.n_ranks; k++) {
                float4 *out = (float4 *)places[(g.rank + k) % g.n_ranks].out;
#pragma unroll
                for (int i = 0; i < VECTORS; i++)
                    if (valid(i)) out[at + i * 512] = sum[i];
            }
        }
        turn.end_exchange(g);
    }
    turn.end();
}

struct ReduceNormParams {
    Group group;
    const float *x; // [rows, cols]
    float *out;     // [rows, cols]
    u16 *operand;   // [rows, cols] as products read it.
    const float *weight;
    u32 n_rows, cols, accumulate;
    float eps;
};

// Two-phase, by rows: out (+)= sum of x over ranks, on the rank of the row alone; operand = RMS norm of out * weight, on all ranks.
// 256 threads a row; cols is a multiple of 16.
KERNEL(512) all_reduce_norm(const __grid_constant__ ReduceNormParams p) {
    const Group &g = p.group;
    __shared__ Place places[MAX_RANKS];
    __shared__ float norm_sums[2][8];
    u32 group = threadIdx.x / 256, thread = threadIdx.x % 256, lane = threadIdx.x % 32;
    NormRow<true> row;
    row.load_weights(p.weight, p.cols, thread);
    Turn turn;
    turn.begin(g);
    if (p.n_rows > 0 && turn.start_exchange(g, {(u64)p.x, (u64)p.out, (u64)p.operand, 0, 0}, places)) {
        u32 n_own = (p.n_rows + g.n_ranks - 1) / g.n_ranks, end = min((g.rank + 1) * n_own, p.n_rows);
        for (u32 r = g.rank * n_own + blockIdx.x * 2 + group; r < end; r += gridDim.x * 2) {
            float *y = p.out + (size_t)r * p.cols;
            u32 vectors = p.cols / 4;
#pragma unroll 1
            for (u32 v = thread; v < vectors; v += 256 * VECTORS) {
                auto valid = [&](int i) { return v + i * 256 < vectors; };
                float4 residual[VECTORS], sum[VECTORS];
#pragma unroll
                for (int i = 0; i < VECTORS; i++)
                    if (p.accumulate && valid(i)) residual[i] = ((const float4 *)y)[v + i * 256];
                sum_ranks(sum, g, places, (size_t)r * vectors + v, 256, valid);
#pragma unroll
                for (int i = 0; i < VECTORS; i++)
                    if (valid(i)) ((float4 *)y)[v + i * 256] = p.accumulate ? add4(residual[i], sum[i]) : sum[i];
            }
            // A thread reads the columns that it wrote.
            row.load(y, p.eps, false, [&](float squares) {
                squares = warp_sum(squares);
                group_barrier(group);
                if (lane == 0) norm_sums[group][thread / 32] = squares;
                group_barrier(group);
                float sum = 0.f;
                for (int w = 0; w < 8; w++) sum += norm_sums[group][w];
                return sum;
            });
            row.write(y, p.weight, [&](u32 c, float4 four) {
                // Four lanes have the 16 columns of a group: pairs in the order of `operand_index`, 8 bytes a lane.
                u32 low = pack_half(four.x, four.y), high = pack_half(four.z, four.w), mask = 0xfu << (lane & ~3);
                u32 from = (lane & ~3) + 2 * (lane & 1);
                u32 low0 = __shfl_sync(mask, low, from), low1 = __shfl_sync(mask, low, from + 1);
                u32 high0 = __shfl_sync(mask, high, from), high1 = __shfl_sync(mask, high, from + 1);
                uint2 pairs = lane & 2 ? make_uint2(high0, high1) : make_uint2(low0, low1);
#pragma unroll 1
                for (u32 k = 0; k < g.n_ranks; k++) {
                    u16 *operand = (u16 *)places[(g.rank + k) % g.n_ranks].operand;
                    *(uint2 *)(operand + (size_t)r * p.cols + c) = pairs;
                }
            });
        }
        turn.end_exchange(g);
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
