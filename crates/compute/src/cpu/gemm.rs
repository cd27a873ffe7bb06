//! Matrix product for many rows: `y[M,N] = x[M,K] · w[N,K]ᵀ`.
//!
//! `pack` transposes a block of weight rows into panels that the register `tile` streams; `drive`
//! splits the work over threads and walks the tiles of a block.

mod drive;
mod pack;
mod tile;

pub(crate) use drive::{Weights, gemm};
pub(crate) use tile::{Multiply, Operands, tile_rows};
