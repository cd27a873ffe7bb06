// Gated activations by code, see `gated_code` in gated.rs; any other code is the clamped SwiGLU.
const GATED_SILU: u32 = 0u;
const GATED_GELU_TANH: u32 = 1u;

fn gated_activation(gate: f32, up: f32, activation: u32, alpha: f32, limit: f32) -> f32 {
    switch activation {
        case GATED_SILU: {
            return gate * sigmoid(gate) * up;
        }
        case GATED_GELU_TANH: {
            return gelu_tanh(gate) * up;
        }
        default: {
            let low = min(gate, limit);
            return low * sigmoid(alpha * low) * (clamp(up, -limit, limit) + 1.0);
        }
    }
}
