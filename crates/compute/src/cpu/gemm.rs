//! GEMM (more than 48 rows): `C[M,N] = A[M,K] · W[N,K]ᵀ` with f32 products, blocked as in BLIS.
//!
//! ```text
//! in parallel, for each block of NC columns and MC rows of C:            driver
//!   for each panel p of NR = 2 vectors of columns of the block:          pack
//!     Wp[K][NR] = rows of W, widened or dequantized to f32, transposed
//!   for each tile of MR rows:                                            driver
//!     for each panel p:
//!       acc[MR][NR] = 0                    in registers                  microkernel
//!       for k in 0..K:
//!         b[0..2] = Wp[k]                  2 vector loads
//!         for r in 0..MR: acc[r] += A[r][k] * b
//!       C = epilogue(acc)
//! ```
//!
//! MR is 12 with 32 vector registers (24 sums, 2 vectors of `b`, 1 broadcast), 6 with 16 (12 + 2 + 1), and 4 in browsers. There is no
//! loop over blocks of `K`: a panel is `K` long, and NC is chosen so that the packed panels stay in the L2 cache.

mod driver;
mod microkernel;
mod pack;

pub(crate) use driver::{Weights, gemm};
pub(crate) use microkernel::{MulAdd, Operands, run_tiles};
pub use pack::DensePanels;
