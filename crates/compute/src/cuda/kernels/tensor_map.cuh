// TMA loads of boxes of a matrix into shared memory (Hopper and later).
#pragma once
#include "common.cuh"

#if __CUDA_ARCH__ >= 900
// CUtensorMap: address, shape and box of an f16 matrix, as encoded by the driver.
struct alignas(64) TensorMap {
    u64 words[16];
};

// Loads the box at (column, row); elements outside of the matrix are zeros. Called by one thread.
DEVICE void tma_load_2d(u32 to, const TensorMap &map, u32 column, u32 row, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        ::"r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier) : "memory");
}
#endif
