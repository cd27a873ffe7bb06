//! Shaders put together from plain WGSL files, and the kernels compiled from them.
//!
//! A shader is constants, then files, in that order. Binding 0 of every kernel is `p`, a uniform struct of at most
//! [`PARAM_BYTES`] that the file declares; the buffers follow from binding 1.

use std::fmt::Write;

use super::adapter::Matrices;

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

impl Access {
    /// The uses of `first` and then of `more` buffers, `N` together.
    ///
    /// # Panics
    /// If they are not as many.
    #[must_use]
    pub const fn joined<const N: usize>(first: &[Self], more: &[Self]) -> [Self; N] {
        assert!(N == first.len() + more.len());
        let mut all = [Self::Read; N];
        let (head, tail) = all.split_at_mut(first.len());
        head.copy_from_slice(first);
        tail.copy_from_slice(more);
        all
    }
}

/// The text of a kernel.
#[derive(Debug, Clone)]
pub struct Source {
    name: String,
    access: &'static [Access],
    text: String,
    has_matrices: bool,
}

impl Source {
    /// A kernel whose buffers, from binding 1 on, are used like `access`. `name` is what logs print.
    #[must_use]
    pub fn new(name: impl Into<String>, access: &'static [Access]) -> Self {
        Self { name: name.into(), access, text: String::new(), has_matrices: false }
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

    /// The same with cooperative matrices allowed: types `MatrixA`, `MatrixB` and `MatrixC` of `SIDE` rows, and
    /// `SUBGROUP`.
    #[must_use]
    pub fn with_matrices(mut self, matrices: Matrices) -> Self {
        self.text.insert_str(0, "enable f16;\nenable wgpu_cooperative_matrix;\n");
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

    /// Appends the content of a file.
    #[must_use]
    pub fn file(mut self, text: &str) -> Self {
        self.text.push_str(text);
        self
    }

    /// Appends the content of a file once more, for other data: the functions and constants that it defines, and what
    /// `names` lists, are called `NAME_suffix` in it.
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

    /// Appends the content of a file in which what stands between the lines `//@ repeat NAME` and `//@ end` is
    /// written as often as `counts` says, with the numbers from 0 for every `@`: drivers keep an
    /// array of matrices in registers only where its indices are constants.
    ///
    /// # Panics
    /// If the file repeats what `counts` does not name.
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

    pub(super) fn has_matrices(&self) -> bool {
        self.has_matrices
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

#[cfg(test)]
mod tests {
    use super::Source;

    #[test]
    fn what_a_file_defines_is_called_otherwise_in_a_variant_of_it() {
        let text =
            "const A: u32 = 1u;\nfn f(a: u32) -> u32 {\n    return a + A * p.n + f_of(A);\n}\n";
        let source = Source::new("test", &[]).variant_of(text, &["n"], "b");
        let expected = "const A_b: u32 = 1u;\nfn f_b(a: u32) -> u32 {\n    return a + A_b * p.n_b + f_of(A_b);\n}\n";
        assert_eq!(source.text(), expected);
    }

    #[test]
    fn repeated_lines_are_numbered() {
        let text =
            "a\n    //@ repeat N\n    b[@] = @u;\n    //@ end\nc@\n//@ repeat M\nd\n//@ end\n";
        let source = Source::new("test", &[]).unrolled(text, &[("M", 1), ("N", 2)]);
        assert_eq!(source.text(), "a\n    b[0] = 0u;\n    b[1] = 1u;\nc@\nd\n");
    }
}
