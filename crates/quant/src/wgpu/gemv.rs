//! Products of up to [`MAX_GEMV_ROWS`] rows of activations: every matrix is read once for all of them.
//!
//! Formats whose weights are codes times scales are multiplied in integers, with activations in 8 bits (see
//! [`quantize`]) as on the CPU; the others in f32.

mod group;
mod pair;

use std::sync::Arc;

use stonechat_compute::DType;
use stonechat_compute::wgpu::ops::gated::GATES;
use stonechat_compute::wgpu::ops::{ACTIVATIONS, GpuRows, check_len, quantize, start};
use stonechat_compute::wgpu::{Access, Bind, Gpu, GpuBuffer, Kernel, Source, TwinKind, Variant};

use self::group::GROUP_WORKGROUP;
pub(super) use self::group::Group;
pub use self::pair::{GatedOutput, gated_product, is_pair};
use self::pair::{PAIR_SHAPE, PAIR_WORKGROUP};
use super::matmul::{
    ACCESS, ACCESS_WITH_TWIN, Activations, CHUNK, Params, binds, format_files, with_format,
};
use super::matrix::GpuMatrix;
use super::normed::{Input, Normed, normed_access, normed_binds, with_norm};
use super::planes::Format;

/// Rows of activations up to which a matrix is read once for all of them.
pub const MAX_GEMV_ROWS: usize = 8;
/// Rows of activations that there are kernels for.
const WIDTHS: [u32; 4] = [1, 2, 4, MAX_GEMV_ROWS as u32];
/// Invocations of a workgroup.
const WORKGROUP: u32 = 128;
/// Weights that an invocation takes at a time.
const UNIT: usize = 64;
/// Where the products are quantized: whole groups of rows a workgroup.
const QUANTIZED_SHAPE: Shape = Shape { lanes: 8, rows: 2 };
/// Most rows of activations there: a team has an invocation for each of its sums.
const QUANTIZED_WIDTH: u32 = QUANTIZED_SHAPE.lanes / QUANTIZED_SHAPE.rows;
const _: () = assert!(WORKGROUP / QUANTIZED_SHAPE.lanes * QUANTIZED_SHAPE.rows == 32);
/// As [`ACCESS`], the weights of a norm and what it gives.
const NORMED_ACCESS: [Access; ACCESS.len() + 2] = normed_access(ACCESS);

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
        self.rows_of(WORKGROUP)
    }

    fn rows_of(self, workgroup: u32) -> u32 {
        workgroup / self.lanes * self.rows
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
    /// The format of the last matrix of a group, if it is another.
    last: Option<&'static Format>,
    width: u32,
    shape: Shape,
    /// Invocations of a workgroup.
    workgroup: u32,
    /// Invocations of a team that are certainly in the same subgroup.
    together: u32,
    /// Length of the row that the activations are the norm of, 0 where they are there.
    norm_k: u32,
}

impl Spec {
    fn new(gpu: &Gpu, format: &'static Format, width: u32, shape: Shape) -> Self {
        let smallest = gpu.adapter().subgroup_sizes.map_or(1, |(smallest, _)| smallest);
        let together = shape.lanes.min(smallest);
        Self { format, last: None, width, shape, workgroup: WORKGROUP, together, norm_k: 0 }
    }

    /// That makes its activations of what is normed.
    fn normed(self, normed: Option<Normed<'_>>) -> Self {
        Self { norm_k: normed.map_or(0, |normed| normed.x.cols as u32), ..self }
    }

    fn key(&self, kind: u32) -> [u32; 4] {
        let Shape { lanes, rows } = self.shape;
        let input = self.norm_k << 8 | self.width;
        let last = self.last.map_or(0, |last| last.code() + 1);
        [last << 16 | self.format.code(), input, lanes << 8 | rows, self.workgroup << 8 | kind]
    }

