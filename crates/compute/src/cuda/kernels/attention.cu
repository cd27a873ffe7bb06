// modules: attention_f16 -DKV_TYPE=1; attention_q8 -DKV_TYPE=2
//
// Attention over pages of f16 or int8.
//
//   decode_D    one row per block, a split of 256 positions: attention_decode.cuh
//   prefill_D   adjacent rows of a sequence: attention_prefill.cuh, by mma.sync
//   prefill_D   f16 on Hopper: attention_prefill_warpgroup.cuh, by wgmma
#include "attention_decode.cuh"
#include "attention_prefill.cuh"
#include "attention_prefill_warpgroup.cuh"

struct DecodeParams {
    AttentionParams attention;
    RopeKvParams rope; // q.x null: none.
};

#define DECODE(D) KERNEL(128) decode_##D(const __grid_constant__ DecodeParams p) { decode<D>(p.attention, p.rope); }
#define PREFILL(D, N) KERNEL(256) prefill_##D(const __grid_constant__ AttentionParams p) { prefill<D, N>(p); }

DECODE(64)
DECODE(96)
DECODE(128)
DECODE(256)
PREFILL(96, 2)
PREFILL(256, 1)
#if KV_TYPE == 1 && defined(__CUDA_ARCH_FEAT_SM90_ALL)
extern "C" __global__ void __launch_bounds__(256, 2) prefill_64(const __grid_constant__ WarpgroupParams p) { WarpgroupPrefill<64>::run(p); }
KERNEL(256) prefill_128(const __grid_constant__ WarpgroupParams p) { WarpgroupPrefill<128>::run(p); }
#else
PREFILL(64, 2)
PREFILL(128, 2)
#endif
