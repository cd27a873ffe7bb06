// Gated activations by their number, see gated.rs.
fn gated_by(gate: f32, up: f32, activation: u32, alpha: f32, limit: f32) -> f32 {
    switch activation {
        case 0u: {
            return gate * sigmoid(gate) * up;
        }
        case 1u: {
            return gelu_tanh(gate) * up;
        }
        default: {
            let low = min(gate, limit);
            return low * sigmoid(alpha * low) * (clamp(up, -limit, limit) + 1.0);
        }
    }
}
