//! Activations of matmuls and of gated MLPs.

/// Elementwise activation of a matmul's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activation {
    /// Identity.
    #[default]
    None,
    /// The exact GELU.
    Gelu,
    /// GELU by its tanh approximation: `x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))`.
    GeluTanh,
}

impl Activation {
    /// Code in the kernels of GPUs: `ACTIVATION_*` of `activation.wgsl`.
    #[must_use]
    pub fn code(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Gelu => 1,
            Self::GeluTanh => 2,
        }
    }
}

/// `act(gate) * up`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GatedActivation {
    /// `silu(gate) * up` (`SwiGLU`; Shazeer 2020).
    Silu,
    /// `gelu(gate) * up` with the tanh approximation (`GeGLU`).
    GeluTanh,
    /// gpt-oss: `g = min(gate, limit)`, `u = clamp(up, ±limit)`,
    /// `g * sigmoid(alpha * g) * (u + 1)`.
    ClampedSwiglu {
        /// Slope inside the sigmoid.
        alpha: f32,
        /// Bound of both inputs.
        limit: f32,
    },
}

impl GatedActivation {
    /// Code in the kernels of GPUs, `GATED_*` of `gated_activation.wgsl`, with its `alpha` and `limit`.
    #[must_use]
    pub fn code(self) -> (u32, f32, f32) {
        match self {
            Self::Silu => (0, 0.0, 0.0),
            Self::GeluTanh => (1, 0.0, 0.0),
            Self::ClampedSwiglu { alpha, limit } => (2, alpha, limit),
        }
    }
}
