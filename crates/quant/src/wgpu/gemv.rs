//! Products of up to [`MAX_GEMV_ROWS`] rows of activations: every matrix is read once for all of them.
//!
//! Formats whose weights are codes times scales are multiplied in integers, with activations in 8 bits (see
//! [`quantize`]) as on the CPU; the others in f32.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use stonechat_compute::cpu::GatedActivation;
use stonechat_compute::wgpu::ops::gated::{GATES, gate_code};
use stonechat_compute::wgpu::ops::{ACTIVATIONS, GpuRows, check_len, quantize, start};
use stonechat_compute::wgpu::{Access, Bind, Gpu, GpuBuffer, Kernel, Source, Variant};

use super::matmul::{ACCESS, Activations, CHUNK, Params, binds, with_format};
use super::matrix::GpuMatrix;
use super::planes::Format;

/// Rows of activations up to which a matrix is read once for all of them.
pub const MAX_GEMV_ROWS: usize = 8;
/// Rows of activations that there are kernels for.
const WIDTHS: [u32; 4] = [1, 2, 4, MAX_GEMV_ROWS as u32];
/// Invocations of a workgroup.
const WORKGROUP: u32 = 128;
/// Weights that an invocation takes at a time.
const UNIT: usize = 64;
/// Invocations of a workgroup of the pair's kernel: with 512 the last of them run alone, 14.8 instead of 12.3 us
/// for 8960 x 1536 on an H200.
const PAIR_WORKGROUP: u32 = 256;
const PAIR_SHAPE: Shape = Shape { lanes: 8, rows: 2 };
/// Its rows of each matrix, whose products are quantized as a group.
const PAIR_ROWS: u32 = PAIR_WORKGROUP / 2 / PAIR_SHAPE.lanes * PAIR_SHAPE.rows;
const _: () = assert!(PAIR_ROWS as usize == quantize::GROUP_LEN);

/// Where the products are quantized: whole groups of rows a workgroup.
const QUANTIZED_SHAPE: Shape = Shape { lanes: 8, rows: 2 };
/// Most rows of activations there: a team has an invocation for each of its sums.
const QUANTIZED_WIDTH: u32 = QUANTIZED_SHAPE.lanes / QUANTIZED_SHAPE.rows;
const _: () = assert!(WORKGROUP / QUANTIZED_SHAPE.lanes * QUANTIZED_SHAPE.rows == 32);
/// As [`ACCESS`], and the products in 8 bits.
const QUANTIZED_ACCESS: &[Access] = &[
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Write,
    Access::Read,
    Access::Write,
];

/// How the work of a matrix is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    /// Invocations that share a row of the matrix.
    lanes: u32,
    /// Rows that they take at a time.
    rows: u32,
}

impl Shape {
    /// For `[n, k]` weights of which an invocation takes `unit` at a time.
    fn of(n: usize, k: usize, unit: usize, width: u32) -> Self {
        let units = k.div_ceil(unit);
        // Rounds of an invocation wait for each other: three or four at most.
        let mut lanes = (2 * units).div_ceil(7).next_power_of_two().clamp(8, WORKGROUP as usize);
        while lanes < WORKGROUP as usize && n * lanes < BUSY && lanes < units {
            lanes *= 2;
        }
        // A team has an invocation for each of its sums.
        let rows = if n * lanes >= 2 * WAVE && width <= 2 { 2 } else { 1 };
        Self { lanes: lanes as u32, rows }
    }

    /// For a product with `w`.
    fn for_matrix(n: usize, w: &GpuMatrix, width: u32) -> Self {
        Self::of(n, w.k(), if w.format.has_codes { UNIT } else { CHUNK }, width)
    }

    fn rows_of_group(self) -> u32 {
        WORKGROUP / self.lanes * self.rows
    }
}

/// Invocations below which a large GPU idles: rows are shared by more.
const BUSY: usize = 48 << 10;
/// Invocations that a large GPU runs at a time.
const WAVE: usize = 64 << 10;

/// Rows of activations that a kernel is made for.
fn width(rows: usize) -> u32 {
    rows.next_power_of_two() as u32
}

/// The matrix and what multiplies it.
fn with_product(source: Source, format: &Format) -> Source {
    let source = with_format(source, format);
    source.file(if format.has_codes {
        include_str!("gemv_codes.wgsl")
    } else {
        include_str!("gemv_values.wgsl")
    })
}

