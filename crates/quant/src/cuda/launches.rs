//! Every op, format, row class and device of the table: kernel, threads, shared memory and grid of the launches, without a GPU.

use std::sync::LazyLock;

use stonechat_compute::cuda::ops::attention::{Attention, AttentionGrid, attention};
use stonechat_compute::cuda::ops::kv::{Pool, copy_pages};
use stonechat_compute::cuda::ops::moe::{self, ExpertOrder};
use stonechat_compute::cuda::ops::rope::{Heads, RopeKv, Write, rope_kv};
use stonechat_compute::cuda::ops::{Output, Rows, rows, top_k};
use stonechat_compute::cuda::{self, CommandList, Gpu, Limits};
use stonechat_compute::op::{
    AttentionArgs, ConvStateArgs, EmbedArgs, EmbedInputs, Epilogue, ExpertRoutes, GatedActivation,
    InputNorm, KvDType, KvLayout, MoeRouteArgs, NormArgs, PoolId, Port, Precision, QueryRow,
    RopeArgs, RopePairs, Rotation, Routing, RowTable, States,
};
use stonechat_compute::{DType, Error};

use super::format::FORMATS;
use super::matmul::formats_of;
use super::matrix::CudaMatrix;
use super::{
    ARCHIVE, MAX_GEMV_ROWS, Operand, Scratch, embed, expert_block_len, matmul, matmul_experts,
    matmul_gated, matmul_group, max_row_cols,
};

/// Rows on both sides of every bound of blocks and of row classes.
const ROWS: [usize; 12] = [1, 2, 8, 9, 16, 33, 64, 65, MAX_GEMV_ROWS, MAX_GEMV_ROWS + 1, 512, 3000];
const ADDRESS: u64 = 1 << 40;

struct Memory;

impl Scratch for Memory {
    fn get(&mut self, _: &'static str, bytes: usize) -> u64 {
        if bytes == 0 { 0 } else { ADDRESS }
    }
}

/// Devices of the table, and a newer one that runs PTX. Archives are unpacked once.
fn devices() -> &'static [Gpu] {
    static ALL: LazyLock<Vec<Gpu>> = LazyLock::new(|| {
        Limits::ALL.into_iter().chain([Limits::of((13, 0))]).map(Gpu::planned).collect()
    });
    &ALL
}

/// Records launches on every device.
fn on_devices(case: &str, record: impl Fn(&mut CommandList)) {
    for gpu in devices() {
        let mut list = CommandList::new(gpu);
        record(&mut list);
        if let Err(error) = list.check() {
            panic!("{case} on {}: {error}", gpu.device().name);
        }
        assert!(list.n_launches() > 0, "{case} on {}: no launch", gpu.device().name);
    }
}

fn packed(rows: usize, cols: usize) -> Rows {
    Rows { address: ADDRESS, rows, cols, stride: cols }
}

fn operand(rows: usize) -> Operand {
    Operand { address: ADDRESS, rows, stride: 0, norm: None }
}

fn dtypes() -> impl Iterator<Item = DType> {
    FORMATS.iter().map(|format| format.dtype).chain([DType::F32])
}

fn matrix(list: &CommandList, dtype: DType, shape: (usize, usize)) -> CudaMatrix {
    CudaMatrix::zeroed(list.gpu(), dtype, shape).unwrap()
}

#[test]
fn products_of_all_formats_and_rows_fit_all_devices() {
    for dtype in dtypes() {
        for (rows, shape) in ROWS.iter().flat_map(|&rows| {
            [(96, 256), (4096, 14336), (37, 2304), (512, 32768)].map(|shape| (rows, shape))
        }) {
            on_devices(&format!("{dtype}, {rows} rows, {shape:?}"), |list| {
                let w = matrix(list, dtype, shape);
                let out = Output::at(ADDRESS);
                let x = Operand { stride: shape.1, ..operand(rows) };
                matmul(list, &mut Memory, out, x, &w, Epilogue::default());
                let args = EmbedArgs { table: &w, positions: None, scale: 1.0 };
                let (n_tokens, tokens, positions) = (rows, ADDRESS, ADDRESS);
                embed(
                    list,
                    ADDRESS,
                    args,
                    EmbedInputs { n_tokens, tokens, positions, top_k: None },
                );
                let has_norm = max_row_cols(list.gpu()).is_some_and(|max| shape.1 <= max);
                if rows == 1 && has_norm && w.reads_operand() {
                    let norm = Some(InputNorm { weight: ADDRESS, eps: 1e-5, out: ADDRESS });
                    let x = Operand { norm, ..x };
                    matmul(list, &mut Memory, out, x, &w, Epilogue::default());
                }
            });
        }
    }
}

