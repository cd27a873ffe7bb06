//! Grammars of a model: its vocabulary for grammars, and those that were compiled last.
//!
//! An agent sends the same tools with every request; compiling their grammar takes longer than rendering the prompt.
#![cfg_attr(
    not(feature = "grammar"),
    expect(unreachable_code, reason = "a build without grammars has none")
)]

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use stonechat_sampling::{CompiledGrammar, GrammarSource, TokenTable};
use stonechat_text::Tokenizer;

use crate::Error;
use crate::model::vocabulary;

/// Maximum grammars that are kept.
const MAX_GRAMMARS: usize = 8;
/// Maximum bytes of the source of a grammar that is kept: tools of an agent have some ten thousands.
const MAX_SOURCE_BYTES: usize = 256 << 10;

/// Vocabulary and compiled grammars, the last used one at the end.
#[derive(Debug, Default)]
pub(crate) struct Grammars {
    /// Built for the first grammar.
    table: OnceLock<TokenTable>,
    kept: Kept<GrammarSource, CompiledGrammar>,
    /// Grammars of tools some of whose schemas cannot be grammars, which takes a compilation of each tool to find out.
    loosened: Kept<String, Arc<CompiledGrammar>>,
}

impl Grammars {
    /// Compiles a grammar, unless it is kept.
    ///
    /// # Errors
    /// If the grammar is invalid, or the vocabulary has no end token.
    pub(crate) fn compile(
        &self,
        source: &GrammarSource,
        (tokenizer, vocab_size): (&Tokenizer, usize),
    ) -> Result<CompiledGrammar, Error> {
        if let Some(grammar) = self.find(source) {
            return Ok(grammar);
        }
        let table = match self.table.get() {
            Some(table) => table,
            None => {
                let table = vocabulary::token_table(tokenizer, vocab_size)?;
                self.table.get_or_init(|| table)
            }
        };
        let grammar = CompiledGrammar::new(source, table)?;
        if source.text().len() <= MAX_SOURCE_BYTES {
            keep(&self.kept, source.clone(), grammar.clone());
        }
        Ok(grammar)
    }

    /// Grammar of a source that is kept.
    fn find(&self, source: &GrammarSource) -> Option<CompiledGrammar> {
        find(&self.kept, source)
    }

    /// Grammar of tools, named by `key`, that [`keep_loosened`](Self::keep_loosened) has kept.
    pub(crate) fn loosened(&self, key: &String) -> Option<Arc<CompiledGrammar>> {
        find(&self.loosened, key)
    }

    /// Number of grammars that [`keep_loosened`](Self::keep_loosened) has kept.
    pub(crate) fn n_loosened(&self) -> usize {
        self.loosened.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Keeps the grammar of tools some of whose schemas cannot be grammars.
    pub(crate) fn keep_loosened(&self, key: String, grammar: Arc<CompiledGrammar>) {
        if key.len() <= MAX_SOURCE_BYTES {
            keep(&self.loosened, key, grammar);
        }
    }
}

/// Grammars with what names each, the last used one at the end.
type Kept<K, G> = Mutex<VecDeque<(K, G)>>;

/// Keeps a grammar in place of the one used least lately.
fn keep<K, G>(kept: &Kept<K, G>, key: K, grammar: G) {
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.len() == MAX_GRAMMARS {
        kept.pop_front();
    }
    kept.push_back((key, grammar));
}

/// Grammar that is kept; it is the last used one then.
fn find<K: PartialEq, G: Clone>(kept: &Kept<K, G>, key: &K) -> Option<G> {
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    let at = kept.iter().position(|(known, _)| known == key)?;
    let found = kept.remove(at)?;
    let grammar = found.1.clone();
    kept.push_back(found);
    Some(grammar)
}

#[cfg(test)]
mod tests {
    use stonechat_formats::ModelFile;
    use stonechat_sampling::GrammarSource;

    use super::{Grammars, MAX_GRAMMARS};
    use crate::model::vocabulary;

    #[test]
    fn the_last_grammars_are_kept() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../test-data/golden/llm/llama.gguf");
        let tokenizer = vocabulary::tokenizer(&ModelFile::open(path).unwrap()).unwrap();
        let grammars = Grammars::default();
        let source = |n: usize| GrammarSource::Regex(format!("a{{{}}}", n + 1));
        for n in 0..MAX_GRAMMARS {
            grammars.compile(&source(n), (&tokenizer, 64)).unwrap();
        }
        assert!(grammars.find(&source(0)).is_some());
        grammars.compile(&source(MAX_GRAMMARS), (&tokenizer, 64)).unwrap();
        assert!(grammars.find(&source(1)).is_none(), "the one used least lately");
        assert!(grammars.find(&source(0)).is_some());
        assert!(grammars.compile(&GrammarSource::Regex("(".to_owned()), (&tokenizer, 64)).is_err());
    }
}
