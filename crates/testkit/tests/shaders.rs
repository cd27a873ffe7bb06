//! Every shader of the wgpu backend, without a GPU: naga accepts it, and its uniform parameters have the layout of the
//! Rust struct.
#![cfg(feature = "wgpu")]

use naga::valid::ModuleInfo;
use naga::{Module, TypeInner};
use stonechat_compute::wgpu::{CoopMatrices, Dialect, ParamLayout, Source, Variant, ops};

/// Parses and validates a shader as a device would.
fn validated(text: &str) -> Result<(Module, ModuleInfo), String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|error| error.emit_to_string(text))?;
    let flags = naga::valid::ValidationFlags::all();
    let capabilities = naga::valid::Capabilities::SUBGROUP
        | naga::valid::Capabilities::SHADER_FLOAT16
        | naga::valid::Capabilities::SHADER_FLOAT16_IN_FLOAT32
        | naga::valid::Capabilities::COOPERATIVE_MATRIX;
    let mut validator = naga::valid::Validator::new(flags, capabilities);
    let info = validator.validate(&module).map_err(|error| error.emit_to_string(text))?;
    Ok((module, info))
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
    for has_int8_dot in [true, false] {
        match validated(&source.text(Dialect { has_int8_dot, ..Dialect::NATIVE })) {
            Ok((module, _)) => check_params(source.name(), &module, source.params()),
            Err(problem) => panic!("{}: {problem}", source.name()),
        }
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

/// Bytes of workgroup memory that the entry point of a shader uses.
fn workgroup_bytes(module: &Module, info: &ModuleInfo) -> u32 {
    let mut layouter = naga::proc::Layouter::default();
    layouter.update(module.to_ctx()).expect("types of a valid module");
    let entry_point = info.get_entry_point(0);
    let all = module.global_variables.iter();
    let used = all.filter(|(handle, variable)| {
        variable.space == naga::AddressSpace::WorkGroup && !entry_point[*handle].is_empty()
    });
    used.map(|(_, variable)| layouter[variable.ty].size.next_multiple_of(16)).sum()
}

#[test]
fn every_shader_fits_the_limits_that_any_browser_has() {
    let (max_bytes, max_invocations, max_buffers) = (16 << 10, 256, 8);
    for &variant in Variant::ALL {
        let dense = ops::sources(variant);
        for source in dense.iter().chain(&stonechat_quant::wgpu::sources(variant)) {
            let name = source.name();
            let shader = validated(&source.text(Dialect::NATIVE)).expect("a valid shader");
            let (module, info) = &shader;
            let bytes = workgroup_bytes(module, info);
            assert!(bytes <= max_bytes, "{name}: {bytes} bytes of workgroup memory");
            let [x, y, z] = module.entry_points[0].workgroup_size;
            assert!(x * y * z <= max_invocations, "{name}: {x} x {y} x {z} invocations");
            // Fused kernels have more buffers; `nn/src/wgpu/capabilities.rs` leaves them out.
            let is_fused = ["group", "gate_up", "normed"].iter().any(|part| name.contains(part));
            let n = source.access().len();
            assert!(n <= max_buffers || is_fused, "{name}: {n} storage buffers");
        }
    }
}
