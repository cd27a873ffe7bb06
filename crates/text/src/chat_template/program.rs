//! Instructions of a chat template: compiled once, run for every rendering.

use std::collections::BTreeMap;

use minijinja::machinery::{CodeGenerator, Instructions, eval, make_string_output, parse};
use minijinja::value::Value;
use minijinja::{AutoEscape, Environment};

use super::{failure, hooks};
use crate::error::Result;

const NAME: &str = "chat";

/// Instructions of the template and of its blocks.
type Code<'a> = (Instructions<'a>, BTreeMap<&'a str, Instructions<'a>>);

self_cell::self_cell! {
    /// The engine's instructions borrow names and texts from the source.
    struct Compiled {
        owner: String,
        #[covariant]
        dependent: Code,
    }
}

/// A compiled template with its source.
pub(super) struct Program(Compiled);

impl Program {
    /// Compiles `source` in the syntax of `env`, its operators replaced by [`hooks`].
    ///
    /// # Errors
    /// [`Error::ChatTemplate`](crate::Error::ChatTemplate) with the line.
    pub(super) fn compile(source: String, env: &Environment<'_>) -> Result<Self> {
        let compiled = Compiled::try_new(source, |source| {
            let tree =
                parse(source, NAME, env.syntax().clone()).map_err(|error| failure(&error))?;
            let mut generator = CodeGenerator::new(NAME, source);
            generator.compile_stmt(&hooks::hook(&tree)?);
            Ok(generator.finish())
        });
        compiled.map(Self)
    }

    pub(super) fn source(&self) -> &str {
        self.0.borrow_owner()
    }

    /// Text that the template prints for `variables`. The limits of `env` hold for each run.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`](super::ChatTemplate::render).
    pub(super) fn run(&self, env: &Environment<'_>, variables: Value) -> Result<String> {
        let (instructions, blocks) = self.0.borrow_dependent();
        let mut text = String::new();
        let mut output = make_string_output(&mut text);
        eval(env, instructions, variables, blocks, &mut output, AutoEscape::None)
            .map_err(|error| failure(&error))?;
        drop(output);
        Ok(text)
    }
}
