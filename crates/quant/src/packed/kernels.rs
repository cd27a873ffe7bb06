//! The kernels of a format on an instruction set, chosen once, when a matrix is made.

use std::fmt;

#[cfg(target_arch = "x86_64")]
use stonechat_compute::simd::Amx;
use stonechat_compute::simd::{Int8, Int8Kernel};
use stonechat_compute::{DType, Isa};

use super::format::Format;
use super::task::PanelTask;
use crate::activation::ActivationLayout;
use crate::block::block_formats;

/// Multiplies the panels of a task.
pub(super) type PanelKernel = Box<dyn Fn(&PanelTask<'_>) + Send + Sync>;

/// GEMV and GEMM of panels of one format on one tier.
pub(super) struct PanelKernels {
    /// Name of the tier.
    pub(super) tier: &'static str,
    /// Layout of the activations of GEMM; row-major if there is none.
    pub(super) gemm_layout: ActivationLayout,
    /// For row-major activations.
    gemv: PanelKernel,
    gemm: Option<PanelKernel>,
}

impl PanelKernels {
    /// The kernel for activations in `layout`.
    ///
    /// # Panics
    /// If the tier has none.
    #[track_caller]
    pub(super) fn of(&self, layout: ActivationLayout) -> &PanelKernel {
        let row_major = ActivationLayout::RowMajor;
        match &self.gemm {
            _ if layout == row_major => &self.gemv,
            Some(gemm) if layout == self.gemm_layout => gemm,
            _ => panic!("matmul: expected {row_major:?} or {:?}, got {layout:?}", self.gemm_layout),
        }
    }
}

impl fmt::Debug for PanelKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.tier)
    }
}

/// Evaluates `$body` with `$F` the [`Format`] of a dtype; `None` if it has no panels.
macro_rules! format_arms {
    ([$dtype:expr, $F:ident => $body:expr]
        panels {
            $($variant:ident: $Block:ident {
                fallback: $fallback:ident, panel: $panel:ty { $($layout:tt)* }, $($gpu:tt)*
            };)*
        }
        $($rest:tt)*
    ) => {{
        use $crate::packed::format::*;
        match $dtype {
            $(DType::$variant => {
                type $F = $panel;
                Some($body)
            })*
            _ => None,
        }
    }};
}
#[cfg(all(test, target_arch = "x86_64"))]
pub(super) use format_arms;

/// Chooses the kernels of `dtype` on `isa`; `None` if the format has no panels.
pub(super) fn choose(isa: Isa, dtype: DType) -> Option<PanelKernels> {
    #[cfg(target_arch = "x86_64")]
    if let Some(amx) = isa.tiles() {
        return block_formats!(format_arms[dtype, F => {
            amx_kernels::<F, { <F as Format>::QBLOCKS }>(amx)
        }]);
    }
    isa.dispatch_int8(Choose(dtype))
}

struct Choose(DType);

impl Int8Kernel for Choose {
    type Output = Option<PanelKernels>;

    fn run<S: Int8>(self, s: S) -> Self::Output {
        block_formats!(format_arms[self.0, F => {
            vector_kernels::<S, F, { <F as Format>::QBLOCKS }>(s)
        }])
    }
}

/// Kernels on vectors. `Q` is [`Format::QBLOCKS`].
fn vector_kernels<S: Int8, F: Format, const Q: usize>(s: S) -> PanelKernels {
    // A constant, so that GEMM is compiled for the tier's rows alone.
    let gemm: Option<fn(&PanelTask<'_>, S)> = const {
        match S::GEMM_ROWS {
            4 => Some(|task, s| task.gemm::<S, F, 4>(s, &task.x.interleaved4)),
            6 => Some(|task, s| task.gemm::<S, F, 6>(s, &task.x.interleaved6)),
            _ => None,
        }
    };
    PanelKernels {
        tier: S::NAME,
        gemm_layout: ActivationLayout::interleaved(S::GEMM_ROWS),
        gemv: Box::new(move |task| task.gemv::<S, F, Q>(s)),
        gemm: gemm.map(|gemm| Box::new(move |task: &PanelTask<'_>| gemm(task, s)) as PanelKernel),
    }
}

/// GEMV on vectors, GEMM on tiles.
#[cfg(target_arch = "x86_64")]
fn amx_kernels<F: Format, const Q: usize>(amx: Amx) -> PanelKernels {
    let s = amx.vectors();
    PanelKernels {
        tier: Amx::NAME,
        gemm_layout: ActivationLayout::AmxBf16,
        gemv: Box::new(move |task| task.gemv::<_, F, Q>(s)),
        gemm: Some(Box::new(move |task| {
            amx.with_tiles(|tiles| task.amx_gemm::<_, F>(s, tiles));
        })),
    }
}