    fn start(&self, kind: &str, access: &'static [Access], variant: Variant) -> Source {
        let Self { width, shape: Shape { lanes, rows }, workgroup, together, norm_k, .. } = *self;
        let last = self.last.map_or_else(String::new, |last| format!("+{}", last.dtype));
        let normed = if norm_k > 0 { "-normed" } else { "" };
        let (dtype, variant_name) = (self.format.dtype, variant.name());
        let name = format!("{kind}-{dtype}{last}-{width}-{lanes}x{rows}{normed}-{variant_name}");
        start(name, access, variant, workgroup)
            .constant("L", lanes)
            .constant("R", rows)
            .constant("T", width)
            .constant("S", together)
    }

    /// Appends the matrix and what multiplies it, for a kernel of `access`; `has_writer` if that quantizes.
    fn with_product(&self, source: Source, access: &[Access], has_writer: bool) -> Source {
        let source = with_format(source, self.format);
        if !self.format.has_codes {
            return source.file(include_str!("gemv_values.wgsl"));
        }
        let source = match self.norm_k {
            0 => source.file(include_str!("codes_given.wgsl")),
            k => with_norm(source, k, (self.workgroup, access.len() - 2), has_writer),
        };
        source.file(include_str!("gemv_codes.wgsl"))
    }

    fn source(&self, by_expert: bool, variant: Variant) -> Source {
        let kind = if by_expert { "gemv_experts" } else { "gemv" };
        let access = if self.norm_k > 0 { &NORMED_ACCESS } else { ACCESS };
        let source = self
            .start(kind, access, variant)
            .constant("BY_EXPERT", u32::from(by_expert))
            .file(include_str!("params.wgsl"))
            .file(include_str!("one_matrix.wgsl"))
            .file(ACTIVATIONS)
            .file(include_str!("gemv.wgsl"))
            .file(include_str!("gemv_plain.wgsl"));
        with_sums(self.with_product(source, access, false), variant)
    }

    fn quantized_source(&self, variant: Variant) -> Source {
        let source = self
            .start("gemv_quantized", ACCESS_WITH_TWIN, variant)
            .constant("BY_EXPERT", 0)
            .file(include_str!("params.wgsl"))
            .file(include_str!("one_matrix.wgsl"))
            .file(ACTIVATIONS)
            .file(include_str!("gemv.wgsl"))
            .file(include_str!("gemv_quantized.wgsl"));
        let source = quantize::writer(source, variant);
        with_sums(self.with_product(source, ACCESS_WITH_TWIN, true), variant)
    }

    fn pair_source(&self, variant: Variant) -> Source {
        let access = if self.norm_k > 0 { &pair::NORMED_ACCESS } else { pair::ACCESS };
        let source = self
            .start("gemv_pair", access, variant)
            .file(include_str!("pair_params.wgsl"))
            .file(include_str!("two_matrices.wgsl"))
            .file(ACTIVATIONS)
            .file(GATES)
            .file(include_str!("gemv_pair.wgsl"));
        let source = quantize::writer(source, variant);
        with_sums(self.with_product(source, access, true), variant)
    }

