//! Products and embeddings.

use std::ops::RangeInclusive;

use bytemuck::{Pod, Zeroable};
use stonechat_compute::cuda::ops::moe::ExpertOrder;
use stonechat_compute::cuda::ops::rows::gated_code;
use stonechat_compute::cuda::ops::{OPERAND_COLUMNS, Output};
use stonechat_compute::cuda::{CommandList, Gpu, Kernel, Launch, TensorMap};
use stonechat_compute::op::{Activation, GatedActivation};
use stonechat_compute::{DType, Result};

use super::ARCHIVE;
use super::gemm::{BLOCK_COLUMNS, GemmShape, GemmWork, has_gemm};
use super::gemv::{GemvShape, GemvWork, MAX_SHARED_BYTES, ROW_GROUPS, block_rows, n_first_blocks};
use super::matrix::{CudaMatrix, Format};

/// Most rows of GEMV, whose sums of a row do not depend on the others.
pub const MAX_GEMV_ROWS: usize = 128;
/// Matrices of a launch.
const MAX_GROUP: usize = 3;
/// Rows of weights of a strip.
const STRIP_ROWS: usize = 16;
/// Least shared memory of such a block, so that a multiprocessor has one.
const MIN_ROW_BYTES: usize = 112 << 10;
/// Units of weights of a warp in shared memory: two if they are wide.
fn row_slots(format: &Format) -> usize {
    if format.unit_bytes() > 4000 { 2 } else { 3 }
}
/// Most columns of a row in shared memory.
const MAX_ROW: usize = 28 << 10;
/// Threads of a block of other kernels.
const THREADS: usize = 256;

