//! Flags of speculative decoding, with llama.cpp's names and defaults.

use clap::ValueEnum;
use stonechat::llm::{
    DraftLength, Drafter, Model, ModelDrafter, NGramMod, NGramSimple, Session, SessionOptions,
    StateOptions,
};

use super::{Loaded, RunArgs};
use crate::UsageError;
use crate::completions::language_names;
use crate::find_model;
use crate::headings::SPECULATION;

/// Flags of speculative decoding.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = SPECULATION)]
pub(crate) struct SpeculationArgs {
    /// Draft model: a smaller model of the same vocabulary
    ///
    /// Its tokens are verified in one step of the model; the text is the same as without it.
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
pub(crate) enum SpecType {
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
        const NO_MODEL: UsageError =
            UsageError("--spec-type draft-simple: expected --model-draft with the draft model");
        const NO_USE: UsageError =
            UsageError("--model-draft: expected --spec-type draft-simple or no --spec-type");
        let (max, min) = (self.length().max, self.length().min);
        anyhow::ensure!(
            max <= MAX_DRAFT,
            "--spec-draft-n-max: expected at most {MAX_DRAFT}, got {max}"
        );
        anyhow::ensure!(
            min <= max,
            "--spec-draft-n-min: expected at most the {max} of --spec-draft-n-max, got {min}"
        );
        anyhow::ensure!(self.ngram_len() > 0, "--spec-ngram-size-n: expected at least 1, got 0");
        match (self.kind(), &self.model_draft) {
            (SpecType::DraftSimple, None) => Err(NO_MODEL.into()),
            (SpecType::NgramSimple | SpecType::NgramMod, Some(_)) => Err(NO_USE.into()),
            _ => Ok(()),
        }
    }

    /// Source of drafts.
    pub(crate) fn kind(&self) -> SpecType {
        self.spec_type.unwrap_or(match self.model_draft {
            Some(_) => SpecType::DraftSimple,
            None => SpecType::None,
        })
    }

    /// Length of drafts.
    pub(crate) fn length(&self) -> DraftLength {
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
    pub(crate) fn ngram_len(&self) -> usize {
        self.spec_ngram_size_n.unwrap_or(match self.kind() {
            SpecType::NgramMod => NGramMod::N,
            _ => NGramSimple::default().n,
        })
    }

    /// Sizes of a session that has room for drafts.
    pub(super) fn session(&self, options: SessionOptions) -> SessionOptions {
        SessionOptions { n_draft: self.length().max, ..options }
    }

    /// Sets the drafter of a session. The result holds the devices of a draft model.
    pub(super) fn set_drafter(
        &self,
        run: &RunArgs,
        session: &mut Session,
    ) -> anyhow::Result<Option<Loaded>> {
        let (length, n) = (self.length(), self.ngram_len());
        let (drafter, loaded) = match (self.kind(), &self.model_draft) {
            (SpecType::NgramSimple, _) => (Drafter::NGramSimple(NGramSimple { n, length }), None),
            (SpecType::NgramMod, _) => (Drafter::NGramMod(NGramMod::new(n, length)), None),
            (SpecType::DraftSimple, Some(name)) => {
                let n_ctx = session.n_ctx();
                let path = find_model::find(name)?;
                let loaded = run.load(&path, |_| StateOptions::new(n_ctx))?;
                let model: Model = loaded.model.clone();
                let drafter = ModelDrafter::new(model, session.model(), length, n_ctx)?;
                (Drafter::Model(Box::new(drafter)), Some(loaded))
            }
            _ => return Ok(None),
        };
        session.set_drafter(Some(drafter));
        Ok(loaded)
    }
}