    fn group_source(&self, variant: Variant) -> Source {
        let access = if self.norm_k > 0 { &group::NORMED_ACCESS } else { group::ACCESS };
        let source =
            self.start("gemv_group", access, variant).file(include_str!("gemv_group.wgsl"));
        let source = self.with_product(source, access, false);
        let source = match self.last {
            Some(last) => {
                let mut text = format_files(last).concat();
                text.push_str(include_str!("gemv_codes.wgsl"));
                source.variant_of(&text, &["w_stride", "w_blocks"], "last")
            }
            None => source.file(include_str!("gemv_alike.wgsl")),
        };
        with_sums(source, variant)
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
        last: None,
        width,
        shape: Shape { lanes, rows },
        workgroup: WORKGROUP,
        together: if variant == Variant::Portable { 1 } else { 8 },
        norm_k: 0,
    };
    let mut all: Vec<_> =
        WIDTHS.into_iter().map(|width| spec(width, 32, 1).source(false, variant)).collect();
    all.push(spec(1, 8, 2).source(false, variant));
    all.push(spec(1, 16, 1).source(true, variant));
    let group = |width| Spec { workgroup: GROUP_WORKGROUP, ..spec(width, 16, 1) };
    all.extend([1, 2].map(|width| group(width).group_source(variant)));
    let Shape { lanes, rows } = QUANTIZED_SHAPE;
    all.extend([1, 4].map(|width| spec(width, lanes, rows).quantized_source(variant)));
    if format.has_codes {
        let group_of = |(format, last)| Spec { format, last: Some(last), ..group(1) };
        let q6_k = Format::of(DType::Q6K).into_iter();
        all.extend(
            q6_k.flat_map(|other| [(format, other), (other, format)])
                .map(|formats| group_of(formats).group_source(variant)),
        );
        let Shape { lanes, rows } = PAIR_SHAPE;
        all.extend([1, 4].map(|width| {
            let spec = spec(width, lanes, rows);
            Spec { workgroup: PAIR_WORKGROUP, ..spec }.pair_source(variant)
        }));
        if variant == Variant::Subgroups {
            let normed = Spec { norm_k: 96, ..spec(1, 16, 1) };
            let normed_group = Spec { norm_k: 96, ..group(1) };
            let last = Spec { last: Format::of(DType::Q6K), ..normed_group };
            let pair = spec(1, lanes, rows);
            let pair = Spec { workgroup: PAIR_WORKGROUP, norm_k: 4096, ..pair };
            all.extend([
                normed.source(false, variant),
                normed_group.group_source(variant),
                last.group_source(variant),
                pair.pair_source(variant),
            ]);
        }
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

/// `x`, or what a kernel makes it of, as [`Spec`]'s kernels read it; `None` where there is no room.
fn activations_of(
    gpu: &Gpu,
    w: &GpuMatrix,
    x: GpuRows<'_>,
    normed: Option<Normed<'_>>,
) -> Option<Activations> {
    normed.map(Activations::normed).or_else(|| activations(gpu, w, x))
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
    input: &mut Input<'_>,
    w: &GpuMatrix,
    bias: Option<&GpuBuffer>,
    finish: impl Fn(Params) -> Params,
) {
    let x = input.x;
    let width = width(x.rows);
    let shape = Shape::for_matrix(w.n(), w, width);
    let codes = quantize::wanted(out, x.rows, w.n()).filter(|_| width <= QUANTIZED_WIDTH);
    let n_groups = w.n().div_ceil(shape.rows_of_group() as usize);
    if codes.is_none()
        && let Some(normed) = input.joined(gpu, w, (n_groups, ACCESS.len()), &[out])
    {
        let x8 = Activations::normed(normed);
        let params = finish(Params::new(w, &w.parts[0], &x8, [1, w.n()], bias));
        let params = Params { norm_eps: normed.eps, ..params };
        let binds = binds(&w.parts[0], &x8, bias, out);
        let all = normed_binds::<{ NORMED_ACCESS.len() }>(&binds, normed, x.buffer);
        let kernel = Spec::new(gpu, w.format, 1, shape).normed(Some(normed)).kernel(gpu, false);
        return gpu.record(0).dispatch_line(&kernel, &params, all, n_groups);
    }
    input.make(gpu);
    let Some(x8) = activations(gpu, w, x) else { return };
    if let ([part], Some(codes)) = (&w.parts[..], codes) {
        let params = finish(Params::new(w, part, &x8, [x.rows, w.n()], bias));
        let mut all = [Bind::Buffer(&codes); ACCESS_WITH_TWIN.len()];
        all[..ACCESS.len()].copy_from_slice(&binds(part, &x8, bias, out));
        let groups = part.rows.div_ceil(QUANTIZED_SHAPE.rows_of_group() as usize);
        let kernel = Spec::new(gpu, w.format, width, QUANTIZED_SHAPE).quantized_kernel(gpu);
        gpu.record(0).dispatch_line(&kernel, &params, all, groups);
        return out.set_twin(TwinKind::Codes, [x.rows, w.n()]);
    }
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
