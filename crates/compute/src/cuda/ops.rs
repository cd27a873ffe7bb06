//! Kernels. Ops append launches to a [`CommandList`].
//!
//! | file | holds |
//! |---|---|
//! | `rows` | copies, norms, elementwise ops, conversions, log-sum-exp, logit filters |
//! | `rope` | QK norm, rotary embedding, KV write |
//! | `kv` | pages on the device |
//! | `attention` | decode and prefill over pages |
//! | `moe` | routing, order by expert, weighted sum |
//! | `top_k` | largest values of rows |
//! | `log_mel` | log mel powers of audio |
//! | `all_reduce` | all-reduce and all-gather over ranks |

pub mod all_reduce;
pub mod attention;
pub mod kv;
pub mod log_mel;
pub mod moe;
pub mod rope;
pub mod rows;
pub mod top_k;

use bytemuck::{Pod, Zeroable};

use super::{CommandList, Launch};

/// Columns of a matmul operand are padded with zeros to a multiple of this.
pub const OPERAND_COLUMNS: usize = 64;

/// Rows of f32 values on the device.
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    /// Address of the first value.
    pub address: u64,
    /// Number of rows.
    pub rows: usize,
    /// Values of a row.
    pub cols: usize,
    /// Values from one row to the next.
    pub stride: usize,
}

/// Destination of a result: f32 values, an f16 matmul operand, or both; address 0 for none.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Output {
    /// Address of the f32 values.
    pub values: u64,
    /// Address of the operand.
    pub operand: u64,
}

impl Output {
    /// f32 values at an address.
    #[must_use]
    pub fn at(values: u64) -> Self {
        Self { values, ..Self::default() }
    }

    /// Adds an operand at an address.
    #[must_use]
    pub fn with_operand(self, operand: u64) -> Self {
        Self { operand, ..self }
    }
}

/// Threads of a block of elementwise kernels.
const THREADS: usize = 256;
/// Maximum blocks of an elementwise kernel, which loops over the grid.
const MAX_BLOCKS: usize = 4096;

/// Launches a kernel with one thread per element.
fn launch_elements<P: Pod>(
    list: &mut CommandList,
    module: &'static str,
    name: &'static str,
    n: usize,
    params: &P,
) {
    let kernel = list.gpu().kernel(&super::ARCHIVE, module, name, 0);
    let grid = [n.div_ceil(THREADS).min(MAX_BLOCKS), 1, 1];
    list.launch(kernel, Launch { grid, threads: THREADS, shared_bytes: 0 }, params);
}

/// Launches a kernel with a fixed block size.
fn launch<P: Pod>(
    list: &mut CommandList,
    (module, name): (&'static str, &'static str),
    grid: [usize; 3],
    threads: usize,
    params: &P,
) {
    let kernel = list.gpu().kernel(&super::ARCHIVE, module, name, 0);
    list.launch(kernel, Launch { grid, threads, shared_bytes: 0 }, params);
}
