//! Shaders composed as text from WGSL files, and the kernels compiled from them.
//!
//! ```text
//! shader    = constants | `Params` | entry point (`main`, reductions) | files of the kernel (bindings, `kernel_main`)
//! binding 0 = `p`: uniform struct `Params` of at most PARAM_BYTES, generated from the Rust struct
//! binding i = storage buffer `access[i - 1]`
//! ```

use std::fmt::Write;

use super::adapter::CoopMatrices;
use super::params::ParamLayout;

/// Size of the uniform binding.
pub(super) const PARAM_BYTES: u64 = 128;

/// Access of a kernel to a storage buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// `var<storage, read>`.
    Read,
    /// `var<storage, read_write>`.
    Write,
}

impl Access {
    /// Concatenates two lists.
    ///
    /// # Panics
    /// If `N` is not the sum of their lengths.
    #[must_use]
    pub const fn concat<const N: usize>(first: &[Self], more: &[Self]) -> [Self; N] {
        assert!(N == first.len() + more.len());
        let mut all = [Self::Read; N];
        let (head, tail) = all.split_at_mut(first.len());
        head.copy_from_slice(first);
        tail.copy_from_slice(more);
        all
    }
}

/// Differences between the WGSL of naga and of browsers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dialect {
    /// Whether subgroup operations need a directive, as in browsers; naga refuses it.
    pub enables_subgroups: bool,
    /// Whether `dot4I8Packed` is built in; else its text is appended.
    pub has_int8_dot: bool,
}

impl Dialect {
    /// naga's, outside of browsers.
    pub const NATIVE: Self = Self { enables_subgroups: false, has_int8_dot: true };
    /// That of a browser with every language feature in use.
    pub const BROWSER: Self = Self { enables_subgroups: true, has_int8_dot: true };
}

/// WGSL of a kernel, with its bindings.
#[derive(Debug, Clone)]
pub struct Source {
    name: String,
    params: ParamLayout,
    access: &'static [Access],
    text: String,
    has_subgroups: bool,
    has_matrices: bool,
}

impl Source {
    /// Empty text with uniform parameters `params` and storage buffers `access`; `name` is for logs and profiles.
    #[must_use]
    pub fn new(name: impl Into<String>, params: ParamLayout, access: &'static [Access]) -> Self {
        let (text, has_subgroups, has_matrices) = (String::new(), false, false);
        Self { name: name.into(), params, access, text, has_subgroups, has_matrices }
    }

    /// Enables subgroup operations.
    #[must_use]
    pub fn with_subgroups(self) -> Self {
        Self { has_subgroups: true, ..self }
    }

    /// Enables cooperative matrices: types `MatrixA`, `MatrixB` (f16) and `MatrixC` (f32) of `SIDE` rows and columns,
    /// constants `SIDE` and `SUBGROUP`.
    #[must_use]
    pub fn with_matrices(mut self, matrices: CoopMatrices) -> Self {
        self.has_matrices = true;
        let side = matrices.side;
        for (name, scalar) in [("A", "f16"), ("B", "f16"), ("C", "f32")] {
            // Writing to a string cannot fail.
            let _ = writeln!(
                self.text,
                "alias Matrix{name} = coop_mat{side}x{side}<{scalar}, {name}>;"
            );
        }
        self.constant("SIDE", side).constant("SUBGROUP", matrices.subgroup)
    }

