//! Every shader of the wgpu backend, without a GPU.
#![cfg(feature = "wgpu")]

use stonechat_compute::wgpu::{Matrices, Variant, ops};

/// Parses and validates a shader as a device would; `None` if it is right.
fn problem(text: &str) -> Option<String> {
    let module = match naga::front::wgsl::parse_str(text) {
        Ok(module) => module,
        Err(error) => return Some(error.emit_to_string(text)),
    };
    let flags = naga::valid::ValidationFlags::all();
    let capabilities = naga::valid::Capabilities::SUBGROUP
        | naga::valid::Capabilities::SHADER_FLOAT16
        | naga::valid::Capabilities::SHADER_FLOAT16_IN_FLOAT32
        | naga::valid::Capabilities::COOPERATIVE_MATRIX;
    let mut validator = naga::valid::Validator::new(flags, capabilities);
    validator.validate(&module).err().map(|error| error.emit_to_string(text))
}

#[test]
fn every_shader_is_valid() {
    for variant in Variant::ALL {
        let dense = ops::sources(variant);
        let quantized = stonechat_quant::wgpu::sources(variant);
        assert!(!dense.is_empty() && !quantized.is_empty());
        for source in dense.into_iter().chain(quantized) {
            if let Some(problem) = problem(source.text()) {
                panic!("{}: {problem}", source.name());
            }
        }
    }
}

#[test]
fn every_shader_with_matrices_is_valid() {
    for (side, subgroup) in [(8, 8), (8, 32), (16, 16), (16, 32), (16, 64)] {
        let matrices = Matrices { side, subgroup };
        let dense = ops::matrix_sources(matrices);
        let quantized = stonechat_quant::wgpu::matrix_sources(matrices);
        assert!(!dense.is_empty() && !quantized.is_empty());
        for source in dense.into_iter().chain(quantized) {
            if let Some(problem) = problem(source.text()) {
                panic!("{} {matrices:?}: {problem}", source.name());
            }
        }
    }
}
