// Types, PTX instructions and reductions shared by all kernels. Includes no toolkit header.
#pragma once

typedef unsigned char u8;
typedef signed char i8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define INFINITY __int_as_float(0x7f800000)

#define DEVICE __device__ __forceinline__
#define KERNEL(threads) extern "C" __global__ void __launch_bounds__(threads)

// ---- Programmatic dependent launch: kernel n + 1 starts while n runs, and waits before it touches memory that n or an earlier kernel
// writes.

// Allows the next kernel of the stream to start.
DEVICE void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Waits for all earlier kernels. Every kernel calls it before its first access to activations.
DEVICE void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

DEVICE void begin_kernel() {
    launch_dependents();
    wait_for_inputs();
}

// ---- f16

#if __CUDA_ARCH__ < 800
// Clamps to the finite range of f16; NaN stays NaN.
DEVICE float clamp_half(float x) { return x > 65504.f ? 65504.f : x < -65504.f ? -65504.f : x; }
#endif

// Packs two f32 as f16, the first in the low half; finite values stay finite, NaN stays NaN.
DEVICE u32 pack_half(float low, float high) {
    u32 y;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
#else
    asm("{ .reg .b16 l, h; cvt.rn.f16.f32 l, %2; cvt.rn.f16.f32 h, %1; mov.b32 %0, {l, h}; }" : "=r"(y) : "f"(clamp_half(high)), "f"(clamp_half(low)));
#endif
    return y;
}

DEVICE u16 to_half(float x) { return (u16)pack_half(x, 0.f); }

DEVICE float from_half(u16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}

DEVICE float low_half(u32 x) { return from_half((u16)x); }
DEVICE float high_half(u32 x) { return from_half((u16)(x >> 16)); }

DEVICE u32 add_half2(u32 a, u32 b) {
    u32 y;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

DEVICE u32 mul_half2(u32 a, u32 b) {
    u32 y;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

DEVICE u32 fma_half2(u32 a, u32 b, u32 c) {
    u32 y;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
    return y;
}

// Selects four of the eight bytes of (a, b): byte i of the result is byte `selector >> 4i`.
DEVICE u32 select_bytes(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }

// (x & mask) | bits.
template <u32 MASK, u32 BITS> DEVICE u32 mask_or(u32 x) {
    u32 y;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "n"(MASK), "n"(BITS));
    return y;
}

DEVICE float4 add4(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

// ---- mma instructions (a warp)

// mma.m16n8k16: c += a * b for a [16, 16], b [16, 8] in f16, c in f32. Fragments of a lane, g = lane / 4, t = lane % 4:
//   a: [0] row g, columns 2t, 2t + 1   [1] row g + 8   [2], [3] columns + 8
//   b: [0] rows 2t, 2t + 1 of column g   [1] rows + 8
//   c: [0], [1] row g, columns 2t, 2t + 1   [2], [3] row g + 8
DEVICE void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(b0));
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

// mma with c = 0: c = a * b.
DEVICE void mma_init(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.f));
#else
    c[0] = c[1] = c[2] = c[3] = 0.f;
    mma(c, a, b0, b1);
#endif
}

// Transposes an 8x8 matrix of f16: lane 4 i + j holds row i, columns 2 j and 2 j + 1.
DEVICE u32 movmatrix_trans(u32 x) {
    u32 y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// Loads four 8x8 matrices of f16 from shared memory; lane l gives the address of row l % 8 of matrix l / 8. Fragment layout as in
// `movmatrix_trans`.
DEVICE void ldmatrix_x4(u32 (&x)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(address));
}

// ---- Asynchronous copies to shared memory

// Makes earlier writes to shared memory visible to the async proxy: bulk copies and wgmma.
DEVICE void fence_proxy_async() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

DEVICE u32 smem_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// Copies 16 bytes, or writes zeros unless `valid`.
DEVICE void cp_async_16(u32 to, const void *from, bool valid) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0));
#else
    uint4 x = make_uint4(0, 0, 0, 0);
    if (valid) x = *(const uint4 *)from;
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w));
#endif
}

DEVICE void cp_async_commit_group() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;");
#endif
}

// Waits until at most N commit groups of copies are pending.
template <int N> DEVICE void cp_async_wait_group() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N));
#endif
}

#if __CUDA_ARCH__ >= 900
// Moves a value that all lanes agree on to a uniform register.
DEVICE u32 warp_uniform(u32 x) { return __shfl_sync(0xffffffff, x, 0); }

// True in one lane of a converged warp. Bulk copies take uniform registers: under this condition the compiler needs no loop over lanes
// to fill them.
DEVICE bool elect_one() {
    u32 y;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(y));
    return y;
}

// Mbarriers: a phase completes when `n` threads have arrived and the expected bytes of bulk copies have landed.
DEVICE void mbarrier_init(u32 barrier, u32 n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(n) : "memory"); }

DEVICE void mbarrier_arrive(u32 barrier) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory"); }