fn with_sums(source: Source, variant: Variant) -> Source {
    let source = source.file(match variant {
        Variant::Portable => include_str!("gemv.portable.wgsl"),
        Variant::Subgroups => include_str!("gemv.subgroups.wgsl"),
    });
    source.file(include_str!("gemv_sums.wgsl"))
}

/// A kernel of a kind, as far as it is not the same for all.
#[derive(Debug, Clone, Copy)]
struct Spec {
    format: &'static Format,
    width: u32,
    shape: Shape,
    /// Invocations of a workgroup.
    workgroup: u32,
    /// Invocations of a team that are certainly in the same subgroup.
    together: u32,
}

impl Spec {
    fn new(gpu: &Gpu, format: &'static Format, width: u32, shape: Shape) -> Self {
        let smallest = gpu.adapter().subgroup_sizes.map_or(1, |(smallest, _)| smallest);
        let together = shape.lanes.min(smallest);
        Self { format, width, shape, workgroup: WORKGROUP, together }
    }

    fn key(&self, kind: u32) -> [u32; 4] {
        let Shape { lanes, rows } = self.shape;
        [self.format.code(), self.width, lanes << 8 | rows, self.workgroup << 8 | kind]
    }

    fn start(&self, kind: &str, access: &'static [Access], variant: Variant) -> Source {
        let Self { format, width, shape: Shape { lanes, rows }, workgroup, together } = *self;
        let name = format!("{kind}-{}-{width}-{lanes}x{rows}-{}", format.dtype, variant.name());
        start(name, access, variant, workgroup)
            .constant("L", lanes)
            .constant("R", rows)
            .constant("T", width)
            .constant("S", together)
    }

    fn source(&self, by_expert: bool, variant: Variant) -> Source {
        let kind = if by_expert { "gemv_experts" } else { "gemv" };
        let source = self
            .start(kind, ACCESS, variant)
            .constant("BY_EXPERT", u32::from(by_expert))
            .file(include_str!("params.wgsl"))
            .file(include_str!("one_matrix.wgsl"))
            .file(ACTIVATIONS)
            .file(include_str!("gemv.wgsl"))
            .file(include_str!("gemv_plain.wgsl"));
        with_sums(with_product(source, self.format), variant)
    }

    fn quantized_source(&self, variant: Variant) -> Source {
        let source = self
            .start("gemv_quantized", QUANTIZED_ACCESS, variant)
            .constant("BY_EXPERT", 0)
            .file(include_str!("params.wgsl"))
            .file(include_str!("one_matrix.wgsl"))
            .file(ACTIVATIONS)
            .file(include_str!("gemv.wgsl"))
            .file(include_str!("gemv_quantized.wgsl"));
        let source = quantize::writer(source, variant);
        with_sums(with_product(source, self.format), variant)
    }

    fn pair_source(&self, variant: Variant) -> Source {
        let source = self
            .start("gemv_pair", PAIR_ACCESS, variant)
            .file(include_str!("pair_params.wgsl"))
            .file(include_str!("two_matrices.wgsl"))
            .file(ACTIVATIONS)
            .file(GATES)
            .file(include_str!("gemv_pair.wgsl"));
        let source = quantize::writer(source, variant);
        with_sums(with_product(source, self.format), variant)
    }

    fn group_source(&self, variant: Variant) -> Source {
        let source =
            self.start("gemv_group", GROUP_ACCESS, variant).file(include_str!("gemv_group.wgsl"));
        with_sums(with_product(source, self.format), variant)
    }

    fn kernel(&self, gpu: &Gpu, by_expert: bool) -> Arc<Kernel> {
        let source = || self.source(by_expert, gpu.variant());
        gpu.kernel(("gemv", self.key(u32::from(by_expert))), source)
    }

    fn quantized_kernel(&self, gpu: &Gpu) -> Arc<Kernel> {
        gpu.kernel(("gemv", self.key(4)), || self.quantized_source(gpu.variant()))
    }

    fn group_kernel(&self, gpu: &Gpu) -> Arc<Kernel> {
        gpu.kernel(("gemv", self.key(3)), || self.group_source(gpu.variant()))
    }

    fn pair_kernel(&self, gpu: &Gpu) -> Arc<Kernel> {
        gpu.kernel(("gemv", self.key(2)), || self.pair_source(gpu.variant()))
    }
}

