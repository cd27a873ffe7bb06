// Bits of the nearest f16, ties to even; the rounding of pack2x16float depends on the device.
fn half_bits(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    let sign = (bits >> 16u) & 0x8000u;
    let magnitude = bits & 0x7fffffffu;
    if magnitude > 0x7f800000u {
        return sign | 0x7e00u;
    }
    if magnitude >= 0x47800000u {
        return sign | 0x7c00u;
    }
    if magnitude < 0x38800000u {
        return sign | u32(round(bitcast<f32>(magnitude) * 16777216.0));
    }
    let rounded = magnitude + 0xfffu + ((magnitude >> 13u) & 1u);
    return sign | ((rounded - 0x38000000u) >> 13u);
}

// Value of an f16, subnormals included.
fn half_value(bits: u32) -> f32 {
    let magnitude = bits & 0x7fffu;
    var value = bitcast<f32>((magnitude << 13u) + 0x38000000u);
    if magnitude < 0x400u {
        value = f32(magnitude) * 5.9604644775390625e-8;
    } else if magnitude >= 0x7c00u {
        value = bitcast<f32>((magnitude << 13u) | 0x7f800000u);
    }
    return bitcast<f32>(bitcast<u32>(value) | ((bits & 0x8000u) << 16u));
}