// Arrives, and adds bytes that the phase expects from bulk copies.
DEVICE void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Copies `bytes`, a multiple of 16, to shared memory.
DEVICE void cp_async_bulk(u32 to, const void *from, u32 bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

DEVICE void mbarrier_wait(u32 barrier, u32 phase) {
    asm volatile("{\n.reg .pred done;\nagain_%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again_%=;\n}"
        ::"r"(barrier), "r"(phase) : "memory");
}

// Stage of a circular pipeline, and the parity of its barriers.
struct PipelineState {
    u32 index = 0, phase = 0;

    DEVICE void next(u32 n_stages) {
        if (++index == n_stages) index = 0, phase ^= 1;
    }
};
#endif

// Loads of weights bypass L1: each step reads them once.
DEVICE uint4 load_weights16(const void *p) {
    uint4 x;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
        : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(p));
    return x;
}

DEVICE uint2 load_weights8(const void *p) {
    uint2 x;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(p));
    return x;
}

DEVICE u32 load_weights4(const void *p) {
    u32 x;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(x) : "l"(p));
    return x;
}

DEVICE u16 load_weights2(const void *p) {
    u16 x;
    asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(x) : "l"(p));
    return x;
}

// Loads memory that other blocks of the kernel have written.
DEVICE float4 load_l2(const float4 *p) {
    float4 x;
    asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(p) : "memory");
    return x;
}

// Loads columns c .. c + 3; zeros past the last column.
DEVICE float4 load4(const float *p, u32 c, u32 cols) {
    if (c + 3 < cols && ((u64)p & 15) == 0) return *(const float4 *)(p + c);
    return make_float4(c < cols ? p[c] : 0.f, c + 1 < cols ? p[c + 1] : 0.f, c + 2 < cols ? p[c + 2] : 0.f, c + 3 < cols ? p[c + 3] : 0.f);
}

// ---- Reductions

DEVICE float warp_sum(float x) {
    for (int i = 16; i > 0; i >>= 1) x += __shfl_xor_sync(0xffffffff, x, i);
    return x;
}

DEVICE float warp_max(float x) {
    for (int i = 16; i > 0; i >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, i));
    return x;
}

// Synchronizes the 256 threads of a group; a block has up to two groups.
DEVICE void named_barrier_sync(u32 group) { asm volatile("bar.sync %0, 256;" ::"r"(group + 1) : "memory"); }

// Sum over a block of at most 32 warps, in a fixed order, returned to every thread.
DEVICE float block_sum(float x) {
    __shared__ float sums[32];
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    float y = 0.f;
    for (int i = 0; i < blockDim.x / 32; i++) y += sums[i];
    return y;
}

DEVICE float block_max(float x) {
    __shared__ float maxima[32];
    x = warp_max(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = x;
    __syncthreads();
    float y = maxima[0];
    for (int i = 1; i < blockDim.x / 32; i++) y = fmaxf(y, maxima[i]);
    return y;
}

// ---- Activations

enum Activation { ACTIVATION_NONE, ACTIVATION_GELU, ACTIVATION_GELU_TANH };
enum GatedActivation { GATED_SILU, GATED_GELU_TANH, GATED_CLAMPED_SWIGLU };

DEVICE float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }

DEVICE float gelu(float x) { return 0.5f * x * (1.f + erff(x * 0.70710678f)); }

DEVICE float gelu_tanh(float x) { return x * sigmoid(1.595769122f * x * fmaf(0.044715f * x, x, 1.f)); }

DEVICE float activate(float x, u32 activation) {
    switch (activation) {
    case ACTIVATION_GELU: return gelu(x);
    case ACTIVATION_GELU_TANH: return gelu_tanh(x);
    default: return x;
    }
}

DEVICE float gated_activation(float gate, float up, u32 activation, float alpha, float limit) {
    switch (activation) {
    case GATED_SILU: return gate * sigmoid(gate) * up;
    case GATED_GELU_TANH: return gelu_tanh(gate) * up;
    default: {
        float g = fminf(gate, limit), u = fminf(fmaxf(up, -limit), limit);
        return g * sigmoid(alpha * g) * (u + 1.f);
    }
    }
}

// ---- Results

// Index of element i in a matmul operand, whose columns are a multiple of 64: column 4 t + 2 h + b of 16 is at 8 h + 2 t + b. The
// fragment of lane t (2 t, 2 t + 1, 2 t + 8, 2 t + 9) then holds columns 4 t .. 4 t + 3, as the lane's fragment of the weights does.
DEVICE size_t operand_index(size_t i) {
    u32 c = (u32)i & 15;
    return (i & ~(size_t)15) + (c & 2) * 4 + (c >> 2) * 2 + (c & 1);
}

// Destination of a result: f32 values, an f16 matmul operand, or both; null: not written.
struct Output {
    float *values;
    u16 *operand;
};

DEVICE void store(const Output &out, size_t i, float x) {
    if (out.values) out.values[i] = x;
    if (out.operand) out.operand[operand_index(i)] = to_half(x);
}

// Stores elements i, i + 1; i is even.
DEVICE void store2(const Output &out, size_t i, float x, float y) {
    if (out.values) *(float2 *)(out.values + i) = make_float2(x, y);
    if (out.operand) *(u32 *)(out.operand + operand_index(i)) = pack_half(x, y);
}

// Stores elements i .. i + 3; i is a multiple of 4: two pairs of an operand.
DEVICE void store4(const Output &out, size_t i, float4 x) {
    if (out.values) *(float4 *)(out.values + i) = x;
    if (!out.operand) return;
    *(u32 *)(out.operand + operand_index(i)) = pack_half(x.x, x.y);
    *(u32 *)(out.operand + operand_index(i + 2)) = pack_half(x.z, x.w);
}
