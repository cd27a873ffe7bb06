//! Dense kernels: a `.rs` file checks shapes and records the dispatch, a `.wgsl` file of the same stem computes.
//!
//! A kernel's WGSL defines `kernel_main(group, groups, lid)`: workgroup id, number of workgroups, index of the
//! invocation. [`kernel_source`] prepends the entry point and the workgroup reductions of the [`Variant`].

pub mod attention;
mod attention_args;
mod attention_decode;
mod attention_prefill;
pub mod conv_state;
pub mod copy;
pub mod elementwise;
pub mod f16;
pub mod gated;
mod kernel;
pub mod kv;
pub mod log_sum_exp;
pub mod logit_filter;
pub mod moe;
pub mod norm;
pub mod operand;
pub mod q8;
pub mod rope;
pub mod top_k;

pub use kernel::{ACTIVATIONS, GpuRows, check_len, kernel_source};

use super::{CoopMatrices, Source, Variant};

/// Every shader of this crate for `variant` but those with cooperative matrices, for tests.
#[must_use]
pub fn sources(variant: Variant) -> Vec<Source> {
    let specs = [
        elementwise::SPEC,
        conv_state::SPEC,
        copy::SPEC,
        copy::GATHER,
        copy::IM2COL,
        rope::SPEC,
        gated::SPEC,
        log_sum_exp::SPEC,
        logit_filter::SPEC,
        moe::ROUTE,
        moe::COMBINE,
        operand::Q8_SPEC,
        operand::F16_SPEC,
        attention_args::MERGE,
    ];
    let mut all: Vec<_> = specs.iter().map(|spec| spec.source(variant)).collect();
    all.extend(norm::sources(variant));
    all.extend(kv::sources(variant));
    all.extend(rope::sources(variant));
    all.extend(attention::sources(variant));
    all.extend(attention_decode::sources(variant));
    all.push(top_k::source(variant));
    all
}

/// Every shader of this crate with cooperative matrices, for tests.
#[must_use]
pub fn coop_sources(matrices: CoopMatrices) -> Vec<Source> {
    attention_prefill::sources(matrices)
}
