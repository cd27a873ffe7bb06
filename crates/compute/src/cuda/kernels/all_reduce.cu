// All-reduce and all-gather over the ranks of a group, in one process. The memory of each rank is written by all ranks and read by that
// rank alone:
//
//   state     epoch | arrived blocks | failed | shares_gpu            256 bytes
//   peers     [MAX_RANKS][BLOCKS] addresses and epoch                 two-phase: a block of the sender has started, its values are ready
//   done      [MAX_RANKS][BLOCKS] epochs                              two-phase: a block of the sender has read and written its share
//   packets   [2 parities][ranks][PACKETS] (value, epoch, value, epoch)  one-shot: values that carry their own flag
//
// One-shot (up to 512 KB), NCCL's LL protocol: every rank stores its values to all others, polls its own packets and sums in ascending
// order of ranks. A 16-byte store is two halves of 8 bytes, each with the epoch, so that a reader needs no fence and no clearing.
//
// Two-phase (more): the values stay where the kernels of the ranks read and write them. A block
//
//   sends the addresses of x and out to the same block of all peers, waits for theirs    earlier kernels of all ranks have finished
//   sum = x of rank 0 + x of rank 1 + ..    for its share of the rank's chunk             loads from peers
//   out of all ranks = out + sum            the rank itself has the residual              stores to peers
//   sends `done` to the same block of all peers, waits for theirs                         x and out may be reused
//
// so that a link carries both phases at once, without a copy or a barrier between them.
//
// Epoch e counts the collective kernels of a rank and is the same on all ranks. Its parity e % 2 selects the packet buffer. A rank writes
// buffer e % 2 of a peer in epoch e, after it received what the peer sent in epoch e - 1. The peer sent that after its epoch e - 2, the
// last to read the buffer. Hence two buffers suffice without a barrier.
//
// Block b of a rank waits for block b of its peers only, so the whole grid need not be resident. Ranks of one or two groups may share a
// GPU: then the next kernel starts after this one, since its blocks would take the place of those of another rank.
// A wait times out after 2 s with an error flag for the host; all later waits end at once, until the host clears the memory.
#include "row_norm.cuh"

#define MAX_RANKS 8
#define BLOCKS 128
#define PACKETS 65536u
#define TIMEOUT_NS 2000000000ull

struct State {
    u32 epoch, arrived, failed, shares_gpu;
};

struct Group {
    u64 memory[MAX_RANKS]; // Memory of each rank.
    u32 *fault;            // Error flag in host memory.
    u32 rank, n_ranks;
};

// Addresses of the values of a rank in one kernel.
struct PeerBuffers {
    u64 x, out, operand;
    u32 epoch, unused;
};

// ---- Memory of a rank

DEVICE State *state_of(u64 memory) { return (State *)memory; }

DEVICE PeerBuffers *peer_of(u64 memory, u32 sender, u32 block) { return (PeerBuffers *)(memory + 256) + sender * BLOCKS + block; }

DEVICE u64 done_start(u64 memory) { return memory + 256 + sizeof(PeerBuffers) * MAX_RANKS * BLOCKS; }

DEVICE u32 *done_of(u64 memory, u32 sender, u32 block) { return (u32 *)done_start(memory) + sender * BLOCKS + block; }

DEVICE uint4 *packets_of(const Group &g, u32 rank, u32 parity, u32 sender) {
    return (uint4 *)(done_start(g.memory[rank]) + 4 * MAX_RANKS * BLOCKS) + (size_t)(parity * g.n_ranks + sender) * PACKETS;
}

// ---- System-scope loads and stores

DEVICE uint4 load_packet(const uint4 *p) {
    uint4 x;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(p) : "memory");
    return x;
}

