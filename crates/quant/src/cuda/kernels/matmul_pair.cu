// modules: q4_k_q5_k -DFIRST=Q4_K -DSECOND=Q5_K; q4_k_q6_k -DFIRST=Q4_K -DSECOND=Q6_K; q5_k_q6_k -DFIRST=Q5_K -DSECOND=Q6_K
//
// Matmul of one operand with weights of two formats (Hopper and later), for example query and key of one format, value of another in
// files of mixed types. The first blocks have the matrices of the first format, the others those of the second. Same sums as matmul.cu.
#include "formats.cuh"
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
    if (blockIdx.y < p.n_first_blocks) first::gemm_warpgroup<128>(params, first_share(p, blockIdx.y), shared);
    else second::gemm_warpgroup<128>(params, second_share(p, blockIdx.y, gridDim.y), shared);
}
#endif
