// Copies of boxes of a matrix to shared memory (Hopper and later).
#pragma once
#include "common.cuh"

#if __CUDA_ARCH__ >= 900
// A matrix of f16 in memory and the size of its boxes, as the driver encodes them.
struct alignas(64) TensorMap {
    u64 words[16];
};

// Copies the box from (column, row) on, zeros behind the ends of the matrix, by one thread.
DEVICE void copy_box(u32 to, const TensorMap &map, u32 column, u32 row, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
        ::"r"(to), "l"(&map), "r"(column), "r"(row), "r"(barrier) : "memory");
}
#endif
