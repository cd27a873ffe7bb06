//! Ops on rows.

use bytemuck::{Pod, Zeroable};

use super::{MAX_BLOCKS, OPERAND_COLUMNS, Output, Rows, THREADS, launch, launch_elements};
use crate::cuda::CommandList;
use crate::op::{ConvStateArgs, GatedActivation, NormArgs};

const MODULE: &str = "rows";

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct CopyParams {
    from: u64,
    to: u64,
    rows: u64,
    n_rows: u32,
    cols: u32,
    stride: u32,
    out_stride: u32,
    n_copies: u32,
    unused: u32,
}

/// Writes `n` consecutive copies of `x` to rows of `stride` values at address `to`.
pub fn copy(list: &mut CommandList, to: u64, stride: usize, x: Rows, n: usize) {
    copy_rows(list, (to, stride), x, (0, x.rows), n);
}

/// Copies the rows of `x` that the list of `n` indexes at address `rows` names, packed.
pub fn gather(list: &mut CommandList, to: u64, x: Rows, (rows, n): (u64, usize)) {
    copy_rows(list, (to, x.cols), x, (rows, n), 1);
}

fn copy_rows(
    list: &mut CommandList,
    (to, out_stride): (u64, usize),
    x: Rows,
    (rows, n_rows): (u64, usize),
    n_copies: usize,
) {
    let params = CopyParams {
        from: x.address,
        to,
        rows,
        n_rows: n_rows as u32,
        cols: x.cols as u32,
        stride: x.stride as u32,
        out_stride: out_stride as u32,
        n_copies: n_copies as u32,
        unused: 0,
    };
    launch_elements(list, MODULE, "copy_rows", n_rows * x.cols * n_copies, &params);
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct NormParams {
    x: u64,
    weight: u64,
    bias: u64,
    out: Output,
    n_rows: u32,
    cols: u32,
    stride: u32,
    is_layer_norm: u32,
    accumulate: u32,
    eps: f32,
}

/// Maximum columns of a norm with one warp per row, see `row_norm.cuh`.
const WARP_COLS: usize = 2048;
/// Minimum rows of a norm with one warp per row. Fewer rows get one block each, and all blocks run at once.
const WARP_ROWS: usize = 256;

/// Layer norm of every row.
pub fn layer_norm(list: &mut CommandList, out: Output, x: Rows, args: NormArgs<u64>) {
    norm(list, out, x, args, [true, false]);
}

/// RMS norm of every row, added to the values of `out` if `accumulate`.
pub fn rms_norm(
    list: &mut CommandList,
    out: Output,
    x: Rows,
    args: NormArgs<u64>,
    accumulate: bool,
) {
    norm(list, out, x, args, [false, accumulate]);
}

fn norm(
    list: &mut CommandList,
    out: Output,
    x: Rows,
    NormArgs { weight, bias, eps }: NormArgs<u64>,
    [is_layer_norm, accumulate]: [bool; 2],
) {
    let bias = bias.unwrap_or(0);
    let params = NormParams {
        x: x.address,
        weight,
        bias,
        out,
        n_rows: x.rows as u32,
        cols: x.cols as u32,
        stride: x.stride as u32,
        is_layer_norm: u32::from(is_layer_norm),
        accumulate: u32::from(accumulate),
        eps,
    };
    let addresses = [x.address, weight, bias, out.values];
    let is_whole = (x.cols | x.stride).is_multiple_of(4) && addresses.iter().all(|a| a % 16 == 0);
    let has_kernel = list.gpu().device().has_warpgroups();
    if has_kernel && is_whole && x.cols <= WARP_COLS && x.rows >= WARP_ROWS {
        let grid = [x.rows.div_ceil(4), 1, 1];
        launch(list, (MODULE, "norm_rows_by_warps"), grid, 128, &params);
    } else {
        launch(list, (MODULE, "norm_rows"), [x.rows, 1, 1], 256, &params);
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ElementParams {
    x: u64,
    y: u64,
    out: Output,
    n_rows: u32,
    cols: u32,
    x_stride: u32,
    y_stride: u32,
    op: u32,
    activation: u32,
    alpha: f32,
    limit: f32,
}

fn elementwise(
    list: &mut CommandList,
    out: Output,
    x: Rows,
    y: Rows,
    (op, (activation, alpha, limit)): (u32, (u32, f32, f32)),
) {
    let params = ElementParams {
        x: x.address,
        y: y.address,
        out,
        n_rows: x.rows as u32,
        cols: x.cols as u32,
        x_stride: x.stride as u32,
        y_stride: y.stride as u32,
        op,
        activation,
        alpha,
        limit,
    };
    let grid = [x.cols.div_ceil(4 * THREADS), x.rows.min(MAX_BLOCKS), 1];
    launch(list, (MODULE, "elementwise"), grid, THREADS, &params);
}

/// `x + y`.
pub fn add(list: &mut CommandList, out: Output, x: Rows, y: Rows) {
    elementwise(list, out, x, y, (0, (0, 0.0, 0.0)));
}

/// `cap * tanh(x / cap)`.
pub fn soft_cap(list: &mut CommandList, out: Output, x: Rows, cap: f32) {
    elementwise(list, out, x, x, (1, (0, cap, 0.0)));
}

/// `act(gate) * up`.
pub fn gated(list: &mut CommandList, out: Output, gate: Rows, up: Rows, act: GatedActivation) {
    elementwise(list, out, gate, up, (2, act.code()));
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ConvertParams {
    x: u64,
    out: u64,
    n_rows: u32,
    cols: u32,
    stride: u32,
    out_stride: u32,
}

/// Operand of products: f16, columns padded with zeros.
pub fn convert(list: &mut CommandList, out: u64, x: Rows) {
    let out_stride = x.cols.next_multiple_of(OPERAND_COLUMNS);
    let params = ConvertParams {
        x: x.address,
        out,
        n_rows: x.rows as u32,
        cols: x.cols as u32,
        stride: x.stride as u32,
        out_stride: out_stride as u32,
    };
    launch_elements(list, MODULE, "convert", x.rows * out_stride / 2, &params);
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct WindowsParams {
    x: u64,
    out: u64,
    n_rows: u32,
    in_rows: u32,
    cols: u32,
    x_stride: u32,
    stride: u32,
    out_stride: u32,
    is_f32: u32,
    n_groups: u32,
}

/// Windows of 3 rows of a convolution with padding 1, in each of `n_groups` groups of rows: an operand with padded columns, or
/// f32 values.
pub fn im2col(
    list: &mut CommandList,
    out: u64,
    x: Rows,
    (n_groups, stride): (usize, usize),
    is_operand: bool,
) {
    let (in_rows, cols) = (x.rows / n_groups.max(1), 3 * x.cols);
    let n_rows = in_rows.div_ceil(stride);
    let out_stride = if is_operand { cols.next_multiple_of(OPERAND_COLUMNS) } else { cols };
    let params = WindowsParams {
        x: x.address,
        out,
        n_rows: n_rows as u32,
        in_rows: in_rows as u32,
        cols: x.cols as u32,
        x_stride: x.stride as u32,
        stride: stride as u32,
        out_stride: out_stride as u32,
        is_f32: u32::from(!is_operand),
        n_groups: n_groups as u32,
    };
    launch_elements(list, MODULE, "windows", n_groups * n_rows * out_stride, &params);
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct ConvStateParams {
    x: u64,
    out: u64,
    weight: u64,
    bias: u64,
    states: u64,
    runs: u64,
    n_rows: u32,
    cols: u32,
    stride: u32,
    kernel: u32,
    has_silu: u32,
    unused: u32,
}

/// Convolution of each channel, see [`Op::ConvState`](crate::op::Op::ConvState). Addresses of the values of `args`, of all
/// states and of the runs among the inputs of the step.
pub fn conv_state(
    list: &mut CommandList,
    out: u64,
    x: Rows,
    args: &ConvStateArgs<u64>,
    (states, runs): (u64, u64),
) {
    let params = ConvStateParams {
        x: x.address,
        out,
        weight: args.weight,
        bias: args.bias.unwrap_or(0),
        states,
        runs,
        n_rows: x.rows as u32,
        cols: x.cols as u32,
        stride: x.stride as u32,
        kernel: args.kernel as u32,
        has_silu: u32::from(args.silu),
        unused: 0,
    };
    let grid = [x.cols.div_ceil(THREADS), x.rows.min(MAX_BLOCKS), 1];
    launch(list, (MODULE, "conv_state"), grid, THREADS, &params);
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct LogSumExpParams {
    x: u64,
    out: u64,
    n_rows: u32,
    cols: u32,
    stride: u32,
    unused: u32,
}

/// `ln Σ exp(x)` of every row.
pub fn log_sum_exp(list: &mut CommandList, out: u64, x: Rows) {
    let params = LogSumExpParams {
        x: x.address,
        out,
        n_rows: x.rows as u32,
        cols: x.cols as u32,
        stride: x.stride as u32,
        unused: 0,
    };
    launch(list, (MODULE, "log_sum_exp"), [x.rows, 1, 1], 1024, &params);
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct LogitFilterParams {
    x: u64,
    words: u64,
    filters: u64,
    n_rows: u32,
    cols: u32,
}

/// Sets the logits of tokens that may not follow to −∞: packed rows of `x`. Addresses of the step's inputs and, among them, of
/// the filters of the rows, see `rows.cu`.
///
/// # Panics
/// If the rows are not packed.
pub fn logit_filter(list: &mut CommandList, x: Rows, (words, filters): (u64, u64)) {
    assert_eq!(x.stride, x.cols, "logit_filter: packed rows");
    let params = LogitFilterParams {
        x: x.address,
        words,
        filters,
        n_rows: x.rows as u32,
        cols: x.cols as u32,
    };
    launch(list, (MODULE, "logit_filter"), [x.rows, 1, 1], 1024, &params);
}