/// Every shader of a format, for tests.
pub(super) fn sources(format: &'static Format, variant: Variant) -> Vec<Source> {
    let spec = |width, lanes, rows| Spec {
        format,
        width,
        shape: Shape { lanes, rows },
        workgroup: WORKGROUP,
        together: if variant == Variant::Portable { 1 } else { 8 },
    };
    let mut all: Vec<_> =
        WIDTHS.into_iter().map(|width| spec(width, 32, 1).source(false, variant)).collect();
    all.push(spec(1, 8, 2).source(false, variant));
    all.push(spec(1, 16, 1).source(true, variant));
    all.extend([1, 2].map(|width| spec(width, 16, 1).group_source(variant)));
    let Shape { lanes, rows } = QUANTIZED_SHAPE;
    all.extend([1, 4].map(|width| spec(width, lanes, rows).quantized_source(variant)));
    if format.has_codes {
        let Shape { lanes, rows } = PAIR_SHAPE;
        all.extend([1, 4].map(|width| {
            let spec = spec(width, lanes, rows);
            Spec { workgroup: PAIR_WORKGROUP, ..spec }.pair_source(variant)
        }));
    }
    all
}

/// Compiles the kernels of [`product`] with `w`.
pub(super) fn warm(gpu: &Gpu, w: &GpuMatrix) {
    for width in WIDTHS {
        let shape = Shape::for_matrix(w.n(), w, width);
        Spec::new(gpu, w.format, width, shape).kernel(gpu, false);
    }
}

/// `x` as [`Spec`]'s kernels read it, or `None` where there is no room.
fn activations(gpu: &Gpu, w: &GpuMatrix, x: GpuRows<'_>) -> Option<Activations> {
    if !w.format.has_codes {
        return Activations::values(gpu, w, x);
    }
    match quantize::quantized(gpu, x, w.padded_k()) {
        Ok(codes) => Some(Activations {
            buffer: codes,
            offset: 0,
            stride: quantize::row_vectors(w.padded_k()),
        }),
        Err(error) => {
            gpu.fault(error.to_string());
            None
        }
    }
}

/// [`matmul`](super::matmul) of few rows.
pub(super) fn product(
    gpu: &Gpu,
    out: &GpuBuffer,
    x: GpuRows<'_>,
    w: &GpuMatrix,
    bias: Option<&GpuBuffer>,
    finish: impl Fn(Params) -> Params,
) {
    let Some(x8) = activations(gpu, w, x) else { return };
    let width = width(x.rows);
    let codes = quantize::wanted(out, x.rows, w.n()).filter(|_| width <= QUANTIZED_WIDTH);
    if let ([part], Some(codes)) = (&w.parts[..], codes) {
        let params = finish(Params::new(w, part, &x8, [x.rows, w.n()], bias));
        let mut all = [Bind::Buffer(&codes); QUANTIZED_ACCESS.len()];
        all[..ACCESS.len()].copy_from_slice(&binds(part, &x8, bias, out));
        let groups = part.rows.div_ceil(QUANTIZED_SHAPE.rows_of_group() as usize);
        let kernel = Spec::new(gpu, w.format, width, QUANTIZED_SHAPE).quantized_kernel(gpu);
        gpu.record(0).dispatch_line(&kernel, &params, all, groups);
        return out.set_twin(Some([x.rows, w.n()]));
    }
    let shape = Shape::for_matrix(w.n(), w, width);
    let kernel = Spec::new(gpu, w.format, width, shape).kernel(gpu, false);
    for part in w.parts.iter() {
        let params = finish(Params::new(w, part, &x8, [x.rows, w.n()], bias));
        let binds = binds(part, &x8, bias, out);
        let groups = part.rows.div_ceil(shape.rows_of_group() as usize);
        gpu.record(0).dispatch_line(&kernel, &params, binds, groups);
    }
}

/// Arguments of [`matmul_experts`].
#[derive(Debug, Clone, Copy)]
pub struct ExpertProduct<'a> {
    /// `[T * n_used]` pairs of words: expert and weight.
    pub choices: &'a GpuBuffer,
    /// How many there are.
    pub n_choices: usize,
    /// Choices that share a row of the activations.
    pub choices_per_row: usize,
    /// Rows of an expert's matrix.
    pub n: usize,
    /// `[E * n]`.
    pub bias: Option<&'a GpuBuffer>,
}

