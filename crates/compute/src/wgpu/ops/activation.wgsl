// Activations, with the error bounds of the CPU's functions.

// Codes of `activation_code` in ops.rs.
const ACTIVATION_NONE: u32 = 0u;
const ACTIVATION_GELU: u32 = 1u;
const ACTIVATION_GELU_TANH: u32 = 2u;

// e^x = 2^n * e^r, n = round(x * log2(e)), r = x - n ln(2) with ln(2) in two parts (Cody and Waite), e^r by a polynomial.
fn exp_exact(x: f32) -> f32 {
    let clamped = clamp(x, -87.3, 88.3);
    let n = round(clamped * 1.44269504);
    let r = fma(n, -0.693359375, clamped) - n * -2.12194440e-4;
    var y = 1.9875691500e-4;
    y = fma(y, r, 1.3981999507e-3);
    y = fma(y, r, 8.3334519073e-3);
    y = fma(y, r, 4.1665795894e-2);
    y = fma(y, r, 1.6666665459e-1);
    y = fma(y, r, 5.0000001201e-1);
    y = fma(y, r * r, r) + 1.0;
    return select(y * bitcast<f32>(u32(i32(n) + 127) << 23u), 0.0, x < -87.3);
}

fn sigmoid(x: f32) -> f32 {
    let e = exp_exact(-abs(x));
    return select(e, 1.0, x >= 0.0) / (1.0 + e);
}

// 1 - 2 / (e^2|x| + 1); a polynomial for |x| < 0.625.
fn tanh_exact(x: f32) -> f32 {
    let magnitude = abs(x);
    let z = x * x;
    var y = -5.70498872745e-3;
    y = fma(y, z, 2.06390887954e-2);
    y = fma(y, z, -5.37397155531e-2);
    y = fma(y, z, 1.33314422036e-1);
    y = fma(y, z, -3.33332819422e-1);
    let near = fma(y * z, x, x);
    let far = sign(x) * (1.0 - 2.0 / (exp_exact(2.0 * magnitude) + 1.0));
    return select(far, near, magnitude < 0.625);
}

// Error function, absolute error below 2e-7: the polynomial of the CPU.
fn erf(value: f32) -> f32 {
    let x = clamp(value, -3.92, 3.92);
    let v = fma(x * x, 0.130154102, -1.0);
    var y = 3.788009e-4;
    y = fma(y, v, -9.379143600e-4);
    y = fma(y, v, 6.125365400e-4);
    y = fma(y, v, -1.050359000e-3);
    y = fma(y, v, 4.282948700e-3);
    y = fma(y, v, -8.162879000e-3);
    y = fma(y, v, 1.225953100e-2);
    y = fma(y, v, -1.962328400e-2);
    y = fma(y, v, 3.058619300e-2);
    y = fma(y, v, -4.358337000e-2);
    y = fma(y, v, 5.817710500e-2);
    y = fma(y, v, -7.399038000e-2);
    y = fma(y, v, 9.062331000e-2);
    y = fma(y, v, -1.091818100e-1);
    y = fma(y, v, 1.340833600e-1);
    y = fma(y, v, -1.801085600e-1);
    y = fma(y, v, 3.607368200e-1);
    return clamp(y * x, -1.0, 1.0);
}

fn gelu(x: f32) -> f32 {
    return 0.5 * x * (1.0 + erf(x * 0.70710678));
}

fn gelu_tanh(x: f32) -> f32 {
    return x * sigmoid(1.595769122 * x * fma(0.044715 * x, x, 1.0));
}

// Activation of an epilogue by its code.
fn activate(x: f32, activation: u32) -> f32 {
    switch activation {
        case ACTIVATION_GELU: { return gelu(x); }
        case ACTIVATION_GELU_TANH: { return gelu_tanh(x); }
        default: { return x; }
    }
}

// `activate` of four values.
fn activate4(x: vec4<f32>, activation: u32) -> vec4<f32> {
    switch activation {
        case ACTIVATION_GELU: { return vec4<f32>(gelu(x.x), gelu(x.y), gelu(x.z), gelu(x.w)); }
        case ACTIVATION_GELU_TANH: { return vec4<f32>(gelu_tanh(x.x), gelu_tanh(x.y), gelu_tanh(x.z), gelu_tanh(x.w)); }
        default: { return x; }
    }
}
