//! The normalizer for English: contractions and abbreviations written out, numbers in digits,
//! American spelling.

use std::collections::HashMap;

use super::basic::{Brackets, remove_symbols_and_diacritics};
use super::numbers::NumberNormalizer;
use super::pattern::{Pattern, words};

/// British to American spellings.
const SPELLINGS: &str = include_str!("../../../assets/english.json");

/// Contractions, titles and tenses with what they stand for, in the order of replacement.
const REPLACEMENTS: [(&str, &str); 49] = [
    (r"\bwon't\b", "will not"),
    (r"\bcan't\b", "can not"),
    (r"\blet's\b", "let us"),
    (r"\bain't\b", "aint"),
    (r"\by'all\b", "you all"),
    (r"\bwanna\b", "want to"),
    (r"\bgotta\b", "got to"),
    (r"\bgonna\b", "going to"),
    (r"\bi'ma\b", "i am going to"),
    (r"\bimma\b", "i am going to"),
    (r"\bwoulda\b", "would have"),
    (r"\bcoulda\b", "could have"),
    (r"\bshoulda\b", "should have"),
    (r"\bma'am\b", "madam"),
    (r"\bmr\b", "mister "),
    (r"\bmrs\b", "missus "),
    (r"\bst\b", "saint "),
    (r"\bdr\b", "doctor "),
    (r"\bprof\b", "professor "),
    (r"\bcapt\b", "captain "),
    (r"\bgov\b", "governor "),
    (r"\bald\b", "alderman "),
    (r"\bgen\b", "general "),
    (r"\bsen\b", "senator "),
    (r"\brep\b", "representative "),
    (r"\bpres\b", "president "),
    (r"\brev\b", "reverend "),
    (r"\bhon\b", "honorable "),
    (r"\basst\b", "assistant "),
    (r"\bassoc\b", "associate "),
    (r"\blt\b", "lieutenant "),
    (r"\bcol\b", "colonel "),
    (r"\bjr\b", "junior "),
    (r"\bsr\b", "senior "),
    (r"\besq\b", "esquire "),
    (r"'d been\b", " had been"),
    (r"'s been\b", " has been"),
    (r"'d gone\b", " had gone"),
    (r"'s gone\b", " has gone"),
    (r"'d done\b", " had done"),
    (r"'s got\b", " has got"),
    (r"n't\b", " not"),
    (r"'re\b", " are"),
    (r"'s\b", " is"),
    (r"'d\b", " would"),
    (r"'ll\b", " will"),
    (r"'t\b", " not"),
    (r"'ve\b", " have"),
    (r"'m\b", " am"),
];

/// `EnglishTextNormalizer`.
#[derive(Debug)]
pub(super) struct EnglishNormalizer {
    brackets: Brackets,
    before_symbols: Vec<(Pattern, &'static str)>,
    numbers: NumberNormalizer,
    spellings: HashMap<String, String>,
    after_spellings: Vec<(Pattern, &'static str)>,
}

impl EnglishNormalizer {
    /// # Panics
    /// If the table of spellings that is part of the program is no JSON object of strings.
    pub(super) fn new() -> Self {
        let compiled = |rules: &[(&str, &'static str)]| {
            rules.iter().map(|&(python, by)| (Pattern::new(python), by)).collect::<Vec<_>>()
        };
        let mut before_symbols = compiled(&[(r"\b(hmm|mm|mhm|mmm|uh|um)\b", ""), (r"\s+'", "'")]);
        before_symbols.extend(compiled(&REPLACEMENTS));
        // Commas within numbers, and periods that are no decimal points.
        before_symbols.extend(compiled(&[(r"(\d),(\d)", "${1}${2}"), (r"\.([^0-9]|$)", " ${1}")]));
        Self {
            brackets: Brackets::new(),
            before_symbols,
            numbers: NumberNormalizer::new(),
            spellings: serde_json::from_str(SPELLINGS).expect("the asset is a JSON object"),
            // Symbols of numbers that stand at no number.
            after_spellings: compiled(&[
                (r"[.$¢€£]([^0-9])", " ${1}"),
                (r"([^0-9])%", "${1} "),
                (r"\s+", " "),
            ]),
        }
    }

    pub(super) fn normalize(&self, text: &str) -> String {
        let replace_all = |text: String, rules: &[(Pattern, &str)]| {
            rules.iter().fold(text, |text, (pattern, by)| pattern.replace(&text, by))
        };
        let text = self.brackets.remove(&text.to_lowercase());
        let text = replace_all(text, &self.before_symbols);
        let text = remove_symbols_and_diacritics(&text, ".%$¢€£");
        let text = self.spell(&self.numbers.normalize(&text));
        replace_all(text, &self.after_spellings)
    }

    /// American spelling, one space between words.
    pub(super) fn spell(&self, text: &str) -> String {
        let spelled = words(text).map(|word| self.spellings.get(word).map_or(word, String::as_str));
        spelled.collect::<Vec<_>>().join(" ")
    }
}
