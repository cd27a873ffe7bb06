use crate::wgpu::Variant;

/// Parses and validates a shader as a device would; `None` if it is right.
fn problem(text: &str) -> Option<String> {
    let module = match naga::front::wgsl::parse_str(text) {
        Ok(module) => module,
        Err(error) => return Some(error.emit_to_string(text)),
    };
    let flags = naga::valid::ValidationFlags::all();
    let capabilities =
        naga::valid::Capabilities::SUBGROUP | naga::valid::Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    let mut validator = naga::valid::Validator::new(flags, capabilities);
    validator.validate(&module).err().map(|error| error.emit_to_string(text))
}

#[test]
fn every_shader_is_valid() {
    for variant in Variant::ALL {
        for source in super::sources(variant) {
            if let Some(problem) = problem(source.text()) {
                panic!("{}: {problem}", source.name());
            }
        }
    }
}
