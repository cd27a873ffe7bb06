//! Flags of speculative decoding, with llama.cpp's names and defaults.

use std::path::PathBuf;

use clap::ValueEnum;
use stonechat::DraftSource;
use stonechat::llm::{
    DraftLength, Drafter, ModelDrafter, NGramMod, NGramSimple, Session, SessionOptions,
    StateOptions,
};

use super::{Loaded, RunArgs};
use crate::completions::language_names;
use crate::find_model;
use crate::headings::SPECULATION;

/// Flags of speculative decoding.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = SPECULATION)]
pub(crate) struct SpeculationArgs {
    /// Draft model: a smaller model of the same vocabulary
    ///
    /// The draft is verified in one step of the model; the text is the same as without it. `serve` uses it for every model
    /// of its vocabulary.
    #[arg(long, value_name = "MODEL", add = language_names())]
    model_draft: Option<String>,
    /// Source of drafts: none, ngram-simple, ngram-mod or draft-simple
    ///
    /// ngram-simple repeats what followed the last tokens earlier in the text, ngram-mod looks them up in a hash table of
    /// all texts so far, draft-simple is the model of --model-draft, with which it is the default.
    #[arg(long, value_name = "TYPE", value_enum, hide_possible_values = true)]
    spec_type: Option<SpecType>,
    /// Maximum tokens of a draft [default: 3; ngram-simple: 48; ngram-mod: 64]
    #[arg(long, visible_alias = "draft-max", value_name = "N")]
    spec_draft_n_max: Option<usize>,
    /// Minimum tokens of a draft [default: 0; ngram-mod: 48]
    #[arg(long, visible_alias = "draft-min", value_name = "N")]
    spec_draft_n_min: Option<usize>,
    /// Tokens of an n-gram [default: 12; ngram-mod: 24]
    #[arg(long, value_name = "N")]
    spec_ngram_size_n: Option<usize>,
    /// Tokens of a draft of n-grams, the same as --spec-draft-n-max, which wins
    #[arg(long, value_name = "M")]
    spec_ngram_size_m: Option<usize>,
}

/// Values of `--spec-type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SpecType {
    None,
    NgramSimple,
    NgramMod,
    DraftSimple,
}

/// Limit of a draft: a step has this many rows of logits.
const MAX_DRAFT: usize = 256;

impl SpeculationArgs {
    /// Checks the flags.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let (max, min) = (self.length().max, self.length().min);
        anyhow::ensure!(
            max <= MAX_DRAFT,
            usage_error!("--spec-draft-n-max: expected at most {MAX_DRAFT}, got {max}")
        );
        anyhow::ensure!(
            min <= max,
            usage_error!(
                "--spec-draft-n-min: expected at most the {max} of --spec-draft-n-max, got {min}"
            )
        );
        anyhow::ensure!(
            self.ngram_len() > 0,
            usage_error!("--spec-ngram-size-n: expected at least 1, got 0")
        );
        match (self.kind(), &self.model_draft) {
            (SpecType::DraftSimple, None) => anyhow::bail!(usage_error!(
                "--spec-type draft-simple: expected --model-draft with the draft model"
            )),
            (SpecType::NgramSimple | SpecType::NgramMod, Some(_)) => anyhow::bail!(usage_error!(
                "--model-draft: expected --spec-type draft-simple or no --spec-type"
            )),
            _ => Ok(()),
        }
    }

    /// Type of drafts.
    fn kind(&self) -> SpecType {
        self.spec_type.unwrap_or(match self.model_draft {
            Some(_) => SpecType::DraftSimple,
            None => SpecType::None,
        })
    }

    /// Length of drafts.
    fn length(&self) -> DraftLength {
        let (length, ngram) = match self.kind() {
            SpecType::None => return DraftLength { max: 0, min: 0 },
            SpecType::NgramSimple => (NGramSimple::default().length, self.spec_ngram_size_m),
            SpecType::NgramMod => (NGramMod::LENGTH, self.spec_ngram_size_m),
            SpecType::DraftSimple => (ModelDrafter::LENGTH, None),
        };
        let max = self.spec_draft_n_max.or(ngram).unwrap_or(length.max);
        DraftLength { max, min: self.spec_draft_n_min.unwrap_or(length.min.min(max)) }
    }

    /// Tokens of an n-gram.
    fn ngram_len(&self) -> usize {
        self.spec_ngram_size_n.unwrap_or(match self.kind() {
            SpecType::NgramMod => NGramMod::N,
            _ => NGramSimple::default().n,
        })
    }

    /// Sizes of a session that has room for drafts.
    pub(super) fn session(&self, options: SessionOptions) -> SessionOptions {
        SessionOptions { n_draft: self.length().max, ..options }
    }

    /// Source of drafts; `find` finds the draft model.
    pub(crate) fn source(
        &self,
        find: impl FnOnce(&str) -> anyhow::Result<PathBuf>,
    ) -> anyhow::Result<Option<DraftSource>> {
        self.check()?;
        let (length, n) = (self.length(), self.ngram_len());
        Ok(match (self.kind(), &self.model_draft) {
            (SpecType::NgramSimple, _) => Some(DraftSource::NGramSimple(NGramSimple { n, length })),
            (SpecType::NgramMod, _) => Some(DraftSource::NGramMod { n, length }),
            (SpecType::DraftSimple, Some(name)) => {
                Some(DraftSource::Model { path: find(name)?, length })
            }
            _ => None,
        })
    }

    /// Sets the drafter of a session. The result holds the devices of a draft model.
    pub(super) fn set_drafter(
        &self,
        run: &RunArgs,
        session: &mut Session,
    ) -> anyhow::Result<Option<Loaded>> {
        let Some(source) = self.source(find_model::find)? else { return Ok(None) };
        let Some((path, length)) = source.model() else {
            session.set_drafter(source.n_grams());
            return Ok(None);
        };
        let target = StateOptions { n_sequences: 1, ..session.options() };
        let loaded = run.load(path, |config| ModelDrafter::state_options(target, config))?;
        let model = loaded.model.clone();
        let options = ModelDrafter::state_options(target, model.config());
        let drafter = ModelDrafter::new(model, session.model(), length, options)?;
        session.set_drafter(Some(Drafter::Model(Box::new(drafter))));
        Ok(Some(loaded))
    }
}