/// For every choice `i` of an expert `e`, `out[i, n] = Σ_k x[i / choices_per_row, k] w[e * N + n, k]` and
/// the bias, `out` packed.
///
/// # Panics
/// If the shapes do not fit.
#[track_caller]
pub fn matmul_experts(
    gpu: &Gpu,
    out: &GpuBuffer,
    x: GpuRows<'_>,
    w: &GpuMatrix,
    args: ExpertProduct<'_>,
) {
    let x = x.checked();
    let ExpertProduct { choices, n_choices, choices_per_row, n, bias } = args;
    assert_eq!((x.cols, x.rows * choices_per_row), (w.k(), n_choices), "experts: shape of x");
    assert!(w.n().is_multiple_of(n), "experts: {} rows are no multiple of {n}", w.n());
    check_len("experts", out, n_choices * n);
    check_len("experts", choices, 2 * n_choices);
    bias.inspect(|bias| check_len("experts", bias, w.n()));
    let Some(x8) = activations(gpu, w, x) else { return };
    let shape = Shape::for_matrix(n * n_choices, w, 1);
    let kernel = Spec::new(gpu, w.format, 1, shape).kernel(gpu, true);
    for part in w.parts.iter() {
        let params = Params {
            choices_per_row: choices_per_row as u32,
            ..Params::new(w, part, &x8, [n_choices, n], bias)
        };
        let mut binds = binds(part, &x8, bias, out);
        binds[3] = Bind::Buffer(choices);
        let groups = [(n as u32).div_ceil(shape.rows_of_group()), n_choices as u32, 1];
        gpu.record(0).dispatch(&kernel, &params, binds, groups);
    }
}

/// Bindings of `gemv_group.wgsl`: a matrix, activations, the matrix again, the other matrices twice, biases,
/// outputs.
const GROUP_ACCESS: &[Access] = &[
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Write,
    Access::Write,
    Access::Write,
];
/// Matrices of a group.
pub(super) const MAX_GROUP: usize = 3;

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct GroupParams {
    n: [u32; 4],
    has_bias: u32,
    w_stride: u32,
    w_blocks: u32,
    chunks: u32,
    rows: u32,
    x_offset: u32,
    x_stride: u32,
}

/// A product of a [group](matmul_group): output, matrix and bias.
pub(super) type Grouped<'a> = (&'a GpuBuffer, &'a GpuMatrix, Option<&'a GpuBuffer>);

/// Whether products of `rows` rows with both matrices can be one kernel.
pub(super) fn is_group(gpu: &Gpu, a: &GpuMatrix, b: &GpuMatrix, rows: usize) -> bool {
    let seen_at_once = a.parts.len() == 1 && b.parts.len() == 1;
    let alike = a.dtype() == b.dtype() && a.k() == b.k();
    let has_room = gpu.max_buffers() >= GROUP_ACCESS.len();
    alike && seen_at_once && has_room && (1..=MAX_GEMV_ROWS).contains(&rows)
}

/// The products of `x` with up to [`MAX_GROUP`] matrices, of which any two are a [group](is_group), by one kernel;
/// the outputs are different buffers.
///
/// # Panics
/// If the shapes do not fit or the matrices are no group.
#[track_caller]
pub(super) fn matmul_group(gpu: &Gpu, x: GpuRows<'_>, products: &[Grouped<'_>]) {
    let x = x.checked();
    assert!((1..=MAX_GROUP).contains(&products.len()), "group of {} products", products.len());
    let w = products[0].1;
    assert_eq!(x.cols, w.k(), "group: columns of x");
    for (out, other, bias) in products {
        assert!(is_group(gpu, w, other, x.rows), "group: matrices are not alike");
        check_len("group", out, x.rows * other.n());
        bias.inspect(|bias| check_len("group", bias, other.n()));
    }
    let Some(x8) = activations(gpu, w, x) else { return };
    let width = width(x.rows);
    let n = products.iter().map(|(_, w, _)| w.n()).sum();
    let shape = Shape::for_matrix(n, w, width);
    let mut params = GroupParams {
        n: [0; 4],
        has_bias: 0,
        w_stride: w.stride() as u32,
        w_blocks: w.n_blocks() as u32,
        chunks: (w.padded_k() / CHUNK) as u32,
        rows: x.rows as u32,
        x_offset: x8.offset as u32,
        x_stride: x8.stride as u32,
    };
    let mut binds = [Bind::Nothing; GROUP_ACCESS.len()];
    binds[1] = Bind::Buffer(&x8.buffer);
    let mut groups = 0;
    for (i, (out, w, bias)) in products.iter().enumerate() {
        params.n[i] = w.n() as u32;
        params.has_bias |= u32::from(bias.is_some()) << i;
        let matrix = Bind::Buffer(&w.parts[0].buffer);
        // The activations stand between the views of the first matrix.
        binds[if i == 0 { 0 } else { 2 * i + 1 }] = matrix;
        binds[2 * i + 2] = matrix;
        binds[7 + i] = (*bias).into();
        binds[10 + i] = Bind::Buffer(out);
        groups += w.n().div_ceil(shape.rows_of_group() as usize);
    }
    let kernel = Spec::new(gpu, w.format, width, shape).group_kernel(gpu);
    gpu.record(0).dispatch_line(&kernel, &params, binds, groups);
}