/// Memory that kernels of an op share.
pub trait Scratch {
    /// Address of at least `bytes` bytes, zeros at first; 0 if there are none.
    fn get(&mut self, name: &'static str, bytes: usize) -> u64;
}

/// Rows that products read: an f16 operand, or f32 for f32 weights.
#[derive(Debug, Clone, Copy)]
pub struct Operand {
    /// Address of the first value.
    pub address: u64,
    /// Number of rows.
    pub rows: usize,
    /// Values from one row to the next, of f32.
    pub stride: usize,
    /// RMS norm of one row of f32 values before the product.
    pub norm: Option<RowNorm>,
}

/// RMS norm of a row.
#[derive(Debug, Clone, Copy)]
pub struct RowNorm {
    /// Address of the weights.
    pub weight: u64,
    /// Added to the mean square.
    pub eps: f32,
    /// Address for the result, in f32.
    pub out: u64,
}

/// Epilogue of a product: bias, activation, accumulation.
#[derive(Debug, Clone, Copy, Default)]
pub struct CudaEpilogue {
    /// Address of the bias, 0 without one.
    pub bias: u64,
    /// Applied after the bias.
    pub activation: Activation,
    /// Adds the result to the values of the output.
    pub accumulate: bool,
}

#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
struct Factor {
    weights: u64,
    bias: u64,
    out: Output,
    n: u32,
    out_stride: u32,
}

#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
struct MatmulParams {
    factors: [Factor; MAX_GROUP],
    x: u64,
    order: u64,
    blocks: u64,
    m: u32,
    k_tiles: u32,
    n_chunks: u32,
    x_stride: u32,
    n_factors: u32,
    activation: u32,
    accumulate: u32,
    is_gated: u32,
    alpha: f32,
    limit: f32,
    choices_per_row: u32,
    cols: u32,
    row: u64,
    norm_weight: u64,
    normed: u64,
    eps: f32,
    block_strips: u32,
    n_stages: u32,
    n_splits: u32,
    partials: u64,
    counters: u64,
    n_first_factors: u32,
    n_first_blocks: u32,
}

/// Words behind parameters with a tensor map, up to its alignment.
const PADDING: usize = 8 - size_of::<MatmulParams>() / 8 % 8;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct WarpgroupParams {
    x: TensorMap,
    matmul: MatmulParams,
    padding: [u64; PADDING],
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct DenseParams {
    weights: u64,
    x: u64,
    bias: u64,
    out: Output,
    choices: u64,
    m: u32,
    n: u32,
    k: u32,
    x_stride: u32,
    out_stride: u32,
    activation: u32,
    accumulate: u32,
    choices_per_row: u32,
}

fn activation_code(activation: Activation) -> u32 {
    match activation {
        Activation::None => 0,
        Activation::Gelu => 1,
        Activation::GeluTanh => 2,
    }
}

/// Formats of the matrices of a launch.
#[derive(Debug, Clone, Copy)]
struct Formats {
    module: &'static str,
    first: &'static Format,
    /// Matrices of the second one are behind those of the first.
    second: Option<&'static Format>,
}

/// Pairs of types with kernels for both, those of mixed files: module, first and second type.
const PAIRS: [(&str, DType, DType); 3] = [
    ("q4_k_q5_k", DType::Q4K, DType::Q5K),
    ("q4_k_q6_k", DType::Q4K, DType::Q6K),
    ("q5_k_q6_k", DType::Q5K, DType::Q6K),
];

impl Formats {
    fn one(format: &'static Format) -> Self {
        Self { module: format.module, first: format, second: None }
    }

    /// Formats of a group of matrices; `None` if no kernel multiplies with all of them.
    fn of(all: &[&CudaMatrix]) -> Option<Self> {
        let formats: Vec<_> = all.iter().map(|w| w.format()).collect::<Option<_>>()?;
        let is_of = |dtypes: &[DType]| formats.iter().all(|format| dtypes.contains(&format.dtype));
        if is_of(&[formats[0].dtype]) {
            return Some(Self::one(formats[0]));
        }
        let &(module, first, second) = PAIRS.iter().find(|pair| is_of(&[pair.1, pair.2]))?;
        let format = |dtype| formats.iter().find(|format| format.dtype == dtype).copied();
        Some(Self { module, first: format(first)?, second: Some(format(second)?) })
    }

    /// Bytes of a unit of either format, and slots of it.
    fn slots(&self) -> (usize, usize) {
        let all = [Some(self.first), self.second];
        let bytes = all.iter().flatten().map(|format| format.unit_bytes());
        let slots = all.iter().flatten().map(|format| row_slots(format));
        (bytes.max().unwrap_or(0), slots.max().unwrap_or(0))
    }
}

fn params(w: &CudaMatrix, format: &Format, x: Operand) -> MatmulParams {
    let k_tiles = w.k_tiles();
    let norm = x.norm.unwrap_or(RowNorm { weight: 0, eps: 0.0, out: 0 });
    MatmulParams {
        x: x.address,
        cols: w.k() as u32,
        row: if x.norm.is_some() { x.address } else { 0 },
        norm_weight: norm.weight,
        normed: norm.out,
        eps: norm.eps,
        m: x.rows as u32,
        k_tiles: k_tiles as u32,
        n_chunks: k_tiles.div_ceil(format.chunk_tiles) as u32,
        x_stride: (k_tiles * OPERAND_COLUMNS) as u32,
        choices_per_row: 1,
        ..MatmulParams::default()
    }
}

fn factor(w: &CudaMatrix, out: Output, bias: u64) -> Factor {
    let n = w.n() as u32;
    Factor { weights: w.buffer.address(), bias, out, n, out_stride: n }
}

/// Launches GEMV for the rows of `params`, or for blocks of choices of experts.
fn launch_gemv(
    list: &mut CommandList,
    scratch: &mut dyn Scratch,
    formats: Formats,
    mut params: MatmulParams,
    work: GemvWork,
) {
    let device = list.gpu().device();
    let n_multiprocessors = device.n_multiprocessors as usize;
    let is_row = params.m == 1 && params.blocks == 0;
    if is_row && has_row_kernel(list.gpu(), params.cols as usize) {
        let row_bytes = 512 * params.k_tiles.div_ceil(4) as usize;
        let (unit_bytes, slots) = formats.slots();
        let slot_bytes = 8 * ROW_GROUPS * slots * unit_bytes;
        let shared_bytes = (slot_bytes + row_bytes).max(MIN_ROW_BYTES);
        let kernel = list.gpu().kernel(&ARCHIVE, formats.module, "gemv_row", shared_bytes);
        let n_blocks = work.n_strips.min(n_multiprocessors);
        if let Some(second) = formats.second {
            let n_first = params.factors[..params.n_first_factors as usize].iter();
            let n_first: usize = n_first.map(|f| (f.n as usize).div_ceil(STRIP_ROWS)).sum();
            let bytes = [formats.first, second].map(Format::unit_bytes);
            let strips = [n_first, work.n_strips - n_first];
            params.n_first_blocks = n_first_blocks(n_blocks, strips, bytes) as u32;
        }
        let grid = [n_blocks, 1, 1];
        let launch = Launch { grid, threads: ROW_GROUPS * THREADS, shared_bytes };
        list.launch(kernel, launch, &params);
        return;
    }
    let format = formats.first;
    assert!(formats.second.is_none(), "GEMV of {} has one format", formats.module);
    let shape = GemvShape::new(device.into(), format, &work);
    (params.block_strips, params.n_stages) = (shape.strips as u32, shape.stages as u32);
    params.n_splits = shape.n_splits as u32;
    params.partials = scratch.get("gemv partials", shape.partial_bytes);
    params.counters = scratch.get("gemv counters", shape.counter_bytes);
    let kernel =
        list.gpu().kernel(&ARCHIVE, format.module, shape.kernel, shape.launch.shared_bytes);
    launch_product(list, kernel, shape.launch, params, shape.box_rows);
}

/// Launches GEMM.
fn launch_gemm(list: &mut CommandList, formats: Formats, mut params: MatmulParams) {
    let factors = &params.factors[..params.n_factors as usize];
    let blocks = |all: &[Factor]| -> usize {
        all.iter().map(|factor| (factor.n as usize).div_ceil(BLOCK_COLUMNS)).sum()
    };
    let of_second = formats.second.map_or(0, |format| format.chunk_bytes);
    let work = GemmWork {
        rows: params.m as usize,
        n_blocks: blocks(factors),
        k_tiles: params.k_tiles as usize,
        chunk_bytes: formats.first.chunk_bytes.max(of_second),
        chunk_tiles: formats.first.chunk_tiles,
        has_two_formats: formats.second.is_some(),
    };
    params.n_first_blocks = blocks(&factors[..params.n_first_factors as usize]) as u32;
    let GemmShape { kernel, n_stages, box_rows, launch } =
        GemmShape::new(list.gpu().device(), &work);
    params.n_stages = n_stages as u32;
    let kernel = list.gpu().kernel(&ARCHIVE, formats.module, kernel, launch.shared_bytes);
    launch_product(list, kernel, launch, params, box_rows);
}

/// Launches a kernel; one with instructions of warpgroups copies boxes of so many rows of activations.
fn launch_product(
    list: &mut CommandList,
    kernel: Result<Kernel>,
    launch: Launch,
    matmul: MatmulParams,
    box_rows: Option<usize>,
) {
    let Some(box_rows) = box_rows else { return list.launch(kernel, launch, &matmul) };
    let shape = [matmul.m, matmul.x_stride].map(|n| n as usize);
    let x = TensorMap::new(list.gpu(), matmul.x, shape, box_rows);
    let (kernel, x) = match x {
        Ok(x) => (kernel, x),
        Err(error) => (Err(error), TensorMap::zeroed()),
    };
    list.launch(kernel, launch, &WarpgroupParams { x, matmul, padding: [0; PADDING] });
}

fn n_strips(w: &CudaMatrix) -> usize {
    w.n().div_ceil(STRIP_ROWS)
}

/// Whether products of so many rows are GEMV.
fn uses_gemv(gpu: &Gpu, rows: usize) -> bool {
    rows <= MAX_GEMV_ROWS || !has_gemm(gpu.device())
}

/// Whether products of one row of `k` columns have it in shared memory: on devices with bulk copies.
fn has_row_kernel(gpu: &Gpu, k: usize) -> bool {
    k <= MAX_ROW
        && gpu.device().limits.block_shared_bytes > MAX_SHARED_BYTES
        && gpu.target(&ARCHIVE).is_ok_and(|target| target.capability >= (9, 0))
}

/// Whether products of one row of `k` columns can apply an RMS norm to it.
#[must_use]
pub fn fuses_norm(gpu: &Gpu, k: usize) -> bool {
    has_row_kernel(gpu, k) && k.is_multiple_of(4)
}

/// Whether one launch multiplies so many rows with all of these matrices.
#[must_use]
pub fn can_group(gpu: &Gpu, all: &[&CudaMatrix], n_rows: RangeInclusive<usize>) -> bool {
    let k = all[0].k();
    let has_pairs = if *n_rows.start() > MAX_GEMV_ROWS {
        gpu.device().has_warpgroups()
    } else {
        *n_rows.end() == 1 && has_row_kernel(gpu, k)
    };
    all.len() <= MAX_GROUP
        && all.iter().all(|w| w.k() == k)
        && Formats::of(all).is_some_and(|formats| formats.second.is_none() || has_pairs)
}

/// Whether one launch multiplies with gate and up.
#[must_use]
pub fn can_pair(gate: &CudaMatrix, up: &CudaMatrix) -> bool {
    let is_like = (gate.dtype(), gate.k(), gate.n()) == (up.dtype(), up.k(), up.n());
    is_like && gate.reads_operand()
}

/// `act(x·Wᵀ + bias)` of any number of rows.
pub fn matmul(
    list: &mut CommandList,
    scratch: &mut dyn Scratch,
    out: Output,
    x: Operand,
    w: &CudaMatrix,
    epilogue: CudaEpilogue,
) {
    let CudaEpilogue { bias, activation, accumulate } = epilogue;
    let Some(format) = w.format() else {
        return dense(list, out, x, (w, w.n()), (epilogue, 0, 1));
    };
    let mut params = params(w, format, x);
    params.factors[0] = factor(w, out, bias);
    params.n_factors = 1;
    params.activation = activation_code(activation);
    params.accumulate = u32::from(accumulate);
    let formats = Formats::one(format);
    if uses_gemv(list.gpu(), x.rows) {
        launch_gemv(list, scratch, formats, params, GemvWork::of_rows(x.rows, w.k(), n_strips(w)));
    } else {
        launch_gemm(list, formats, params);
    }
}

/// Products of one operand: matrix, output and bias of each.
///
/// # Panics
/// If they cannot be [grouped](can_group).
pub fn matmul_group(
    list: &mut CommandList,
    scratch: &mut dyn Scratch,
    x: Operand,
    all: &[(&CudaMatrix, Output, u64)],
) {
    let matrices: Vec<_> = all.iter().map(|(w, ..)| *w).collect();
    let formats = Formats::of(&matrices).expect("a group with a kernel");
    let mut params = params(all[0].0, formats.first, x);
    params.n_factors = all.len() as u32;
    let is_first = |w: &CudaMatrix| w.dtype() == formats.first.dtype;
    let (first, second): (Vec<_>, Vec<_>) = all.iter().partition(|(w, ..)| is_first(w));
    params.n_first_factors = if second.is_empty() { 0 } else { first.len() as u32 };
    for (to, (w, out, bias)) in params.factors.iter_mut().zip(first.into_iter().chain(second)) {
        *to = factor(w, out, bias);
    }
    if uses_gemv(list.gpu(), x.rows) {
        let strips = all.iter().map(|(w, ..)| n_strips(w)).sum();
        let work = GemvWork::of_rows(x.rows, all[0].0.k(), strips);
        launch_gemv(list, scratch, formats, params, work);
    } else {
        launch_gemm(list, formats, params);
    }
}

/// `act(gate · x) * (up · x)` of at most [`MAX_GEMV_ROWS`] rows.
///
/// # Panics
/// If they cannot be [paired](can_pair).
pub fn matmul_gated(
    list: &mut CommandList,
    scratch: &mut dyn Scratch,
    out: Output,
    x: Operand,
    [gate, up]: [&CudaMatrix; 2],
    activation: GatedActivation,
) {
    let Some(format) = gate.format() else { panic!("a pair of f32 weights") };
    let mut params = params(gate, format, x);
    params.n_factors = 2;
    params.is_gated = 1;
    params.factors[0] = factor(gate, out, 0);
    params.factors[1] = factor(up, out, 0);
    (params.activation, params.alpha, params.limit) = gated_code(activation);
    let work = GemvWork::of_rows(x.rows, gate.k(), n_strips(gate));
    let work = GemvWork { is_gated: true, ..work };
    launch_gemv(list, scratch, Formats::one(format), params, work);
}

/// Choices of a block of an expert, for so many choices of so many experts: as many as a block of threads of each matrix has.
#[must_use]
pub fn expert_block_len(
    gpu: &Gpu,
    matrices: &[&CudaMatrix],
    (n_choices, n_experts): (usize, usize),
) -> usize {
    let len = match n_choices.div_ceil(n_experts) {
        0..=8 => 8,
        9..=32 => 32,
        _ => 64,
    };
    let formats = matrices.iter().filter_map(|w| w.format());
    formats.map(|format| block_rows(gpu.device().into(), format, len)).min().unwrap_or(len)
}

/// Choices of experts.
#[derive(Debug, Clone, Copy)]
pub struct ExpertMatmul {
    /// Address of the choices: pairs of expert and weight.
    pub choices: u64,
    /// Number of choices.
    pub n_choices: usize,
    /// Choices of a row of the operand.
    pub choices_per_row: usize,
    /// The choices by expert.
    pub order: ExpertOrder,
    /// Rows of weights of an expert.
    pub n: usize,
    /// Address of the bias of all experts, 0 without one.
    pub bias: u64,
}

/// Products of rows with the experts of their choices: a row of f32 values a choice.
pub fn matmul_experts(
    list: &mut CommandList,
    scratch: &mut dyn Scratch,
    out: u64,
    x: Operand,
    w: &CudaMatrix,
    args: ExpertMatmul,
) {
    let ExpertMatmul { choices, n_choices, choices_per_row, order, n, bias } = args;
    let out = Output::at(out);
    let Some(format) = w.format() else {
        let x = Operand { rows: n_choices, ..x };
        let epilogue = CudaEpilogue { bias, ..CudaEpilogue::default() };
        return dense(list, out, x, (w, n), (epilogue, choices, choices_per_row));
    };
    let mut params = params(w, format, x);
    params.factors[0] = Factor { n: n as u32, out_stride: n as u32, ..factor(w, out, bias) };
    params.n_factors = 1;
    params.order = order.order;
    params.blocks = order.blocks;
    params.choices_per_row = choices_per_row as u32;
    // An expert may begin within a strip.
    let strips = if n.is_multiple_of(STRIP_ROWS) { n / STRIP_ROWS } else { n / STRIP_ROWS + 2 };
    let work = GemvWork::of_rows(order.block_len, w.k(), strips);
    let work = GemvWork { n_expert_blocks: Some(order.n_blocks), ..work };
    launch_gemv(list, scratch, Formats::one(format), params, work);
}

fn dense(
    list: &mut CommandList,
    out: Output,
    x: Operand,
    (w, n): (&CudaMatrix, usize),
    (epilogue, choices, choices_per_row): (CudaEpilogue, u64, usize),
) {
    let params = DenseParams {
        weights: w.buffer.address(),
        x: x.address,
        bias: epilogue.bias,
        out,
        choices,
        m: x.rows as u32,
        n: n as u32,
        k: w.k() as u32,
        x_stride: x.stride as u32,
        out_stride: n as u32,
        activation: activation_code(epilogue.activation),
        accumulate: u32::from(epilogue.accumulate),
        choices_per_row: choices_per_row as u32,
    };
    let kernel = list.gpu().kernel(&ARCHIVE, "dense", "dense", 0);
    let grid = [n.div_ceil(8), x.rows.min(65535), 1];
    list.launch(kernel, Launch { grid, threads: THREADS, shared_bytes: 0 }, &params);
}

/// Arguments of [`embed`].
#[derive(Debug, Clone, Copy)]
pub struct CudaEmbed {
    /// Address of the tokens and their number.
    pub tokens: (u64, usize),
    /// Address of the result of a top-k, for references to its tokens; 0 without one.
    pub top_k: u64,
    /// Factor of the table's rows.
    pub scale: f32,
    /// Addresses of learned position embeddings and of the positions; 0 without them.
    pub positions: (u64, u64),
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct EmbedParams {
    table: u64,
    tokens: u64,
    top_k: u64,
    positions_table: u64,
    positions: u64,
    out: u64,
    n_chunks: u32,
    k_tiles: u32,
    cols: u32,
    scale: f32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct DenseEmbedParams {
    table: u64,
    tokens: u64,
    top_k: u64,
    positions_table: u64,
    positions: u64,
    out: u64,
    n_tokens: u32,
    cols: u32,
    scale: f32,
    unused: u32,
}

/// `scale * table[token] + positions[position]` of every token, packed at address `out`.
pub fn embed(list: &mut CommandList, out: u64, table: &CudaMatrix, args: CudaEmbed) {
    let (tokens, n_tokens) = args.tokens;
    let (positions_table, positions) = args.positions;
    let cols = table.k() as u32;
    let Some(format) = table.format() else {
        let params = DenseEmbedParams {
            table: table.buffer.address(),
            tokens,
            top_k: args.top_k,
            positions_table,
            positions,
            out,
            n_tokens: n_tokens as u32,
            cols,
            scale: args.scale,
            unused: 0,
        };
        let kernel = list.gpu().kernel(&ARCHIVE, "dense", "dense_embed", 0);
        let grid = [n_tokens, table.k().div_ceil(THREADS).min(16), 1];
        list.launch(kernel, Launch { grid, threads: THREADS, shared_bytes: 0 }, &params);
        return;
    };
    let k_tiles = table.k_tiles();
    let params = EmbedParams {
        table: table.buffer.address(),
        tokens,
        top_k: args.top_k,
        positions_table,
        positions,
        out,
        n_chunks: k_tiles.div_ceil(format.chunk_tiles) as u32,
        k_tiles: k_tiles as u32,
        cols,
        scale: args.scale,
    };
    let kernel = list.gpu().kernel(&ARCHIVE, format.module, "embed", 0);
    let grid = [n_tokens, k_tiles.div_ceil(format.unit_tiles), 1];
    list.launch(kernel, Launch { grid, threads: 32, shared_bytes: 0 }, &params);
}