DEVICE void store_packet(uint4 *p, float a, float b, u32 epoch) {
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

struct Collective {
    volatile State *state;
    volatile u32 *fault;
    u64 wait_start; // Time of the first failed polls; 0 before them.
    u32 epoch, polls;

    DEVICE void begin(const Group &g) {
        state = state_of(g.memory[g.rank]);
        if (!state->shares_gpu) launch_dependents();
        wait_for_inputs();
        fault = g.fault;
        wait_start = 0, polls = 0;
        epoch = state->epoch + 1;
        // Epoch 0 is that of cleared memory: skip it, and keep the parity.
        if (epoch == 0) epoch = 2;
    }

    DEVICE u32 parity() const { return epoch & 1; }

    // Called after each failed poll. True if the wait has timed out, here or in an earlier wait.
    DEVICE bool has_timed_out() {
        if (++polls % 64 != 0) return false;
        if (state->failed) return true;
        u64 now = time_ns();
        if (wait_start == 0) wait_start = now;
        if (now - wait_start < TIMEOUT_NS) return false;
        state->failed = 1;
        *fault = 1;
        return true;
    }

    // Polls for a packet; returns its two values, zeros on timeout.
    DEVICE float2 receive(const uint4 *packet) {
        while (true) {
            uint4 x = load_packet(packet);
            if (x.y == epoch && x.w == epoch) return make_float2(__uint_as_float(x.x), __uint_as_float(x.z));
            if (has_timed_out()) return make_float2(0.f, 0.f);
        }
    }

    // Two-phase: swaps addresses with the same block on every rank. On return their earlier kernels have finished. False on timeout.
    DEVICE bool exchange_addresses(const Group &g, const PeerBuffers &own, PeerBuffers *peers) {
        u32 q = threadIdx.x;
        bool is_other = q < g.n_ranks && q != g.rank, has_failed = false;
        if (is_other) {
            volatile PeerBuffers *to = peer_of(g.memory[q], g.rank, blockIdx.x);
            to->x = own.x, to->out = own.out, to->operand = own.operand;
            release((u32 *)&to->epoch, epoch);
        }
        __syncthreads();
        if (q == g.rank) peers[q] = own;
        if (is_other) {
            volatile PeerBuffers *from = peer_of(g.memory[g.rank], q, blockIdx.x);
            while (!has_failed && acquire((u32 *)&from->epoch) != epoch) has_failed = has_timed_out();
            peers[q].x = from->x, peers[q].out = from->out, peers[q].operand = from->operand;
        }
        return !__syncthreads_or(has_failed);
    }

    // Two-phase: waits until the same block on every rank has read and written its share.
    DEVICE void wait_for_peers(const Group &g) {
        __syncthreads();
        u32 q = threadIdx.x;
        bool is_other = q < g.n_ranks && q != g.rank;
        if (is_other) release(done_of(g.memory[q], g.rank, blockIdx.x), epoch);
        __syncthreads();
        if (is_other) {
            const u32 *flag = done_of(g.memory[g.rank], q, blockIdx.x);
            while (acquire(flag) != epoch && !has_timed_out()) {}
        }
    }

    // The last block to arrive advances the epoch; every block has read it by now.
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

// One-shot, n <= 2 PACKETS: out (+)= sum of x over ranks. A thread takes pairs of values.
KERNEL(512) all_reduce_ll(const __grid_constant__ ReduceParams p) {
    const Group &g = p.group;
    Collective collective;
    collective.begin(g);
    u32 first = blockIdx.x * 512 + threadIdx.x, step = gridDim.x * 512, pairs = p.n / 2 + p.n % 2, parity = collective.parity();
    auto own = [&](u32 i) { return make_float2(p.x[2 * i], 2 * i + 1 < p.n ? p.x[2 * i + 1] : 0.f); };
    for (u32 i = first; i < pairs; i += step) {
        float2 x = own(i);
        for (u32 k = 1; k < g.n_ranks; k++) {
            u32 to = g.rank + k < g.n_ranks ? g.rank + k : g.rank + k - g.n_ranks;
            store_packet(packets_of(g, to, parity, g.rank) + i, x.x, x.y, collective.epoch);
        }
    }
    for (u32 i = first; i < pairs; i += step) {
        float2 sum = make_float2(0.f, 0.f);
        for (u32 q = 0; q < g.n_ranks; q++) {
            float2 x = q == g.rank ? own(i) : collective.receive(packets_of(g, g.rank, parity, q) + i);
            sum = q == 0 ? x : make_float2(sum.x + x.x, sum.y + x.y);
        }
        float *out = p.out + 2 * i;
        out[0] = p.accumulate ? out[0] + sum.x : sum.x;
        if (2 * i + 1 < p.n) out[1] = p.accumulate ? out[1] + sum.y : sum.y;
    }
    collective.end();
}

// Sums N vectors, `step` apart, over the ranks in ascending order. Loads of two ranks are in flight at once.
template <int N, typename Valid> DEVICE void sum_ranks(float4 (&sum)[N], const Group &g, const PeerBuffers *peers, size_t at, u32 step, Valid valid) {
#pragma unroll 1
    for (u32 q = 0; q < g.n_ranks; q += 2) {
        float4 x[2][N];
#pragma unroll
        for (u32 k = 0; k < 2; k++)
#pragma unroll
            for (int i = 0; i < N; i++)
                if (q + k < g.n_ranks && valid(i)) x[k][i] = ((const float4 *)peers[q + k].x)[at + i * step];
#pragma unroll
        for (u32 k = 0; k < 2; k++)
#pragma unroll
            for (int i = 0; i < N; i++)
                if (q + k < g.n_ranks && valid(i)) sum[i] = q + k == 0 ? x[k][i] : add4(sum[i], x[k][i]);
    }
}

// Vectors summed by a thread at once.
#define VECTORS 2

// Two-phase: out (+)= sum of x over ranks. Both are padded to whole vectors. Rank r reads `out` in its own chunk only.
KERNEL(512) all_reduce_two_phase(const __grid_constant__ ReduceParams p) {
    const Group &g = p.group;
    __shared__ PeerBuffers peers[MAX_RANKS];
    Collective collective;
    collective.begin(g);
    // A launch with n = 0 only loads the kernel.
    if (p.n > 0 && collective.exchange_addresses(g, {(u64)p.x, (u64)p.out, 0, 0, 0}, peers)) {
        u32 first = g.rank * (p.chunk / 4), end = min(first + p.chunk / 4, (p.n + 3) / 4);
        for (u32 at = first + blockIdx.x * (512 * VECTORS) + threadIdx.x; at < end; at += gridDim.x * (512 * VECTORS)) {
            auto valid = [&](int i) { return at + i * 512 < end; };
            float4 residual[VECTORS], sum[VECTORS];
#pragma unroll
            for (int i = 0; i < VECTORS; i++)
                if (p.accumulate && valid(i)) residual[i] = ((const float4 *)p.out)[at + i * 512];
            sum_ranks(sum, g, peers, at, 512, valid);
#pragma unroll
            for (int i = 0; i < VECTORS; i++)
                if (p.accumulate && valid(i)) sum[i] = add4(residual[i], sum[i]);
#pragma unroll 1
            for (u32 k = 0; k < g.n_ranks; k++) {
                float4 *out = (float4 *)peers[(g.rank + k) % g.n_ranks].out;
#pragma unroll
                for (int i = 0; i < VECTORS; i++)
                    if (valid(i)) out[at + i * 512] = sum[i];
            }
        }
        collective.wait_for_peers(g);
    }
    collective.end();
}

struct ReduceNormParams {
    Group group;
    const float *x; // [rows, cols]
    float *out;     // [rows, cols]
    u16 *operand;   // [rows, cols]: matmul operand.
    const float *weight;
    u32 n_rows, cols, accumulate;
    float eps;
};

// Two-phase, by rows: out (+)= sum of x over ranks, on the rank that owns the row; operand = RMS norm of out * weight, on all ranks.
// 256 threads per row; cols is a multiple of 16.
KERNEL(512) all_reduce_norm(const __grid_constant__ ReduceNormParams p) {
    const Group &g = p.group;
    __shared__ PeerBuffers peers[MAX_RANKS];
    __shared__ float norm_sums[2][8];
    u32 group = threadIdx.x / 256, thread = threadIdx.x % 256, lane = threadIdx.x % 32;
    NormRow<true> row;
    row.load_weights(p.weight, p.cols, thread);
    Collective collective;
    collective.begin(g);
    if (p.n_rows > 0 && collective.exchange_addresses(g, {(u64)p.x, (u64)p.out, (u64)p.operand, 0, 0}, peers)) {
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
                sum_ranks(sum, g, peers, (size_t)r * vectors + v, 256, valid);
#pragma unroll
                for (int i = 0; i < VECTORS; i++)
                    if (valid(i)) ((float4 *)y)[v + i * 256] = p.accumulate ? add4(residual[i], sum[i]) : sum[i];
            }
            // Each thread reads the columns that it wrote.
            row.load(y, p.eps, false, [&](float squares) {
                squares = warp_sum(squares);
                named_barrier_sync(group);
                if (lane == 0) norm_sums[group][thread / 32] = squares;
                named_barrier_sync(group);
                float sum = 0.f;
                for (int w = 0; w < 8; w++) sum += norm_sums[group][w];
                return sum;
            });
            row.write(y, p.weight, [&](u32 c, float4 four) {
                // Four lanes have the 16 columns of a group: pairs in the order of `operand_index`, 8 bytes per lane.
                u32 low = pack_half(four.x, four.y), high = pack_half(four.z, four.w), mask = 0xfu << (lane & ~3);
                u32 from = (lane & ~3) + 2 * (lane & 1);
                u32 low0 = __shfl_sync(mask, low, from), low1 = __shfl_sync(mask, low, from + 1);
                u32 high0 = __shfl_sync(mask, high, from), high1 = __shfl_sync(mask, high, from + 1);
                uint2 pairs = lane & 2 ? make_uint2(high0, high1) : make_uint2(low0, low1);
#pragma unroll 1
                for (u32 k = 0; k < g.n_ranks; k++) {
                    u16 *operand = (u16 *)peers[(g.rank + k) % g.n_ranks].operand;
                    *(uint2 *)(operand + (size_t)r * p.cols + c) = pairs;
                }
            });
        }
        collective.wait_for_peers(g);
    }
    collective.end();
}