/// Whether a launch multiplies with all of these matrices.
fn has_kernel(gpu: &Gpu, all: &[&CudaMatrix], rows: usize) -> bool {
    let has_pairs = match rows {
        1 => max_row_cols(gpu).is_some(),
        _ => rows > MAX_GEMV_ROWS && gpu.device().has_warpgroups(),
    };
    formats_of(all).is_some_and(|formats| formats.second.is_none() || has_pairs)
}

#[test]
fn groups_and_pairs_of_all_formats_fit_all_devices() {
    for (first, second) in dtypes().flat_map(|a| dtypes().map(move |b| (a, b))) {
        for rows in ROWS {
            on_devices(&format!("{first} and {second}, {rows} rows"), |list| {
                let out = Output::at(ADDRESS);
                let all = [first, first, second].map(|dtype| matrix(list, dtype, (1024, 4096)));
                let x = operand(rows);
                // A launch at least, whether they can be grouped or not.
                rows::add(list, out, packed(rows, 64), packed(rows, 64));
                if has_kernel(list.gpu(), &all.each_ref(), rows) {
                    let all = all.each_ref().map(|w| (w, out, 0));
                    matmul_group(list, &mut Memory, x, &all);
                }
                if rows <= MAX_GEMV_ROWS && first == second && first != DType::F32 {
                    let act = GatedActivation::Silu;
                    matmul_gated(list, &mut Memory, out, x, [&all[0], &all[2]], act);
                }
            });
        }
    }
}

#[test]
fn experts_of_all_formats_fit_all_devices() {
    for dtype in dtypes() {
        for (rows, n) in ROWS.iter().flat_map(|&rows| [(rows, 768), (rows, 770)]) {
            on_devices(&format!("experts of {dtype}, {rows} rows"), |list| {
                let (n_experts, n_used) = (8, 2);
                let w = matrix(list, dtype, (n_experts * n, 2048));
                let n_routes = rows * n_used;
                let block_len = expert_block_len(list.gpu(), &[&w], (n_routes, n_experts));
                let n_blocks = ExpertOrder::max_blocks(n_routes, n_experts, block_len);
                let order = ExpertOrder { order: ADDRESS, blocks: ADDRESS, n_blocks, block_len };
                let route = MoeRouteArgs { n_used, routing: Routing::NormalizedTopK };
                moe::route(list, ADDRESS, packed(rows, n_experts), route);
                moe::sort(list, ADDRESS, (n_routes, n_experts), order);
                let (routes_per_row, routes, bias) = (n_used, ADDRESS, None);
                let args = ExpertRoutes { routes, n_routes, routes_per_row, n, bias };
                let x = Operand { stride: 2048, ..operand(rows) };
                matmul_experts(list, &mut Memory, ADDRESS, x, &w, (args, order));
                moe::combine(list, ADDRESS, (ADDRESS, ADDRESS), [rows, n, n_used], false);
            });
        }
    }
}

#[test]
fn conversions_of_all_formats_are_compiled_for_all_devices() {
    for gpu in devices() {
        for format in FORMATS {
            gpu.kernel(&ARCHIVE, format.module(), "repack", 0).unwrap();
        }
    }
}

#[test]
fn ops_on_rows_fit_all_devices() {
    for (rows, cols) in ROWS.iter().flat_map(|&rows| [(rows, 576), (rows, 4096), (rows, 151_936)]) {
        on_devices(&format!("{rows} rows of {cols}"), |list| {
            let (out, x) = (Output::at(ADDRESS), packed(rows, cols));
            let norm = NormArgs { weight: ADDRESS, bias: None, eps: 1e-5 };
            rows::rms_norm(list, out, x, norm, false);
            rows::layer_norm(list, out, x, norm);
            rows::add(list, out, x, x);
            rows::soft_cap(list, out, x, 30.0);
            rows::gated(list, out, x, x, GatedActivation::Silu);
            rows::convert(list, ADDRESS, x);
            rows::im2col(list, ADDRESS, x, (1, 2), true);
            let (weight, bias) = (ADDRESS, Some(ADDRESS));
            let states = States { port: Port::value(0), n_slots: 1, len: 3 * cols };
            let args = ConvStateArgs { kernel: 4, weight, bias, silu: true, states };
            rows::conv_state(list, ADDRESS, x, &args, (ADDRESS, ADDRESS));
            rows::log_sum_exp(list, ADDRESS, x);
            rows::logit_filter(list, x, (ADDRESS, ADDRESS));
            rows::copy(list, ADDRESS, cols, x, 1);
            rows::gather(list, ADDRESS, x, (ADDRESS, rows));
            for k in [1, 2, 40] {
                top_k::top_k(list, ADDRESS, x, k, (ADDRESS, ADDRESS));
            }
        });
    }
}

