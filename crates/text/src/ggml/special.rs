//! Special tokens by role: named by the file, else found by their text.
//!
//! Source: `llama_vocab::impl::load` of llama.cpp `src/llama-vocab.cpp`.

use std::collections::BTreeSet;

use super::GgmlVocabulary;
use super::attributes::Attributes;
use super::pre_types::PreType;
use super::tokens::Tokens;

/// Fill-in-the-middle tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FimTokens {
    /// Before the text that precedes the gap.
    pub pre: u32,
    /// Before the text that follows the gap.
    pub suf: u32,
    /// Before the text that fills the gap.
    pub mid: u32,
    /// Padding.
    pub pad: Option<u32>,
    /// Before the name of a repository.
    pub rep: Option<u32>,
    /// Before the name of a file.
    pub sep: Option<u32>,
}

/// Special tokens by role.
#[derive(Debug, Clone, Default)]
pub(crate) struct Special {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) eot: Option<u32>,
    pub(crate) eom: Option<u32>,
    pub(crate) unk: Option<u32>,
    pub(crate) sep: Option<u32>,
    pub(crate) fim: Option<FimTokens>,
    /// Tokens after which nothing is generated.
    pub(crate) ends: BTreeSet<u32>,
}

const EOT: [&str; 11] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];
const EOM: [&str; 1] = ["<|eom_id|>"];
const FIM_PRE: [&str; 8] = [
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "<|prefix|>",
];
const FIM_SUF: [&str; 8] = [
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "<|suffix|>",
];
const FIM_MID: [&str; 8] = [
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "<|middle|>",
];
const FIM_PAD: [&str; 5] = ["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"];
const FIM_REP: [&str; 5] = ["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];
const FIM_SEP: [&str; 1] = ["<|file_sep|>"];
/// Texts that end a generation wherever they are tokens.
const ENDS: [&str; 22] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];
/// Parts of gpt-oss's format that are text to be shown.
const SHOWN: [&str; 4] = ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

impl Special {
    /// Roles by text alone, where a file names none.
    pub(crate) fn by_text(id_of: impl Fn(&str) -> Option<u32>) -> Self {
        let first = |texts: &[&str]| texts.iter().find_map(|&text| id_of(text));
        let (pad, rep, sep) = (first(&FIM_PAD), first(&FIM_REP), first(&FIM_SEP));
        let mut special = Self { eot: first(&EOT), eom: first(&EOM), ..Self::default() };
        if let (Some(pre), Some(suf), Some(mid)) =
            (first(&FIM_PRE), first(&FIM_SUF), first(&FIM_MID))
        {
            special.fim = Some(FimTokens { pre, suf, mid, pad, rep, sep });
        }
        special.ends.extend([pad, rep, sep].into_iter().flatten());
        special.ends.extend(ENDS.iter().filter_map(|text| id_of(text)));
        let not_ends = special.not_ends(&id_of);
        special.ends.retain(|id| !not_ends.contains(&Some(*id)));
        special
    }

    /// Tokens that end no generation if certain other ends exist: `<|end|>` where it ends a message
    /// and not the turn, and `</s>` where it is text.
    fn not_ends(&self, id_of: impl Fn(&str) -> Option<u32>) -> [Option<u32>; 2] {
        let is_end = |text: &str| id_of(text).filter(|id| self.ends.contains(id));
        let any = |texts: [&str; 2]| texts.iter().any(|text| is_end(text).is_some());
        let has_channels = any(["<|return|>", "<|flush|>"]) && any(["<|call|>", "<|calls|>"]);
        let has_other_ends = any(["<|tool_response>", "<|plamo:eos|>"]);
        [is_end("<|end|>").filter(|_| has_channels), is_end("</s>").filter(|_| has_other_ends)]
    }
}

/// Token of a role: `named`, else the first of `texts` in the vocabulary, which becomes a control token.
fn role(tokens: &mut Tokens, named: Option<u32>, texts: &[&str]) -> Option<u32> {
    if named.is_some() {
        return named;
    }
    let id = texts.iter().find_map(|text| tokens.id(text))?;
    tokens.attributes_mut(id).set(Attributes::CONTROL, true);
    Some(id)
}

