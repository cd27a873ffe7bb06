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