/// Gate, activations, what gate and up give, their gated product, gate again, the product in 8 bits, up twice.
const PAIR_ACCESS: &[Access] = &[
    Access::Read,
    Access::Read,
    Access::Write,
    Access::Write,
    Access::Write,
    Access::Read,
    Access::Write,
    Access::Read,
    Access::Read,
];

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct PairParams {
    w_stride: u32,
    w_blocks: u32,
    chunks: u32,
    rows: u32,
    part_rows: u32,
    n: u32,
    x_offset: u32,
    x_stride: u32,
    gate: u32,
    alpha: f32,
    limit: f32,
    has_codes: u32,
}

/// Whether [`gated_product`] can be asked for these matrices and so many rows.
#[must_use]
pub fn is_pair(gpu: &Gpu, gate: &GpuMatrix, up: &GpuMatrix, rows: usize) -> bool {
    let alike = gate.dtype() == up.dtype() && (gate.n(), gate.k()) == (up.n(), up.k());
    let whole = gate.n().is_multiple_of(PAIR_ROWS as usize);
    let seen_at_once =
        gate.parts.len() == 1 && up.parts.len() == 1 && gpu.max_buffers() >= PAIR_ACCESS.len();
    alike && whole && seen_at_once && gate.format.has_codes && (1..=MAX_GEMV_ROWS).contains(&rows)
}

/// What [`gated_product`] writes, each packed `[T, N]`.
#[derive(Debug, Clone, Copy)]
pub struct GatedOutput<'a> {
    /// `x · gate`.
    pub gate: &'a GpuBuffer,
    /// `x · up`.
    pub up: &'a GpuBuffer,
    /// The gated product of both.
    pub out: &'a GpuBuffer,
}

/// Both products of a gated feed-forward network and the gating in one: `out[t] = act(gate[t]) * up[t]`.
///
/// # Panics
/// If the shapes do not fit or the matrices are no [pair](is_pair).
#[track_caller]
pub fn gated_product(
    gpu: &Gpu,
    to: GatedOutput<'_>,
    x: GpuRows<'_>,
    [gate, up]: [&GpuMatrix; 2],
    activation: GatedActivation,
) {
    let x = x.checked();
    assert!(is_pair(gpu, gate, up, x.rows), "gated product: no pair of matrices");
    assert_eq!(x.cols, gate.k(), "gated product: columns of x");
    let n = gate.n();
    for out in [to.gate, to.up, to.out] {
        check_len("gated product", out, x.rows * n);
    }
    let Some(x8) = activations(gpu, gate, x) else { return };
    let width = width(x.rows);
    let codes = quantize::wanted(to.out, x.rows, n);
    let spec = Spec::new(gpu, gate.format, width, PAIR_SHAPE);
    let spec = Spec { workgroup: PAIR_WORKGROUP, ..spec };
    let (code, alpha, limit) = gate_code(activation);
    let params = PairParams {
        w_stride: gate.stride() as u32,
        w_blocks: gate.n_blocks() as u32,
        chunks: (gate.padded_k() / CHUNK) as u32,
        rows: x.rows as u32,
        part_rows: n as u32,
        n: n as u32,
        x_offset: 0,
        x_stride: x8.stride as u32,
        gate: code,
        alpha,
        limit,
        has_codes: u32::from(codes.is_some()),
    };
    let binds = [
        Bind::Buffer(&gate.parts[0].buffer),
        Bind::Buffer(&x8.buffer),
        Bind::Buffer(to.gate),
        Bind::Buffer(to.up),
        Bind::Buffer(to.out),
        Bind::Buffer(&gate.parts[0].buffer),
        codes.as_ref().into(),
        Bind::Buffer(&up.parts[0].buffer),
        Bind::Buffer(&up.parts[0].buffer),
    ];
    let groups = n.div_ceil(PAIR_ROWS as usize);
    let kernel = spec.pair_kernel(gpu);
    gpu.record(0).dispatch_line(&kernel, &params, binds, groups);
    if codes.is_some() {
        to.out.set_twin(Some([x.rows, n]));
    }
}