impl Special {
    pub(super) fn find(
        vocabulary: &GgmlVocabulary<'_>,
        pre_type: Option<&PreType>,
        tokens: &mut Tokens,
    ) -> Self {
        let mut special = defaults(vocabulary, pre_type);
        let in_range = |id: &u32| (*id as usize) < tokens.len();
        special.bos = vocabulary.bos.or(special.bos.filter(in_range));
        special.eos = vocabulary.eos.or(special.eos.filter(in_range));
        special.unk = vocabulary.unk.or(special.unk.filter(in_range));
        special.sep = vocabulary.sep.or(special.sep.filter(in_range));
        special.eot = role(tokens, vocabulary.eot, &EOT);
        special.eom = role(tokens, vocabulary.eom, &EOM);
        let pre = role(tokens, vocabulary.fim_pre, &FIM_PRE);
        let suf = role(tokens, vocabulary.fim_suf, &FIM_SUF);
        let mid = role(tokens, vocabulary.fim_mid, &FIM_MID);
        let pad = role(tokens, vocabulary.fim_pad, &FIM_PAD);
        let rep = role(tokens, vocabulary.fim_rep, &FIM_REP);
        let sep = role(tokens, vocabulary.fim_sep, &FIM_SEP);
        if let (Some(pre), Some(suf), Some(mid)) = (pre, suf, mid) {
            special.fim = Some(FimTokens { pre, suf, mid, pad, rep, sep });
        }
        special.ends.extend([pad, rep, sep].into_iter().flatten());
        special.find_ends(tokens);
        special
    }

    fn find_ends(&mut self, tokens: &mut Tokens) {
        for text in ENDS {
            let Some(id) = tokens.id(text) else { continue };
            self.ends.insert(id);
            tokens.attributes_mut(id).set(Attributes::CONTROL, true);
        }
        for text in SHOWN {
            let Some(id) = tokens.id(text) else { continue };
            *tokens.attributes_mut(id) = Attributes::USER_DEFINED;
        }
        self.ends.extend([self.eos, self.eot, self.eom].into_iter().flatten());
        let [message_end, text_end] = self.not_ends(|text| tokens.id(text));
        if let Some(id) = message_end {
            self.ends.remove(&id);
            *tokens.attributes_mut(id) = Attributes::USER_DEFINED;
        }
        if let Some(id) = text_end {
            self.ends.remove(&id);
            *tokens.attributes_mut(id) = Attributes::NORMAL;
        }
    }
}

/// Default ids of llama.cpp for files that name none.
fn defaults(vocabulary: &GgmlVocabulary<'_>, pre_type: Option<&PreType>) -> Special {
    let (bos, eos, unk, sep) = match &*vocabulary.model {
        "llama" => (Some(1), Some(2), Some(0), None),
        "bert" => (Some(101), None, Some(100), Some(102)),
        "t5" => (None, Some(1), Some(2), None),
        "gemma4" => (None, None, None, None),
        _ => (Some(11), Some(11), None, None),
    };
    let bos = bos.filter(|_| !pre_type.is_some_and(|pre_type| pre_type.no_default_bos));
    Special { bos, eos, unk, sep, ..Special::default() }
}

/// Sets the flags to strip adjacent white space, which files do not store. `matched`: tokens
/// matched as a whole.
pub(super) fn set_strip_flags(
    vocabulary: &GgmlVocabulary<'_>,
    matched: &[u32],
    tokens: &mut Tokens,
) {
    let pre = vocabulary.pre.as_deref().unwrap_or_default();
    let architecture = vocabulary.architecture.as_deref().unwrap_or_default();
    let name = vocabulary.name.as_deref().unwrap_or_default().to_lowercase();
    let mut set = |text: &str, flag, value| {
        if let Some(id) = tokens.id(text) {
            tokens.attributes_mut(id).set(flag, value);
        }
    };
    let has_mask = ["jina-v2-de", "jina-v2-es", "jina-v2-code"].iter().any(|n| pre.contains(n))
        || ["nomic-bert-moe", "jina-bert-v3"].iter().any(|n| architecture.contains(n));
    if has_mask {
        set("<mask>", Attributes::LSTRIP, true);
    } else if name.contains("phi-3") || name.contains("phi3") {
        for &id in matched {
            tokens.attributes_mut(id).set(Attributes::RSTRIP, true);
        }
        let mut set = |text: &str, value| {
            if let Some(id) = tokens.id(text) {
                tokens.attributes_mut(id).set(Attributes::RSTRIP, value);
            }
        };
        set("</s>", true);
        ["<unk>", "<s>", "<|endoftext|>"].iter().for_each(|text| set(text, false));
    } else if name.contains("modern-bert") {
        set("[MASK]", Attributes::LSTRIP, true);
    }
}
