//! Uniform parameters of kernels: `repr(C)` structs, from which the WGSL struct `Params` of a shader is generated.
//!
//! `testkit/tests/shaders.rs` asserts that the offsets of the members agree with those of WGSL.

/// Member of a parameter struct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParamField {
    /// Name of the member, equal in Rust and WGSL.
    pub name: &'static str,
    /// Rust type: `u32`, `f32`, `[u32; 4]` for `vec4<u32>`, or the name of a struct of the same name in WGSL.
    pub ty: &'static str,
    /// Byte offset.
    pub offset: usize,
}

/// Layout of a parameter struct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParamLayout {
    /// Size of the Rust struct.
    pub bytes: usize,
    /// Members in order.
    pub fields: &'static [ParamField],
}

impl ParamLayout {
    /// WGSL of the struct `Params` and of its variable `p`.
    pub(super) fn wgsl(&self) -> String {
        let field = |field: &ParamField| {
            let ty = if field.ty == "[u32; 4]" { "vec4<u32>" } else { field.ty };
            format!("    {}: {ty},\n", field.name)
        };
        let fields: String = self.fields.iter().map(field).collect();
        format!("struct Params {{\n{fields}}}\n@group(0) @binding(0) var<uniform> p: Params;\n")
    }
}

/// Uniform parameters of a kernel, declared by [`kernel_params!`](crate::kernel_params).
pub trait KernelParams: bytemuck::Pod {
    /// Layout of the struct.
    const LAYOUT: ParamLayout;
}

/// Declares a `repr(C)` struct of kernel parameters and implements [`KernelParams`] for it.
#[doc(hidden)]
#[macro_export]
macro_rules! kernel_params {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $ty:ty,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, ::bytemuck::Pod, ::bytemuck::Zeroable)]
        #[repr(C)]
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $ty,)*
        }

        impl $crate::wgpu::KernelParams for $name {
            const LAYOUT: $crate::wgpu::ParamLayout = $crate::wgpu::ParamLayout {
                bytes: ::std::mem::size_of::<Self>(),
                fields: &[$($crate::wgpu::ParamField {
                    name: stringify!($field),
                    ty: stringify!($ty),
                    offset: ::std::mem::offset_of!($name, $field),
                }),*],
            };
        }
    };
}
