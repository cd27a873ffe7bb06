// modules: q4_k_q5_k -DFIRST=7 -DSECOND=8; q4_k_q6_k -DFIRST=7 -DSECOND=9; q5_k_q6_k -DFIRST=8 -DSECOND=9
//
// Products of one operand with weights of two formats, as those of query and key, and of value, in files of mixed types (Hopper and
// later): some blocks have the factors of the first format, the others those of the second. Sums are those of matmul.cu.
#include "params.cuh"
#include "row_norm.cuh"
#include "wgmma.cuh"

#define FORMAT FIRST
namespace first {
#include "format.cuh"
#include "product.cuh"

#include "gemv_row.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "gemm.cuh"
#endif
} // namespace first

#undef FORMAT
#define FORMAT SECOND
namespace second {
#include "format.cuh"
#include "product.cuh"

#include "gemv_row.cuh"
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#include "gemm.cuh"
#endif
} // namespace second

#if __CUDA_ARCH__ >= 900
ROW_KERNEL gemv_row(const __grid_constant__ MatmulParams p) {
    __shared__ RowShared shared;
    if (blockIdx.x < p.n_first_blocks) first::multiply_row(p, first_share(p, blockIdx.x), shared);
    else second::multiply_row(p, second_share(p, blockIdx.x, gridDim.x), shared);
}
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
KERNEL(GEMM_THREADS) wgmma_128(const __grid_constant__ WarpgroupParams params) {
    __shared__ GemmShared shared;
    const MatmulParams &p = params.matmul;
    if (blockIdx.y < p.n_first_blocks) first::wgmma<128>(params, first_share(p, blockIdx.y), shared);
    else second::wgmma<128>(params, second_share(p, blockIdx.y, gridDim.y), shared);
}
#endif
