//! The kernels of a format on an instruction set, chosen once, when a matrix is made.

use std::fmt;
use std::marker::PhantomData;

#[cfg(target_arch = "x86_64")]
use stonechat_compute::simd::Amx;
use stonechat_compute::simd::{Int8, Int8Kernel};
use stonechat_compute::{DType, Isa};

use super::format::Format;
use super::task::PanelTask;
use crate::activation::ActivationLayout;
use crate::block::block_formats;

/// GEMV and GEMM of panels of one format on one tier.
pub(super) trait PanelKernels: Send + Sync {
    /// Name of the tier.
    fn tier(&self) -> &'static str;

    /// Layout of activations that [`gemm`](Self::gemm) takes.
    fn gemm_layout(&self) -> ActivationLayout;

    /// Multiplies row-major activations.
    fn gemv(&self, task: &PanelTask<'_>);

    /// Multiplies activations in [`gemm_layout`](Self::gemm_layout).
    fn gemm(&self, task: &PanelTask<'_>);
}

impl fmt::Debug for dyn PanelKernels + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.tier())
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
pub(super) fn choose(isa: Isa, dtype: DType) -> Option<Box<dyn PanelKernels>> {
    #[cfg(target_arch = "x86_64")]
    if let Some(amx) = isa.tiles() {
        return block_formats!(format_arms[dtype, F => {
            Box::new(AmxKernels::<F, { <F as Format>::QBLOCKS }>(amx, PhantomData))
        }]);
    }
    isa.dispatch_int8(Choose(dtype))
}

struct Choose(DType);

impl Int8Kernel for Choose {
    type Output = Option<Box<dyn PanelKernels>>;

    fn run<S: Int8>(self, s: S) -> Self::Output {
        block_formats!(format_arms[self.0, F => {
            Box::new(VectorKernels::<S, F, { <F as Format>::QBLOCKS }>(s, PhantomData))
        }])
    }
}

/// Kernels on vectors. `Q` is [`Format::QBLOCKS`].
struct VectorKernels<S, F, const Q: usize>(S, PhantomData<fn() -> F>);

impl<S: Int8, F: Format, const Q: usize> VectorKernels<S, F, Q> {
    /// GEMM of the tier's rows, so that no other is compiled.
    const GEMM: fn(&PanelTask<'_>, S) = match S::GEMM_ROWS {
        4 => |task, s| task.gemm::<S, F, 4>(s, &task.x.interleaved4),
        6 => |task, s| task.gemm::<S, F, 6>(s, &task.x.interleaved6),
        _ => panic!("expected tiles of 4 or 6 rows"),
    };
}

impl<S: Int8, F: Format, const Q: usize> PanelKernels for VectorKernels<S, F, Q> {
    fn tier(&self) -> &'static str {
        S::NAME
    }

    fn gemm_layout(&self) -> ActivationLayout {
        ActivationLayout::interleaved(S::GEMM_ROWS)
    }

    fn gemv(&self, task: &PanelTask<'_>) {
        task.gemv::<S, F, Q>(self.0);
    }

    fn gemm(&self, task: &PanelTask<'_>) {
        (Self::GEMM)(task, self.0);
    }
}

/// GEMV on vectors, GEMM on tiles.
#[cfg(target_arch = "x86_64")]
struct AmxKernels<F, const Q: usize>(Amx, PhantomData<fn() -> F>);

#[cfg(target_arch = "x86_64")]
impl<F: Format, const Q: usize> PanelKernels for AmxKernels<F, Q> {
    fn tier(&self) -> &'static str {
        Amx::NAME
    }

    fn gemm_layout(&self) -> ActivationLayout {
        ActivationLayout::AmxBf16
    }

    fn gemv(&self, task: &PanelTask<'_>) {
        task.gemv::<_, F, Q>(self.0.vectors());
    }

    fn gemm(&self, task: &PanelTask<'_>) {
        self.0.with_tiles(|tiles| task.amx_gemm::<_, F>(self.0.vectors(), tiles));
    }
}
