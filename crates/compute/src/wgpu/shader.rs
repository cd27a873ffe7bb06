//! Shaders put together from plain WGSL files, and the kernels compiled from them.
//!
//! A shader is constants, then files, in that order. Binding 0 of every kernel is `p`, a uniform struct of at most
//! [`PARAM_BYTES`] that the file declares; the buffers follow from binding 1.

use std::fmt::Write;

/// Bytes of the parameters of a dispatch that a kernel sees.
pub(super) const PARAM_BYTES: u64 = 128;

/// How a kernel uses a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// `var<storage, read>`.
    Read,
    /// `var<storage, read_write>`.
    Write,
}

/// The text of a kernel.
#[derive(Debug, Clone)]
pub struct Source {
    name: String,
    access: &'static [Access],
    text: String,
}

impl Source {
    /// A kernel whose buffers, from binding 1 on, are used like `access`. `name` is what logs print.
    #[must_use]
    pub fn new(name: impl Into<String>, access: &'static [Access]) -> Self {
        Self { name: name.into(), access, text: String::new() }
    }

    /// The same with the operations of subgroups allowed; before any other text.
    #[must_use]
    pub fn with_subgroups(mut self) -> Self {
        // naga has them without asking and does not know the directive yet; browsers insist on it.
        if cfg!(target_arch = "wasm32") {
            self.text.insert_str(0, "enable subgroups;\n");
        }
        self
    }

    /// Appends `const NAME: u32 = value;`.
    #[must_use]
    pub fn constant(mut self, name: &str, value: u32) -> Self {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "const {name}: u32 = {value}u;");
        self
    }

    /// Appends the content of a file.
    #[must_use]
    pub fn file(mut self, text: &str) -> Self {
        self.text.push_str(text);
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The whole WGSL.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn access(&self) -> &'static [Access] {
        self.access
    }
}

/// A compiled kernel.
#[derive(Debug, PartialEq, Eq)]
pub struct Kernel {
    pub(super) name: String,
    pub(super) pipeline: ::wgpu::ComputePipeline,
    pub(super) layout: ::wgpu::BindGroupLayout,
    pub(super) access: &'static [Access],
}
