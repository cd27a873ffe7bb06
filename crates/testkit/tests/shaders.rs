//! Every shader of the wgpu backend, without a GPU: naga accepts it, and its uniform parameters have the layout of the
//! Rust struct.
#![cfg(feature = "wgpu")]

use naga::{Module, TypeInner};
use stonechat_compute::wgpu::{CoopMatrices, ParamLayout, Source, Variant, ops};

/// Parses and validates a shader as a device would.
fn validated(text: &str) -> Result<Module, String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|error| error.emit_to_string(text))?;
    let flags = naga::valid::ValidationFlags::all();
    let capabilities = naga::valid::Capabilities::SUBGROUP
        | naga::valid::Capabilities::SHADER_FLOAT16
        | naga::valid::Capabilities::SHADER_FLOAT16_IN_FLOAT32
        | naga::valid::Capabilities::COOPERATIVE_MATRIX;
    let mut validator = naga::valid::Validator::new(flags, capabilities);
    validator.validate(&module).map_err(|error| error.emit_to_string(text))?;
    Ok(module)
}

/// Asserts that the uniform parameters have the offsets of the Rust struct.
#[track_caller]
fn check_params(name: &str, module: &Module, expected: ParamLayout) {
    let uniforms = module.global_variables.iter().map(|(_, variable)| variable);
    let mut uniforms = uniforms.filter(|variable| variable.space == naga::AddressSpace::Uniform);
    let ty = uniforms.next().unwrap_or_else(|| panic!("{name}: no parameters")).ty;
    assert!(uniforms.next().is_none(), "{name}: more than one uniform variable");
    let TypeInner::Struct { members, span } = &module.types[ty].inner else {
        panic!("{name}: the parameters are no struct");
    };
    let found: Vec<_> = members.iter().map(|member| member.offset as usize).collect();
    let offsets: Vec<_> = expected.fields.iter().map(|field| field.offset).collect();
    assert_eq!(found, offsets, "{name}: offsets of the parameters in WGSL and in Rust");
    // WGSL rounds the size up to the alignment of the struct.
    let alignment = members.iter().map(|member| alignment(module, member.ty)).max().unwrap_or(4);
    let bytes = expected.bytes.next_multiple_of(alignment);
    assert_eq!(*span as usize, bytes, "{name}: size of the parameters");
}

/// Alignment of a WGSL type in a uniform struct.
fn alignment(module: &Module, ty: naga::Handle<naga::Type>) -> usize {
    match &module.types[ty].inner {
        TypeInner::Struct { members, .. } => {
            members.iter().map(|member| alignment(module, member.ty)).max().unwrap_or(4)
        }
        TypeInner::Vector { .. } => 16,
        _ => 4,
    }
}

#[track_caller]
fn check(source: &Source) {
    match validated(source.text()) {
        Ok(module) => check_params(source.name(), &module, source.params()),
        Err(problem) => panic!("{}: {problem}", source.name()),
    }
}

#[test]
fn every_shader_is_valid_and_has_the_parameters_of_rust() {
    for &variant in Variant::ALL {
        let dense = ops::sources(variant);
        let quantized = stonechat_quant::wgpu::sources(variant);
        assert!(!dense.is_empty() && !quantized.is_empty());
        dense.iter().chain(&quantized).for_each(check);
    }
}

#[test]
fn every_shader_with_matrices_is_valid_and_has_the_parameters_of_rust() {
    for (side, subgroup) in [(8, 8), (8, 32), (16, 16), (16, 32), (16, 64)] {
        let matrices = CoopMatrices { side, subgroup };
        let dense = ops::coop_sources(matrices);
        let quantized = stonechat_quant::wgpu::coop_sources(matrices);
        assert!(!dense.is_empty() && !quantized.is_empty());
        dense.iter().chain(&quantized).for_each(check);
    }
}