#[test]
fn attention_over_all_pages_fits_all_devices() {
    for (dtype, head_dim) in [KvDType::F32, KvDType::F16, KvDType::Q8_0]
        .into_iter()
        .flat_map(|dtype| [32, 64, 80, 96, 128, 192, 256].map(|head_dim| (dtype, head_dim)))
    {
        for rows in ROWS {
            let layout = KvLayout { n_kv_heads: 2, head_dim, dtype };
            let all: Vec<_> = (0..rows as u32).map(|i| query(i + 1)).collect();
            on_devices(&format!("{dtype:?} pages, heads of {head_dim}, {rows} rows"), |list| {
                let pool = Pool::new(list.gpu(), layout, 100).unwrap();
                copy_pages(list, &pool, (ADDRESS, 3));
                let (q, k) = (packed(rows, 8 * head_dim), packed(rows, 2 * head_dim));
                let pairs = RopePairs::Neox;
                let rotation = Some(Rotation { table: ADDRESS, n_rot: head_dim, pairs });
                let args = RopeArgs { head_dim, norm: None, rotation };
                let heads = |x| Some(Heads { x, out: ADDRESS, args });
                let write = Some(Write { v: k, pool: &pool, slots: ADDRESS });
                let rope = RopeKv { q: heads(q), k: heads(k), positions: ADDRESS, write };
                rope_kv(list, rope);
                let args = RopeArgs { rotation: None, ..args };
                rope_kv(list, RopeKv { q: None, k: Some(Heads { x: k, out: 0, args }), ..rope });
                let op = AttentionArgs {
                    pool: PoolId(0),
                    layer: 0,
                    n_heads: 8,
                    scale: 1.0,
                    soft_cap: None,
                    slopes: None,
                    sinks: None,
                    rows: RowTable::FULL,
                    precision: Precision::F32,
                };
                let fuses_rope = rows == 1 && dtype != KvDType::F32;
                for rope in [None, fuses_rope.then_some(rope)] {
                    attention(
                        list,
                        Output::at(ADDRESS),
                        Attention {
                            q,
                            rope,
                            pool: &pool,
                            op,
                            grid: AttentionGrid::new(8, layout, &all),
                            words: ADDRESS,
                            first_word: 0,
                            partials: ADDRESS,
                            counters: ADDRESS,
                        },
                    );
                }
            });
        }
    }
}

fn query(kv_len: u32) -> QueryRow {
    QueryRow { first_page: 0, n_pages: kv_len.div_ceil(64), kv_start: 0, kv_len }
}

#[test]
fn kernels_without_weights_are_compiled_for_all_devices() {
    let sums = ["all_reduce_ll", "all_reduce_two_phase", "all_reduce_norm", "all_gather_ll"];
    for gpu in devices() {
        for name in sums {
            gpu.kernel(&cuda::ARCHIVE, "all_reduce", name, 0).unwrap();
        }
        gpu.kernel(&cuda::ARCHIVE, "log_mel", "log_mel", 0).unwrap();
    }
}

#[test]
fn what_a_device_does_not_have_is_an_error() {
    for gpu in devices() {
        let limit = gpu.device().limits.block_shared_bytes;
        let kernel = |module, name, bytes| gpu.kernel(&ARCHIVE, module, name, bytes);
        for (module, name, bytes) in [
            ("q4_k", "gemv_8", limit + 1),
            // The kernel has memory of its own.
            ("q4_k", "gemv_8", limit),
            ("q4_k", "gemv_9", 0),
            ("q9_k", "gemv_8", 0),
        ] {
            let result = kernel(module, name, bytes);
            assert!(matches!(result, Err(Error::Device { .. })), "{module} {name}: {result:?}");
        }
        // A larger request raises what launches may have.
        assert!(kernel("q4_k", "gemv_8", 1000).is_ok() && kernel("q4_k", "gemv_8", 40_000).is_ok());
    }
}