struct GatherParams {
    Group group;
    const float *x; // [rows, columns of the rank]
    float *out;     // [rows, all columns]
    u32 first_col[MAX_RANKS + 1];
    u32 n_rows, first, n_pairs; // Range of values of each rank: from `first` on, n_pairs <= PACKETS.
};

// One-shot: concatenates the columns of all ranks. Ranks with fewer values than others send zeros, which nobody stores.
KERNEL(512) all_gather_ll(const __grid_constant__ GatherParams p) {
    const Group &g = p.group;
    Collective collective;
    collective.begin(g);
    u32 first = blockIdx.x * 512 + threadIdx.x, step = gridDim.x * 512, parity = collective.parity(), all = p.first_col[g.n_ranks];
    auto own = [&](u32 i) {
        u32 n = p.n_rows * (p.first_col[g.rank + 1] - p.first_col[g.rank]), at = p.first + 2 * i;
        return make_float2(at < n ? p.x[at] : 0.f, at + 1 < n ? p.x[at + 1] : 0.f);
    };
    for (u32 i = first; i < p.n_pairs; i += step) {
        float2 x = own(i);
        for (u32 k = 1; k < g.n_ranks; k++) {
            u32 to = g.rank + k < g.n_ranks ? g.rank + k : g.rank + k - g.n_ranks;
            store_packet(packets_of(g, to, parity, g.rank) + i, x.x, x.y, collective.epoch);
        }
    }
    for (u32 q = 0; q < g.n_ranks; q++) {
        u32 cols = p.first_col[q + 1] - p.first_col[q], n = p.n_rows * cols;
        for (u32 i = first; i < p.n_pairs; i += step) {
            float2 x = q == g.rank ? own(i) : collective.receive(packets_of(g, g.rank, parity, q) + i);
            for (u32 at = p.first + 2 * i, k = 0; k < 2 && at < n; k++, at++)
                p.out[(size_t)(at / cols) * all + p.first_col[q] + at % cols] = k == 0 ? x.x : x.y;
        }
    }
    collective.end();
}