    /// Appends `const NAME: u32 = value;`.
    #[must_use]
    pub fn constant(mut self, name: &str, value: u32) -> Self {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "const {name}: u32 = {value}u;");
        self
    }

    /// Appends the text of a file.
    #[must_use]
    pub fn file(mut self, text: &str) -> Self {
        self.text.push_str(text);
        self
    }

    /// Appends the text of a file a second time, for other data: functions and constants that it defines, and
    /// identifiers in `names`, get the suffix `_suffix`.
    #[must_use]
    pub fn variant_of(mut self, text: &str, names: &[&str], suffix: &str) -> Self {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let defined = |line: &'_ str| {
            let rest = line.strip_prefix("fn ").or_else(|| line.strip_prefix("const "))?;
            rest.split(|c| !is_word(c)).next().map(str::to_owned)
        };
        let mut all: Vec<String> = text.lines().filter_map(defined).collect();
        all.extend(names.iter().map(|&name| name.to_owned()));
        for piece in text.split_inclusive(|c| !is_word(c)) {
            let word = piece.trim_end_matches(|c| !is_word(c));
            self.text.push_str(word);
            if all.iter().any(|name| name == word) {
                self.text.push('_');
                self.text.push_str(suffix);
            }
            self.text.push_str(&piece[word.len()..]);
        }
        self
    }

    /// Appends the text of a file with blocks unrolled: lines between `//@ repeat NAME` and `//@ end` are repeated
    /// `counts[NAME]` times, with `@` replaced by 0, 1, ... Drivers keep an array of matrices in registers only if
    /// its indices are constants.
    ///
    /// # Panics
    /// If a `NAME` is not in `counts`.
    #[must_use]
    pub fn unrolled(mut self, text: &str, counts: &[(&str, u32)]) -> Self {
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let Some(name) = line.trim_start().strip_prefix("//@ repeat ") else {
                self.text.push_str(line);
                self.text.push('\n');
                continue;
            };
            let count = counts.iter().find(|count| count.0 == name);
            let (_, n) = *count.unwrap_or_else(|| panic!("{}: `{name}` has no count", self.name));
            let body: Vec<_> =
                lines.by_ref().take_while(|line| line.trim_start() != "//@ end").collect();
            for i in 0..n {
                for line in &body {
                    self.text.push_str(&line.replace('@', &i.to_string()));
                    self.text.push('\n');
                }
            }
        }
        self
    }

    /// Name of the kernel.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The WGSL for a compiler.
    #[must_use]
    pub fn text(&self, dialect: Dialect) -> String {
        let mut text = String::new();
        if self.has_matrices {
            text.push_str("enable f16;\nenable wgpu_cooperative_matrix;\n");
        }
        if self.has_subgroups && dialect.enables_subgroups {
            text.push_str("enable subgroups;\n");
        }
        text.push_str(&self.text);
        if !dialect.has_int8_dot && self.text.contains("dot4I8Packed(") {
            text.push_str(include_str!("int8_dot.wgsl"));
        }
        text
    }

    /// Layout of the Rust struct of the uniform parameters.
    #[must_use]
    pub fn params(&self) -> ParamLayout {
        self.params
    }

    pub(super) fn has_matrices(&self) -> bool {
        self.has_matrices
    }

    /// Accesses to the storage buffers, from binding 1 on.
    #[must_use]
    pub fn access(&self) -> &'static [Access] {
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
    /// Size of the uniform parameters.
    pub(super) param_bytes: usize,
}

#[cfg(test)]
mod tests {
    use super::{Dialect, Source};
    use crate::wgpu::ParamLayout;

    const NO_PARAMS: ParamLayout = ParamLayout { bytes: 0, fields: &[] };

    #[test]
    fn definitions_get_the_suffix_in_a_variant_of_a_file() {
        let text =
            "const A: u32 = 1u;\nfn f(a: u32) -> u32 {\n    return a + A * p.n + f_of(A);\n}\n";
        let source = Source::new("test", NO_PARAMS, &[]).variant_of(text, &["n"], "b");
        let expected = "const A_b: u32 = 1u;\nfn f_b(a: u32) -> u32 {\n    return a + A_b * p.n_b + f_of(A_b);\n}\n";
        assert_eq!(source.text(Dialect::NATIVE), expected);
    }

    #[test]
    fn repeated_lines_are_numbered() {
        let text =
            "a\n    //@ repeat N\n    b[@] = @u;\n    //@ end\nc@\n//@ repeat M\nd\n//@ end\n";
        let source = Source::new("test", NO_PARAMS, &[]).unrolled(text, &[("M", 1), ("N", 2)]);
        assert_eq!(source.text(Dialect::NATIVE), "a\n    b[0] = 0u;\n    b[1] = 1u;\nc@\nd\n");
    }
}
