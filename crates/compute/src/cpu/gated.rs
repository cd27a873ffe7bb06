//! Gated activations of feed-forward networks.

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
